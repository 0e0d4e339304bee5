"""Laws of a forecast: twins are public and of the asked sizes, noise costs, and no private record is looked at."""

from __future__ import annotations

import ast
import csv
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsw
from benchmarks import forecast
from fedsw.cli.app import main
from fedsw.data import DeclaredRecords
from fedsw.data.columns.declaration import Columns
from fedsw.desk.planning import forecast as planning
from fedsw.desk.planning.forecast import (
    FEASIBLE,
    Curve,
    Point,
    Score,
    curve,
    isotonic,
    largest_for_constant,
    trained,
)
from fedsw.desk.planning.public_rows import (
    LAWS,
    SKEWED,
    PublicRows,
    columns_named,
    drawn,
    moments_of,
    opened,
    others_share,
    resampled,
    scaled,
    spread_evenly,
    twins_of,
    with_rare_class,
)
from fedsw.desk.planning.run_plan import as_plain, draw_plan, planned, rows
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.federation.server.settling import numbers_of, settled
from fedsw.learning.tasks.problem import Problem
from tests.experiment.test_preset_rules import COLUMNS, SIZES, asked
from tests.syntax import nodes

pytestmark = pytest.mark.slow

RESULT = forecast.RESULT
PACKAGE = Path(fedsw.__file__).parent
FEATURES = [
    {"name": "age", "low": 17, "high": 90, "missing": [""], "fill": 40},
    {"name": "scan", "low": -1, "high": 1, "scale": "signed", "count": 3},
    {"name": "job", "categories": ["a", "b", "c", "d"]},
    {"name": "smoker", "kind": "boolean"},
    {"name": "free"},
]
MANY = Columns.model_validate({**COLUMNS, "features": FEATURES})
FEW = (2.0, 30.0, 300.0)
QUICK = {"preset": "auto", "rounds": 6}
PLAIN = {"objective": {"alpha": 0.0}}  # beside a penalty the model without privacy takes thousands of steps


def columns_of(**changes) -> Columns:
    return Columns.model_validate({**COLUMNS, **changes})


def curve_of(*kept: float) -> Curve:
    points = tuple(Point(10.0 ** (place + 1), (Score(0.5 + 0.3 * share, 0.5),)) for place, share in enumerate(kept))
    return Curve((Score(0.8, 0.5),), points)


def test_twins_have_the_asked_sizes_and_what_is_declared():
    twins = drawn(MANY, {"f": 70, "m": 130}, LAWS[0], seed=0)
    assert twins.sensitive.bincount().tolist() == [70, 130]
    assert twins.features.shape == (200, MANY.inputs)
    age, absent, scan, job = (twins.features[:, place] for place in (slice(1), 1, slice(2, 5), slice(5, 9)))
    assert float(age.min()) >= 0 and float(age.max()) <= 1
    assert set(absent.tolist()) == {0.0, 1.0}
    assert float(scan.min()) >= -1 and float(scan.min()) < 0
    assert job.sum(dim=1).tolist() == [1.0] * 200
    several = columns_of(target={"name": "y", "values": ["a", "b", "c"]})
    assert drawn(several, SIZES, LAWS[1], seed=0).target.bincount().min() > 100
    numbers = columns_of(target=None, targets=[{"name": "y", "low": 0, "high": 9}])
    target = drawn(numbers, SIZES, LAWS[1], seed=0).target
    assert target.shape == (1_000, 1) and float(target.min()) >= 0 and float(target.max()) <= 1


def test_draws_of_one_law_differ_and_teach_the_same():
    experiment = settled_quick(rounds=40)
    problem = Problem.from_experiment(experiment)
    columns = experiment.data.columns
    one, other = (drawn(columns, SIZES, LAWS[2], seed=seed) for seed in (0, 1))
    assert not torch.equal(one.features, other.features)
    own = trained(problem, (one, one), multiplier=0.0)[0]
    fresh = trained(problem, (one, other), multiplier=0.0)[0]
    unlike = trained(problem, (one, drawn(columns, SIZES, LAWS[0], seed=1)), multiplier=0.0)[0]
    assert fresh.gain == pytest.approx(own.gain, abs=0.05) and fresh.gain > 0.1 > unlike.gain


def test_a_law_says_how_much_of_their_bounds_columns_use_where_a_target_lies_and_how_rare_a_class_is():
    columns = columns_of(features=[{"name": f"x{place}", "low": 0, "high": 1} for place in range(6)])
    for used in ((0.04, 0.2), (0.5, 0.8)):
        spread = drawn(columns, SIZES, replace(LAWS[2], used=used), seed=0).features.std(dim=0)
        assert used[0] / 5 < float(spread.min()) and float(spread.max()) < used[1] / 3
    rare = drawn(columns, SIZES, replace(LAWS[2], common=0.98), seed=0).target
    assert rare.bincount().tolist() == [980, 20]
    numbers = columns_of(target=None, targets=[{"name": "y", "low": 0, "high": 9}])
    target = drawn(numbers, SIZES, replace(LAWS[2], middle=0.05, spread=0.01), seed=0).target
    assert float(target.mean()) == pytest.approx(0.05, abs=0.002) and float(target.max()) < 0.1


def test_a_narrow_target_has_its_say_though_its_errors_are_small_numbers():
    narrow = Curve((Score(-4e-4, -5e-4),), (Point(10.0, (Score(-9e-4, -5e-4),)),))
    assert narrow.taught == (0,) and narrow.kept == (-1.0,)
    nothing = Curve((Score(-4.99e-4, -5e-4),), (Point(10.0, (Score(-9e-4, -5e-4),)),))
    assert nothing.taught == ()


def test_a_law_that_lets_next_to_nothing_be_learnt_has_next_to_no_say():
    scores = (Score(0.51, 0.5), Score(0.8, 0.5))
    found = Curve(scores, (Point(10.0, (Score(0.49, 0.5), Score(0.68, 0.5))),))
    assert found.kept[0] == pytest.approx((0.01 * -1 + 0.3 * 0.6) / 0.31)
    squares = Curve((Score(-0.99, -1.0), Score(-0.0004, -0.001)), (Point(10.0, (Score(-1, -1), Score(-7e-4, -1e-3))),))
    assert squares.kept[0] == pytest.approx(0.6 * 0.5 / 0.61), "numbers count in units of what a constant misses"


def test_columns_tell_more_of_what_they_follow_and_each_of_several_classes_has_its_own_direction():
    features = [{"name": f"x{place}", "low": 0, "high": 1} for place in range(6)]
    two = columns_of(features=features)

    def told(alike: float) -> float:
        twins = drawn(two, SIZES, replace(LAWS[2], alike=alike), seed=0)
        values, target = twins.features.double(), twins.target.double()
        return float(torch.corrcoef(torch.cat([values, target[:, None]], dim=1).T)[-1, :-1].square().mean())

    assert told(0.7) > 2 * told(0.0)
    several = columns_of(features=features, target={"name": "y", "values": ["a", "b", "c"]})
    twins = drawn(several, SIZES, LAWS[2], seed=0)
    assert twins.target.bincount().tolist() == [457, 319, 224], "each has 70 % of the last"
    means = torch.stack([twins.features[twins.target == place].double().mean(0) for place in range(3)])
    apart, further = means[1] - means[0], means[2] - means[1]
    assert float(torch.cosine_similarity(apart, further, dim=0)) < 0.9, "classes are not steps of one ladder"


def test_moments_tell_a_plan_of_a_rare_class_what_public_numbers_cannot():
    columns = columns_of(features=[{"name": f"x{place}", "low": 0, "high": 1} for place in range(3)])
    asked_of = asked(data={"source": "object", "columns": columns.model_dump()})
    problem, records = Problem.from_experiment(asked_of), drawn(columns, SIZES, replace(LAWS[0], common=0.98), seed=0)
    numbers = numbers_of(asked_of, SIZES, problem)
    ready = Problem.from_experiment(settled(asked_of, numbers))
    moments = moments_of(ready, records, one=0.05, seed=0)
    twins = twins_of(moments, ready, columns)
    assert float(twins.target.double().mean()) == pytest.approx(0.02, abs=0.01)
    found = curve(asked_of, problem, SIZES, table=twins, strengths=(300.0,))
    assert found.kept[0] < FEASIBLE


def settled_quick(rounds: int = 6):
    from fedsw.federation.server.settling import numbers_of, settled

    own = asked(training={"preset": "auto", "rounds": rounds}, privacy={"trust": "none"})
    return settled(own, numbers_of(own, SIZES))


def test_what_nobody_said_is_public_is_not_trained_on():
    experiment = settled_quick()
    twins = drawn(experiment.data.columns, SIZES, LAWS[0], seed=0)
    private = DeclaredRecords(twins.features, twins.sensitive, twins.target, twins.ids, twins.columns, "private")
    with pytest.raises(TypeError, match="twins are public records, these are DeclaredRecords"):
        trained(Problem.from_experiment(experiment), (private, twins), multiplier=1.0)


def test_no_release_of_the_package_is_charged_to_nobody():
    """Every class with a method `spend` in the package is the ledger: twins are noised, and nothing is a release."""
    found = {
        (str(path.relative_to(PACKAGE)), node.name)
        for path in PACKAGE.rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and any(getattr(each, "name", "") == "spend" for each in node.body)
    }
    assert found == {("privacy/accounting/ledger.py", "Ledger")}


def test_noise_costs_what_can_be_learnt():
    experiment = settled_quick()
    problem = Problem.from_experiment(experiment)
    columns = experiment.data.columns
    twins, held_out = (drawn(columns, SIZES, LAWS[2], seed=seed) for seed in (0, 1))
    quiet, *noisy = (
        trained(problem, (twins, held_out), multiplier=multiplier, seed=seed)[0].gain
        for multiplier, seed in ((0.0, 0), (1e5, 0), (1e5, 1), (1e5, 2))
    )
    assert quiet > 0.1 > sum(noisy) / len(noisy)


def test_a_curve_never_falls():
    assert isotonic([0.1, 0.5, 0.3, 0.9]) == pytest.approx([0.1, 0.4, 0.4, 0.9])
    found = curve_of(0.0, 0.6, 0.5, 1.0)
    assert found.kept == pytest.approx((0.0, 0.55, 0.55, 1.0))
    assert found.at(math.inf) == 1.0 and found.at(1e9) == pytest.approx(1.0) and found.at(1.0) < 0
    nothing = Curve((Score(0.5, 0.5),), (Point(10.0, (Score(0.5, 0.5),)),))
    assert nothing.kept == (0.0,) and nothing.taught == ()


def test_sizes_keep_their_proportions_and_no_group_is_lost():
    assert scaled({"a": 10, "b": 990}, 100) == {"a": 2, "b": 99}
    assert spread_evenly(("a", "b"), 10) == {"a": 5, "b": 5}
    with pytest.raises(ExperimentError, match="--records is 3, and there are 2 groups"):
        spread_evenly(("a", "b"), 3)


def test_columns_of_a_named_data_set_come_from_the_names_of_its_inputs():
    found = columns_named(["age", "job=a", "job=b"], groups=["f", "m"], classes=["no", "yes"], targets=0, bounded=True)
    assert found.feature_names == ("age", "job=a", "job=b") and found.inputs == 3


def test_a_public_table_takes_the_place_of_the_laws():
    table = drawn(MANY, {"f": 30, "m": 30}, LAWS[0], seed=0)
    found = resampled(table, {"f": 100, "m": 50}, seed=0)
    assert isinstance(found, PublicRows) and found.sensitive.bincount().tolist() == [100, 50]
    assert {tuple(row) for row in found.features.tolist()} <= {tuple(row) for row in table.features.tolist()}
    women = table.take(table.sensitive == 0)
    with pytest.raises(ValueError, match="no record of the group 'm'"):
        resampled(PublicRows(women.features, women.sensitive, women.target, women.ids, MANY, "x"), SIZES, seed=0)


def test_a_plan_says_more_for_more_epsilon_and_its_numbers_agree(tmp_path):
    steps = {"preset": "auto", "rounds": 25}
    given = {"data": {"source": "object", "columns": MANY.model_dump()}, "training": steps, **PLAIN}
    weak, strong = (planned(asked(**given, privacy={"epsilon": e}), SIZES, strengths=FEW) for e in (0.05, 50.0))
    assert weak.verdict == "not feasible: a constant would do as well" and not weak.forecast.feasible
    assert strong.forecast.share_left > weak.forecast.share_left and strong.forecast.feasible
    assert weak.multiplier > strong.multiplier > 0 and weak.batch == (400, 600)
    own = [each for each in weak.forecast.what_ifs if (each.records, each.epsilon) == (1_000, 0.05)]
    assert own[0].share_left == pytest.approx(weak.forecast.share_left)
    assert draw_plan(strong, tmp_path / "plan.png").stat().st_size > 10_000
    json.dumps(as_plain(weak))


def test_a_plan_of_persons_says_whose_records_its_epsilon_is_for():
    data = {"source": "object", "columns": columns_of(unit="patient").model_dump()}
    found = planned(asked(data=data, training=QUICK), SIZES, strengths=FEW[:1], expect="much")
    assert dict(rows(found))["noise"].endswith("releases of all records of one 'patient', at each client by itself")
    alone = planned(asked(training=QUICK), SIZES, strengths=FEW[:1], expect="much")
    said = dict(rows(found))["persons"]
    assert "all rows with one value of 'patient' are one record" in said and "persons" not in dict(rows(alone))
    assert "More rows of a person lower no noise" in said and "hold persons out" in said
    assert as_plain(found)["unit"] == "patient" and dict(rows(alone))["noise"].endswith("releases")


def test_what_hangs_on_how_much_there_is_to_learn_is_said():
    def said(kept: float, least: float, most: float) -> str:
        found = planned(asked(training=QUICK), SIZES, strengths=FEW[:1], expect="much")
        return replace(found, forecast=replace(found.forecast, share_left=kept, range=(least, most))).unless

    assert said(0.6, 0.1, 0.9).startswith("unless the columns tell little")
    assert said(0.1, 0.0, 0.9).startswith("unless the columns tell much of the target: 90 % would")
    assert said(0.6, 0.5, 0.9) == said(0.1, 0.0, 0.2) == ""


def test_what_columns_with_tight_bounds_would_not_learn_is_not_called_feasible():
    """Nobody knows before moments are released how much of their bounds columns use."""
    columns = columns_of(features=[{"name": f"x{place}", "low": 0, "high": 1} for place in range(3)])
    data = {"source": "object", "columns": columns.model_dump()}
    given = {"training": {"preset": "auto", "rounds": 25}, **PLAIN}
    plain = planned(asked(data=data, **given, privacy={"epsilon": 8, "moments": 0}), SIZES, strengths=FEW)
    assert plain.forecast.share_left >= FEASIBLE > plain.forecast.tight
    assert plain.forecast.depends and not plain.forecast.feasible
    assert plain.verdict.startswith("feasible only if the columns use more than a tenth of their bounds: ")
    first = planned(asked(data=data, **given, privacy={"epsilon": 8, "moments": 0.2}), SIZES, strengths=FEW)
    assert first.forecast.tight >= FEASIBLE and first.forecast.feasible
    free = columns_of(features=[{"name": f"x{place}"} for place in range(3)])
    data = {"source": "object", "columns": free.model_dump()}
    assert planned(asked(data=data, **given, privacy={"epsilon": 8}), SIZES, strengths=FEW).forecast.tight is None


SIGNED = {"name": "y", "low": -9, "high": 9}


def test_numbers_most_of_which_are_small_are_not_promised_what_others_are():
    """Whether they are, as counts and costs are, is nobody's knowledge but the owner's."""
    columns = columns_of(target=None, targets=[{"name": "y", "low": 0, "high": 9}])
    data, given = {"source": "object", "columns": columns.model_dump()}, {"training": QUICK, **PLAIN}
    objective = {"objective": {"task": "regression", "alpha": 0.0}}
    found = planned(asked(data=data, **{**given, **objective}, privacy={"epsilon": 1}), SIZES, strengths=FEW)
    assert found.forecast.share_left >= FEASIBLE > found.forecast.skewed and not found.forecast.feasible
    assert (
        "numbers to predict use more than a tenth of their bounds (counts, most of them small," in found.verdict
        and found.forecast.depends
    )
    assert "too small on average" in dict(rows(found))["means"]
    signed = columns.model_copy(update={"targets": columns_of(target=None, targets=[SIGNED]).targets})
    other = found.experiment.model_copy(update={"data": found.experiment.data.model_copy(update={"columns": signed})})
    assert "means" not in dict(rows(replace(found, experiment=other)))
    target = drawn(columns, SIZES, SKEWED[0], seed=0).target.double()
    assert target.median() < target.mean() < 0.06 < target.std()


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_where_columns_may_tell_next_to_nothing_more_than_a_constant_is_promised_only_if_they_tell_more(task):
    """Nobody knows from public numbers whether a model without privacy gains two points or thirty."""
    predicted = {} if task == "classification" else {"target": None, "targets": [{"name": "y", "low": 0, "high": 9}]}
    data = {"source": "object", "columns": columns_of(**predicted).model_dump()}
    given = {"data": data, "training": {"preset": "auto"}, "objective": {"alpha": 0.0, "task": task}}
    little = planned(asked(**given, privacy={"epsilon": 0.1}), scaled(SIZES, 3_000), strengths=FEW)
    assert little.forecast.share_left >= FEASIBLE > little.forecast.bare and not little.forecast.feasible
    gains = "two points of accuracy" if task == "classification" else "4 % of squared error"
    assert little.verdict.startswith(
        f"feasible only if a model without privacy gains more than {gains} over a constant"
    )
    assert "a constant would do as well" in little.verdict and not little.unless
    assert as_plain(little)["forecast"]["kept_where_columns_tell_little"] == little.forecast.bare
    much = planned(asked(**given, privacy={"epsilon": 20.0}), scaled(SIZES, 20_000), strengths=FEW)
    assert much.forecast.bare >= FEASIBLE and "two points" not in much.verdict
    told = planned(asked(**given, privacy={"epsilon": 0.5}), scaled(SIZES, 3_000), strengths=FEW, expect="much")
    assert told.forecast.bare is None, "whoever says that they tell much is believed"


def test_a_plan_trains_so_many_models_and_solves_so_many_systems_of_equations(monkeypatch):
    """Its time is theirs: a strength that is not asked for, a penalty beyond the best, a start at 0 would be more."""
    records, solved, train, solve = [], [], planning.trained, np.linalg.solve

    def counted(problem, *pairs, **about):
        records.extend(len(twins) for twins, _ in pairs)
        return train(problem, *pairs, **about)

    monkeypatch.setattr(planning, "trained", counted)
    monkeypatch.setattr(np.linalg, "solve", lambda *given: solved.append(given[0].shape) or solve(*given))
    data = {"source": "object", "columns": MANY.model_dump()}
    planned(asked(data=data, training={"preset": "auto"}, **PLAIN, privacy={"epsilon": 1.0}), scaled(SIZES, 4_803))
    assert len(records) <= 32 and sum(records) <= 76_000 and len(solved) <= 950


def test_no_number_of_records_and_no_epsilon_is_called_enough_that_no_twin_was_trained_with():
    found = planned(asked(training=QUICK, **PLAIN, privacy={"epsilon": 1}), SIZES, strengths=FEW, expect="much")
    assert not {"feasible from", "model size"} & set(dict(rows(found)))
    assert not [name for name in as_plain(found)["forecast"] if name.startswith(("least_", "most_"))]


def test_a_plan_with_a_penalty_says_what_it_buys_beside_none():
    raw = {"training": {"preset": "auto"}, "privacy": {"epsilon": 8}, "objective": {"alpha": 0.5}}
    found = planned(asked(**raw), SIZES, strengths=FEW)
    (none, without), (alpha, weighed) = found.bought.items()
    assert (none, alpha) == (0.0, 0.5) and weighed.gap < without.gap and weighed.model < without.model + 0.02
    said = dict(rows(found))["penalty buys"]
    assert said.startswith("at α = 0.5 the gap between groups in a class's rate is ") and "at 0 " in said
    assert set(as_plain(found)["penalty_buys"]) == {"0.0", "0.5"} and "tails" not in said
    left = int(dict(rows(found))["forecast"].split("with α = 0.5, in groups of these sizes, ")[1].split(" %")[0])
    assert left == round(100 * found.forecast.share_left * min(1.0, weighed.gain / without.gain)) > 0
    third = found.experiment.objective.model_copy(update={"order": 3.0})
    other = found.experiment.model_copy(update={"objective": third})
    assert "not that of tails, for which order 3 is" in dict(rows(replace(found, experiment=other)))["penalty buys"]
    objective = Problem.from_experiment(other).objective
    assert [penalty.order for penalty in objective.penalties] == [3.0], "twins are trained with the order"
    assert found.forecast.reference == "logistic regression", "what a penalty costs is said by itself"
    assert not planned(asked(training=QUICK, **PLAIN), SIZES, strengths=FEW[:1]).bought


def test_twins_have_the_bins_that_the_run_takes_from_its_histograms():
    columns = columns_of(features=[{"name": f"x{place}", "low": 0, "high": 1} for place in range(3)])
    given = {"data": {"source": "object", "columns": columns.model_dump()}, "training": {"preset": "auto"}, **PLAIN}
    sizes, narrow, found = scaled(SIZES, 20_000), replace(LAWS[1], used=(0.03, 0.05)), {}
    twins = drawn(columns, scaled(SIZES, 2_000), narrow, seed=0)
    for share in ({}, {"histograms": 0.0}):
        experiment = asked(**given, privacy={"epsilon": 3.0, **share})
        problem, numbers = Problem.from_experiment(experiment), numbers_of(experiment, sizes)
        ready = settled(experiment, numbers)
        prepared, _ = opened(Problem.from_experiment(ready), twins, one=0.1, seed=0)
        learnt = curve(experiment, problem, sizes, laws=[narrow], strengths=(3e3,)).points[0].scores[0]
        found[ready.privacy.histograms] = ([binned.column for binned in prepared.experiment.model.bins], learnt)
    (binned, with_bins), (plain, without) = found[0.05], found[0.0]
    assert binned == ["x0", "x1", "x2"] and not plain
    assert with_bins != without, "fewer twins than the records that histograms are for are as many as the run has"


@pytest.mark.parametrize("classes", [2, 3])
def test_a_plan_says_what_probabilities_are_worth_and_calibration_mends_them(classes):
    columns = columns_of(target={"name": "y", "values": ["a", "b", "c"][:classes]})
    given = {"data": {"source": "object", "columns": columns.model_dump()}, "training": {"preset": "auto"}, **PLAIN}

    def found(share: float):
        asked_for = asked(**given, privacy={"epsilon": 0.5}, calibration={"share": share})
        return planned(asked_for, scaled(SIZES, 3_000), strengths=FEW, expect="some")

    raw, mended = found(0.0), found(0.1)
    (loss, shares), (less, same) = raw.forecast.log_loss, mended.forecast.log_loss
    assert shares == same < math.log(classes) and less < loss and less < shares
    assert f"the class shares alone have {shares:.3g}" in dict(rows(mended))["probabilities"]
    worse = replace(raw, forecast=replace(raw.forecast, log_loss=(1.0, 0.5)))
    assert "worse, do not read them as chances; [calibration] share = 0.1" in dict(rows(worse))["probabilities"]
    assert as_plain(mended)["forecast"]["log_loss"] == {"model": less, "shares": shares}


def test_one_of_several_classes_can_be_nearly_all():
    columns = columns_of(target={"name": "y", "values": ["a", "b", "c"]})
    target = drawn(columns, SIZES, with_rare_class(LAWS[1], 0.1), seed=0).target
    assert target.bincount().tolist() == [900, 59, 41]
    assert others_share(LAWS, 3) == pytest.approx(1 - 1 / (1 + 0.7 + 0.49)) and others_share(LAWS, 2) == 0.25


def test_a_plan_before_moments_says_what_it_assumes_of_classes_and_what_a_rare_one_would_come_to():
    found = planned(asked(training=QUICK, privacy={"epsilon": 4}), SIZES, strengths=FEW, expect="much")
    assert found.forecast.feasible and found.forecast.rarest == 0.5 and found.forecast.rare < found.forecast.share_left
    least = found.forecast.promised_from
    assert found.forecast.constant_to < least <= 0.5 and f"no class has less than {100 * least:.0f} %" in found.verdict
    assert as_plain(found)["forecast"]["kept_with_a_rare_class"] == found.forecast.rare
    assert as_plain(found)["forecast"]["constant_wins_up_to_share"] == found.forecast.constant_to
    said = [
        replace(found, forecast=replace(found.forecast, rare=rare, constant_to=share)).verdict
        for rare, share in ((0.1, 0.15), (0.7, None))
    ]
    assert "15 % or less, a constant would do as well" in said[0] and "2 %, about 70 % would be left" in said[1]
    rarer = replace(found, forecast=replace(found.forecast, rarest=0.25, rare=0.1, constant_to=0.2)).verdict
    assert "no class has less than 30 % of the records: if one of them has 20 % or less, a constant" in rarer
    several = replace(found, forecast=replace(found.forecast, classes=3, rare=0.1, constant_to=0.2)).verdict
    assert "the most frequent class has at most 70 % of the records: if it has 80 % or more, a constant" in several
    table = drawn(columns_of(), scaled(SIZES, 600), LAWS[1], seed=5)
    known = planned(asked(training=QUICK, privacy={"epsilon": 20}), SIZES, table=table, strengths=FEW)
    assert known.forecast.rarest is None and "assumes" not in known.verdict


@pytest.mark.parametrize("wanted", [0.02, 0.1, 0.3, 0.4])
def test_the_largest_share_at_which_a_constant_does_as_well_is_looked_for_with_few_trainings(wanted):
    tried = []

    def left(share: float) -> float:
        tried.append(share)
        return 0.0 if share <= wanted else FEASIBLE

    assert largest_for_constant(left) == wanted
    assert len(tried) <= 3


def test_a_task_without_rules_has_its_noise_and_no_forecast():
    ring = parse_experiment(
        {
            "name": "ring",
            "data": {"source": "ring", "records": 500, "test_records": 50},
            "model": {"kind": "generator", "hidden": [4]},
            "objective": {"task": "generation", "penalty": "distribution-matching", "alpha": 1.0},
            "training": {"rounds": 5},
        }
    )
    found = planned(ring, {"all": 500})
    assert found.forecast is None and found.multiplier > 0 and "no forecast: " in found.verdict
    with pytest.raises(ValueError, match="there is nothing to draw"):
        draw_plan(found, Path("x.png"))


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = asked(training=QUICK).model_copy(update={"title": "own"})
    (tmp_path / "own.toml").write_text(
        'name = "own"\n[data]\nsource = "files"\n[data.columns]\n'
        'features = [{name = "x", low = 0, high = 1}]\n'
        'sensitive = {name = "sex", values = ["f", "m"]}\ntarget = {name = "y", values = ["no", "yes"]}\n'
        f'[training]\npreset = "auto"\nrounds = {text.training.rounds}\n[federation]\nclients = 1\n'
        "[objective]\nalpha = 0.0\n"
    )
    return tmp_path


def plan_of(capsys, *arguments: str) -> dict:
    assert main(["plan", "own.toml", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_plan_is_the_same_whatever_the_records_hold(own, capsys):
    plans = []
    for name, value in (("a", "0.5"), ("b", "0.9")):
        folder = own / name / "0"
        folder.mkdir(parents=True)
        with (folder / "train.csv").open("w", newline="") as file:
            rows = [[value, "fm"[i % 2], ("no", "yes")[name == "b"]] for i in range(40)]
            csv.writer(file).writerows([["x", "sex", "y"], *rows])
        plans.append(plan_of(capsys, "--data-dir", str(own / name)))
    assert plans[0] == plans[1] == plan_of(capsys, "--records", "f=20,m=20")


def test_a_public_table_is_read_from_the_command_line(own, capsys):
    with (own / "public.csv").open("w", newline="") as file:
        rows = [[0.1 + 0.8 * (i % 2), "fm"[i // 2 % 2], ("no", "yes")[i % 2]] for i in range(80)]
        csv.writer(file).writerows([["x", "sex", "y"], *rows])
    given = ("--records", "f=200,m=200", "--public-table", "public.csv")
    found = plan_of(capsys, *given)["forecast"]
    assert found["range"] == pytest.approx([found["kept"]] * 2)
    assert main(["plan", "own.toml", *given, "--expect", "much"]) == 2
    assert "takes the place of the laws: keep one" in capsys.readouterr().err


def test_a_plan_warns_of_no_delta_but_that_of_the_records_it_is_for(own, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a search for enough records looks at 10^8, for which 1e-5 would be too large
        assert main(["plan", "own.toml", "--records", "300", "privacy.delta=1e-5", "--json"]) == 0
    assert "1/n" not in capsys.readouterr().err


def test_sizes_that_cannot_be_read_are_refused_with_the_form(own, capsys):
    for given in ("f=20", "many", "f=20,m=1", "f=20,x=5"):
        assert main(["plan", "own.toml", "--records", given]) == 2
        assert "write a number, or at least 2 for every group: f=N,m=N" in capsys.readouterr().err
    assert main(["plan", "own.toml"]) == 2
    assert "they cannot be counted here" in capsys.readouterr().err
    assert "groups of one size are assumed" in plan_of(capsys, "--records", "40")["assumed"]


def test_the_tables_show_every_plan_and_every_search():
    stored = json.loads(RESULT.read_text(encoding="utf-8"))
    plans = forecast.judged_plans()
    assert len(plans) == 42 and len(stored["search"]) == 12
    assert len(forecast.search_table(stored["search"]).splitlines()) >= 2 + 12
    assert all(plan.name in forecast.cells_table(plans) for plan in plans)
    assert forecast.forecast_table(plans).count("\n|") >= 2
