"""A secret batch is answered once: for the plan that drew it, out of one ledger, for one payment."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
import torch

import fedsw
from fedsw._tools.randomness import Stream
from fedsw.learning.objectives import Clip
from fedsw.privacy.accounting import Charge, Step, epsilon, lower_epsilon
from fedsw.privacy.accounting.lifetime import DatasetAccount, counting
from fedsw.privacy.release import Bounded, Part, pay, release_paid
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.runs.single.objective import draw_batch
from tests.runs.single.examples import Scores, model, records

CLIP = Clip(output=0.5, jacobian=1.0, loss=1.0)
ONE, OTHER = (fedsw.Objective(Scores(), [fedsw.Parity(weight)]) for weight in (0.5, 0.2))
ASKED = {"sizes": (24, 24), "batch_fraction": 0.5, "rounds": 3, "noise_multiplier": 2.0, "delta": 1e-3}


def plan_of(objective, **other):
    return fedsw.plan(objective, CLIP, **{**ASKED, **other})


@pytest.fixture
def ledgers(tmp_path):
    plans = plan_of(ONE), plan_of(OTHER)
    with (
        fedsw.Ledger.create(tmp_path / "one.sqlite", plans[0]) as one,
        fedsw.Ledger.create(tmp_path / "other.sqlite", plans[1]) as other,
    ):
        yield *plans, one, other


MODEL = model()
"""Rehearsed once for all tests, none of which moves it."""


def gradient(objective, batch) -> Bounded:
    return objective.gradient(MODEL, batch, CLIP)


def test_one_batch_for_two_steps_would_cost_more_than_the_two():
    """Two ledgers of one batch a round: an account would say 60 steps of mu, where 30 of sqrt(2) mu are true."""
    said = epsilon({Step(0.01, 1.0): 60}, 1e-5)
    true = lower_epsilon({Step(0.01, 2.0**0.5): 30}, 1e-5)
    assert said == pytest.approx(0.6445, abs=1e-4) and true == pytest.approx(1.8066, abs=1e-3)


def test_a_batch_is_answered_once(ledgers):
    one_plan, other_plan, one, other = ledgers
    for number, batch in enumerate(one_plan.batches(records()), start=1):
        fedsw.release(gradient(ONE, batch), one_plan, one)
        for plan, ledger in ((one_plan, one), (one_plan, other), (other_plan, other)):
            with pytest.raises(ValueError, match=r"(has left|another plan).*Nothing was charged"):
                fedsw.release(gradient(plan.objective, batch), plan, ledger)
        assert (one.head().sequence, other.head().sequence) == (number, 0)


def test_two_objectives_of_one_batch_do_not_leave_for_two_ledgers_of_an_account(ledgers, tmp_path):
    """One loop over batches, two objectives, two ledgers: .6445 was printed where the truth is at least 1.8066."""
    one_plan, other_plan, one, other = ledgers
    account = DatasetAccount(tmp_path, "people")
    with (
        counting(one, account, one_plan.reserved(), about("one")),
        counting(other, account, other_plan.reserved(), about("other")),
    ):
        for batch in one_plan.batches(records(), ledger=one):
            fedsw.release(gradient(ONE, batch), one_plan, one)
            with pytest.raises(ValueError, match="drawn for another plan"):
                fedsw.release(gradient(OTHER, batch), other_plan, other)
    assert one.head().sequence == 3 and other.entries() == []


def about(name):
    from fedsw.privacy.accounting.lifetime import About

    return About(name, "own loop", name, None)


def test_a_batch_is_of_the_plan_that_drew_it_and_of_the_ledger_it_was_drawn_for(ledgers):
    one_plan, other_plan, one, other = ledgers
    batch = next(iter(one_plan.batches(records(), ledger=one)))
    louder = dataclasses.replace(one_plan, multiplier=0.1)
    for plan, ledger, said in (
        (other_plan, other, "another plan"),
        (louder, one, "another plan"),
        (one_plan, other, "another ledger"),
    ):
        with pytest.raises(ValueError, match=f"drawn for {said}"):
            fedsw.release(gradient(plan.objective, batch), plan, ledger)
    assert one.entries() == other.entries() == []
    fedsw.release(gradient(ONE, batch), one_plan, one)


def test_copies_of_a_batch_are_that_batch_and_it_is_not_stored(ledgers):
    one_plan, _, one, _ = ledgers
    batch = next(iter(one_plan.batches(records())))
    copies = [copy.copy(batch), copy.deepcopy(batch), dataclasses.replace(batch, round=2, attempt=5)]
    fedsw.release(gradient(ONE, batch), one_plan, one)
    for each in copies:
        with pytest.raises(ValueError, match="this batch has left, in round 1, attempt 0"):
            fedsw.release(gradient(ONE, each), one_plan, one)
    with pytest.raises(TypeError, match="is not stored"):
        pickle.dumps(batch)
    assert one.head().sequence == 1


def test_what_could_not_be_paid_has_not_left(ledgers, tmp_path):
    one_plan, _, one, _ = ledgers
    batch = next(iter(one_plan.batches(records())))
    poor = dataclasses.replace(one_plan, epsilon=1e-4)
    with fedsw.Ledger.create(tmp_path / "poor.sqlite", poor) as small, pytest.raises(fedsw.BudgetExhausted):
        fedsw.release(gradient(ONE, batch), one_plan, small)
    assert fedsw.release(gradient(ONE, batch), one_plan, one).spent > 0


def test_values_of_one_batch_that_are_paid_for_together_leave_for_that_payment(ledgers):
    _, _, one, other = ledgers
    rows = [torch.arange(24).numpy()]
    batch = draw_batch(records(), rows, (12,), seed=None, round_=1, attempt=0)

    def value():
        return Bounded(torch.zeros(2, dtype=torch.float64), Sensitivity(0.1, "stated"), sample=batch.sample)

    charges = [Charge(group, 0.5, 0.2) for group in one.groups]
    parts = [Part("a", 0.1, 2.0), Part("b", 0.1, 2.0)]
    paid, again = (pay(ledger, 1, 0, charges, 2.0, parts) for ledger in (one, other))
    for name in ("a", "b"):
        release_paid(value(), paid, name, Stream.seeded(1))
        with pytest.raises(ValueError, match="a secret sample is accounted for once"):
            release_paid(value(), again, name, Stream.seeded(1))
