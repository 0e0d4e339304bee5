"""Laws of `fedsw audit --canary` of sketches: nearly all of epsilon, over all stages, never more; a broken build fails.

Noise is secret; bounds hold with probability 1 - 1e-10, so that no law fails by chance.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedsw.audit import _canary_sketch as sketched
from fedsw.audit import canary
from fedsw.experiment import ExperimentError
from fedsw.federation.trust import sums_once as sums
from fedsw.federation.trust.sketch import sketch_costs as local
from fedsw.federation.trust.sketch import sketch_once as sides
from fedsw.learning.sketches import noised
from tests.federation import sketch_runs
from tests.federation.sketch_runs import LOCAL
from tests.federation.test_sketch_stages import SMALL, THREE, TWO


def audited(*overrides: str, trials: int = 100_000):
    small = SMALL if any(each.startswith("sketch.stages") for each in overrides) else ()
    experiment = sketch_runs.sketched(*small, *overrides)
    return canary.audit(experiment, trials=trials, confidence=1 - 1e-10, singly=20)


@pytest.mark.parametrize(
    "overrides",
    [(), (LOCAL,), (TWO,), (TWO, LOCAL), (THREE, LOCAL, "seed=5")],
    ids=["one", "one, clients", "two", "two, clients", "three, seeded"],
)
def test_whoever_sees_all_stages_and_writes_the_network_sees_nearly_all_of_epsilon_and_never_more(overrides):
    found, least = audited(*overrides), 0.85 if THREE in overrides else 0.9
    assert found.passed and least * found.claimed <= found.shown <= found.claimed
    assert (0.96 if THREE in overrides else 0.99) <= found.details["instance_share"] <= 1.0


def test_without_labels_the_canary_is_the_farthest_of_the_cell():
    found = audited("sketch.labels=false")
    assert found.passed and 0.5 * found.claimed <= found.shown <= found.details["instance_epsilon"] <= found.claimed


def _a_tenth_less_noise(monkeypatch):
    genuine = sums.release

    def release(bounded, plan, ledger):
        return genuine(bounded, replace(plan, multiplier=0.9 * plan.multiplier), ledger)

    monkeypatch.setattr(sums, "release", release)


def _a_tenth_less_noise_at_clients(monkeypatch):
    genuine = sums.release_paid

    def release_paid(bounded, paid, name, stream):
        paid.parts[name] = replace(paid.parts[name], scale=0.9 * paid.parts[name].scale)
        return genuine(bounded, paid, name, stream)

    monkeypatch.setattr(sums, "release_paid", release_paid)


def _every_stage_with_the_noise_of_the_whole_budget(monkeypatch):
    genuine = sides.sketch_budget
    monkeypatch.setattr(sides, "sketch_budget", lambda *given, **more: _whole(genuine(*given, **more)))


def _whole(budget):
    return replace(budget, multiplier=budget.whole)


def _a_bound_without_the_change_of_a_label(monkeypatch):
    genuine = local.sketch_sensitivity
    for module in (local, noised):
        monkeypatch.setattr(module, "sketch_sensitivity", lambda law: 0.8 * genuine(law))


@pytest.mark.parametrize(
    ("breaks", "overrides", "words"),
    [
        (_a_tenth_less_noise, (), "one release shows"),
        (_every_stage_with_the_noise_of_the_whole_budget, (TWO,), "one release shows"),
        (_a_tenth_less_noise_at_clients, (TWO, LOCAL), "one release shows"),
        (_a_bound_without_the_change_of_a_label, (), "times the sensitivity"),
    ],
    ids=["a tenth less", "stages that pay twice", "a tenth less at clients", "a bound too small"],
)
def test_a_broken_build_fails_the_audit(monkeypatch, breaks, overrides, words):
    breaks(monkeypatch)
    found = audited(*overrides)
    assert not found.passed and words in found.verdict


def test_sketches_of_units_and_masked_ones_are_refused_with_the_remedy():
    with pytest.raises(ExperimentError, match="audit it under trust 'sketch'"):
        canary.audit(sketch_runs.sketched("privacy.trust=distributed", "federation.clients=4"))
    with pytest.raises(ExperimentError, match=r"leave data\.unit out"):
        sketched.require_sketch(sketch_runs.sketched().model_copy(update={"data": Unit()}))


class Unit:
    unit = "patient"
