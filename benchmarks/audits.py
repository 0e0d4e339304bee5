"""The audits that are kept, and the table of docs/audits.md; every number in it comes from their JSON.

    python -m benchmarks.audits [--run [NAME ...]] [--keep NAME=audits/<folder>/<time> ...]

`--run` attacks the shipped experiments on their worst neighbours (all, or those named); `--keep` takes over another
finding of `fedsw audit`, under a name. Both put JSON under benchmarks/results/audits/ and figures under docs/images/.
Without either the table alone is written again.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from fedsw.console import json_text, number
from fedsw.experiment import load_experiment
from simulations.audit.finding import read_finding
from simulations.catalogue import find_experiment

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "audits"
IMAGES = ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "audits.md"
BEGIN, END = "<!-- table: python -m benchmarks.audits -->", "<!-- end of table -->"

CANARIES = {
    "fair-classification-canary": ("fair-classification", []),
    "fair-classification-canary-full": ("fair-classification", ["training.batch_fraction=1", "training.rounds=1"]),
    "swae-digits-canary": ("swae-digits", []),
}


def main() -> None:
    """Run what is asked, take over what is named, and write the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--run", nargs="*", choices=sorted(CANARIES), default=None, metavar="NAME")
    arguments.add_argument("--keep", nargs="*", default=[], metavar="NAME=DIR")
    given = arguments.parse_args()
    if given.run is not None:
        for name in given.run or CANARIES:
            attack(name)
    for item in given.keep:
        name, _, folder = item.partition("=")
        keep(name, Path(folder))
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}\n\n{table(RESULTS)}\n\n{END}{tail}", encoding="utf-8")


def attack(name: str) -> None:
    """Run one canary audit and keep it."""
    from simulations.audit import canary

    experiment, changes = CANARIES[name]
    began = time.perf_counter()
    found = canary.audit(load_experiment(find_experiment(experiment), changes), show=True)
    found.details.update(settings=changes, seconds=round(time.perf_counter() - began, 1))
    with tempfile.TemporaryDirectory() as folder:
        found.write(Path(folder))
        keep(name, Path(folder))


def keep(name: str, folder: Path) -> None:
    """Take over a finding's JSON and, where there is one, its figure."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    found = read_finding(folder / "finding.json")
    (RESULTS / f"{name}.json").write_text(json_text(found) + "\n", encoding="utf-8")
    if (figure := folder / "finding.png").exists():
        shutil.copyfile(figure, IMAGES / f"audit-{name}.png")


def table(folder: Path) -> str:
    """A row for every finding in a folder, by kind and name."""
    found = [(path.stem, read_finding(path)) for path in sorted(folder.glob("*.json"))]
    order = ("canary", "one-run", "record")
    found.sort(key=lambda pair: (order.index(pair[1]["audit"]), pair[0]))
    rows = [
        "| audit | experiment | p | T | δ | claimed ε | bracket from | instance ε | shown ε | confidence | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*rows, *(_row(name, finding) for name, finding in found)])


def _row(name: str, found: dict[str, Any]) -> str:
    settings = " ".join(found.get("settings", []))
    confidence = found["confidence"]
    cells = [
        f"[{found['audit']}](../benchmarks/results/audits/{name}.json)",
        f"{Path(str(found['subject'])).name}{f' `{settings}`' if settings else ''}",
        number(found.get("sampling_rate")),
        str(found.get("rounds", "–")),
        number(found["delta"]),
        number(found["claimed_epsilon"]),
        number(found.get("bracket_lower")),
        number(found.get("instance_epsilon")),
        number(found["shown_epsilon"]),
        "–" if confidence is None else f"{confidence:g}",
        f"{'passed' if found['passed'] else 'FAILED'}: {found['verdict']}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
