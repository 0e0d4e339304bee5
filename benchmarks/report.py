"""The three pages of results from the JSON of the benchmarks; every number in them comes from there.

    python -m benchmarks.report [--keep runs/compare/<task>/<number>-<time> ...]

`--keep` takes over the tables and figures of comparisons; then the pages are printed. The site writes them anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import machine, sections
from fedsw._tools.text import table as markdown_table
from simulations.papers.__main__ import COMMITTED
from simulations.papers.figure import figures, load_figure
from simulations.papers.page import goals
from simulations.papers.study import read_study

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

HEAD = """# Models

How good models are under a guarantee: `python -m benchmarks.report`, from `benchmarks/results/`. *Nominal* runs are seeded: they show an effect and have no guarantee. Metrics are of
held-out records, outside the guarantee. Every ε is for the release of one run: runs on the same records compose, and so do those that settings were tuned on.
"""

GENERATORS_HEAD = """# Generators and synthetic tables

`python -m benchmarks.report`; how to read it: [models](models.md).
"""

RUNNING_HEAD = """# Start-up, real processes, faults

`python -m benchmarks.report`; how to read it: [models](models.md). Times beside other tools: [performance](performance.md).
"""

PAPERS = """
## The papers, figure by figure

`python -m simulations.papers --all`. A page for each paper: {pages}. *Best* is ours at the same (ε, δ); one seed where no deviation is given. How settings were
chosen is on each page; those of `sketches/images` by the accuracy on MNIST's held-out images.
"""


def main() -> None:
    """Take over what is named, and print the pages."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--keep", type=Path, nargs="*", default=[], metavar="DIR", help="folders of comparisons")
    for folder in arguments.parse_args().keep:
        sections.keep_comparison(folder, RESULTS)
    print(models(), generators(), running(), sep="\n")


def models() -> str:
    """Accuracy under a guarantee."""
    return _page([HEAD, *_papers(), *_images(), _comparison("ring")])


def generators() -> str:
    """Generators and synthetic tables."""
    return _page([GENERATORS_HEAD, *_generators()])


def running() -> str:
    """Start-up, real processes and faults."""
    return _page([RUNNING_HEAD, *_running()])


def _page(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def _images() -> list[str]:
    stored = _load("image_classifiers")
    return [] if stored is None else [sections.image_classifiers(stored), _machines({"image_classifiers": stored})]


def _generators() -> list[str]:
    names = ("one_message", "synthetic_tables", "federated_tables")
    measured = {name: stored for name in names if (stored := _load(name))}
    return [*(getattr(sections, name)(stored) for name, stored in measured.items()), _machines(measured)]


def _running() -> list[str]:
    measured = {name: stored for name in ("startup", "deployed") if (stored := _load(name))}
    parts = [getattr(sections, name)(stored) for name, stored in measured.items()]
    broken = _load("chaos") or {}
    for kind, section in (
        ("deployed", sections.chaos_deployed),
        ("masked", sections.chaos_masked),
    ):
        if kind in broken:
            parts.append(section(broken[kind]))
            measured[f"chaos, {kind}"] = broken[kind]
    return [*parts, _comparison("fair-classification"), _machines(measured)]


def _comparison(task: str) -> str:
    stored = _load(f"compare-{task}")
    return sections.comparison(stored) if stored else ""


def _papers() -> list[str]:
    studies = [read_study(COMMITTED, load_figure(name)) for name in figures()]
    papers = dict.fromkeys(study.figure.paper for study in studies)
    pages = ", ".join(f"[{paper.upper()}](../papers/{paper}.md)" for paper in papers)
    return [PAPERS.format(pages=pages), goals(studies)]


def _load(name: str) -> Any:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _machines(measured: dict[str, dict[str, Any]]) -> str:
    """A table of where and when each benchmark was measured."""
    rows = [
        (name, stored["machine"]["date"][:16].replace("T", " "), machine.words(stored["machine"]))
        for name, stored in measured.items()
    ]
    return "\n## Machines\n\n" + markdown_table(("benchmark", "when", "machine and versions"), rows)


if __name__ == "__main__":
    main()
