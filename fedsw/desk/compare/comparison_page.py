"""A comparison as a page, in a notebook and as figures: utility against epsilon, and what generators make."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.text import Short, measured, number, upward
from fedsw.desk.compare.comparison_grid import read_grid
from fedsw.desk.compare.table import beside_methods, epsilon_of, make_table, names_of, row_cells, spread
from fedsw.runs.report.document import Document, Listed, sections
from fedsw.runs.report.facts import LEFT_OUT
from fedsw.runs.report.figures import (
    MARKERS,
    colour,
    draw_cloud,
    draw_images,
    house_style,
    is_square,
    new_panels,
    picture,
    save,
)
from fedsw.runs.report.metric_names import metric_name
from fedsw.runs.report.render import Page
from fedsw.runs.view import HeldOutOutputs, read_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_CONSTANT = "a constant"
_MOST_IMAGES = 15
_MOST_COLUMNS = 4
_LINE = 0.15
"""Inches that a line of the legend is high."""
_SHARES = {
    *("accuracy", "disparate_impact", "demographic_parity_difference", "equalized_odds_difference", "ks"),
    *("linear_probe_label", "linear_probe_group", "accuracy_generated"),
}
"""Metrics from 0 to 1."""
_BELOW, _ABOVE = -0.02, 1.02


def draw_table(folder: Path, table: Mapping[str, Any]) -> list[Path]:
    """Draw what a table's folder allows: figure.png, and samples.png for models that make points or images."""
    figures = {"figure.png": draw_utility(table), "samples.png": draw_all_samples(folder, table)}
    return [save(figure, folder / name) for name, figure in figures.items() if figure is not None]


@house_style()
def draw_utility(table: Mapping[str, Any]) -> Figure | None:
    """Each metric against epsilon, with its spread over seeds: a curve a method, in its guarantee's line style."""
    if not any(group["rows"] for group in table["groups"]):
        return None
    metrics = table["metrics"]
    lines = sum(len(_wrapped(group["heading"])) for group in table["groups"])
    height = max(4.4, 0.6 + _LINE * lines + _LINE * 1.3 * (len(table["methods"]) + 1))
    figure, panels = new_panels(1, len(metrics), size=(4.6 * len(metrics) + 3.2, height))
    for axes, name in zip(panels, metrics, strict=True):
        arrow = f" ({table['better']} is better)" if name == table["metric"] else ""
        for group_position, group in enumerate(table["groups"]):
            for row_set in _by_method(group["rows"]):
                _draw_curve(axes, row_set, name, table, group_position)
        if (constant := table.get("constant", {}).get("metrics", {}).get(name)) is not None:
            axes.axhline(constant, color="0.55", linestyle=":", linewidth=1.4, label=_CONSTANT)
        axes.set(xscale="log", xlabel="ε", title=metric_name(name, names_of(table)) + arrow)
        error = table.get("standard_errors", {}).get(name)
        if error is not None:
            axes.set_ylabel(f"standard error of one run's held-out records: {number(error, 2)}", fontsize="small")
        axes.set_ylim(*wide_limits(axes.get_ylim(), name, error))
        axes.set_xticks(table["epsilons"], [upward(epsilon) for epsilon in table["epsilons"]])
        axes.set_xticks([], minor=True)
        axes.margins(x=0.12)
    _legend(figure, panels[0], table)
    seeds = f"{table['seeds']} seeds" if table["seeds"] > 1 else "one seed"
    nominal = ", nominal ε" if table["nominal"] else ""
    figure.suptitle(f"{table['task']}: utility against ε, {seeds}{nominal}")
    return figure


def wide_limits(drawn: tuple[float, float], metric: str, error: float | None) -> tuple[float, float]:
    """Limits of an axis that hold what is drawn and are at least as wide as differences that mean something.

    That is six standard errors of the metric on held-out records; a fifth of the whole range of a share; and a tenth
    of its size for any other metric. A share's axis ends a little beyond 0 and 1.
    """
    low, high = drawn
    share = metric in _SHARES
    least = max(6 * (error or 0.0), 0.2 if share else 0.1 * max(abs(low), abs(high)))
    if (lacking := least - (high - low)) > 0:
        low, high = low - lacking / 2, high + lacking / 2
    if share:  # what is too high is added below, and conversely
        floor, ceiling = min(_BELOW, drawn[0]), max(_ABOVE, drawn[1])
        low, high = low - max(0.0, high - ceiling), min(high, ceiling)
        low, high = max(low, floor), min(high + max(0.0, floor - low), ceiling)
    return low, high


@house_style()
def draw_all_samples(folder: Path, table: Mapping[str, Any]) -> Figure | None:
    """Samples of each method at its largest epsilon, first seed: points over held-out ones, or rows of images."""
    rows = [methods[-1] for group in table["groups"] for methods in _by_method(group["rows"])]
    rows.sort(key=lambda row: list(table["methods"]).index(row["method"]))
    made = [(_label(row, table), read_run(folder / row["directories"][0]).outputs) for row in rows]
    samples = [(label, outputs) for label, outputs in made if outputs is not None]
    references = [outputs.extra.get("reference") for _, outputs in samples]
    planar = [reference is not None and reference.shape[1] == 2 for reference in references]
    clouds = [sample for sample, is_planar in zip(samples, planar, strict=True) if is_planar]
    if clouds:
        columns = min(_MOST_COLUMNS, len(clouds))
        high = -(-len(clouds) // columns)
        figure, panels = new_panels(high, columns, size=(3.0 * columns, 3.2 * high + 0.6))
        for axes, (label, outputs) in zip(panels, clouds, strict=False):
            draw_cloud(axes, outputs.values, outputs.extra["reference"])
            axes.set_title(label, fontsize="small")
        for axes in panels[len(clouds) :]:
            axes.set_axis_off()
        panels[0].legend(loc="upper right", markerscale=3, fontsize="x-small")
    else:
        sheets = [(label, images) for label, outputs in samples if (images := _images(outputs)) is not None]
        if not sheets:
            return None
        figure, panels = new_panels(len(sheets), 1, size=(7.0, 0.95 * len(sheets) + 0.6))
        for axes, (label, images) in zip(panels, sheets, strict=True):
            draw_images(axes, images[:_MOST_IMAGES], label)
    figure.suptitle(f"{table['task']}: samples at the largest ε, first seed")
    return figure


def _draw_curve(
    axes: Axes, rows: Sequence[Mapping[str, Any]], metric: str, table: Mapping[str, Any], group: int
) -> None:
    known = [row for row in rows if row["metrics"].get(metric, {}).get("mean") is not None]
    if not known:
        return
    epsilon = np.array([row["epsilon_asked"] for row in known], dtype=np.float64)
    mean = np.array([row["metrics"][metric]["mean"] for row in known])
    sd = np.array([row["metrics"][metric]["sd"] or 0.0 for row in known])
    method = known[0]["method"]
    position = list(table["methods"]).index(method)
    if not np.isfinite(epsilon).all():
        dashes: Any = {"reference": "-", "none": "--"}.get(method, (0, (6, 1.5, 1, 1.5)))
        axes.axhline(mean[0], color="0.3", linestyle=dashes, linewidth=1.2, label=method)
        axes.axhspan(mean[0] - sd[0], mean[0] + sd[0], color="0.3", alpha=0.1, linewidth=0)
        return
    lines = ("-", (0, (4, 1.5)), "-.", ":")
    look: dict[str, Any] = {"color": colour(position), "linestyle": lines[group % 4], "linewidth": 1.6}
    # Past the palette's end colours repeat, with other markers; hollow ones leave coinciding curves visible.
    mark = MARKERS[(position + position // len(MARKERS)) % len(MARKERS)]
    axes.plot(epsilon, mean, marker=mark, markerfacecolor="none", label=method, **look)
    if (sd > 0).any():
        axes.fill_between(epsilon, mean - sd, mean + sd, color=look["color"], alpha=0.12, linewidth=0)
        axes.errorbar(epsilon, mean, yerr=sd, fmt="none", ecolor=look["color"], elinewidth=0.8, capsize=2)


def _legend(figure: Figure, axes: Axes, table: Mapping[str, Any]) -> None:
    from matplotlib.lines import Line2D  # a table without a figure does without matplotlib

    handles, names = axes.get_legend_handles_labels()
    drawn = dict(zip(names, handles, strict=True))
    entries: list[tuple[Any, str]] = []
    for group in table["groups"]:
        present = [rows[0]["method"] for rows in _by_method(group["rows"]) if rows[0]["method"] in drawn]
        if present:
            entries.append((Line2D([], [], linestyle="none"), "\n".join(_wrapped(group["heading"]))))
            entries += [(drawn[method], method) for method in present]
    if _CONSTANT in drawn:
        entries.append((drawn[_CONSTANT], f"{_CONSTANT}, {table['constant']['answers']}"))
    figure.legend(*zip(*entries, strict=True), loc="outside right upper", fontsize="small", handlelength=2.6)


def _by_method(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    methods: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        methods.setdefault(row["method"], []).append(row)
    return [sorted(group, key=lambda row: float(row["epsilon_asked"])) for group in methods.values()]


def _label(row: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    value = spread(row["metrics"].get(table["metric"]))
    epsilon = row["epsilon_asked"]
    budget = "no privacy" if math.isinf(epsilon) else f"ε = {upward(epsilon)}"
    return f"{row['method']}, {budget}\n{metric_name(table['metric'], names_of(table))} {value}"


def _images(outputs: HeldOutOutputs) -> NDArray[np.float64] | None:
    """Generated or decoded images; None if a model makes neither."""
    made = outputs.values if "reference" in outputs.extra else outputs.extra.get("samples")
    return made if made is not None and is_square(made.shape[1]) else None


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 44)


@dataclass(frozen=True, repr=False)
class Comparison(Short):
    """Finished cells of a comparison, as table.json has them; where records may be `private`, no page shows them."""

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
        group = next((candidate for candidate in self.table["groups"] if candidate["guarantee"]), None)
        if self.private or group is None:
            return "No method that was measured where all may see it has a guarantee."
        known = [row for row in group["rows"] if (row["metrics"].get(metric) or {}).get("mean") is not None]
        if not known:
            return "Nothing was measured."
        best = (max if better == "higher" else min)(known, key=lambda row: float(row["metrics"][metric]["mean"]))
        value = spread(best["metrics"][metric])
        words = f"{metric_name(metric, names_of(self.table))} {value}, by {best['method']} at ε = {epsilon_of(best)}"
        constant = (self.table.get("constant") or {}).get("metrics", {}).get(metric)
        beside = "" if constant is None else f"; a constant has {measured(constant, None)}"
        return f"The best mean under the first guarantee below: {words}{beside}."

    def document(self, *, operator: bool = False) -> Document:
        """Write it as it is read; times, traffic and what failed are for the operator's screen, figures for pages."""
        table, private, called = self.table, self.private and not operator, names_of(self.table)
        figure = None if private or operator else draw_utility(table)
        drawn = () if figure is None else (picture(figure, name="utility", caption=_CAPTION, says=self.verdict),)
        groups = ((group["heading"], self._rows(group, operator=operator)) for group in table["groups"])
        better = f"Utility is {metric_name(table['metric'], called)}, {table['better']} is better."
        return Document(
            title=f"Comparison: {table['task']}",
            verdict=self.verdict,
            begins=(f"{better} {table['caption']}", *drawn),
            warnings=tuple(self._warnings(operator=operator)),
            sections=sections(
                [
                    *((heading[:1].upper() + heading[1:], [listed]) for heading, listed in groups),
                    ("Beside them", [] if private else beside_methods(table)),
                ]
            ),
        )

    def to_frame(self) -> Any:
        """The rows of all its tables as a pandas DataFrame, metrics by their means."""
        import pandas  # optional, and only a frame takes it

        return pandas.DataFrame(
            [
                {
                    **row,
                    "guarantee": group["heading"],
                    **{name: summary.get("mean") for name, summary in row["metrics"].items()},
                }
                for group in self.table["groups"]
                for row in group["rows"]
            ]
        ).drop(columns="metrics")

    def page(self) -> Page:
        """Make its page."""
        return self.document().page()

    def _warnings(self, *, operator: bool) -> Iterator[str]:
        cells, failed = self.table["cells"], self.table["failed"]
        if self.private:
            yield LEFT_OUT.format("the comparison's folder")
        if self.table["nominal"]:
            yield "nominal: seeds make sampling and noise reproducible, and who knows them can undo them"
        if left := cells["all"] - cells["completed"] - cells["failed"]:
            yield f"{left} of {cells['all']} runs have not been made"
        if cells["failed"]:
            yield f"{cells['failed']} of {cells['all']} runs failed"
        yield from (f"failed: {entry['cell']}: {entry['error']}" for entry in failed if operator)

    def _rows(self, group: Mapping[str, Any], *, operator: bool) -> Listed:
        metrics = [] if self.private and not operator else self.table["metrics"]
        called = [metric_name(name, names_of(self.table)) for name in metrics]
        costs = ("up", "down", "seconds") if operator else ()
        return Listed.of(
            "Methods, ε and metrics",
            ("method", "ε", "δ", *called, "rounds", *costs, "seeds"),
            [row_cells(row, metrics, operator=operator) for row in group["rows"]],
            whole=("method", *called),
        )


_CAPTION = "Utility against ε. All numbers are in the tables."


def read_comparison(folder: Path) -> Comparison:
    """Read what has finished in the folder of a comparison."""
    private = any(cell.experiment.data.shows_private_rows for cell in read_grid(folder).cells)
    return Comparison(folder, make_table(folder), private)
