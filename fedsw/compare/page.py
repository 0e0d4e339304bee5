"""A comparison as a page, and in a notebook: its tables, its figure, and what is beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsw.compare.figure import draw_utility
from fedsw.compare.grid import read_grid
from fedsw.compare.table import epsilon_of, make_table, spread
from fedsw.report.facts import Facts
from fedsw.report.page.page import Document, Listed, Page, Part, Section
from fedsw.report.page.pictures import picture
from fedsw.report.progress import metric_name
from fedsw.text import Short, measured, upward

_LEFT_OUT = (
    "What was measured on private records without noise is left out of this page. The comparison's folder has it: for "
    "its reader ε = ∞."
)


@dataclass(frozen=True, repr=False)
class Comparison(Short):
    """What has finished of a comparison: `table` is what table.json holds.

    Attributes:
        private: whether some of its metrics are of records that may be private: no page shows them.
    """

    directory: Path
    table: Mapping[str, Any]
    private: bool

    def _facts(self) -> Mapping[str, object]:
        cells = self.table["cells"]
        return {
            "task": self.table["task"],
            "verdict": self.verdict,
            "cells": f"{cells['completed']} of {cells['all']} completed, {cells['failed']} failed",
            "directory": self.directory,
        }

    @property
    def verdict(self) -> str:
        """The best mean among the methods of the first guarantee, beside a constant."""
        metric, better = self.table["metric"], self.table["better"]
        group = next((each for each in self.table["groups"] if each["guarantee"]), None)
        if self.private or group is None:
            return "No method that was measured where all may see it has a guarantee."
        known = [row for row in group["rows"] if (row["metrics"].get(metric) or {}).get("mean") is not None]
        if not known:
            return "Nothing was measured."
        best = (max if better == "higher" else min)(known, key=lambda row: float(row["metrics"][metric]["mean"]))
        words = (
            f"{metric_name(metric)} {spread(best['metrics'][metric])}, by {best['method']} at ε = {epsilon_of(best)}"
        )
        constant = (self.table.get("constant") or {}).get("metrics", {}).get(metric)
        beside = "" if constant is None else f"; a constant has {measured(constant, None)}"
        return f"The best mean under the first guarantee below: {words}{beside}."

    def document(self) -> Document:
        """Write it as it is read; times and traffic are in the folder."""
        table, figure = self.table, None if self.private else draw_utility(self.table)
        drawn = () if figure is None else (picture(figure, name="utility", caption=_CAPTION, says=self.verdict),)
        return Document(
            title=f"Comparison: {table['task']}",
            verdict=self.verdict,
            begins=(
                f"Utility is {metric_name(table['metric'])}, {table['better']} is better. {table['caption']}",
                *drawn,
            ),
            warnings=tuple(self._warnings()),
            sections=(
                *(Section.of(_begun(group["heading"]), [self._rows(group)]) for group in table["groups"]),
                Section.of("Beside them", [] if self.private else list(self._beside())),
            ),
        )

    def page(self) -> Page:
        """Make its page."""
        return self.document().page()

    def _warnings(self) -> Iterator[str]:
        if self.private:
            yield _LEFT_OUT
        if self.table["nominal"]:
            yield "nominal: seeds make sampling and noise reproducible, and who knows them can undo them"
        left = self.table["cells"]["all"] - self.table["cells"]["completed"] - self.table["cells"]["failed"]
        if left:
            yield f"{left} of {self.table['cells']['all']} runs have not been made"
        if failed := self.table["cells"]["failed"]:
            yield f"{failed} of {self.table['cells']['all']} runs failed"

    def _rows(self, group: Mapping[str, Any]) -> Part:
        metrics = [] if self.private else self.table["metrics"]
        return Listed(
            "Methods, ε and metrics",
            Facts.of(
                ("method", "ε", "δ", *map(metric_name, metrics), "rounds", "seeds"),
                [
                    (
                        row["method"],
                        epsilon_of(row),
                        upward(row["delta"], 2),
                        *(spread(row["metrics"].get(name)) for name in metrics),
                        row["rounds"],
                        row["seeds"],
                    )
                    for row in group["rows"]
                ],
            ),
        )

    def _beside(self) -> Iterator[Part]:
        reference, constant = self.table.get("reference"), self.table.get("constant")
        if reference:
            rows = [(metric_name(name), spread(value)) for name, value in reference["metrics"].items()]
            yield Listed(f"Without privacy: {reference['what']}", Facts.of(("", ""), rows))
        if constant:
            around = constant.get("intervals") or {}
            rows = [(metric_name(name), measured(each, around.get(name))) for name, each in constant["metrics"].items()]
            yield Listed(f"A constant: {constant['answers']}", Facts.of(("", ""), rows))


def _begun(heading: str) -> str:
    return heading[:1].upper() + heading[1:]


_CAPTION = "Utility against ε. All numbers are in the tables."


def read_comparison(folder: Path) -> Comparison:
    """Read what has finished in the folder of a comparison.

    Raises:
        ValueError: if it holds none.
    """
    private = any(cell.experiment.data.shows_private_rows for cell in read_grid(folder).cells)
    return Comparison(folder, make_table(folder), private)
