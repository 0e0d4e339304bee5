"""Laws of a limit that holds whatever each run was chosen by, and of the Renyi divergences that it adds up."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.accounting import Slicing, Step
from fedsw.accounting.composition import Composition
from fedsw.accounting.lifetime import About, Cost, DatasetAccount, Limit, LimitReached, one_cost, room, total_epsilon
from fedsw.accounting.lifetime.chosen import divergence
from fedsw.accounting.profiles import stated_step
from fedsw.accounting.selection import renyi_divergence, renyi_of
from fedsw.accounting.slicing import log_moment
from fedsw.accounting.stated import Pure
from tests.accounting.test_alternatives import chosen_as_one_goes

DELTA = 1e-6
OWN = About("own", "central", "")


def largest(limit: Limit, before: list[Cost], rate: float) -> Step:
    """The release of the least noise, of this share of the records, that still fits."""
    low, high = 0.0, 20.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if limit.admits([*before, one_cost({Step(rate, middle): 1})]) else (low, middle)
    return Step(rate, low)


@pytest.mark.parametrize(("epsilon", "first"), [(1.0, Step(1.0, 0.166)), (1.0, Step(0.1, 0.6)), (3.0, Step(1.0, 0.5))])
def test_whatever_is_chosen_by_what_was_released_shows_no_more_than_the_limit(epsilon: float, first: Step):
    """Exact, for two releases: given each outcome of the first, the second that shows most there of all that fit."""
    before = one_cost({first: 1})
    limit = Limit(epsilon, DELTA, before)
    assert limit.admits([before]) and limit.shared
    second = [largest(limit, [before], rate) for rate in (1.0, 0.3, 0.1, 0.01, 0.001)]
    assert all(step.mu > 0.0 for step in second)
    assert 0.0 < chosen_as_one_goes(first, second, epsilon) <= DELTA


def test_a_first_plan_may_take_the_limit_whole_and_nothing_but_its_own_steps_is_added(tmp_path):
    """It may stop where its releases say: whoever could begin something else instead would have two courses."""
    plan = {Step(0.1, 0.4): 60}
    account = DatasetAccount(tmp_path, "people")
    account.limit(total_epsilon([one_cost(plan)], DELTA), DELTA)
    account.reserve("first", plan, OWN)
    account.settle("first", {Step(0.1, 0.4): 1}, None)
    with pytest.raises(LimitReached, match="Nothing more fits: the plan of the first run takes the limit whole"):
        account.reserve("other", {Step(1.0, 0.01): 1}, OWN)
    account.reserve("first", plan, OWN)
    with pytest.raises(LimitReached):
        account.extend("first", {Step(0.1, 0.4): 5})


@pytest.mark.parametrize(
    ("epsilon", "first"),
    [(1.0, Step(1.0, 0.2237)), (1.0, Step(0.1, 0.6136)), (3.0, Step(1.0, 0.615)), (3.0, Step(0.01, 1.65))],
)
def test_no_choice_of_what_extends_a_plan_without_room_for_others_shows_more_than_the_limit(epsilon, first):
    """Exact, for one more release of any share of the records: each fits as a fixed plan, and the choice does not."""
    plan = one_cost({first: 1})
    limit = Limit(epsilon, DELTA, plan)
    assert limit.admits([plan]) and not limit.shared

    def fitting(rate: float, high: float, within: Callable[[Cost], bool]) -> Step:
        low = 0.0
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if within(plan.and_more({Step(rate, middle): 1})) else (low, middle)
        return Step(rate, low)

    rates = (1.0, 0.3, 0.1, 0.01, 0.001)
    fixed = [fitting(rate, 5.0, lambda cost: total_epsilon([cost], DELTA) <= epsilon) for rate in rates]
    assert chosen_as_one_goes(first, fixed, epsilon) > 1.4 * DELTA
    admitted = [fitting(rate, 5.0, lambda cost: limit.admits([cost])) for rate in rates]
    assert chosen_as_one_goes(first, [*admitted, Step(1.0, 1e-9)], epsilon) <= DELTA


def test_a_plan_that_leaves_room_is_extended_by_its_own_steps_alone():
    plan = one_cost({Step(0.1, 0.4): 60})
    limit = Limit(1.02 * total_epsilon([plan], DELTA), DELTA, plan)
    assert not limit.shared
    assert limit.admits([plan.and_more({Step(0.1, 0.4): 1})])
    assert limit.admits([plan.and_more({Step(0.09, 0.39): 1})])  # no more than one of its own
    assert not limit.admits([plan.and_more({Step(1.0, 0.001): 1})])
    assert not limit.admits([plan.and_more({Step(0.001, 0.41): 1})])
    assert not limit.admits([plan.and_more({Step(0.1, 0.1): 1, Step(1.0, 0.001): 1})])
    assert not limit.admits([plan, one_cost({Step(1.0, 0.001): 1})])


def test_a_run_that_released_nothing_is_not_the_first(tmp_path):
    account = DatasetAccount(tmp_path, "people")
    account.limit(2.0, DELTA)
    account.reserve("failed", {Step(0.1, 0.45): 60}, OWN)
    account.settle("failed", {}, None)
    account.reserve("first", {Step(1.0, 0.2): 1}, OWN)
    account.reserve("failed", {Step(0.1, 0.2): 60}, OWN)
    state = account.state()
    assert state.limit is not None and state.limit.first == one_cost({Step(1.0, 0.2): 1})
    assert list(state.runs) == ["first", "failed"]


@pytest.mark.parametrize("plan", [{Step(1.0, 0.3): 1}, {Step(0.1, 0.4): 60}, {Step(0.01, 1.0): 300}])
def test_that_runs_may_be_chosen_costs_less_than_a_quarter_of_epsilon(plan):
    taken = [one_cost(plan)] * 3
    exact = total_epsilon(taken, DELTA)
    assert exact <= Limit(exact, DELTA, taken[0]).chosen(taken) <= 1.25 * exact


@pytest.mark.parametrize("order", [1.5, 4.0, 21.6])
def test_divergences_of_every_kind_of_release_are_those_of_closed_forms(order: float):
    def of(step: Step) -> float:
        return divergence(one_cost({step: 1}), order)

    assert of(Step(1.0, 0.4)) == pytest.approx(order * 0.08, rel=1e-12)
    assert of(Step(0.1, 0.4)) == renyi_divergence(Step(0.1, 0.4), order)
    yes = 1 / (1 + math.exp(-0.7))
    answers = math.log(yes**order * (1 - yes) ** (1 - order) + (1 - yes) ** order * yes ** (1 - order)) / (order - 1)
    assert of(stated_step(Pure(0.7))) == pytest.approx(answers, rel=1e-12)
    curve = stated_step(renyi_of([(Step(1.0, 0.4), 1)]))
    assert order * 0.08 * (1 - 1e-9) <= of(curve) <= order * 0.08 * 1.05
    sliced = 30 / (order - 1) * log_moment(20, order * (order - 1) * 0.3**2 / 2)
    assert sliced <= of(Step(1.0, 0.3, slicing=Slicing(20, 30))) <= 1.35 * sliced
    assert of(Step(1.0, 0.3, slicing=Slicing(20, 30, "orthogonal"))) <= of(Step(1.0, 0.3 * math.sqrt(2.0)))
    assert of(Step(1.0, math.inf)) == math.inf


@pytest.mark.parametrize(("d", "k"), [(100, 2), (100, 5), (784, 10)])
@pytest.mark.parametrize("order", [1.5, 21.608])
def test_slices_of_which_some_are_hardly_ever_seen_have_a_divergence_too(d: int, k: int, order: float):
    exact = k / (order - 1) * log_moment(d, order * (order - 1) / 2)
    assert exact <= divergence(one_cost({Step(1.0, 1.0, slicing=Slicing(d, k)): 1}), order) <= 2.0 * exact


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.lists(st.builds(Step, st.sampled_from([0.01, 0.1, 1.0]), st.floats(0.05, 0.8)), min_size=2, max_size=4),
    st.floats(0.3, 4.0),
)
def test_what_is_admitted_is_within_the_limit_as_a_fixed_plan_too(steps: list[Step], epsilon: float):
    costs = [one_cost({step: 3}) for step in steps]
    if Limit(epsilon, DELTA, costs[0]).admits(costs):
        counts: dict[Step, int] = {}
        for step in steps:
            counts[step] = counts.get(step, 0) + 3
        assert Composition(counts).delta(epsilon) <= DELTA * (1 + 1e-6)


def test_a_record_pays_for_the_dearest_of_a_run_s_groups():
    parts = [{Step(1.0, 0.2): 1}, {Step(0.1, 0.5): 40}]
    both = Cost.of(parts)
    assert divergence(both, 8.0) == max(divergence(one_cost(part), 8.0) for part in parts)
    assert room(Limit(2.0, DELTA, both), [both]) < 2.0
