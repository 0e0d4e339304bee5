"""Trust models `central` and `none`: the server releases one noised sum a round, charged before it leaves."""

from __future__ import annotations

from torch import Tensor

from fedsw.accounting import Ledger
from fedsw.federation.trust.central.rounds import Aggregate, Rounds
from fedsw.federation.trust.context import AtServer, Context
from fedsw.federation.trust.plan import Plan, charges
from fedsw.privacy.release import Bounded, Released
from fedsw.privacy.release import release as through_the_door
from fedsw.privacy.sensitivity import worst
from fedsw.runs.observer import Outcome


class TrustedRounds(AtServer):
    """Rounds in which the server sees the un-noised sum, charges its ledger, and releases."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rounds, self._plan = Rounds(context), context.plan

    def prepare(self, plan: Plan) -> None:
        """Go on with the plan that released moments make: of prepared features, with clips in their scale."""
        self._rounds.prepare(plan)
        self._plan = plan

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """See `fedsw.federation.trust.model.Side`."""
        aggregate = self._rounds.run(round_, theta)
        released = release(aggregate, self._plan, self._ledger)
        return Outcome(
            released.value,
            released.sigma,
            released.spent,
            aggregate.attempt,
            aggregate.clients,
            aggregate.training_loss,
        )


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
