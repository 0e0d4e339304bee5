"""Laws of a limit that holds whatever each run was chosen by: of its filters, and of the divergences it adds up."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.privacy.accounting import Composition, Slicing, Step
from fedsw.privacy.accounting.lifetime import (
    About,
    AdmittedCost,
    Cost,
    DatasetAccount,
    Limit,
    LimitReached,
    Use,
    in_order,
    room,
    total_epsilon,
)
from fedsw.privacy.accounting.lifetime.chosen import divergence, next_weight
from fedsw.privacy.accounting.profiles import stated_step
from fedsw.privacy.accounting.selection import renyi_divergence, renyi_of
from fedsw.privacy.accounting.slicing import log_moment
from fedsw.privacy.accounting.stated import Pure
from tests.privacy.accounting.test_composition_alternatives import chosen_as_one_goes

DELTA = 1e-6
OWN = About("own", "central", "")


def largest(limit: Limit, before: list[Cost], rate: float) -> Step:
    """The release of the least noise, of this share of the records, that still fits."""
    return sized(rate, 20.0, lambda step: limit.admits(in_order([*before, Cost.one({step: 1})])))


def sized(rate: float, high: float, within: Callable[[Step], bool]) -> Step:
    """The release of the least noise that is within something."""
    low = 0.0
    for _ in range(18):
        middle = (low + high) / 2
        low, high = (middle, high) if within(Step(rate, middle)) else (low, middle)
    return Step(rate, low)


def extended(plan: Cost, more: Step) -> list[Use]:
    """A run that was let in with a plan, and with one more release."""
    (use,) = in_order([plan])
    share = AdmittedCost(Cost.one({more: 1}), next_weight(use.shares))
    return [Use(plan.and_more({more: 1}), (*use.shares, share), leads=True)]


@pytest.mark.parametrize(("epsilon", "first"), [(1.0, Step(1.0, 0.166)), (1.0, Step(0.1, 0.6)), (3.0, Step(1.0, 0.5))])
def test_whatever_is_chosen_by_what_was_released_shows_no_more_than_the_limit(epsilon: float, first: Step):
    """Exact, for two releases: given each outcome of the first, the second that shows most there of all that fit."""
    before = Cost.one({first: 1})
    limit = Limit(epsilon, DELTA, before)
    assert limit.admits(in_order([before])) and limit.shared
    second = [largest(limit, [before], rate) for rate in (1.0, 0.3, 0.1, 0.01, 0.001)]
    assert all(step.mu > 0.0 for step in second)
    assert 0.0 < chosen_as_one_goes(first, second, epsilon) <= DELTA


def test_a_first_plan_may_take_the_limit_whole_and_nothing_but_its_own_steps_is_added(tmp_path):
    """It may stop where its releases say: whoever could begin something else instead would have two courses."""
    plan = {Step(0.1, 0.4): 60}
    account = DatasetAccount(tmp_path, "people")
    account.limit(total_epsilon([Cost.one(plan)], DELTA), DELTA)
    account.reserve("first", plan, OWN)
    account.settle("first", {Step(0.1, 0.4): 1}, None)
    with pytest.raises(LimitReached, match="Nothing more fits: the plan of the first run takes the limit whole"):
        account.reserve("other", {Step(1.0, 0.01): 1}, OWN)
    account.reserve("first", plan, OWN)
    with pytest.raises(LimitReached):
        account.extend("first", {Step(0.1, 0.4): 5})


def test_a_first_run_that_is_refused_reads_what_of_it_fits(tmp_path):
    """What was refused has no part in the limit: a smaller first run is let in."""
    account, plan = DatasetAccount(tmp_path, "people"), {Step(0.1, 0.5): 2}
    account.limit(0.1, DELTA)
    with pytest.raises(LimitReached, match=r"A run like it of epsilon 0\.09\d+ still fits"):
        account.reserve("first", plan, OWN)
    left = room(Limit(0.1, DELTA), [], like=Cost.one(plan))
    assert 0.09 < left <= 0.1
    smaller = sized(0.1, 0.5, lambda step: total_epsilon([Cost.one({step: 2})], DELTA) <= left)
    account.reserve("first", {smaller: 2}, OWN)


@pytest.mark.parametrize(
    ("epsilon", "first", "shared"),
    [
        (1.0, Step(1.0, 0.2237), True),
        (1.0, Step(0.1, 0.664), False),
        (3.0, Step(1.0, 0.6215), False),
        (3.0, Step(0.01, 1.65), True),
    ],
)
def test_no_choice_of_what_extends_a_plan_shows_more_than_the_limit(epsilon, first, shared):
    """Exact, for one more release of any share of the records: each fits as a fixed plan, and the choice does not."""
    plan = Cost.one({first: 1})
    limit = Limit(epsilon, DELTA, plan)
    assert limit.admits(in_order([plan])) and limit.shared == shared
    rates = (1.0, 0.3, 0.1, 0.01, 0.001)
    fixed = [
        sized(rate, 5.0, lambda step: total_epsilon([plan.and_more({step: 1})], DELTA) <= epsilon) for rate in rates
    ]
    assert chosen_as_one_goes(first, fixed, epsilon) > 1.2 * DELTA
    admitted = [sized(rate, 5.0, lambda step: limit.admits(extended(plan, step))) for rate in rates]
    assert chosen_as_one_goes(first, [*admitted, Step(1.0, 1e-9)], epsilon) <= DELTA


def test_a_plan_that_leaves_room_is_extended_by_its_own_steps_alone():
    plan = Cost.one({Step(0.1, 0.4): 60})
    limit = Limit(1.02 * total_epsilon([plan], DELTA), DELTA, plan)
    assert not limit.shared
    assert limit.admits(in_order([plan.and_more({Step(0.09, 0.39): 1})]))  # no more than one of its own
    assert limit.admits(in_order([plan]))
    for other in ({Step(1.0, 0.001): 1}, {Step(0.001, 0.41): 1}, {Step(0.1, 0.1): 1, Step(1.0, 0.001): 1}):
        assert not limit.admits(in_order([plan.and_more(other)]))
    assert not limit.admits(in_order([plan, Cost.one({Step(1.0, 0.001): 1})]))


def test_small_runs_that_are_alike_compose_as_one_and_others_by_their_own_epsilons(tmp_path):
    """Batches of 1 %: their divergences are large at every order that a limit of 1 leaves room for."""
    account, run, other = DatasetAccount(tmp_path, "people"), {Step(0.01, 1.0): 30}, {Step(1.0, 0.05): 1}
    account.limit(1.0, 1e-5)
    for number in range(4):
        account.reserve(f"alike {number}", run, OWN)
    state = account.state()
    assert state.limit.chosen(state.uses()) == total_epsilon([Cost.one({Step(0.01, 1.0): 120})], 1e-5 / 3)
    with pytest.raises(LimitReached):
        account.reserve("other", other, OWN)
    several = DatasetAccount(tmp_path, "several")
    several.limit(1.0, 1e-5)
    several.reserve("first", run, OWN)
    several.reserve("other", other, OWN)
    first, second, third = several.state().limit.filters(several.state().uses())
    assert first > 10.0 and second == math.inf
    shares = [(run, 1 / 2), (other, 1 / 6)]
    assert third == pytest.approx(math.fsum(total_epsilon([Cost.one(c)], w * 1e-5 / 3) for c, w in shares), rel=1e-9)


def test_a_share_of_a_delta_too_small_to_compute_fits_by_the_other_filters_alone():
    costs = [Cost.one({Step(1.0, 0.05): 1})] * 12
    for delta in (1e-10, 1e-9, 1e-8):
        limit, uses = Limit(2.0, delta, costs[0]), in_order(costs)
        divergences, alike, summed = limit.filters(uses)
        assert divergences < 2.0 and summed == math.inf and limit.admits(uses)
        assert math.isinf(alike) == (delta / 3 < 1e-10)


def test_no_limit_is_exceeded_by_more_than_rounding_at_any_delta():
    """A ledger lets numerical composition differ by more where delta is small; a limit does not."""
    cost = Cost.one({Step(1.0, 0.1): 1})
    for delta in (1e-10, DELTA):
        epsilon, uses = total_epsilon([cost], delta), in_order([cost])
        assert Limit(epsilon, delta).admits(uses) and not Limit(epsilon * (1 - 1e-8), delta).admits(uses)


def test_a_filter_s_order_follows_from_the_limit_alone_so_that_what_runs_take_adds_up():
    """An order that was best for what has run would have been chosen by what it released."""
    first, second = Cost.one({Step(0.1, 0.4): 60}), Cost.one({Step(1.0, 0.2): 3})
    for epsilon in (0.3, 1.0, 3.0, 10.0):
        orders = {Limit(epsilon, DELTA, plan).order for plan in (None, first, second)}
        assert len(orders) == 1
        (order,) = orders
        none, one, both = (
            next(Limit(epsilon, DELTA, first).filters(in_order(costs))) for costs in ([], [first], [first, second])
        )
        assert one - none == pytest.approx(divergence(first, order), rel=1e-9)
        assert both - one == pytest.approx(divergence(second, order), rel=1e-9)


def test_a_share_s_part_of_delta_never_changes_and_all_parts_are_no_more_than_one(tmp_path):
    """Whoever stops by what a run released would otherwise choose what it had cost."""
    account, plan = DatasetAccount(tmp_path, "people"), {Step(0.1, 0.2): 60}
    account.limit(3.0, DELTA)
    seen: dict[str, tuple[AdmittedCost, ...]] = {}
    for number in range(6):
        account.reserve(str(number), plan, OWN)
        if number == 2:
            account.settle("1", {}, None)  # it released nothing, and another may have its part
            seen["1"] = ()
        if number == 4:
            account.settle("3", {Step(0.1, 0.2): 1}, None)
        runs = account.state().runs
        assert all(runs[name].shares == shares for name, shares in seen.items())
        seen |= {name: run.shares for name, run in runs.items()}
    account.reserve("3", plan, OWN)  # it goes on with what it was let in with
    account.extend("3", {Step(0.1, 0.2): 1})
    uses = account.state().uses()
    assert [share.cost for share in account.state().runs["3"].shares] == [Cost.one(plan), Cost.one({Step(0.1, 0.2): 1})]
    weights = [share.weight for use in uses for share in use.shares]
    assert len(weights) == 6 and min(weights) > 0 and sum(weights) < 1


def test_a_first_plan_stays_the_first_when_its_run_goes_on_with_another(tmp_path):
    """Else whoever saw what it released would choose which plan is admitted as if nothing had been released."""
    account, step = DatasetAccount(tmp_path, "people"), Step(0.1, 0.4)
    account.limit(total_epsilon([Cost.one({step: 60})], DELTA), DELTA)
    account.reserve("first", {step: 60}, OWN)
    account.settle("first", {step: 1}, None)
    other = {step: 1, Step(1.0, 0.15): 1}
    assert total_epsilon([Cost.one(other)], DELTA) < 0.8 * account.state().epsilon
    with pytest.raises(LimitReached):
        account.reserve("first", other, OWN)
    assert account.state().first == Cost.one({step: 60})
    account.reserve("another", {step: 59}, OWN)  # more of its own step, in whichever run


def test_a_first_plan_stays_until_nobody_has_released_or_may(tmp_path):
    """A run that gives its plan back may do so because of what others released meanwhile."""
    account, plan = DatasetAccount(tmp_path, "people"), {Step(0.1, 0.2): 60}
    account.limit(3.0, DELTA)
    account.reserve("first", plan, OWN)
    account.reserve("second", {Step(1.0, 0.1): 1}, OWN)
    account.settle("first", {}, None)
    assert account.state().first == Cost.one(plan)
    account.settle("second", {}, None)
    assert account.state().first is None


def test_a_run_that_released_nothing_is_not_the_first(tmp_path):
    account = DatasetAccount(tmp_path, "people")
    account.limit(2.5, DELTA)
    account.reserve("failed", {Step(0.1, 0.45): 60}, OWN)
    account.settle("failed", {}, None)
    account.reserve("first", {Step(1.0, 0.2): 1}, OWN)
    account.reserve("failed", {Step(0.1, 0.2): 60}, OWN)
    state = account.state()
    assert state.limit is not None and state.limit.first == Cost.one({Step(1.0, 0.2): 1})
    assert [run.leads for run in state.runs.values()] == [True, False]
    assert list(state.runs) == ["first", "failed"]


@pytest.mark.parametrize("plan", [{Step(1.0, 0.3): 1}, {Step(0.1, 0.4): 60}, {Step(0.01, 1.0): 300}])
def test_that_runs_may_be_chosen_costs_less_than_a_quarter_of_epsilon(plan):
    taken = [Cost.one(plan)] * 3
    exact = total_epsilon(taken, DELTA)
    assert exact <= Limit(exact, DELTA, taken[0]).chosen(in_order(taken)) <= 1.25 * exact


@pytest.mark.parametrize("order", [1.5, 4.0, 21.6])
def test_divergences_of_every_kind_of_release_are_those_of_closed_forms(order: float):
    def of(step: Step) -> float:
        return divergence(Cost.one({step: 1}), order)

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
    assert exact <= divergence(Cost.one({Step(1.0, 1.0, slicing=Slicing(d, k)): 1}), order) <= 2.0 * exact


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.lists(st.builds(Step, st.sampled_from([0.01, 0.1, 1.0]), st.floats(0.05, 0.8)), min_size=2, max_size=4),
    st.floats(0.3, 4.0),
)
def test_what_is_admitted_is_within_the_limit_as_a_fixed_plan_too(steps: list[Step], epsilon: float):
    costs = [Cost.one({step: 3}) for step in steps]
    if Limit(epsilon, DELTA, costs[0]).admits(in_order(costs)):
        counts: dict[Step, int] = {}
        for step in steps:
            counts[step] = counts.get(step, 0) + 3
        assert Composition(counts).delta(epsilon) <= DELTA * (1 + 1e-6)


def test_a_record_pays_for_the_dearest_of_a_run_s_groups():
    parts = [{Step(1.0, 0.2): 1}, {Step(0.1, 0.5): 40}]
    both = Cost.of(parts)
    assert divergence(both, 8.0) == max(divergence(Cost.one(part), 8.0) for part in parts)
    assert room(Limit(2.0, DELTA, both), in_order([both])) < 2.0
