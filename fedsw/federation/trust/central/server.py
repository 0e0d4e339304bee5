"""Trust models `central` and `none`: the server releases one noised sum a round, charged before it leaves."""

from __future__ import annotations

from fedsw.accounting import Ledger
from fedsw.federation.trust.central.rounds import Aggregate
from fedsw.federation.trust.plan import Plan, charges
from fedsw.privacy.release import Bounded, Released
from fedsw.privacy.release import release as through_the_door
from fedsw.privacy.sensitivity import worst


def release(aggregate: Aggregate, plan: Plan, ledger: Ledger) -> Released:
    """Release one round's sum (r,), with sigma = multiplier * max over groups of Delta; without noise under `none`.

    Guarantee: `fedsw.privacy.release.release`, each group at its own sampling rate and sensitivity.

    Raises:
        BudgetExhausted: before anything is released, when the round would exceed the ledger's epsilon.
        ValueError: if no noise has that sigma; nothing is charged.
    """
    costs = charges(plan, aggregate.draw, aggregate.sensitivities)
    bounded = Bounded(
        aggregate.vector,
        worst(aggregate.sensitivities),
        round=aggregate.round,
        attempt=aggregate.attempt,
        charges=costs,
    )
    return through_the_door(bounded, plan, ledger)
