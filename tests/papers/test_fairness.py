"""The paper's indices, the counter-example, and what several runs make together, on numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedsw.learning.models import mlp
from fedsw.mathematics.transport.sliced import directions
from fedsw.runs.view import HeldOutOutputs
from simulations.papers.cells import cells_of
from simulations.papers.computed.clipping import clipped_gradient, plain_gradient
from simulations.papers.computed.counterexample import gradient_of_w1, gradient_of_w2_squared, neighbours, sensitivities
from simulations.papers.curves import objective
from simulations.papers.derived.runs import accuracy_kept, paired_spread
from simulations.papers.derived.tradeoffs import adult_areas, against_post_processing
from simulations.papers.figure import load_figure
from simulations.papers.measures.fairness import above_diagonal, codes, ratios
from simulations.papers.published import ADULT_POSITIVE, DP_FERMI
from simulations.papers.study import Result, Study, measured


def ran(values, sensitive, target):
    outputs = HeldOutOutputs(np.asarray(values, dtype=float), np.asarray(sensitive), np.asarray(target))
    return SimpleNamespace(record=SimpleNamespace(outputs=outputs))


def study(figure: str, *results: Result) -> Study:
    return Study(load_figure(figure), tuple(results), 0)


def result(series, point, values=None, arrays=None, seed=0, about=None) -> Result:
    return Result(series, point, seed, values or {}, arrays or {}, about or {})


def test_ratios_are_of_group_0_to_group_1_and_may_exceed_1():
    run = ran([[0.9], [0.9], [0.2], [0.9], [0.1], [0.1]], [0, 0, 0, 1, 1, 1], [1, 0, 0, 1, 1, 0])
    found = ratios(run).values
    assert found["di_01"] == pytest.approx((2 / 3) / (1 / 3))
    assert found["eo_1_01"] == pytest.approx(1 / (1 / 2)) and np.isnan(found["eo_0_01"])


def test_points_are_above_the_diagonal_of_the_unit_square_as_the_centred_ones_are_of_theirs():
    points = np.array([[0.9, 0.2], [0.2, 0.2], [0.6, 0.6], [0.1, 0.8]])
    found = above_diagonal(ran(points, [0, 0, 1, 1], [0, 0, 0, 0])).values
    centred = points[:, 1] - 0.5 > -(points[:, 0] - 0.5)
    assert found == {"above_0": centred[:2].mean(), "above_1": centred[2:].mean()}


class Halves(nn.Module):
    """Codes are the first two columns; reconstructions are one too high everywhere."""

    def forward(self, features):
        return features[:, :2], features + 1


def test_codes_lose_what_the_model_misses_of_the_core_and_show_what_lies_in_them():
    generator = torch.Generator().manual_seed(0)
    label, group = (torch.randint(0, 2, (500,), generator=generator) for _ in range(2))
    features = torch.stack([label * 10.0, torch.randn(500, generator=generator), group * 1.0], dim=1)
    records = SimpleNamespace(features=features, sensitive=group, target=label)
    run = SimpleNamespace(
        dataset=SimpleNamespace(test=records),
        experiment=SimpleNamespace(data=SimpleNamespace(core_features=2)),
        problem=SimpleNamespace(given=lambda rows: rows),
        model=Halves(),
    )
    found = codes(run).values
    assert found["core_loss"] == pytest.approx(2) and found["code_accuracy"] == 1
    rates = [float((label[300:] == 1)[group[300:] == each].float().mean()) for each in (0, 1)]
    assert found["code_di_01"] == pytest.approx(rates[0] / rates[1]) and found["code_group"] < 0.65


@pytest.mark.parametrize("n", [2, 7, 64])
def test_one_record_moves_the_gradient_of_w1_by_two_whatever_their_number(n):
    first, moved, public = neighbours(n)
    assert int((first != moved).sum()) == 1
    assert gradient_of_w1(first, public) - gradient_of_w1(moved, public) == pytest.approx(2)
    step = 0.1 / n  # both sides of theta = 0, by the definition of the derivative
    w1 = [float(((x + t).sort(dim=0).values - public).abs().mean()) for x in (first, moved) for t in (-step, step)]
    assert (w1[1] - w1[0]) / (2 * step) == pytest.approx(1) and (w1[3] - w1[2]) / (2 * step) == pytest.approx(-1)


@pytest.mark.parametrize("n", [2, 7, 64])
def test_and_that_of_w2_squared_by_two_over_n(n):
    first, moved, public = neighbours(n)
    assert gradient_of_w2_squared(first, public) - gradient_of_w2_squared(moved, public) == pytest.approx(2 / n)
    assert sensitivities([2, n]).arrays["w2_squared"][1] == pytest.approx(2 / n)


def test_without_a_clip_that_bites_both_ways_of_table_5_have_one_gradient():
    generator = torch.Generator().manual_seed(1)
    inputs, target = torch.randn((40, 2), generator=generator), torch.randn((40, 2), generator=generator)
    theta = directions(2, 8, normals=torch.randn((2, 8), dtype=torch.float64, generator=generator))
    model = mlp(2, (5,), 2)
    ours = clipped_gradient(model, inputs, target, theta, radius=1e3, bound=1e3)
    plain = plain_gradient(model, inputs, target, theta)
    assert torch.allclose(ours, plain.double(), rtol=1e-3, atol=1e-6)


def test_the_area_of_dp_fermis_own_points_is_the_paper_column_of_its_row():
    figure = load_figure("rll/fig16")
    own = [
        result(
            "best",
            {"alpha": float(number), "epsilon": epsilon},
            {"accuracy": 1 - error, "demographic_parity_difference": violation},
        )
        for epsilon, points in DP_FERMI.items()
        for number, (error, violation) in enumerate(points)
    ]
    whole = Study(figure, tuple(own), 0, tuple(adult_areas(Study(figure, tuple(own), 0))))
    for row in [row for row in figure.rows if row.metric == "area"]:
        assert measured(whole, row, "best").mean == pytest.approx(row.paper, abs=1e-4)


def test_who_reaches_no_small_violation_is_drawn_to_the_constant_classifier():
    values = {"accuracy": 0.85, "demographic_parity_difference": 0.3}
    (found,) = [
        each for each in adult_areas(study("rll/fig16", result("best", {"alpha": 0.0, "epsilon": 1.0}, values)))
    ]
    low, high = 0.0099, 0.2017
    middle = (low + high) / 2 / 0.3
    assert found.values["area"] == pytest.approx(ADULT_POSITIVE + middle * (0.15 - ADULT_POSITIVE), abs=1e-4)


def test_half_the_unfairness_at_every_error_is_a_ratio_of_a_half():
    beta = {"mse": np.array([0.4, 0.3, 0.2]), "w2": np.array([0.0, 0.1, 0.4]), "ks": np.array([0.0, 0.1, 0.4])}
    ours = [
        result("best", {"alpha": alpha}, {"mse": mse, "w2": w2 / 2, "ks": w2})
        for alpha, mse, w2 in ((0.0, 0.2, 0.4), (0.5, 0.3, 0.1), (0.9, 0.4, 0.0))
    ]
    found, alone = against_post_processing(study("rll/fig5", *ours, result("post-processed", {}, {}, beta)))
    assert found.series == "best"
    assert found.values["w2_ratio"] == pytest.approx(0.5) and found.values["ks_ratio"] == pytest.approx(1)
    assert alone.values == pytest.approx({"w2_ratio_by_seed": 0.5, "ks_ratio_by_seed": 1})  # of the one seed


def test_ratios_seed_by_seed_are_of_every_seeds_own_curves():
    def curves(seed: int, factor: float) -> list[Result]:
        beta = {"mse": np.array([0.4, 0.3, 0.2]), "w2": np.array([0.0, 0.1, 0.4]), "ks": np.array([0.0, 0.1, 0.4])}
        ours = [
            result("best", {"alpha": alpha}, {"mse": mse, "w2": factor * w2, "ks": w2})
            for alpha, mse, w2 in ((0.0, 0.2, 0.4), (0.5, 0.3, 0.1), (0.9, 0.4, 0.0))
        ]
        return [replace(each, seed=seed) for each in (*ours, result("post-processed", {}, {}, beta))]

    found = against_post_processing(study("rll/fig5", *curves(0, 0.5), *curves(1, 1.5)))
    by_seed = [each.values["w2_ratio_by_seed"] for each in found if "w2_ratio_by_seed" in each.values]
    assert by_seed == pytest.approx([0.5, 1.5])
    assert found[0].values["w2_ratio"] == pytest.approx(1.0)


def test_the_accuracy_that_is_lost_is_against_weight_0_at_the_same_epsilon():
    runs = [
        result("best", {"alpha": alpha, "epsilon": epsilon}, {"code_accuracy": accuracy})
        for epsilon, alpha, accuracy in ((1.0, 0.0, 0.8), (1.0, 0.75, 0.77), ("inf", 0.0, 0.9), ("inf", 0.75, 0.8))
    ]
    found = {
        (each.point["epsilon"], each.point["alpha"]): each.values for each in accuracy_kept(study("rll/fig19", *runs))
    }
    assert found[1.0, 0.75]["accuracy_drop"] == pytest.approx(0.03)
    assert found["inf", 0.75]["accuracy_drop"] == pytest.approx(0.1)


def test_differences_are_taken_at_the_same_seed():
    loss = {0: np.array([5.0, 1.0]), 1: np.array([5.0, 3.0])}
    runs = [
        result("paper's settings", {"alpha": 0.0, "epsilon": epsilon}, {}, curve(loss[seed] + more), seed)
        for epsilon, more in (("inf", 0.0), (1.0, 0.25))
        for seed in (0, 1)
    ]
    found = {each.point["epsilon"]: each.values for each in paired_spread(study("rll/fig21", *runs))}
    assert found[1.0]["difference"] == pytest.approx(0.25) and found[1.0]["difference_sd"] == pytest.approx(0)
    assert found[1.0]["loss_sd"] == pytest.approx(np.sqrt(2))


def curve(loss):
    return {"rounds": np.arange(len(loss)), "curve_loss": loss, "curve_w2_squared": np.zeros(len(loss))}


def test_the_objective_of_equality_of_odds_takes_the_mean_of_the_classes():
    arrays = {
        name: np.array([value]) for name, value in {"curve_loss": 1.0, "curve_od_0": 0.2, "curve_od_1": 0.4}.items()
    }
    about = {"settings": {"objective": {"penalty": "equality-of-odds"}}}
    assert objective(result("best", {"alpha": 0.75}, {}, arrays, about=about)) == pytest.approx([0.25 + 0.75 * 0.3])


def test_ten_seeds_share_their_randomness_across_epsilon_and_differ_from_each_other():
    cells = cells_of(load_figure("rll/fig21"))
    seeds = {(cell.experiment.seed, cell.experiment.model.seed, cell.experiment.data.seed) for cell in cells}
    assert len(cells) == 120 and len({cell.key for cell in cells}) == 120 and len(seeds) == 10


def test_the_overview_needs_no_run_of_its_own():
    known = {cell.key for name in ("fig12", "fig17", "fig19") for cell in cells_of(load_figure(f"rll/{name}"))}
    assert {cell.key for cell in cells_of(load_figure("rll/fig4"))} <= known
