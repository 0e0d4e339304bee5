"""Trust model `none`: everybody is trusted, no noise; the non-private reference, epsilon = infinity."""

from __future__ import annotations

from fedsw.accounting import Ledger
from fedsw.federation.trust.central.rounds import Aggregate, Release
from fedsw.federation.trust.plan import Plan, charges


def release(aggregate: Aggregate, plan: Plan, ledger: Ledger) -> Release:
    """Record the round with sigma = 0 (epsilon becomes infinite) and release the sum as it is."""
    costs = charges(plan, aggregate.draw, aggregate.sensitivities)
    return Release(aggregate.vector, 0.0, ledger.spend(aggregate.round, aggregate.attempt, costs, 0.0))
