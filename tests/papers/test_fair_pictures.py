"""Every picture of the fairness figures is drawn from what its measures leave, with the same axes in its panels."""

from __future__ import annotations

import numpy as np
import pytest

from fedsw.desk.run_grid import settings_of
from fedsw.runs.report.figures import house_style
from simulations.papers.cells import cells_of
from simulations.papers.drawn import clipping, counterexample, curves, histograms, overview, scatter, tradeoffs
from simulations.papers.figure import load_figure
from simulations.papers.study import Result, Study

ROUNDS = np.arange(4)
VALUES = {
    "loss": 0.5, "w2_squared": 0.1, "od_0": 0.1, "od_1": 0.1, "accuracy": 0.8, "demographic_parity_difference": 0.1,
    "mse": 0.1, "w2": 0.1, "ks": 0.1, "di_01": 0.5, "code_accuracy": 0.7,
}  # fmt: skip
ARRAYS = {
    "rounds": ROUNDS, "curve_loss": ROUNDS / 4, "curve_w2_squared": ROUNDS / 9, "curve_od_0": ROUNDS / 9,
    "curve_od_1": ROUNDS / 9, "edges": np.linspace(0, 1, 4), "density": np.ones((2, 3)),
    "density_by_class": np.ones((2, 2, 3)), "points": np.random.default_rng(0).random((20, 2)),
    "group": np.arange(20) % 2,
}  # fmt: skip
PROCESSED = {name: np.array([0.2, 0.1]) for name in ("beta", "mse", "w2", "ks")}


def study(name: str) -> Study:
    figure = load_figure(name)
    results = [
        Result(
            cell.series,
            cell.point,
            cell.seed,
            VALUES,
            ARRAYS | (PROCESSED if "post" in cell.series else {}),
            {
                "settings": settings_of(cell.experiment),
                "guarantee": {"noise_multiplier": 2.0, "sensitivities": {"a": 1.0}},
            },
        )
        for cell in cells_of(figure, seeds=2)
        if cell.point.get("alpha", 0.0) in (0.0, 0.75) and cell.point.get("epsilon", 1.0) in ("inf", 1.0)
    ]
    return Study(figure, tuple(results), 0)


@pytest.mark.parametrize(
    ("name", "draw", "parts", "panels"),
    [
        ("rll/fig12", histograms.by_group, ["paper's settings", "best"], 4),
        (
            "rll/fig14",
            histograms.by_group_and_class,
            [f"{s} class {y}" for s in ("paper's settings", "best") for y in (0, 1)],
            4,
        ),
        ("rll/fig15", curves.losses, ["paper's settings", "best"], 4),
        ("rll/fig17", scatter.predictions, ["paper's settings", "best"], 4),
        ("rll/fig19", scatter.codes, ["paper's settings", "best"], 4),
        ("rll/fig21", curves.paired, ["paper's settings"], 4),
        ("rll/fig4", overview.three_tasks, ["paper's settings", "best"], 12),
        ("rll/fig5", tradeoffs.one_number, [""], 2),
        ("rll/fig16", tradeoffs.adult, [""], 4),
    ],
)
def test_a_picture_has_a_panel_for_every_point_and_the_same_axes_in_all(name, draw, parts, panels):
    with house_style():
        drawn = draw(study(name))
        assert list(drawn) == parts
        for figure in drawn.values():
            assert len(figure.axes) == panels and all(axes.has_data() for axes in figure.axes)
            first, second = figure.axes[:2]
            assert any(
                shared.joined(first, second) for shared in (first.get_shared_x_axes(), first.get_shared_y_axes())
            )
            assert figure.get_suptitle().startswith(load_figure(name).source)


def test_below_loss_curves_stands_what_privacy_changes():
    with house_style():
        figure = curves.losses(study("rll/fig15"))["best"]
    half = len(figure.axes) // 2
    for above, below in zip(figure.axes[:half], figure.axes[half:], strict=True):
        heights = {line.get_label(): np.asarray(line.get_ydata()) for line in above.lines}
        for line in below.lines:
            np.testing.assert_allclose(line.get_ydata(), heights[line.get_label()] - heights["ε = ∞"])


def test_the_titles_name_noise_objective_and_the_papers_indices():
    with house_style():
        title = histograms.by_group(study("rll/fig12"))["best"].axes[1].get_title()
    assert "α = 0.75" in title and "σ 2" in title and "obj. 0.2" in title and "DI 0.5" in title


def at_weights(name: str, series: str, weights: list[float], gaps: list[float]) -> Study:
    """Results of a series at ε = 1, a seed a gap, whose points lie at the gap."""
    arrays = {"group": np.arange(20) % 2}
    about = {"settings": {}, "guarantee": {"noise_multiplier": 2.0, "sensitivities": {"a": 1.0}}}
    results = [
        Result(
            series, {"alpha": alpha, "epsilon": 1.0}, seed, VALUES | {"w2_squared": gap},
            arrays | {"points": np.full((20, 2), gap)}, about,
        )
        for alpha in weights for seed, gap in enumerate(gaps)
    ]  # fmt: skip
    return Study(load_figure(name), tuple(results), 0)


def test_of_several_seeds_the_one_with_the_median_penalty_is_drawn_and_the_title_says_so():
    with house_style():
        (axes,) = scatter.codes(at_weights("rll/fig19", "best", [0.75], [0.01, 0.5, 0.2, 0.9, 0.3]))["best"].axes
        several = overview.three_tasks(at_weights("rll/fig4", "best, representation", [0.75], [0.1, 0.7, 0.4]))["best"]
    assert "the median of 5 seeds by W" in axes.get_title() and "W 0.3" in axes.get_title()
    np.testing.assert_allclose(axes.collections[0].get_offsets(), 0.3)
    assert "the median of 3 seeds by W" in several.axes[0].get_title()
    np.testing.assert_allclose(several.axes[0].collections[0].get_offsets(), 0.4)
    with house_style():
        (alone,) = scatter.codes(at_weights("rll/fig19", "best", [0.75], [0.01]))["best"].axes
    assert "median" not in alone.get_title()


def test_over_unfairness_stands_the_error_with_bars_of_one_deviation_over_seeds():
    with house_style():
        left, right = tradeoffs.one_number(study("rll/fig5"))[""].axes
    assert "W₂²" in left.get_xlabel() and "Kolmogorov" in right.get_xlabel()
    assert left.get_ylabel() == "mean squared error"
    for axes in (left, right):
        assert len(axes.containers) == len(load_figure("rll/fig5").series)
        assert all(container.has_xerr and container.has_yerr for container in axes.containers)


def computed(name: str, arrays) -> Study:
    return Study(load_figure(name), (Result("computed", {}, 0, {}, arrays, {}),), 0)


def test_computations_are_drawn_too():
    times = {"widths": np.array([8, 16]), "plain": np.array([1.0, 1.0]), "clipped": np.array([2.0, 3.0])}
    with house_style():
        assert len(clipping.ratios(computed("rll/table5", times))[""].axes) == 1
        arrays = {
            name: np.array([1.0, 2.0]) for name in ("theta", "value_first", "value_moved", "sizes", "w1", "w2_squared")
        }
        assert len(counterexample.sensitivity(computed("rll/appendix-f", arrays))[""].axes) == 2
