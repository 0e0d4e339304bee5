"""The audits that are kept, and the tables of docs/audits.md; every number in it comes from their JSON.

    python -m benchmarks.audits [--run [NAME ...]] [--keep NAME=audits/<folder>/<number>-<time> ...]

`--run` attacks the shipped experiments on their worst neighbours (all, or those named); `--keep` takes over another
finding of `fedsw audit`, under a name. Both put JSON under benchmarks/results/audits/ and figures under docs/images/.
Without either the tables are printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from fedsw._tools.text import downward, json_text, number, upward
from fedsw._tools.text import table as markdown_table
from fedsw.experiment import load_experiment
from fedsw.experiment.load import find_experiment

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "audits"
IMAGES = ROOT / "docs" / "images"

_COLUMNS = (
    "audit", "experiment", "p", "T", "δ", "claimed ε", "bracket from", "instance ε", "shown ε", "confidence", "verdict",
)  # fmt: skip
_ATTACKERS = (
    "run", "canaries", "claimed ε", "final model only: right guesses, shown ε (share)", "all models",
    "published black box",
)  # fmt: skip

CANARIES = {
    "fair-classification-canary": ("fair-classification", []),
    "fair-classification-canary-full": ("fair-classification", ["training.batch_fraction=1", "training.rounds=1"]),
    "swae-digits-canary": ("swae-digits", []),
    "sketch-digits-canary": (
        "sketch-digits",
        ['sketch.stages=[{share=0.5, parts=[{kind="features", map="learnt"}, {kind="moments", map="learnt"}]}]'],
    ),
    "distributed-canary-full": (
        "fair-classification",
        ["privacy.trust=distributed", "federation.clients=4", "training.batch_fraction=1", "training.rounds=1"],
    ),
}


def main() -> None:
    """Run what is asked, take over what is named, and print the tables."""
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
    print(table(RESULTS), attackers(RESULTS), sep="\n\n")


def attack(name: str) -> None:
    """Run one canary audit and keep it."""
    from fedsw.audit import canary

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
    found = json.loads((folder / "finding.json").read_text("utf-8"))
    (RESULTS / f"{name}.json").write_text(json_text(found) + "\n", encoding="utf-8")
    if (figure := folder / "finding.png").exists():
        shutil.copyfile(figure, IMAGES / f"audit-{name}.png")


def table(folder: Path) -> str:
    """A row for every finding in a folder, by kind and name."""
    found = [(path.stem, json.loads(path.read_text("utf-8"))) for path in sorted(folder.glob("*.json"))]
    order = ("canary", "one-run", "record")
    found.sort(key=lambda pair: (order.index(pair[1]["audit"]), pair[0]))
    return markdown_table(_COLUMNS, [_row(name, finding) for name, finding in found])


def attackers(folder: Path) -> str:
    """What each attacker on a training run shows, and its share of the claim, beside the best published share."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text("utf-8"))
        if found["audit"] == "one-run":
            shown = [
                f"{each['correct']} of {each['guesses']}, {downward(each['shown_epsilon'])} ({each['share_of_claimed']:.2f})"
                for each in (found["attackers"]["final"], found["attackers"]["all"])
            ]
            published = found["published"]
            best = f"{published['share']:.2f} of ε = {upward(published['epsilon'])} on {published['data']}"
            rows.append([path.stem, found["canaries"], upward(found["claimed_epsilon"]), *shown, best])
    return markdown_table(_ATTACKERS, rows)


def _subject(found: dict[str, Any]) -> str:
    """The experiment: of a run, its folder is named for it."""
    path = Path(str(found["subject"]))
    return path.parent.name or path.name if found["audit"] == "record" else path.name


def _row(name: str, found: dict[str, Any]) -> list[str]:
    settings = " ".join(found.get("settings", []))
    confidence = found["confidence"]
    return [
        f"[{found['audit']}](../benchmarks/results/audits/{name}.json)",
        f"{_subject(found)}{f' `{settings}`' if settings else ''}",
        number(found.get("sampling_rate")),
        str(found.get("rounds", "–")),
        upward(found["delta"]),
        upward(found["claimed_epsilon"]),
        downward(found.get("bracket_lower")),
        upward(found.get("instance_epsilon")),
        (upward if found["audit"] == "record" else downward)(found["shown_epsilon"]),
        "–" if confidence is None else f"{confidence:g}",
        f"{'passed' if found['passed'] else 'FAILED'}: {found['verdict']}",
    ]


if __name__ == "__main__":
    main()
