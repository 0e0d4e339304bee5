"""Laws of the comparison with other private models: who is ahead is counted by standard errors, and it can be run."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rivals import __main__ as rivals
from benchmarks.rivals import ours, page, shapes, tuning
from fedsw.experiment import parse_experiment
from fedsw.learning.tasks.problem import Problem


def row(rival: str, seed: int, score: float | None) -> dict:
    return {"cell": ["made-up", 1.0, rival, seed], "records": 100, "constant": 0.5, "score": score, "chosen": "linear"}


def rows(*, descent: float, apart: float) -> list[dict]:
    return [
        *(row("fedsw", seed, 0.8 + 0.01 * seed) for seed in range(3)),
        *(row("descent", seed, descent + 0.01 * seed) for seed in range(3)),
        *(row("dp-sgd", seed, 0.8 + apart) for seed in range(3)),
        row("adassp", 0, None),
    ]


def test_a_rival_is_behind_or_ahead_by_more_than_a_standard_error_or_neither():
    behind = page.verdict(rows(descent=0.7, apart=0.1))
    assert "by replacement: ahead in 1 of 1 cells" in behind and "all rivals: ahead in 0 of 1" in behind
    assert "behind in 1. Below a constant by more than that: nowhere." in behind
    even = page.verdict(rows(descent=0.8, apart=-0.1))
    assert "ahead in 0 of 1" in even and "behind in 0. Below" in even


def test_a_constant_that_is_better_by_more_than_a_standard_error_is_named():
    worse = [{**known, "constant": 0.9} for known in rows(descent=0.7, apart=0.1)]
    assert page.verdict(worse).endswith("Below a constant by more than that: made-up at ε = 1.")


def test_of_fewer_than_three_seeds_nobody_is_said_to_be_ahead():
    one = [known for known in rows(descent=0.7, apart=-0.1) if known["cell"][3] == 0]
    assert "nobody can say who is ahead" in page.verdict(one)


def test_the_table_has_the_best_rival_of_each_relation():
    table = page.table(rows(descent=0.7, apart=0.1))
    assert "0.71 ± 0.006 (descent) +" in table and "0.9 ± 0 (dp-sgd) -" in table and "| 0.81 ± 0.006 |" in table


@pytest.mark.parametrize(
    ("linear", "feasible", "words"),
    [
        (0.9, True, "1 are right, 0 too cautious and 0 too hopeful."),
        (0.9, False, "0 are right, 1 too cautious (made-up 1) and 0 too hopeful."),
    ],
)
def test_a_plan_is_right_where_runs_keep_a_quarter_of_what_can_be_learnt_and_it_says_so(linear, feasible, words):
    known = [*rows(descent=0.7, apart=0.1), {**row("not-private", 0, linear), "linear": linear, "boosted": 0.5}]
    told = [{"cell": ["made-up", 1.0], "feasible": feasible, "kept": 0.5}]
    assert words in page.forecast_words(known, told)
    hopeless = [{**each, "score": 0.51} if each["cell"][2] == "fedsw" else each for each in known]
    assert ("1 are right" in page.forecast_words(hopeless, told)) != feasible
    assert page.forecast_words(known, []) == ""


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ({"feasible": True, "others": 0.29, "constant_to": 0.2}, False),
        ({"feasible": True, "others": 0.3, "constant_to": 0.2}, True),
        ({"feasible": False, "depends": True, "tight": 0.1, "used": 0.5}, True),
        ({"feasible": False, "depends": True, "tight": 0.1, "used": 0.05}, False),
        ({"feasible": False, "depends": True, "tight": 0.9, "used": 0.05, "skewed": 0.1, "middle": 0.3}, True),
        ({"feasible": False, "depends": True, "tight": 0.9, "used": 0.5, "skewed": 0.1, "middle": 0.03}, False),
    ],
)
def test_what_a_plan_says_of_a_rare_class_and_of_bounds_is_taken_at_what_the_data_are(said, right):
    known = [*rows(descent=0.7, apart=0.1), {**row("not-private", 0, 0.9), "linear": 0.9, "boosted": 0.5}]
    assert ("1 are right" in page.forecast_words(known, [{"cell": ["made-up", 1.0], "kept": 0.5, **said}])) == right


def test_rivals_are_asked_for_what_they_can_predict():
    assert not rivals.suits("dp-ebm", regression=False, classes=3) and rivals.suits(
        "dp-ebm", regression=True, classes=0
    )
    assert not rivals.suits("perturbed-objective", regression=True, classes=0)


@pytest.mark.slow
def test_settings_of_a_rival_are_chosen_on_small_sets_and_of_none_none_are(monkeypatch):
    grid = (ours.Steps(1, 1.0, 0.0), ours.Steps(25, 1.0, 30.0))
    found = tuning.best_steps(ours.descent, grid, ["wine"], 1, "")
    assert [steps.rounds for _, steps in found] == [25, 1] and -1 <= found[1][0] < found[0][0] <= 1
    assert tuning.best_steps(ours.descent, grid, [], 1, "") == []
    monkeypatch.setattr(tuning, "_MOST", 100)
    assert tuning.best_steps(ours.descent, grid, ["wine"], 1, "") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wine", "diabetes", "breast-cancer"])
def test_the_default_path_is_not_behind_rivals_of_its_relation_where_epsilon_is_three(name):
    scores = {rival: rivals.measured(name, 3.0, rival, 0, python="")["score"] for rival in ("fedsw", *page.REPLACED)}
    assert scores["fedsw"] >= max(scores[rival] for rival in page.REPLACED) - 0.05


def test_rising_heights_are_the_nearest_that_never_fall():
    heights = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
    assert shapes.rising(heights).tolist() == [2.0, 2.0, 2.0, 4.5, 4.5]
    assert shapes.rising(np.sort(heights)).tolist() == sorted(heights.tolist())


def test_smoothness_leaves_straight_shapes_and_categories_as_they_are_and_takes_from_bends():
    columns = {
        "features": [{"name": "x", "low": 0, "high": 1}, {"name": "w", "categories": list("abc")}],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": "y", "values": ["no", "yes"]},
    }
    model = {"kind": "additive", "knots": 5}
    of = {"name": "own", "data": {"source": "object", "columns": columns}, "model": model, "objective": {"alpha": 0.0}}
    root = shapes._roots(Problem.from_experiment(parse_experiment(of)), 100.0)
    straight, bent = np.array([0, 1, 2, 3, 4, 0, 1, 0]), np.array([1, -4, 6, -4, 1, 0, 0, 0])
    assert root @ straight == pytest.approx(straight)
    assert np.linalg.norm(root @ bent) < 0.1 * np.linalg.norm(bent)


def test_gains_are_clear_beyond_two_standard_errors_and_not_within():
    assert [page.clearly(gains) for gains in ([0.1, 0.11, 0.12], [-0.1, -0.11, -0.12], [0.1, -0.05, 0.0])] == [1, -1, 0]
