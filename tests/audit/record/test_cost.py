"""Laws of the audit's composition: known values, and nothing of the one that it audits."""

from __future__ import annotations

import ast
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedsw.audit import record
from fedsw.audit.record.cost import few, lower_bound, profile, recomputed
from fedsw.privacy.accounting import Slicing, Step, epsilon


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
    steps = Counter({Step(p, 1 / multiplier): times})
    found = recomputed(steps, delta)
    assert found.epsilon == pytest.approx(expected, rel=1e-4)
    assert found.error < 1e-3 * found.epsilon
    assert lower_bound(steps, delta) < found.epsilon


def test_many_different_steps_are_rounded_up_and_hardly():
    steps = Counter({Step(0.1, 0.3 + 2e-3 * place): 2 for place in range(30)})
    assert all(step.mu >= 0.3 for step in few(steps))
    assert recomputed(steps, 1e-5).epsilon == pytest.approx(epsilon(steps, 1e-5), rel=5e-4)


@pytest.mark.parametrize("slices", [(16, 50, "iid"), (3, 50, "orthogonal"), (6, 12, "orthogonal")])
def test_slices_cost_what_the_ledger_says(slices):
    steps = Counter({Step(0.2, 0.5, slicing=Slicing(*slices)): 5})
    assert recomputed(steps, 1e-5).epsilon == pytest.approx(epsilon(steps, 1e-5), rel=2e-3)


def test_a_profile_is_convex_falls_and_starts_below_one():
    losses = np.linspace(-3, 3, 601)
    heights = profile(Step(0.3, 1.0), losses)
    slopes = np.diff(heights) / np.diff(np.exp(losses))
    assert np.all(slopes <= 1e-12) and np.all(np.diff(slopes) >= -1e-9)
    assert np.all(heights >= np.maximum(0, 1 - np.exp(losses)) - 1e-12)


def test_no_noise_costs_everything_and_nothing_released_costs_nothing():
    assert math.isinf(recomputed(Counter({Step(0.1, math.inf): 1}), 1e-5).epsilon)
    assert recomputed(Counter(), 1e-5).epsilon == 0.0
    assert recomputed(Counter({Step(1.0, 2.5): 2}), 1e-5, "laplace").epsilon == 5.0


@pytest.mark.parametrize(
    ("file", "names", "shared"),
    [
        ("_chain", {"_follow", "_sha256"}, {"Book", "Faults"}),
        (
            "cost",
            {"_of_events", "few", "_composed", "_width", "_reach"},
            {"Step", "step_profile"},
        ),
    ],
)
def test_digests_and_composition_use_nothing_of_what_they_audit(file, names, shared):
    """But for what one step is, and its exact profile."""
    tree = ast.parse((Path(record.__file__).parent / f"{file}.py").read_text(encoding="utf-8"))
    known = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedsw")
        for alias in node.names
    }
    parts = [part for part in tree.body if getattr(part, "name", None) in names]
    used = {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}
    assert len(parts) == len(names) and used & known <= shared
