"""Laws of relations: a guarantee holds for the neighbours that everything behind it was bounded for, and no others."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from fedsw._tools.randomness import Stream
from fedsw._tools.registry import Unknown
from fedsw.privacy.accounting import Charge, Ledger, Step, epsilon
from fedsw.privacy.mechanisms import gaussian_sigma
from fedsw.privacy.relations import ADD_OR_REMOVE, RELATIONS, REPLACE_ANY, REPLACE_ONE, holds_for
from fedsw.privacy.release import Bounded, Part, pay, release, release_paid
from fedsw.privacy.sensitivity import Sensitivity
from tests.doors import Unaccounted
from tests.privacy.test_release import Fixed

VALUE = torch.zeros(3, dtype=torch.float64)


@pytest.fixture(params=list(RELATIONS))
def ledger(request, tmp_path):
    asked = {"groups": ("A",), "delta": 1e-5, "epsilon": 10.0, "nominal": True}
    with Ledger.create(tmp_path / "l.sqlite", **asked, relation=request.param) as made:
        yield made


def test_a_bound_holds_for_its_neighbours_and_for_fewer():
    held = {(bound, asked) for bound, asked in itertools.product(RELATIONS, RELATIONS) if holds_for(bound, asked)}
    assert held == {(name, name) for name in RELATIONS} | {(REPLACE_ANY, REPLACE_ONE)}


@pytest.mark.parametrize("name", ["add-remove", "", "replace one", None])
def test_an_unknown_relation_raises_wherever_it_is_named(name, tmp_path):
    asked = {"groups": ("A",), "delta": 1e-5, "epsilon": 1.0}
    for named in (
        lambda: Sensitivity(1.0, "stated", name),
        lambda: holds_for(REPLACE_ONE, name),
        lambda: holds_for(name, REPLACE_ONE),
        lambda: Ledger.create(tmp_path / "l.sqlite", **asked, relation=name),
        lambda: (
            pay(Unaccounted(), 0, 0, [Charge("A", 1.0, 1.0)], 1.0, [Part("a", 1.0, 1.0, relation=name)])
            and release_paid(Bounded(VALUE, Sensitivity(1.0, "any")), _paid(name), "a", Stream.seeded(1))
        ),
    ):
        with pytest.raises(Unknown, match=f"relation is {name!r}; there are 'replace-one'"):
            named()
    assert not (tmp_path / "l.sqlite").exists()


def _paid(relation):
    return pay(Unaccounted(), 0, 0, [Charge("A", 1.0, 1.0)], 1.0, [Part("a", 1.0, 1.0, relation=relation)])


@pytest.mark.parametrize("relation", list(RELATIONS))
def test_a_value_leaves_under_a_ledger_of_its_own_neighbours_alone(ledger, relation):
    """At sigma = Delta sqrt(2 ln 1.25/delta) presence costs 1, and a replacement, which moves twice as far, 2.155."""
    sampling = RELATIONS.get(relation).sampling
    value = Bounded(VALUE, Sensitivity(1.0, "stated", relation), charges=[Charge("A", 1.0, 1.0, sampling)])
    plan = Fixed(4.0, relation=ledger.relation)
    if holds_for(relation, ledger.relation):
        assert release(value, plan, ledger).spent == ledger.epsilon() > 0
        return
    with pytest.raises(ValueError, match="neighbours.*nothing was charged"):
        release(value, plan, ledger)
    with pytest.raises(ValueError, match=r"(neighbours|sampling).*nothing was charged"):
        pay(ledger, 1, 0, value.charges, 4.0, [Part.of("value", value.sensitivity, 4.0)])
    assert ledger.entries() == []


def test_what_is_bounded_for_presence_would_be_charged_half_of_a_replacement():
    sigma = gaussian_sigma(1.0, 1e-5, 1.0)
    assert epsilon({Step(1.0, 1 / sigma): 1}, 1e-5) == pytest.approx(1.0, abs=2e-3)
    assert epsilon({Step(1.0, 2 / sigma): 1}, 1e-5) > 2.1547
    presence = Sensitivity(1.0, "stated", ADD_OR_REMOVE)
    assert (presence.of_replacement().value, presence.of_replacement().relation) == (2.0, REPLACE_ANY)
    with pytest.raises(ValueError, match="no bound for additions"):
        Sensitivity(1.0, "stated").of_replacement()


def test_charges_are_of_the_sampling_that_the_relation_means(ledger):
    for sampling in ("without-replacement", "poisson"):
        charge = Charge("A", 0.1, 0.1, sampling)
        if sampling == RELATIONS.get(ledger.relation).sampling:
            Bounded(VALUE, Sensitivity(0.1, "stated", ledger.relation), charges=[charge])
            continue
        with pytest.raises(ValueError, match=f"{sampling} sampling"):
            Bounded(VALUE, Sensitivity(0.1, "stated", ledger.relation), charges=[charge])
        with pytest.raises(ValueError, match=f"{sampling} sampling"):
            ledger.spend(1, 0, [charge], 1.0)
    assert ledger.entries() == []


@pytest.mark.parametrize("relation", list(RELATIONS))
def test_a_part_that_is_paid_for_takes_no_value_of_other_neighbours(relation):
    paid = _paid(REPLACE_ANY)
    value = Bounded(VALUE, Sensitivity(1.0, "stated", relation))
    if relation == REPLACE_ANY:
        assert math.isfinite(release_paid(value, paid, "a", Stream.seeded(1)).value.sum())
    else:
        with pytest.raises(ValueError, match="is bounded for"):
            release_paid(value, paid, "a", Stream.seeded(1))
        assert "a" in paid.parts


def test_a_ledger_keeps_its_relation(ledger):
    path, relation = ledger.path, ledger.relation
    ledger.close()
    with Ledger.open(path) as again:
        assert again.relation == relation
