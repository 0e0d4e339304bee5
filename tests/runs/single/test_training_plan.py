"""Plans and batches: the noise that was asked for, uniform secret samples, and refusals before anything is drawn."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

import fedsw
from fedsw.learning.objectives import Clip
from fedsw.privacy.accounting import Step, epsilon
from tests.learning.sketches.samples import LAWS
from tests.runs.single.examples import Scores, records

CLIP = Clip(output=0.5, jacobian=1.0, loss=1.0)
OBJECTIVE = fedsw.Objective(Scores(), [fedsw.Parity(0.5)])
ASKED = {"sizes": (600, 300), "batch_fraction": 0.1, "rounds": 40, "epsilon": 2.0, "delta": 1e-5}


def plan(**other):
    return fedsw.plan(OBJECTIVE, CLIP, **{**ASKED, **other})


def test_the_planned_rounds_cost_the_asked_epsilon():
    found = plan()
    steps = {Step(max(found.rates), 1 / found.multiplier): found.rounds}
    assert epsilon(steps, found.delta) == pytest.approx(2.0, rel=1e-4) and epsilon(steps, found.delta) <= 2.0


def test_a_noise_multiplier_gives_the_epsilon_that_the_rounds_cost():
    found = plan(epsilon=None, noise_multiplier=3.0)
    assert found.epsilon == pytest.approx(epsilon({Step(0.1, 1 / 3.0): 40}, 1e-5), rel=1e-9)


def test_a_plan_says_what_it_promises_and_what_is_public():
    text = str(plan())
    for word in ("A=0 (60 of 600)", "sampling rate", "sensitivity", "noise multiplier", "sigma", "Public:"):
        assert word in text
    assert "nominal" not in text and "nominal" in str(plan(seed=1))
    assert "epsilon is infinite" in str(plan(epsilon=math.inf))


def test_normal_noise_is_never_planned_by_what_laplace_noise_costs():
    """Its epsilon of one release is mu, where that of normal noise is 4.38 for mu = 1 at delta = 1e-5."""
    for given in ({}, {"epsilon": None, "noise_multiplier": 1.0}):
        with pytest.raises(ValueError, match="'laplace' is of laplace noise"):
            plan(accountant="laplace", **given)
        with pytest.raises(ValueError, match="'laplace' is of laplace noise"):
            fedsw.plan_sketch(LAWS["kernel"], records=40, delta=1e-5, accountant="laplace", **{"epsilon": 2.0, **given})


def test_a_plan_by_an_accountant_that_proves_nothing_is_called_no_guarantee():
    sketched = fedsw.plan_sketch(LAWS["kernel"], records=40, delta=1e-5, epsilon=2.0, accountant="gdp-clt-uniform")
    for found in (plan(accountant="gdp-clt-uniform"), sketched):
        doubt = "No guarantee: what the accountant gdp-clt-uniform says may fall below the truth. It says "
        assert found.guarantee.startswith(doubt) and doubt in str(found)
    assert "No guarantee" not in str(plan()) and "No guarantee" not in str(plan(accountant="rdp-wor"))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"sizes": (600,)}, "1 sizes for 2 strata; give one for each of A=0, A=1"),
        ({"sizes": {"A=0": 3, "B": 4}}, "the strata are A=0, A=1"),
        ({"sizes": (600, 0)}, "stratum A=1 has 0 records"),
        ({"batch_fraction": 1.5}, "batch_fraction = 1.5"),
        ({"batch_fraction": None}, "give batch_fraction or batch_size"),
        ({"batch_fraction": None, "batch_size": 301}, "stratum A=1 has 300 records: between 1 and 300 fit"),
        ({"rounds": 0}, "rounds = 0"),
        ({"noise_multiplier": 1.0}, "give epsilon .* or noise_multiplier"),
        ({"epsilon": None, "noise_multiplier": 0}, "noise_multiplier = 0.0; .* For no noise give epsilon=math.inf"),
        ({"epsilon": None, "noise_multiplier": math.inf}, "noise_multiplier = inf"),
        ({"epsilon": math.nan}, "epsilon = nan"),
        ({"epsilon": "1"}, "epsilon = '1'; it is a number"),
        ({"epsilon": True}, "epsilon = True"),
        ({"rounds": 2.5}, r"rounds = 2.5; it is a whole number"),
        ({"rounds": True}, "rounds = True"),
        ({"rounds": "5"}, "rounds = '5'"),
        ({"batch_fraction": None, "batch_size": True}, "batch_size = True"),
        ({"batch_fraction": None, "batch_size": 2.5}, "batch_size = 2.5"),
        ({"sizes": (600.5, 300)}, "size of stratum A=0 = 600.5"),
        ({"sizes": (math.inf, 300)}, "size of stratum A=0 = inf"),
        ({"seed": True}, "seed = True"),
        ({"seed": "x"}, "seed = 'x'"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 1.5}, "seed = 1.5"),
    ],
)
def test_what_is_no_plan_is_refused_by_name(other, said):
    with pytest.raises(ValueError, match=said):
        plan(**other)


def test_whole_numbers_of_every_type_make_one_plan():
    """A seed of another type was another run, and 2.5 records were planned for."""
    asked = {"sizes": (24, 24), "batch_fraction": None, "batch_size": 6, "rounds": 3, "seed": 1, "epsilon": 2}
    one, keys = plan(**asked), [name for name in asked if name not in ("sizes", "batch_fraction")]
    for kind in (float, np.int64, np.int32, np.uint8, np.float32, torch.tensor):
        other = plan(**{**asked, "sizes": (kind(24), 24), **{name: kind(asked[name]) for name in keys}})
        assert (other.sizes, other.batch, other.rounds, other.seed) == (one.sizes, one.batch, one.rounds, one.seed)
        assert (other.noise_stream(1, 0).words(4) == one.noise_stream(1, 0).words(4)).all()
        assert all(type(size) is int for size in (*other.batch, *other.sizes, other.rounds, other.seed))


def test_records_of_other_sizes_than_planned_are_refused_before_a_batch_is_drawn():
    with pytest.raises(ValueError, match="stratum A=0 has 24 records and the plan is for 600"):
        next(plan().batches(records(48)))


def test_classes_that_the_objective_does_not_have_are_refused_before_anything_is_on_disk(tmp_path):
    """A target of 2 had been trained on under two classes, and paid for."""
    objective, net = fedsw.Objective("classification", [fedsw.Parity(0.5)]), torch.nn.Linear(3, 1).double()
    asked = {"sizes": (24, 24), "batch_fraction": 0.5, "rounds": 3, "epsilon": 2.0, "delta": 1e-5}
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    ours = fedsw.PrivateTrainer(
        net, sgd, objective, CLIP, fedsw.plan(objective, CLIP, **asked), directory=tmp_path / "run"
    )
    plain, odd, frame = records(48), torch.arange(48) % 3, {"g": torch.arange(48) % 2, "x": torch.zeros(48)}
    declared = fedsw.as_records({**frame, "t": odd}, group="g", target="t")
    numbers = fedsw.as_records({**frame, "t": odd.double()}, group="g", targets="t")
    for given, said in (
        (
            dataclasses.replace(plain, target=odd),
            "class of record 2 is 2, and the objective has 2, numbered 0 to 1",
        ),
        (dataclasses.replace(plain, target=odd - 1), "the class of record 0 is -1"),
        (declared, r"declare 3 classes \('0', '1', '2'\) and the objective has 2; make it with classes=3"),
        (numbers, "the records have 1 target numbers and the objective 2 classes"),
        (dataclasses.replace(plain, sensitive=odd), "2 at record 2"),
    ):
        with pytest.raises(ValueError, match=said):
            ours.fit(given)
    assert not (tmp_path / "run").exists()


def test_every_batch_is_a_fresh_uniform_sample_of_the_planned_size():
    found = plan(sizes=(24, 24), batch_fraction=0.25, rounds=3000, epsilon=None, noise_multiplier=50.0)
    counts, pairs = np.zeros(48), []
    for batch in found.batches(records(48)):
        ids = batch.records.ids.numpy()
        assert len(set(ids)) == 12 and batch.sizes == (6, 6) and list(batch.records.sensitive) == [0] * 6 + [1] * 6
        counts[ids] += 1
        pairs.append({0, 2} <= set(ids))
    assert stats.chisquare(counts).pvalue > 1e-6
    assert stats.binomtest(sum(pairs), 3000, 6 * 5 / (24 * 23)).pvalue > 1e-6


def test_without_a_seed_two_plans_draw_other_batches_and_noise_and_with_one_the_same():
    for seed, same in ((None, False), (7, True)):
        one, two = (plan(sizes=(24, 24), seed=seed) for _ in range(2))
        first, second = ([batch.records.ids.tolist() for batch in each.batches(records(48))] for each in (one, two))
        assert len(first) == len(second) > 1 and (first == second) == same
        assert (one.noise_stream(1, 0).words(4) == two.noise_stream(1, 0).words(4)).all() == same


def test_attempts_that_a_ledger_holds_are_not_repeated(tmp_path):
    found = plan(sizes=(24, 24))
    with fedsw.Ledger.create(tmp_path / "l.sqlite", found) as ledger:
        charges = [fedsw.privacy.accounting.Charge(name, 0.1, 1.0) for name in found.strata]
        for attempt in (0, 1):
            ledger.spend(2, attempt, charges, 100.0)
        drawn = [(b.round, b.attempt) for b in found.batches(records(48), ledger=ledger)]
    assert drawn[:3] == [(1, 0), (2, 2), (3, 0)] and drawn[-1] == (40, 0)


def test_delta_may_follow_the_number_of_records_and_one_that_protects_nobody_is_warned_of():
    assert plan(delta="0.1/n").delta == pytest.approx(0.1 / 900)
    with pytest.warns(UserWarning, match="not below 1/n"):
        plan(delta=0.01)


@pytest.mark.parametrize("name", ["output", "jacobian", "loss"])
@pytest.mark.parametrize("value", [1e300, 1e-300, math.inf, math.nan, 0.0, -1.0])
def test_norms_whose_products_cannot_be_squared_are_refused_by_name(name, value):
    """1e300 ended in an OverflowError of its square."""
    with pytest.raises(ValueError, match=rf"clip\.{name} = .*; it must lie between 1e-60 and 1e\+60"):
        Clip(**{"output": 1.0, "jacobian": 1.0, "loss": 1.0, name: value})
