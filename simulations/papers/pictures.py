"""Pictures of figures: one file for each that a figure draws, and a contact sheet of a paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsw.runs.report.figures import house_style, new_panels, save
from simulations.papers.figure import figures
from simulations.papers.study import Study
from simulations.papers.work import function

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_COLUMNS = 3
_SHEET_BYTES = 5_000_000
_TILE = (4.2, 3.4)
_FEW_DOTS = 40
"""Dots an inch of what `--quick` draws to try the code: most of its time would go into pixels."""


def draw(study: Study, folder: Path) -> list[Path]:
    """Draw what a figure's results allow, as `<paper>-<figure>[-<part>].png`; nothing for one without results."""
    if study.figure.draw is None or not study.results:
        return []
    from matplotlib import rc_context

    drawing: Callable[[Study], Mapping[str, Drawing]] = function("drawn", study.figure.draw)
    stem = study.figure.id.replace("/", "-")
    with house_style(formulas=True), rc_context({"figure.dpi": _FEW_DOTS} if study.figure.small else {}):
        drawings = drawing(study)
        return [save(picture, folder / f"{'-'.join([stem, *_words(part)])}.png") for part, picture in drawings.items()]


def _words(part: str) -> list[str]:
    """A part's name for a file: "paper's settings" is papers, settings."""
    return part.replace("'", "").split()


def pictures_of(folder: Path, figure: str) -> list[Path]:
    """The pictures of a figure that there are, without those of figures whose names begin with its name."""
    longer = [each for each in figures() if each.startswith(f"{figure}-")]
    found = [path for path in folder.glob(f"{figure.replace('/', '-')}*.png") if _is_of(path, figure)]
    return sorted(path for path in found if not any(_is_of(path, each) for each in longer))


def _is_of(picture: Path, figure: str) -> bool:
    stem = figure.replace("/", "-")
    return picture.stem == stem or picture.stem.startswith(f"{stem}-")


def draw_claims(path: Path) -> Path:
    """Draw how many claims hold, fail and are not tested, from the pages' tables."""
    from simulations.papers.drawn.verdicts import by_paper
    from simulations.papers.verdicts import counted

    with house_style(formulas=True):
        return save(by_paper(counted()), path)


def contact_sheet(pictures: Sequence[tuple[str, Path]], path: Path) -> Path | None:
    """Write all pictures of a paper, small, with their names, into one large picture; None if there are none."""
    if not pictures:
        return None
    from matplotlib.image import imread

    rows = -(-len(pictures) // _COLUMNS)
    with house_style(formulas=True):
        figure, panels = new_panels(rows, _COLUMNS, size=(_TILE[0] * _COLUMNS, _TILE[1] * rows))
        for axes in panels:
            axes.set_axis_off()
        for axes, (name, picture) in zip(panels, pictures, strict=False):
            axes.imshow(imread(picture))
            axes.set_title(name)
        return save(figure, path, most=_SHEET_BYTES)
