"""Laws of a mechanism that takes one of several compositions: no part costs more, and no choice of parts does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.privacy.accounting import Composition, Step, epsilon
from fedsw.privacy.accounting.lifetime import Cost, composed_epsilon, total_epsilon
from fedsw.privacy.accounting.lifetime.composing import one_of
from fedsw.privacy.accounting.profiles import gaussian_profile, step_profile

GAUSSIAN, SAMPLED = {Step(1.0, 0.4): 1}, {Step(0.1, 2.0): 1}
LOSSES = np.linspace(0.0, 12.0, 1201)


def test_its_profile_is_the_largest_of_its_parts_at_every_loss():
    """Of the two here, either is the larger one somewhere."""
    step = one_of([GAUSSIAN, SAMPLED])
    exact = np.stack([step_profile(*GAUSSIAN, LOSSES), step_profile(*SAMPLED, LOSSES)])
    found = step_profile(step, LOSSES) + step.stated.left_out
    worst = exact.max(0)
    assert {int(place) for place in exact.argmax(0)[:800]} == {0, 1}
    assert bool((found >= worst).all()) and step.stated.left_out < 3e-12
    assert bool((found <= 1.003 * worst + 3e-12).all())


def test_a_part_of_many_steps_is_its_composition():
    step = one_of([{Step(1.0, 0.1): 16}, {Step(1.0, 0.05): 64}, {Step(1.0, 0.3): 1}])
    exact = gaussian_profile(LOSSES, 0.4)
    found = step_profile(step, LOSSES) + step.stated.left_out
    assert bool((found >= exact).all()) and bool((found <= 1.003 * exact + 3e-12).all())


def test_what_a_table_leaves_out_counts_in_full():
    step = one_of([GAUSSIAN, SAMPLED])
    assert step.stated.left_out > 1e-12
    for times in (1, 30):
        assert Composition({step: times}).delta(1e3) >= times * step.stated.left_out


def test_its_profile_is_that_of_a_pair():
    step = one_of([GAUSSIAN, SAMPLED, {Step(0.02, 0.5): 500}])
    values = step.stated.profile(LOSSES)
    slopes = np.diff(values) / np.diff(np.exp(LOSSES))
    assert bool((np.diff(slopes) >= -1e-12 * np.abs(slopes)[1:]).all())
    assert step.stated.values[-1] == 0.0
    assert float(slopes[0]) >= (float(values[0]) - 1) / 2 - 1e-9  # else it is that of no symmetric pair


def chosen_as_one_goes(first, second, loss: float) -> float:
    """delta(loss) of two runs, of which the second takes the part that is worse after what the first one showed.

    The part of the first is `first`; its loss is integrated by the slopes of its profile.
    """
    nodes = np.linspace(-12.0, 12.0, 24_001)
    up = np.abs(nodes)
    profile = step_profile(first, up)
    whole = np.where(nodes < 0, 1 - np.exp(nodes) + np.exp(nodes) * profile, profile)
    falls, widths = -np.diff(whole), np.diff(np.exp(nodes))
    mass = np.exp(nodes[1:-1]) * (falls[:-1] / widths[:-1] - falls[1:] / widths[1:]).clip(min=0.0)
    rest = loss - nodes[1:-1]
    later = np.stack([step_profile(part, np.abs(rest)) for part in second]).max(0)
    later = np.where(rest < 0, 1 - np.exp(rest) + np.exp(rest) * later, later)
    return float((mass * later).sum() + whole[-1])


def test_no_choice_of_groups_by_what_was_released_before_shows_more():
    """A split that is made after the first run can be worse than every split that is made before it."""
    parts = [next(iter(GAUSSIAN)), next(iter(SAMPLED))]
    cost, delta = Cost.of([GAUSSIAN, SAMPLED]), 1e-3
    found = total_epsilon([cost, cost], delta)
    adaptive = max(chosen_as_one_goes(first, parts, found) for first in parts)
    assert 0.9 * delta < adaptive <= delta * (1 + 1e-4)
    fixed = max(composed_epsilon([one, other], delta) for one in cost.parts for other in cost.parts)
    assert max(chosen_as_one_goes(first, parts, fixed) for first in parts) > 1.002 * delta


def test_a_cost_that_is_chosen_by_what_was_released_shows_more_than_a_fixed_one():
    """Why an account adds divergences: as fixed plans both second runs fit, and the choice between them does not."""
    loss, delta, first = 1.0, 1e-6, Step(1.0, 0.166)
    second = [Step(1.0, 0.166), Step(0.01, 1.257)]
    for step in second:
        assert composed_epsilon([{first: 1}, {step: 1}] if step != first else [{first: 2}], delta) <= loss
    assert chosen_as_one_goes(first, second, loss) > 1.5 * delta


RATES = st.sampled_from([0.01, 0.1, 0.5, 1.0])
PARTS = st.lists(
    st.dictionaries(st.builds(Step, RATES, st.floats(0.05, 2.0)), st.integers(1, 40), min_size=1, max_size=2),
    min_size=2,
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(PARTS, min_size=2, max_size=3), st.sampled_from([1e-3, 1e-6, 1e-9]))
def test_runs_by_group_cost_no_less_than_any_fixed_groups_and_no_more_than_what_covers_all(runs, delta):
    costs = [Cost.of(parts) for parts in runs]
    found = total_epsilon(costs, delta)
    for place in range(3):
        fixed = [cost.parts[min(place, len(cost.parts) - 1)] for cost in costs]
        assert found >= composed_epsilon(fixed, delta) * (1 - 2e-3) - 1e-3
    assert found <= composed_epsilon([cost.steps for cost in costs], delta) * (1 + 2e-3) + 1e-3


def test_where_delta_is_too_small_for_what_is_set_aside_the_steps_that_cover_all_groups_count():
    cost = Cost.of([{Step(0.1, 0.02): 1}, {Step(1.0, 0.001): 1}])
    found = total_epsilon([cost] * 80, 1e-10)
    assert found == composed_epsilon([cost.steps] * 80, 1e-10) and math.isfinite(found)


@pytest.mark.parametrize("more", [{Step(1.0, 0.5): 1}, {Step(0.2, 0.4): 50}])
def test_it_composes_with_other_steps_as_its_only_part_would(more):
    steps = {Step(0.1, 0.4): 60}
    found = epsilon({one_of([steps]): 1, **more}, 1e-6)
    exact = epsilon({**steps, **more}, 1e-6)
    assert exact * (1 - 1e-4) <= found <= exact * (1 + 3e-3)


def test_no_grid_is_read_for_steps_without_noise():
    with pytest.raises(ValueError, match="no one grid"):
        Composition({Step(1.0, math.inf): 1}).reading()
