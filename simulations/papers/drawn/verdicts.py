"""The claims of all papers in one picture: how many hold, fail, and are not tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedsw.runs.report.figures import colour, new_panels
from simulations.papers.verdicts import OURS, VERDICTS, WORDS, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOKS: Mapping[Verdict, tuple[str, str]] = {
    "holds": (colour(0), ""),
    "fails": (colour(1), "//"),
    "scrambled": (colour(2), ".."),
    "not tested": ("0.8", ""),
}
_NAMES = {OURS: "our own, beside"}


def by_paper(counts: Mapping[str, Mapping[Verdict, int]]) -> Figure:
    """A bar a paper, parted by verdict, each part with its number; `counts` by paper and verdict."""
    figure, (axes,) = new_panels(1, 1, size=(6.4, 0.42 * len(counts) + 1.1))
    papers = list(counts)
    ends = [0] * len(papers)
    for verdict in VERDICTS:
        numbers = [counts[paper][verdict] for paper in papers]
        shade, hatch = _LOOKS[verdict]
        bars = axes.barh(papers, numbers, left=ends, color=shade, hatch=hatch, edgecolor="white", label=WORDS[verdict])
        labels = [str(number) if number else "" for number in numbers]
        axes.bar_label(bars, labels, label_type="center", fontsize=8, bbox={"fc": "white", "ec": "none", "pad": 0.8})
        ends = [end + number for end, number in zip(ends, numbers, strict=True)]
    axes.set_yticks(range(len(papers)), [_NAMES.get(paper, paper.upper()) for paper in papers])
    axes.invert_yaxis()
    axes.set_xlabel("claims")
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=len(VERDICTS))
    figure.suptitle("What came of the papers' claims")
    return figure
