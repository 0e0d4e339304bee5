"""The trust models, a folder for each with all that is peculiar to it: who adds the noise, what leaves a client.

The type of them all is `fedsw.experiment.trust.TrustModel`; `OwnLedgers` is one under which clients account. `Sides` is
the part of a trust model in a federation; `promise` and `most` give the guarantee and the limits of a client's ledger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fedsw._tools.text import number
from fedsw.experiment.trust import TrustModel

if TYPE_CHECKING:
    from fedsw.federation.exchange.participants import Site
    from fedsw.federation.messages import AnyExchange
    from fedsw.federation.node.node import Node
    from fedsw.federation.node.own_ledger import Promise
    from fedsw.federation.node.replies import Handler
    from fedsw.federation.trust.context import Context, ServerSide
    from fedsw.federation.trust.round_plan import FederationPlan
    from fedsw.federation.trust.sums_once import Sum
    from fedsw.learning.tasks.problem import Problem
    from fedsw.privacy.accounting.lifetime import Cost, Counts

T = TypeVar("T")

FOLDERS = ("central", "distributed", "local_gradient", "local_slices", "local_release", "sketch")
"""Folders of the shipped trust models, in the order in which they are shown; each lists its own in `TRUST_MODELS`."""


class OwnLedgers(TrustModel):
    """Every client protects its own records, from the server too, and accounts for them in a ledger of its own."""

    protectable = frozenset(("target",))
    most_penalties: ClassVar[float] = 1
    reserves = "fedsw.federation.server.owed:reserved_by_clients"
    unread = ("bound", "sampling", "device")
    registered = "Federated"
    rank = 1
    assumes = "clients of one size are assumed"
    guarded = "by its own client's noise and ledger"

    def accounting(self, clients: Sequence[T]) -> Sequence[T]:
        """See `TrustModel`: all of them."""
        return clients

    def accounted(self) -> str:
        """See `TrustModel`."""
        return ""

    def sees_sums(self, against: str) -> str:
        """See `TrustModel`: none did."""
        by = {"client": "every client by itself"}.get(self.adds_noise, self.adds_noise)
        return f"{by} added the noise, so the promise holds against {against}"

    def in_sum(self, experiment: Any) -> str:
        """See `TrustModel`."""
        return f"; in the sum of all clients {number(self.summed(experiment))} times that"

    def of_batch(self, plan: Any) -> None:
        """See `TrustModel`: every client has its own."""
        return

    def meets_no_record(self, kind: Any, other_side: str | None) -> bool:
        """See `TrustModel`: a generator that mixes learns from what clients have noised."""
        return super().meets_no_record(kind, other_side) or (kind.mixes and other_side == "generator")

    def hides_records(self) -> bool:
        """See `TrustModel`."""
        return True

    def against(self, experiment: Any) -> str:
        """See `TrustModel`."""
        return "everyone, including the server and the other clients"

    def sampling(self, experiment: Any) -> str:
        """See `TrustModel`."""
        return "each client's own"

    def summed(self, experiment: Any) -> float:
        """See `TrustModel`: every client adds noise of its own plan."""
        return math.sqrt(experiment.federation.clients)


def _nothing(*arguments: object) -> Any:
    raise TypeError("this trust model does nothing of the kind")


@dataclass(frozen=True)
class Once:
    """The sums that leave once under a trust model, and how: exact for a trusted server, noised at clients, or masked.

    Attributes:
        release: makes the `ServerSide` that asks the clients for a sum in an exchange, and releases it.
        answer: makes a client's handler of that exchange.
        sums: the sums, each with its exchange.
    """

    release: Callable[[Context, AnyExchange, type[Sum]], ServerSide] = _nothing
    answer: Callable[[AnyExchange, type[Sum]], Handler] = _nothing
    sums: Mapping[type[Sum], AnyExchange] = field(default_factory=dict)

    def side(self, context: Context, kind: type[Sum]) -> ServerSide:
        """The server's part in the release of a sum; TypeError if none of the kind is released."""
        return self.release(context, self.sums[kind], kind) if kind in self.sums else _nothing()

    def only(self, context: Context) -> ServerSide:
        """The server's part in a run that releases one kind of sum, and nothing else."""
        (kind,) = self.sums
        return self.side(context, kind)

    @property
    def handlers(self) -> dict[AnyExchange, Handler]:
        """A client's handlers of their exchanges."""
        return {exchange: self.answer(exchange, kind) for kind, exchange in self.sums.items()}


@dataclass(frozen=True)
class Sides:
    """The part of a trust model in a federation, at the server and at a client.

    Attributes:
        plan: makes the plan before the first round: batch sizes, rates, sensitivities and noise, from public numbers.
        server: makes the `ServerSide` that asks the clients in the rounds of one run, and releases.
        handlers: what a client answers in each of its exchanges.
        once: the sums that leave once, beside its rounds or in their place.
        epsilon, planned: what a client's own ledger accounts for in a run, at a delta, and what the run costs its
            records at most; for one under which clients have ledgers.
        require_ready: refuses, at the greeting, a run with a guarantee that a client could not give; likewise.
        require_node: refuses, before a file is opened, a run that a node is not set up for, by its settings.
    """

    plan: Callable[[Problem, Sequence[Site]], FederationPlan]
    server: Callable[[Context], ServerSide]
    handlers: Mapping[AnyExchange, Handler]
    once: Once = Once()
    epsilon: Callable[[Node, float], float] = _nothing
    planned: Callable[[Node, float], Counts | Cost] = _nothing
    require_ready: Callable[[Node], object] = lambda node: None
    require_node: Callable[[Mapping[str, Any]], object] = lambda node_config: None


def promise(node: Node, delta: float) -> Promise:
    """The guarantee that a client's own ledger accounts for in its run, at that delta."""
    from fedsw.federation.node.own_ledger import Promise

    experiment = node.task.experiment
    return Promise.of(experiment, node.run, experiment.privacy.model.sides.epsilon(node, delta), delta)


def most(node: Node, delta: float) -> Counts | Cost | None:
    """Largest number of a client's releases of each kind, where a run has several kinds; None if it has one."""
    experiment = node.task.experiment
    several = experiment.left_to_rounds < 1
    planned: Counts | Cost | None = experiment.privacy.model.sides.planned(node, delta) if several else None
    return planned
