"""Laws of the audit's own arithmetic: known values, and nothing shared with what it audits."""

from __future__ import annotations

import ast
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from fedsw.audit import record
from fedsw.audit.record import _bounds_again as sensitivity
from fedsw.audit.record._promise import resolved
from fedsw.audit.record._steps import RandomDirections, Recorded, few, lower_bound, mixture, profile, recomputed
from fedsw.privacy.accounting import Slicing, Step, epsilon

PLAIN = "without-replacement"


@pytest.mark.parametrize(
    ("p", "times", "delta", "multiplier", "expected"),
    [
        (0.01, 5000, 1e-5, 0.8, 8.7678),
        (0.01, 5000, 1e-5, 1.0, 5.3723),
        (0.1, 500, 0.1 / 30000, 4.0, 2.6690),
        (0.25, 200, 1e-6, 5.0, 3.5506),
        (1.0, 100, 1e-5, 10.0, 4.37718),
    ],
)
def test_the_table_of_known_epsilons_comes_out_of_other_peoples_composition(p, times, delta, multiplier, expected):
    steps = Counter({Recorded(p, 1 / multiplier, PLAIN): times})
    found = recomputed(steps, delta)
    assert found.epsilon == pytest.approx(expected, rel=1e-4)
    assert found.error < 1e-3 * found.epsilon
    assert lower_bound(steps, delta) < found.epsilon


def test_many_different_steps_are_rounded_up_and_hardly():
    steps = Counter({Recorded(0.1, 0.3 + 2e-3 * place, PLAIN): 2 for place in range(30)})
    same = {Step(step.rate, step.mu): times for step, times in steps.items()}
    assert len(few(steps)) <= len(steps)
    assert all(step.mu >= 0.3 for step in few(steps))
    assert recomputed(steps, 1e-5).epsilon == pytest.approx(epsilon(same, 1e-5), rel=5e-4)


@pytest.mark.parametrize(
    "slices", [RandomDirections(16, 50, "iid"), RandomDirections(3, 50, "orthogonal"), RandomDirections(2, 5, "iid")]
)
def test_the_law_of_a_share_has_its_known_moments(slices):
    means, weights = mixture(Recorded(1.0, 1.0, PLAIN, slices))
    share = slices.k / slices.d
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert weights @ means**2 == pytest.approx(share, rel=5e-4)
    if slices.scheme == "iid":
        for order in (2.0, 4.0):
            t = order * (order - 1) / 2
            moment = special.hyp1f1(0.5, slices.d / 2, t) ** slices.k
            assert weights @ np.exp(t * means**2) == pytest.approx(moment, rel=5e-3)


@pytest.mark.parametrize("slices", [(16, 50, "iid"), (3, 50, "orthogonal"), (6, 12, "orthogonal")])
def test_slices_cost_what_the_ledger_says(slices):
    found = recomputed(Counter({Recorded(0.2, 0.5, PLAIN, RandomDirections(*slices)): 5}), 1e-5)
    assert found.epsilon == pytest.approx(epsilon({Step(0.2, 0.5, PLAIN, Slicing(*slices)): 5}, 1e-5), rel=2e-3)


def test_a_profile_is_convex_falls_and_starts_below_one():
    losses = np.linspace(-3, 3, 601)
    heights = profile(Recorded(0.3, 1.0, PLAIN), losses)
    slopes = np.diff(heights) / np.diff(np.exp(losses))
    assert np.all(slopes <= 1e-12) and np.all(np.diff(slopes) >= -1e-9)
    assert np.all(heights >= np.maximum(0, 1 - np.exp(losses)) - 1e-12)


def test_no_noise_costs_everything_and_nothing_released_costs_nothing():
    assert math.isinf(recomputed(Counter({Recorded(0.1, math.inf, PLAIN): 1}), 1e-5).epsilon)
    assert recomputed(Counter(), 1e-5).epsilon == 0.0
    assert recomputed(Counter({Recorded(1.0, 2.5, PLAIN): 2}), 1e-5, "laplace").epsilon == 5.0


@pytest.mark.parametrize(
    ("d", "expected"), [(1, (9.657, 10.0, 11.211)), (2, (7.464, 8.0, 8.123)), (6, (5.764, 6.599, 5.915))]
)
def test_the_vector_bound_has_the_values_of_theory(d, expected):
    sides = (((1.0, 1.0), (1.0, 0.0)), ((1.0, 1.0), (1.0, 1.0)), ((1.5, 1.0), (1.0, 0.0)))
    found = [sensitivity.by_vector(1, own, other, 1 / d) for own, other in sides]
    assert found == pytest.approx(expected, abs=6e-4)


def test_paper_and_slice_bounds_have_the_values_of_theory():
    assert [sensitivity.by_slice(1, (1, one), (1, two)) for one, two in ((1, 0), (1, 1), (1, 3), (0.2, 1))] == (
        pytest.approx([8, 8, 16, 4.8])
    )
    assert sensitivity.paper(1, (1, 1), (1, 1)) == 16 and sensitivity.by_vector(1, (1, 0), (1, 1), 0.25) == 2.0


def test_a_delta_in_the_number_of_records_is_read():
    assert [resolved("0.1/n", 1000), resolved("1/n^2", 1000), resolved(1e-5, 7)] == [1e-4, 1e-6, 1e-5]


def test_the_independent_part_imports_nothing_that_it_audits():
    """But for what makes of a release what the run made of it: prepared parameters, the tree of a table."""
    folder = Path(record.__file__).parent
    for name in ("_steps.py", "_bounds_again.py", "_chain.py"):
        tree = ast.parse((folder / name).read_text(encoding="utf-8"))
        parts = [part for part in tree.body if getattr(part, "name", None) not in ("_released", "not_of_sketches")]
        assert len(tree.body) - len(parts) == (name != "_steps.py")
        nodes = [node for part in parts for node in ast.walk(part)]
        named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        named += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        own = [f"{module}." for module in named if module.split(".")[0] == "fedsw"]
        assert not [
            module for module in own if not module.startswith(("fedsw.audit.record.", "fedsw.audit.finding."))
        ], name
