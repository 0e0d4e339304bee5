"""Trust model `central`: the server adds the noise; it is charged, on disk, before anything is released."""

from __future__ import annotations

from fedsw.accounting import Ledger
from fedsw.federation.trust.central.rounds import Aggregate, Release
from fedsw.federation.trust.plan import Plan, charges
from fedsw.privacy.gaussian import noised, spacing
from fedsw.randomness import Stream


def release(aggregate: Aggregate, plan: Plan, ledger: Ledger) -> Release:
    """Charge one round to the ledger, then add N(0, sigma^2) to its sum.

    Guarantee: sigma = multiplier * max over groups of Delta; the released float64 vector is the exactly noised sum,
    rounded to a grid (`privacy.gaussian`), before any cast. The ledger row is on disk before the noise is drawn, so a
    crash can only over-count what was released.

    Raises:
        BudgetExhausted: before anything is released, when the round would exceed the ledger's epsilon.
        ValueError: if no noise has that sigma (`fedsw.privacy.gaussian.spacing`); nothing is charged.
    """
    sigma = plan.multiplier * max(bound.value for bound in aggregate.sensitivities)
    spacing(sigma)
    costs = charges(plan, aggregate.draw, aggregate.sensitivities)
    spent = ledger.spend(aggregate.round, aggregate.attempt, costs, sigma)
    return Release(noised(aggregate.vector, sigma, _noise_stream(plan, aggregate)), sigma, spent)


def _noise_stream(plan: Plan, aggregate: Aggregate) -> Stream:
    seed = plan.task.experiment.seed
    if seed is None:
        return Stream.secure()
    return Stream.seeded(seed, "noise", aggregate.round, aggregate.attempt)
