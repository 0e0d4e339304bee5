"""A paper's page: every figure with its pictures and its table of three columns, from stored results alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsw import files
from fedsw.markdown import table
from fedsw.text import number
from simulations.papers.figure import Row
from simulations.papers.pictures import pictures_of
from simulations.papers.study import Measurement, Study, measured

PRINTED, BEST = "as printed", "best"
PAPERS = {
    "rll": "Rodríguez-Vítores, Lalanne, Loubes: Learning with Differentially Private (Sliced) Wasserstein Gradients",
    "rr": "Rakotomamonjy, Ralaivola: Differentially Private Sliced Wasserstein Distance",
    "spf": "Sebag and others: Differentially Private Gradient Flow based on the Sliced Wasserstein Distance",
    "rco": "Learning from Locally Privatised Data with Entropic Wasserstein Distances",
    "sketches": "Sketches of slices: what one noised message gives",
}
"""The papers by their short names, and what no paper has."""

_COLUMNS = ("what", "paper", PRINTED, BEST, "goal of best")


def write_page(paper: str, studies: Sequence[Study], images: Path, page: Path) -> Path:
    """Write a paper's page; the pictures that it has are those in the folder `images`."""
    page.parent.mkdir(parents=True, exist_ok=True)
    files.replace(page, page_text(paper, studies, images, page).encode())
    return page


def page_text(paper: str, studies: Sequence[Study], images: Path, page: Path) -> str:
    """A paper's page in Markdown."""
    parts = [f"# {PAPERS.get(paper, paper)}", _ABOUT]
    for study in studies:
        parts += _section(study, pictures_of(images, study.figure.id), page)
    return "\n\n".join(parts) + "\n"


def goals(studies: Iterable[Study]) -> str:
    """One table of every row that has a goal."""
    rows = [
        [study.figure.id, *_line(study, row)]
        for study in studies
        for row in study.figure.rows
        if row.goal is not None or row.within is not None
    ]
    return table(["figure", *_COLUMNS], rows)


_ABOUT = """\
Written by `python -m simulations.papers` from the results in `simulations/papers/results/`; nothing here is typed by
hand. *Paper* is the printed value; *as printed* has the paper's bound, clip, accountant, network and rounds (fewer
where the figure says so), run here; *best* is ours at the same (ε, δ). Sampling and noise are secret unless a line
says "nominal". Metrics are measured on held-out records, outside the guarantee. A number stands for one run; `a ± b
(s)` is the mean and the standard deviation over s seeds. Every run's ε is for its release alone: all the runs of this
page on the same records compose."""


def _section(study: Study, pictures: Sequence[Path], page: Path) -> list[str]:
    figure = study.figure
    parts = [f"## {figure.source}: {figure.title}", f"`python -m simulations.papers {figure.id}`. {figure.caption}"]
    if study.absent:
        parts.append(f"*{study.absent} of its runs have no result yet.*")
    parts += [_image(figure.title, path, page) for path in pictures]
    if figure.rows:
        others = [series.name for series in figure.series if series.name not in (PRINTED, BEST)]
        rows = [[*_line(study, row), *(_plain(measured(study, row, name)) for name in others)] for row in figure.rows]
        parts.append(table([*_COLUMNS, *others], rows))
    parts += [f"{row.what}: {row.note}" for row in figure.rows if row.note]
    parts += [f"*{series.name}*: {series.what}" for series in figure.series if series.what]
    if study.results:
        parts.append(_provenance(study))
    return parts


def _line(study: Study, row: Row) -> list[str]:
    ours = measured(study, row, BEST)
    printed = measured(study, row, PRINTED)
    return [
        row.what,
        "–" if row.paper is None else row.paper if isinstance(row.paper, str) else number(row.paper),
        _against(printed, row.within, row.paper),
        _plain(ours),
        _goal(row, ours),
    ]


def _plain(found: Measurement | None) -> str:
    return "–" if found is None else str(found)


def _against(found: Measurement | None, within: float | None, paper: float | str | None) -> str:
    """As printed, and where it shall agree with the paper whether it does."""
    if found is None:
        return "–"
    if within is None or not isinstance(paper, float):
        return str(found)
    return f"{found} ({'within' if abs(found.mean - paper) <= within else 'not within'} {within:g})"


def _goal(row: Row, found: Measurement | None) -> str:
    if row.goal is None:
        return "–"
    words = f"{'≥' if row.better == 'higher' else '≤'} {row.goal:g}"
    if found is None:
        return words
    met = found.mean >= row.goal if row.better == "higher" else found.mean <= row.goal
    return f"{words}: {'met' if met else 'missed'}"


def _provenance(study: Study) -> str:
    about = [result.about for result in study.results]
    seconds = sum(float(each.get("seconds") or 0) for each in about)
    last = max(about, key=lambda each: str(each.get("date") or ""))
    hardware, versions = last.get("hardware") or {}, last.get("versions") or {}
    nominal = "".join(f" ε is nominal: {why}." for why in dict.fromkeys(map(_nominal, about)) if why)
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    where = f"{hardware.get('machine')}, {hardware.get('cores')} cores, {hardware.get('device', 'cpu')}"
    return f"*{len(about)} results, {seconds / 60:.0f} minutes; {where}; {named}; {last.get('date')}.{nominal}*"


def _nominal(about: Mapping[str, Any]) -> str:
    """Why a result's epsilon is nominal; empty where it is not."""
    stated = (about.get("guarantee") or {}).get("randomness") or "sampling and noise were seeded"
    return str(stated) if about.get("nominal") else ""


def _image(title: str, path: Path, page: Path) -> str:
    return f"![{title}]({Path(os.path.relpath(path, page.parent)).as_posix()})"
