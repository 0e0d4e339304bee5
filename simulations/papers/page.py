"""A paper's page: a verdict for each claim, then every figure with pictures and table, from stored results alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from markupsafe import Markup

from fedsw._tools import files
from fedsw._tools.text import number, table
from fedsw.runs.report.document import Document, PageSection
from simulations.papers.compared import anchor_of
from simulations.papers.figure import Row
from simulations.papers.origin import randomness, why_nominal
from simulations.papers.pictures import pictures_of
from simulations.papers.study import Measurement, Study, measured
from simulations.papers.verdicts import anchor, load_page, verdicts

PRINTED, SHORTENED, METHOD, BEST = "paper's settings", "shortened", "paper's method", "best"
"""Names of series: every setting that the paper prints; the same but for fewer rounds or passes; the paper's bound,
clip and accountant where it prints no settings, or not all; ours at the same (ε, δ)."""
COMPUTED, CODED = "computed", "as coded"
_THEIRS = (PRINTED, SHORTENED, METHOD, CODED)


def write_page(paper: str, studies: Sequence[Study], images: Path, page: Path) -> Path:
    """Write a paper's page; the pictures that it has are those in the folder `images`."""
    page.parent.mkdir(parents=True, exist_ok=True)
    files.replace(page, page_text(paper, studies, images, page).encode())
    return page


def page_text(paper: str, studies: Sequence[Study], images: Path, page: Path) -> str:
    """A paper's page in Markdown: verdicts, what has none or is not reproduced, every figure; no paragraph twice."""
    written = load_page(paper)
    unsaid = "\n".join(f"- {each.where}: {each.reason}" for each in written.unsaid)
    without = [PageSection("Without a verdict", (unsaid,))] if unsaid else []
    if written.older:
        older = table(("there", "here"), [(each.where, each.here or "the same") for each in written.older])
        without.append(PageSection("The ICML version", (older,)))
    first = PageSection("Not reproduced", ("\n".join(f"- {item}" for item in written.not_reproduced), *written.notes))
    figures = [section(study, pictures_of(images, study.figure.id), page) for study in studies]
    anchors = [Markup('<a id="{}"></a>').format(anchor(study.figure.id)) for study in studies]
    before = [
        PageSection(each.heading, (*each.parts, mark)) for each, mark in zip([first, *figures], anchors, strict=False)
    ]
    verdict = verdicts(written, {study.figure.id: study for study in studies})
    whole = Document(
        written.title,
        verdict,
        (f"{written.about} {_READ}",),
        sections=(*without, *before, *figures[len(studies) - 1 :]),
    ).markdown()
    return _narrow(whole)


def _narrow(text: str) -> str:
    """Markdown whose tables have no spaces around bars, and numbers none around ±: a cell is one word, not three."""
    lines = (
        re.sub(r" ?(?<!\\)\| ?", "|", line.replace(" ± ", "±")) if line.startswith("|") else line
        for line in text.splitlines()
    )
    return "\n".join(lines) + "\n"


def goals(studies: Iterable[Study]) -> str:
    """One table of every row that has a goal."""
    rows = [
        [
            study.figure.id,
            row.what,
            _paper(row),
            _against(_theirs(study, row), row),
            _plain(measured(study, row, COMPUTED if study.figure.compute else BEST)),
            _goal(study, row),
            _kind(study, row),
        ]
        for study in studies
        for row in study.figure.rows
        if row.goal is not None or row.within is not None
    ]
    headings = ("figure", "what", "paper", "paper's settings or method", BEST, "goal of best", "randomness")
    return table(headings, rows)


_READ = "Series, settings, dates, machines, and how to read tables: [settings](settings.md)."


def section(study: Study, pictures: Sequence[Path], page: Path) -> PageSection:
    """A figure's part of the page."""
    figure = study.figure
    seeded = figure.nominal or any(why_nominal(result.about) for result in study.results)
    nominal = " *Nominal.*" if seeded else ""
    parts = [f"[`{figure.id}`](settings.md#{anchor_of(figure.id)}). {figure.caption}{nominal}"]
    if study.absent:
        parts.append(f"*Runs without a result yet: {study.absent}.*")
    parts += [_image(figure.id, path, page) for path in pictures]
    if figure.rows:
        parts.append(_table(study))
    parts += _notes(figure.rows)
    return PageSection.of(f"{figure.source.partition(', ')[2] or figure.source}: {figure.title}", parts)


def _table(study: Study) -> str:
    """The rows of a figure, without columns that are empty in all; what all rows share is said above."""
    rows = study.figure.rows
    shown = [name for name in _series(study) if any(measured(study, row, name) for row in rows)]
    every = [measured(study, row, name) for name in shown for row in rows]
    seeds = {each.seeds for each in every if each is not None}
    several = seeds.pop() if len(seeds) == 1 else 1
    tolerances = {row.within for row in rows if row.within is not None}
    tolerance = f" (to {tolerances.pop():g})" if len(tolerances) == 1 else ""
    columns = [
        ("what", [_short(row.what) for row in rows]),
        *([(f"paper{tolerance}", [_paper(row) for row in rows])] if any(row.paper is not None for row in rows) else []),
        *((name, [_cell(study, row, name).removesuffix(f" ({several})") for row in rows]) for name in shown),
        *([("goal of best", [_goal(study, row) for row in rows])] if any(row.goal is not None for row in rows) else []),
    ]
    headings = [name for name, _ in columns]
    lines = table(headings, zip(*(cells for _, cells in columns), strict=True))
    return f"Means of {several} seeds:\n\n{lines}" if several > 1 else lines


def _notes(rows: Sequence[Row]) -> list[str]:
    """What explains numbers, each note once, with the rows that it is of."""
    notes = dict.fromkeys(row.note for row in rows if row.note)
    return [f"{'; '.join(_short(row.what) for row in rows if row.note == note)}: {note}" for note in notes]


def _short(words: str) -> str:
    """`α=0.75, ε=1` for `α = 0.75, ε = 1`."""
    return words.replace(" = ", "=")


def _series(study: Study) -> list[str]:
    return [COMPUTED] if study.figure.compute else study.figure.columns


def _paper(row: Row) -> str:
    return "–" if row.paper is None else row.paper if isinstance(row.paper, str) else number(row.paper)


def _cell(study: Study, row: Row, series: str) -> str:
    found = measured(study, row, series)
    return _against(found, row) if series in _THEIRS else _plain(found)


def _plain(found: Measurement | None) -> str:
    return "–" if found is None else str(found)


def _theirs(study: Study, row: Row) -> Measurement | None:
    """The nearest to the paper that there is."""
    found = [measured(study, row, name) for name in _THEIRS]
    return next((each for each in found if each is not None), None)


def _against(found: Measurement | None, row: Row) -> str:
    """A run of the paper's method, and where it shall agree with the paper whether it does."""
    if found is None:
        return "–"
    if row.within is None or not isinstance(row.paper, float):
        return str(found)
    return f"{'≈' if abs(found.mean - row.paper) <= row.within else '≠'}{found}"


def _goal(study: Study, row: Row) -> str:
    if row.goal is None:
        return "–"
    found = measured(study, row, COMPUTED if study.figure.compute else BEST)
    words = f"{'≥' if row.better == 'higher' else '≤'}{row.goal:g}"
    if found is None:
        return words
    met = found.mean >= row.goal if row.better == "higher" else found.mean <= row.goal
    return f"{words}: {'met' if met else 'missed'}"


def _kind(study: Study, row: Row) -> str:
    """The randomness of what a row shows: of the runs at its point, not of others that the figure has."""
    if study.figure.compute is not None:
        return "nominal" if study.figure.nominal else COMPUTED if study.results else "not run"
    return randomness(result for result in study.of(None, **row.at) if result.series in (*_THEIRS, BEST))


def _image(figure: str, path: Path, page: Path) -> str:
    part = path.stem.removeprefix(figure.replace("/", "-")).strip("-").replace("-", " ")
    return Markup(f"![{figure}{', ' if part else ''}{part}]({Path(os.path.relpath(path, page.parent)).as_posix()})")
