"""Laws of a comparison's figure: nothing covers anything else, and no axis zooms into its metric's noise."""

from __future__ import annotations

import itertools

import pytest

from fedsw.desk.compare.comparison_page import draw_utility, wide_limits

HEADING = "protects each record of every client, against readers of the models and of this record, not of counts per "
METHODS = [f"a-method-{number}" for number in range(9)]


def table(methods: list[str], error: float | None, spread: float = 0.001) -> dict:
    def row(method: str, epsilon: float, place: int) -> dict:
        values = {"accuracy": 0.8 + spread * place, "disparate_impact": 0.97 + spread * place / 4}
        metrics = {name: {"mean": value, "sd": spread} for name, value in values.items()}
        return {"method": method, "epsilon_asked": epsilon, "metrics": metrics}

    groups = [
        {"heading": f"{HEADING}{method}", "rows": [row(method, epsilon, place) for epsilon in (1.0, 3.0, 10.0)]}
        for place, method in enumerate(methods)
    ]
    return {
        "task": "own", "metric": "accuracy", "better": "higher", "metrics": ["accuracy", "disparate_impact"],
        "methods": methods, "epsilons": [1.0, 3.0, 10.0], "seeds": 3, "nominal": True, "groups": groups,
        "constant": {"answers": "always 'a class with a long name'", "metrics": {"accuracy": 0.79}},
        "standard_errors": {} if error is None else {"accuracy": error, "disparate_impact": error},
    }  # fmt: skip


@pytest.mark.parametrize("count", [2, 9])
def test_titles_legend_and_axes_do_not_cover_each_other_and_are_inside(count):
    figure = draw_utility(table(METHODS[:count], 0.02))
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    boxes = [axes.get_tightbbox(renderer) for axes in figure.axes]
    boxes += [figure.legends[0].get_window_extent(renderer), figure._suptitle.get_window_extent(renderer)]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.shrunk(0.99, 0.99).overlaps(other.shrunk(0.99, 0.99)), (one, other)
    for box in boxes:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1


@pytest.mark.parametrize("error", [None, 0.02, 0.1])
def test_an_axis_is_as_wide_as_its_metric_s_noise(error):
    for axes in draw_utility(table(METHODS[:3], error)).axes:
        low, high = axes.get_ylim()
        assert high - low >= 0.2 - 1e-9 and high - low >= 6 * (error or 0) - 1e-9
        assert high <= 1.02 + 1e-9
        drawn = [y for line in axes.lines for y in line.get_ydata()]
        assert low <= min(drawn) and max(drawn) <= high


@pytest.mark.parametrize(
    ("drawn", "metric", "error"),
    [
        ((0.5, 0.51), "accuracy", None),
        ((0.0, 0.001), "demographic_parity_difference", 0.01),
        ((0.99, 1.0), "accuracy", 0.3),
        ((-0.1, 1.2), "disparate_impact", None),
        ((3.0, 3.001), "loss", None),
        ((0.0, 0.0), "w2_squared", 0.2),
    ],
)
def test_limits_hold_what_is_drawn(drawn, metric, error):
    low, high = wide_limits(drawn, metric, error)
    assert low <= drawn[0] and high >= drawn[1]
    whole = 1.04 if metric != "loss" and metric != "w2_squared" else float("inf")
    assert high - low >= min(6 * (error or 0), whole) - 1e-9
