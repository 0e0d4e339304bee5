"""A paper's page: a verdict for each claim, then every figure with pictures and table, from stored results alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedsw._tools import files
from fedsw._tools.text import number, table
from fedsw.runs.page.document import Document, Section
from simulations.papers.figure import Beside, Row, Series
from simulations.papers.pictures import pictures_of
from simulations.papers.study import Measurement, Study, measured
from simulations.papers.verdicts import anchor, load_page, verdicts

PRINTED, SHORTENED, METHOD, BEST = "paper's settings", "shortened", "paper's method", "best"
"""Names of series: every setting that the paper prints; the same but for fewer rounds or passes; the paper's bound,
clip and accountant where it prints no settings, or not all; ours at the same (ε, δ)."""
COMPUTED = "computed"


def write_page(paper: str, studies: Sequence[Study], images: Path, page: Path) -> Path:
    """Write a paper's page; the pictures that it has are those in the folder `images`."""
    page.parent.mkdir(parents=True, exist_ok=True)
    files.replace(page, page_text(paper, studies, images, page).encode())
    return page


def page_text(paper: str, studies: Sequence[Study], images: Path, page: Path) -> str:
    """A paper's page in Markdown: the verdicts, what is not reproduced, then every figure; no paragraph twice."""
    written = load_page(paper)
    said: dict[str, str] = {}
    first = [
        Section("Not reproduced", ("\n".join(f"- {item}" for item in written.not_reproduced), *written.notes)),
        Section("How to read the figures", (_ABOUT, _machines(studies))),
    ]
    figures = [section(study, pictures_of(images, study.figure.id), page, said) for study in studies]
    anchors = [Markup('<a id="{}"></a>').format(anchor(study.figure.id)) for study in studies]
    before = [
        Section(each.heading, (*each.parts, mark)) for each, mark in zip([first[-1], *figures], anchors, strict=False)
    ]
    verdict = verdicts(written, {study.figure.id: study for study in studies})
    return Document(
        written.title, verdict, (written.about,), sections=(first[0], *before, *figures[len(studies) - 1 :])
    ).markdown()


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
            _kind(study),
        ]
        for study in studies
        for row in study.figure.rows
        if row.goal is not None or row.within is not None
    ]
    headings = ("figure", "what", "paper", "paper's settings or method", BEST, "goal of best", "randomness")
    return table(headings, rows)


_ABOUT = """\
Written by `python -m simulations.papers`; no measured number is typed by hand. *paper*: the printed value.
*paper's settings*: every setting that the paper prints. *shortened*: the same but for fewer rounds or passes, with the
noise that ε allows for these. *paper's method*: its bound, clip and accountant, at other settings, where it prints none
or as said. *best*: ours at the same (ε, δ). Sampling and noise are secret unless *nominal*. A number is one run;
`a ± b (s)`: mean and deviation over s seeds. Metrics are of held-out records, outside the guarantee. Every ε is for one
run: runs on the same records compose."""


def section(study: Study, pictures: Sequence[Path], page: Path, said: dict[str, str]) -> Section:
    """A figure's part of the page; `said` are the descriptions of series so far, with the figures that have them."""
    figure = study.figure
    parts = [f"`{figure.id}`. {figure.caption}{_counted(study)}"]
    if study.absent:
        parts.append(f"*Runs without a result yet: {study.absent}.*")
    parts += [_image(figure.id, path, page) for path in pictures]
    if figure.rows:
        shown = [name for name in _series(study) if any(measured(study, row, name) for row in figure.rows)]
        rows = [
            [row.what, _paper(row), *(_cell(study, row, name) for name in shown), _goal(study, row)]
            for row in figure.rows
        ]
        parts.append(table(["what", "paper", *shown, "goal of best"], rows))
    parts += [f"{row.what}: {row.note}" for row in figure.rows if row.note]
    return Section.of(f"{figure.source}: {figure.title}", [*parts, *_described(study, said)])


def _series(study: Study) -> list[str]:
    return [COMPUTED] if study.figure.compute else study.figure.columns


def _described(study: Study, said: dict[str, str]) -> list[str]:
    """What the series with results are; those that an earlier figure has described are named with that figure."""
    known = {*study.series, *(result.series for result in study.derived)}
    columns: list[Series | Beside] = [*study.figure.series, *study.figure.beside]
    series = [each for each in columns if each.what and each.name in known]
    lines = {f"*{each.name}*: {each.what}": f"*{each.name}*" for each in series}
    before = [name for line, name in lines.items() if line in said]
    where = dict.fromkeys(said[line] for line in lines if line in said)
    parts = [line for line in lines if line not in said]
    said.update(dict.fromkeys(parts, study.figure.id))
    if before:
        which = ", ".join(before) if parts else "*Series*"
        parts.append(f"{which}: as in {', '.join(f'[`{each}`](#{anchor(each)})' for each in where)}.")
    return parts


def _paper(row: Row) -> str:
    return "–" if row.paper is None else row.paper if isinstance(row.paper, str) else number(row.paper)


def _cell(study: Study, row: Row, series: str) -> str:
    found = measured(study, row, series)
    return _against(found, row) if series in (PRINTED, SHORTENED, METHOD) else _plain(found)


def _plain(found: Measurement | None) -> str:
    return "–" if found is None else str(found)


def _theirs(study: Study, row: Row) -> Measurement | None:
    """The nearest to the paper that there is."""
    found = [measured(study, row, name) for name in (PRINTED, SHORTENED, METHOD)]
    return next((each for each in found if each is not None), None)


def _against(found: Measurement | None, row: Row) -> str:
    """A run of the paper's method, and where it shall agree with the paper whether it does."""
    if found is None:
        return "–"
    if row.within is None or not isinstance(row.paper, float):
        return str(found)
    return f"{found} ({'within' if abs(found.mean - row.paper) <= row.within else 'not within'} {row.within:g})"


def _goal(study: Study, row: Row) -> str:
    if row.goal is None:
        return "–"
    found = measured(study, row, COMPUTED if study.figure.compute else BEST)
    words = f"{'≥' if row.better == 'higher' else '≤'} {row.goal:g}"
    if found is None:
        return words
    met = found.mean >= row.goal if row.better == "higher" else found.mean <= row.goal
    return f"{words}: {'met' if met else 'missed'}"


def _counted(study: Study) -> str:
    """How many results, how long they took, when the last was made, and why ε is nominal where it is."""
    about = [result.about for result in study.results]
    if not about:
        return ""
    seconds = sum(float(each.get("seconds") or 0) for each in about)
    last = max(str(each.get("date") or "") for each in about)
    words = f" *{len(about)} result{'s' if len(about) > 1 else ''}, {seconds / 60:.0f} minutes, {last[:10]}.*"
    nominal = dict.fromkeys(why for why in map(_nominal, about) if why)
    return words + "".join(f" *Nominal: {why}.*" for why in nominal)


def _kind(study: Study) -> str:
    if study.figure.compute:
        return COMPUTED
    named = {bool(result.about.get("nominal")) for result in study.results}
    if not named:
        return "not run"
    return {True: "nominal", False: "secret"}[named.pop()] if len(named) == 1 else "secret; some nominal"


def _machines(studies: Iterable[Study]) -> str:
    """What all runs of the page were made on."""
    machines: dict[str, None] = {}
    versions: dict[str, dict[str, None]] = {}
    for about in (each.about for study in studies for each in (*study.results, *study.derived) if each.about):
        hardware = about.get("hardware") or {}
        machines[f"{hardware.get('machine')}, {hardware.get('cores')} cores, {hardware.get('device', 'cpu')}"] = None
        for name, version in (about.get("versions") or {}).items():
            versions.setdefault(name, {})[str(version)] = None
    named = ", ".join(f"{name} {' and '.join(known)}" for name, known in versions.items())
    return f"*{'; '.join(machines)}; {named}.*" if machines else ""


def _nominal(about: Mapping[str, Any]) -> str:
    """Why a result's epsilon is nominal; empty where it is not."""
    stated = (about.get("guarantee") or {}).get("randomness") or "sampling and noise were seeded"
    return str(stated) if about.get("nominal") else ""


def _image(figure: str, path: Path, page: Path) -> str:
    part = path.stem.removeprefix(figure.replace("/", "-")).strip("-").replace("-", " ")
    return Markup(f"![{figure}{', ' if part else ''}{part}]({Path(os.path.relpath(path, page.parent)).as_posix()})")
