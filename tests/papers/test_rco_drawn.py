"""What RCO's and the ring's pictures show of results, and what a budget of either side is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedsw.experiment import load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.privacy.accounting import Step, epsilon_by
from fedsw.runs.report.figures import house_style
from simulations.papers.drawn import clouds, errors, released
from simulations.papers.figure import load_figure
from simulations.papers.finished import Finished
from simulations.papers.measures.clouds import both_sides
from simulations.papers.study import Result, Study

SHEET = np.zeros((100, 16), dtype=np.uint8)


def result(series: str, values: dict[str, Any], arrays: dict[str, Any] | None = None, **point: Any) -> Result:
    about = {
        "settings": {"local": {"mechanism": "laplace"}},
        "epsilon": 2 * point.get("epsilon", 1.0),
        "guarantee": {"noise_multiplier": point.get("epsilon", 1.0), "sensitivities": {"all": 2.0}},
    }
    return Result(series, point, 0, values, arrays or {}, about)


def study(name: str, *results: Result) -> Study:
    return Study(load_figure(name), results, 0)


def test_every_method_has_a_sheet_in_every_row_and_a_missing_one_is_named() -> None:
    seen = {name: SHEET[:10] for name in ("original", "privatised", "denoised")}
    found = study(
        "rco/fig1",
        result("plain W_p", {"w2_test": 5.0}, {"samples": SHEET, **seen}, epsilon=35.0),
        result("plain W_p", {"w2_test": 5.0}, {"samples": SHEET, **seen}, epsilon=196.0),
        result("shortened", {"w2_test": 4.0}, {"samples": SHEET}, epsilon=35.0),
    )
    with house_style():
        figure = released.methods(found)[""]
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == 2 * 5 and [title for title in titles if "no result" in title] == [
        "entropic,\nshortened\n(no result)"
    ]
    assert "Laplace, ε = 35 (truly 70)" in [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_pair_of_a_figure_is_in_the_middle_of_its_budgets() -> None:
    found = study(
        "rco/fig3", *(result("shortened", {}, {"samples": SHEET}, epsilon=e) for e in (50.0, 35.0, 25.0, 15.0))
    )
    with house_style():
        figure = released.pair(found)[""]
        whole = released.budgets(found)[""]
    assert [axes.get_title() for axes in figure.axes] == ["shortened, ε = 35", "shortened, ε = 25"]
    assert len(whole.axes) == 4


def test_errors_stand_over_the_noise_that_a_run_had() -> None:
    found = study(
        "rco/fig7", *(result("shortened", {"w2_train": e, "w2_test": 2 * e}, epsilon=e) for e in (1790.0, 503.0, 1.0))
    )
    with house_style():
        figure = errors.against_sigma(found)[""]
    for axes, factor in zip(figure.axes, (1, 2), strict=True):
        x, y = (np.asarray(values, dtype=float) for values in axes.containers[0][0].get_data())
        np.testing.assert_allclose(x, [3580.0, 1006.0, 2.0])
        np.testing.assert_allclose(y, factor * np.array([1790.0, 503.0, 1.0]))


def test_no_two_methods_of_the_ring_have_the_same_line() -> None:
    names = [series.name for series in load_figure("rll/ring-budgets").series]
    found = study("rll/ring-budgets", *(result(name, {"sw2": 1.0}, epsilon=e) for name in names for e in (1.0, 3.0)))
    with house_style():
        (axes,) = errors.against_epsilon(found)[""].axes
    lines = [curve[0] for curve in axes.containers]
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}) == len(names) == 9


def test_every_series_has_a_curve_for_train_and_test_over_the_records() -> None:
    values = {"w2_train": 1.0, "w2_test": 2.0, "fit_train": 3.0, "fit_test": 4.0}
    found = study("rco/fig8", *(result("best", values, most_records=n) for n in (1000.0, 3000.0)))
    with house_style():
        figure = errors.against_records(found)[""]
    heights = [[float(curve[0].get_ydata()[0]) for curve in axes.containers] for axes in figure.axes]
    assert heights == [[1.0, 2.0], [3.0, 4.0]]


def test_every_series_has_a_row_and_beside_its_curve_the_one_that_falls_at_the_rate() -> None:
    found = study(
        "rco/fig8",
        *(
            result(name, {key: 5.0 + slope / n**0.5 for key in ("w2_train", "w2_test", "fit_train", "fit_test")},
                   most_records=n)
            for name, slope in (("shortened", 3.0), ("best", 70.0)) for n in (1000.0, 4000.0, 16_000.0)
        ),
    )  # fmt: skip
    with house_style():
        figure = errors.against_records(found)[""]
    assert len(figure.axes) == 4
    for axes, slope in zip(figure.axes, (3.0, 3.0, 70.0, 70.0), strict=True):
        (line,) = [each for each in axes.lines if each.get_label() == "a + b n^-1/2"]
        records, heights = (np.asarray(each, dtype=float) for each in line.get_data())
        np.testing.assert_allclose(heights, 5.0 + slope / records**0.5)


def test_more_than_two_budgets_are_pictures_of_two_each() -> None:
    seen = {name: SHEET[:10] for name in ("original", "privatised", "denoised")}
    found = study(
        "rco/fig2",
        *(result("plain W_p", {}, {"samples": SHEET, **seen}, epsilon=e) for e in (784.0, 196.0, 1268.0, 41.0)),
    )
    with house_style():
        pictures = released.methods(found)
    assert list(pictures) == ["784 196", "1268 41"]
    assert all(len(figure.axes) == 2 * 4 for figure in pictures.values())


def test_snapshots_name_the_rounds_and_the_budgets_of_either_side() -> None:
    arrays = {"samples": np.zeros((5, 2)), "reference": np.ones((5, 2))}
    found = study(
        "rll/fig22",
        result("shortened", {"sw2": 0.5, "epsilon_x": 7.2, "epsilon_z": 1.8}, arrays, rounds=10.0),
        result("best", {"sw2": 0.1}, arrays, rounds=10.0),
    )
    with house_style():
        figure = clouds.snapshots(found)[""]
    first, second = (axes.get_title() for axes in figure.axes)
    assert "T = 10" in first and "SW₂² 0.25" in first and "ε_Z = 1.8" in first and "ε_X = 7.2" in first
    assert "ε = 2" in second


def test_the_targets_budget_is_that_of_a_third_of_the_inputs_bound() -> None:
    settings = ["objective.protected=both", "privacy.noise_multiplier=2", "training.rounds=50", "clip.mode=row"]
    experiment = load_experiment(find_experiment("ring"), settings)
    bound = 12 * experiment.clip.output * experiment.clip.jacobian / 10_000
    guarantee = {"noise_multiplier": 2.0, "sensitivities": {"all": bound}, "sampling_rates": {"all": 0.1}}
    records = SimpleNamespace(train=range(100_000))
    run = SimpleNamespace(
        experiment=experiment, dataset=records, record=SimpleNamespace(summary={"guarantee": guarantee})
    )
    found = both_sides(cast(Finished, run)).values
    assert found["epsilon_x"] == pytest.approx(epsilon_by("pld", {Step(0.1, 1 / 2): 50}, 1e-6), rel=1e-6)
    assert found["epsilon_z"] == pytest.approx(epsilon_by("pld", {Step(0.1, 1 / 6): 50}, 1e-6), rel=1e-6)
