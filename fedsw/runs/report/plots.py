"""Figures of a run's view: metrics and privacy over rounds, worth beside a constant, outputs by group; of several."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.registry import Registry
from fedsw._tools.text import number, to_float, upward
from fedsw.experiment import ExperimentError
from fedsw.experiment.choices import require_allowed_code
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.experiment.task_kinds import Facts, task_facts
from fedsw.runs.group_names import Names
from fedsw.runs.report.figures import (
    LINES,
    colour,
    draw_latent,
    draw_samples,
    histogram_by_group,
    house_style,
    limits_of,
    marker,
    new_figure,
    new_panels,
)
from fedsw.runs.report.metric_names import headline, metric_name, ordered_metrics, scores
from fedsw.runs.view import HeldOutOutputs, RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]

_MOST_PANELS = 12
_MOST_POINTS = 2000


def pictures_of(view: RunView, allow_modules: Collection[str]) -> tuple[str, ...]:
    """The pictures of the run's task; the default ones if its code is custom and not allowed."""
    try:
        require_allowed_code(view.experiment, allow_modules, stored=view.directory)
        named = task_facts(view.experiment.objective.task).figures
    except ExperimentError:
        named = Facts().figures
    return tuple(name for name in named if name in PICTURES)


@house_style()
def draw_metrics(view: RunView) -> Figure | None:
    """Held-out loss and metrics over the rounds, one panel each; training loss if the run recorded it."""
    history = view.history
    held_out = [{**row["held_out"], "round": row["round"]} for row in history if row.get("held_out")]
    keys = [key for key in ordered_metrics(held_out[-1], view.names) if key != "round"] if held_out else []
    curves = {metric_name(key, view.names): _curve(held_out, key) for key in keys[:_MOST_PANELS]}
    training = _curve(history, "training_loss")
    if len(training[0]):
        curves["training loss (unsafe)"] = training
    if not curves:
        return None
    figure, panels = _grid(len(curves), size=(3.0, 2.2), more=(0.4, 0.5))
    for axes, (title, (rounds, values)) in zip(panels, curves.items(), strict=False):
        axes.plot(rounds, values, color=colour(0), marker="o" if len(rounds) < 60 else "", markersize=3)
        axes.set_title(title)
        axes.set_xlabel("round")
    figure.suptitle(f"{view.experiment.name}: metrics over the rounds")
    return figure


@house_style()
def draw_privacy(view: RunView) -> Figure | None:
    """ε spent over the rounds with its budget, and the estimated signal-to-noise ratio; None without noise."""
    spent = _curve(view.history, "epsilon")
    if not np.isfinite(spent[1]).any():
        return None
    ratio = _curve(view.history, "snr")
    columns = 2 if len(ratio[0]) else 1
    figure, panels = new_panels(1, columns, size=(3.6 * columns + 0.4, 3.0))
    panels[0].plot(*spent, color=colour(0), linewidth=2, label="spent")
    budget = view.experiment.privacy.epsilon
    if budget is not None and np.isfinite(budget):
        panels[0].axhline(budget, color="0.3", linestyle="--", linewidth=1, label=f"budget {upward(budget, 6)}")
        panels[0].legend(loc="lower right")
    panels[0].set(title="ε spent", xlabel="round", ylabel="ε")
    panels[0].set_ylim(bottom=0)
    if len(ratio[0]):
        panels[1].plot(*ratio, color=colour(0), alpha=0.3, linewidth=0.8, label="each round")
        # A mean over a twentieth of the rounds; at either end over those that are there.
        kernel = np.ones(max(1, len(ratio[1]) // 20))
        mean = np.convolve(ratio[1], kernel, "same") / np.convolve(np.ones(len(ratio[1])), kernel, "same")
        panels[1].plot(ratio[0], mean, color=colour(1), linewidth=2, label="running mean")
        panels[1].set(title="signal to noise, from the noisy gradient", xlabel="round")
        panels[1].set_ylim(bottom=0)
        panels[1].legend()
    nominal = " (nominal: seeded run)" if view.experiment.seed is not None else ""
    figure.suptitle(f"{view.experiment.name}: privacy over the rounds{nominal}")
    return figure


@house_style()
def draw_outputs(view: RunView) -> Figure | None:
    """Held-out outputs by group, of each class apart for equality of odds: histograms, or a scatter with marginals."""
    outputs = view.outputs
    if outputs is None or not len(outputs.values) or "reference" in outputs.extra:
        return None
    draw = _scatters if outputs.values.shape[1] == 2 else _histograms
    strata = {"": np.ones(len(outputs.values), dtype=bool)}
    if "label" in PENALTIES.get(view.experiment.objective.penalty).fixed and outputs.target.ndim == 1:
        strata = {view.names.label(int(label)): outputs.target == label for label in np.unique(outputs.target)}
    figure = draw(outputs, strata, view.names)
    figure.suptitle(f"{view.experiment.name}: held-out outputs by group")
    return figure


@house_style()
def draw_trade_off(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy against disparate impact: a curve for each ε, a point for each α."""
    figure, (axes,) = new_panels(1, 1, size=(5.6, 4.0))
    points = {(row["target_epsilon"], row["alpha"]): (row["disparate_impact"], row["accuracy"]) for row in rows}
    epsilons, alphas = _distinct(rows, "target_epsilon"), sorted(_distinct(rows, "alpha"))
    for position, epsilon in enumerate(epsilons):
        curve = np.array([points[epsilon, alpha] for alpha in alphas if (epsilon, alpha) in points], dtype=np.float64)
        # Curves that coincide stay visible: hollow markers, smaller one by one.
        look: dict[str, Any] = {"color": colour(position), "marker": marker(position), "markerfacecolor": "none"}
        axes.plot(*curve.T, **look, markersize=12 - 3 * position, linewidth=1.2, label=f"ε = {upward(epsilon)}")
    for alpha in alphas:
        middle = np.mean([point for (_, at), point in points.items() if at == alpha], axis=0)
        axes.annotate(f"α = {number(alpha)}", middle, (12, 4), textcoords="offset points")
    axes.margins(x=0.22, y=0.12)
    axes.set(xlabel="disparate impact (1: groups accepted alike)", ylabel="accuracy")
    axes.legend(loc="lower left")
    figure.suptitle("Accuracy against fairness on held-out data")
    return figure


@house_style()
def draw_histogram_grid(cells: Sequence[tuple[Mapping[str, Any], HeldOutOutputs]]) -> Figure:
    """Outputs by group of several runs: a row for each α, a column for each ε."""
    rows_of = [row for row, _ in cells]
    alphas, epsilons = _distinct(rows_of, "alpha"), _distinct(rows_of, "target_epsilon")
    size = (2.3 * len(epsilons) + 0.6, 1.7 * len(alphas) + 0.7)
    figure, panels = new_panels(len(alphas), len(epsilons), size=size, sharex=True)
    limits = limits_of(np.concatenate([outputs.values[:, 0] for _, outputs in cells]))
    for axes in panels:
        axes.set_yticks([])
    for row, outputs in cells:
        line, column = alphas.index(row["alpha"]), epsilons.index(row["target_epsilon"])
        axes = panels[line * len(epsilons) + column]
        histogram_by_group(axes, outputs.values[:, 0], outputs.sensitive, limits=limits)
        if line == 0:
            axes.set_title(f"ε = {upward(row['target_epsilon'])}")
        if line == len(alphas) - 1:
            axes.set_xlabel("output")
    for line, alpha in enumerate(alphas):
        panels[line * len(epsilons)].set_ylabel(f"α = {number(alpha)}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle("Held-out outputs by group")
    return figure


@house_style()
def draw_worth(view: RunView) -> Figure | None:
    """The model's headline metric and each group's with intervals, beside a constant; None if nothing was measured."""
    summary, name = view.summary, headline(view.summary)
    if name is None:
        return None
    groups, around = summary.get("held_out_by_group") or {}, summary.get("held_out_by_group_intervals") or {}
    rows = [("the model", *scores(summary)[name])]
    rows += [(group, metrics.get(name), around.get(group, {}).get(name)) for group, metrics in groups.items()]
    rows += [("a constant", *scores(summary, "constant").get(name, (None, None)))]
    shown = [(label, value, interval) for label, known, interval in rows if (value := to_float(known)) is not None]
    figure, (axes,) = new_panels(1, 1, size=(4.6, 0.7 + 0.32 * len(shown)))
    for position, (label, value, interval) in enumerate(shown):
        look: dict[str, Any] = {"color": colour(1 if label == "a constant" else 0)}
        if interval is not None:
            axes.plot(
                [float(end) for end in interval],
                [position, position],
                linewidth=3,
                alpha=0.6,
                solid_capstyle="butt",
                **look,
            )
        axes.plot(
            [value], [position], marker=marker(1 if label == "a constant" else 0), markersize=7, linestyle="", **look
        )
    axes.set_yticks(range(len(shown)), [label for label, _, _ in shown])
    axes.set(xlabel=metric_name(name, view.names), ylim=(len(shown) - 0.5, -0.5))
    return figure


@house_style()
def draw_runs(named: Sequence[tuple[str, RunView]]) -> Figure | None:
    """The headline metric of several runs against epsilon, with intervals and constants; None if they differ in it."""
    metrics = {headline(view.summary) for _, view in named if view.summary} - {None}
    if len(metrics) != 1:
        return None
    (name,) = metrics
    figure, (axes,) = new_panels(1, 1, size=(5.6, 3.2))
    constants: set[float | None] = set()
    epsilons: set[float] = set()
    for position, (label, view) in enumerate(named):
        summary = view.summary
        known, interval = scores(summary).get(str(name), (None, None))
        value, epsilon = to_float(known), to_float(summary.get("epsilon"))
        if value is None or epsilon is None:
            continue
        constants.add(to_float((summary.get("constant") or {}).get(name)))
        ends = (value, value) if interval is None else tuple(map(float, interval))
        look: dict[str, Any] = {"color": colour(position), "marker": marker(position), "label": label}
        if np.isfinite(epsilon):
            epsilons.add(epsilon)
            above, below = max(0.0, ends[1] - value), max(0.0, value - ends[0])
            axes.errorbar([epsilon], [value], yerr=[[below], [above]], linestyle="", capsize=3, markersize=7, **look)
        else:
            axes.axhline(value, color=colour(position), linestyle=LINES[1], label=f"{label}, ε = ∞")
    for constant in filter(None, constants):
        axes.axhline(constant, color="0.35", linestyle=":", label="a constant")
    axes.set(xscale="log", xlabel="ε", ylabel=metric_name(str(name)))
    axes.set_xticks(sorted(epsilons), [upward(epsilon) for epsilon in sorted(epsilons)])
    axes.set_xticks([], minor=True)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


@dataclass(frozen=True)
class Drawing:
    """A picture of a run: a function that draws it, or returns None without its data, and its caption."""

    draw: Callable[[RunView], Figure | None]
    caption: str


PICTURES: Registry[Drawing] = Registry("a figure", Drawing)
"""The pictures of held-out arrays that a task may name, beside the metrics and the privacy of every run."""
PICTURES.register("outputs", Drawing(draw_outputs, "Outputs on held-out records, by group."))
PICTURES.register("samples", Drawing(draw_samples, "What the model makes, beside held-out records."))
PICTURES.register("latent", Drawing(draw_latent, "Held-out records as the model encodes them, by label."))


def _grid(count: int, *, size: tuple[float, float], more: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in rows of three, by the size of one panel, and the space around all of them."""
    columns = min(3, count)
    rows = -(-count // columns)
    figure, panels = new_panels(rows, columns, size=(size[0] * columns + more[0], size[1] * rows + more[1]))
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels


def _curve(history: Sequence[Mapping[str, Any]], key: str) -> Curve:
    """Rounds and values of `key`, where it is a number."""
    pairs = [(float(row["round"]), to_float(row.get(key))) for row in history]
    known = [(at, value) for at, value in pairs if value is not None]
    return np.array([at for at, _ in known]), np.array([value for _, value in known], dtype=np.float64)


def _histograms(outputs: HeldOutOutputs, strata: Mapping[str, NDArray[np.bool_]], names: Names) -> Figure:
    dimensions = min(outputs.values.shape[1], _MOST_PANELS)
    wanted = [(name, chosen, axis) for name, chosen in strata.items() for axis in range(dimensions)]
    figure, panels = _grid(len(wanted), size=(3.0, 2.3), more=(0.6, 0.6))
    for axes, (name, chosen, axis) in zip(panels, wanted, strict=False):
        limits = limits_of(outputs.values[:, axis])
        groups = outputs.sensitive[chosen]
        histogram_by_group(axes, outputs.values[chosen, axis], groups, limits=limits, name=names.group)
        axes.set_title(name)
        axes.set(xlabel="output" if dimensions == 1 else f"output {axis + 1}", ylabel="density")
    panels[0].legend()
    return figure


def _scatters(outputs: HeldOutOutputs, strata: Mapping[str, NDArray[np.bool_]], names: Names) -> Figure:
    figure = new_figure((4.6 * len(strata), 4.6))
    for part, (name, chosen) in zip(figure.subfigures(1, len(strata), squeeze=False).flat, strata.items(), strict=True):
        _scatter_with_marginals(part, outputs.values[chosen], outputs.sensitive[chosen], name, names)
    return figure


def _scatter_with_marginals(
    part: SubFigure, values: NDArray[np.float64], sensitive: NDArray[np.int64], name: str, names: Names
) -> None:
    ratios = {"width_ratios": (4, 1), "height_ratios": (1, 4)}
    ((top, corner), (middle, right)) = part.subplots(2, 2, sharex="col", sharey="row", gridspec_kw=ratios)
    corner.set_axis_off()
    shown = np.linspace(0, len(values) - 1, min(len(values), _MOST_POINTS)).astype(int)
    for position, group in enumerate(np.unique(sensitive)):
        chosen = shown[sensitive[shown] == group]
        look: dict[str, Any] = {"color": colour(position), "marker": marker(position), "label": names.group(int(group))}
        middle.scatter(*values[chosen].T, s=6, alpha=0.35, linewidths=0, **look)
    histogram_by_group(top, values[:, 0], sensitive, name=names.group)
    histogram_by_group(right, values[:, 1], sensitive, sideways=True, name=names.group)
    top.set_yticks([])
    right.set_xticks([])
    middle.set(xlabel="output 1", ylabel="output 2")
    legend = middle.legend(markerscale=2)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)
    if name:
        top.set_title(name)


def _distinct(rows: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))
