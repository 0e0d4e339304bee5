"""The interface of a trust model; the loop of a run is the same for all of them."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from torch import Tensor

from fedsw.accounting import Ledger
from fedsw.federation.budgets.held_out import HELD_OUT
from fedsw.federation.budgets.moments import FIRST
from fedsw.federation.trust.central import server as central
from fedsw.federation.trust.central.rounds import Rounds
from fedsw.federation.trust.plan import Plan
from fedsw.runs.observer import Outcome


class Method(Protocol):
    """A trust model in a run; a context manager that holds its ledger."""

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """Run one round at the model `theta` (r,), flat, float64.

        Raises:
            BudgetExhausted: when it would cost more than was asked for; nothing of it is then used.
            FederationError: when clients are missing.
        """

    def epsilon(self) -> float:
        """Epsilon spent so far."""

    def epsilon_by_client(self) -> dict[int, float]:
        """Epsilon spent so far by each client that has a guarantee of its own; empty where there is one for all."""

    def released_rounds(self) -> int:
        """Rounds of which something was released."""

    def __enter__(self) -> Method: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class AtServer:
    """What methods with one ledger, the server's, have in common: whoever is trusted charges for all clients."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def epsilon(self) -> float:
        """See `Method`."""
        return self._ledger.epsilon()

    def epsilon_by_client(self) -> dict[int, float]:
        """Empty: the guarantee is the federation's."""
        return {}

    def released_rounds(self) -> int:
        """See `Method`; neither moments nor what is released of records kept out of training are among them."""
        kept = self._ledger.steps_by_group().get(HELD_OUT, {})
        others = any(not step.costless for step in kept) + any(each.round == FIRST for each in self._ledger.entries())
        return self._ledger.released_rounds() - others

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ledger.close()


class Trusted(AtServer):
    """`central` and `none`: the server sees the un-noised sum, charges its ledger, and releases."""

    def __init__(self, rounds: Rounds, plan: Plan, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._rounds, self._plan = rounds, plan

    def prepare(self, plan: Plan) -> None:
        """Go on with the plan that released moments make: of prepared features, with clips in their scale."""
        self._rounds.prepare(plan)
        self._plan = plan

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """See `Method`."""
        aggregate = self._rounds.run(round_, theta)
        released = central.release(aggregate, self._plan, self._ledger)
        return Outcome(
            released.value,
            released.sigma,
            released.spent,
            aggregate.attempt,
            aggregate.clients,
            aggregate.training_loss,
        )
