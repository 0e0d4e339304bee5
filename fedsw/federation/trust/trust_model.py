"""What a trust model is to a federation: its plan, its side at the server, its handlers and promises at a client."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fedsw.experiment.trust import TrustModel, trust_model

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray
    from torch import Tensor

    from fedsw.experiment import Experiment
    from fedsw.federation.exchange.participants import Site
    from fedsw.federation.messages import AnyExchange
    from fedsw.federation.node._own_ledger import Promise
    from fedsw.federation.node._replies import Handler
    from fedsw.federation.node.node import Node
    from fedsw.federation.trust.context import Context
    from fedsw.federation.trust.round_plan import Plan
    from fedsw.learning.tasks.problem import Problem
    from fedsw.privacy.accounting.lifetime import Cost, Counts
    from fedsw.runs.observer import Outcome


class Side(Protocol):
    """A trust model at the server of one run; a context manager that holds its ledger."""

    def epsilon(self) -> float:
        """Epsilon spent so far."""

    def epsilon_by_client(self) -> dict[int, float]:
        """Epsilon spent so far by each client that has a guarantee of its own; empty where there is one for all."""

    def released_rounds(self) -> int:
        """Rounds of which something was released."""

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """Run one round at the model `theta` (r,), flat, float64.

        Raises:
            BudgetExhausted: when it would cost more than was asked for; nothing of it is then used.
            FederationError: when clients are missing.
        """

    def __enter__(self) -> Side: ...

    def __exit__(self, *failure: object) -> None: ...


class Prepared(Side, Protocol):
    """A side whose rounds may follow a release of moments."""

    def prepare(self, plan: Plan) -> None:
        """Go on with the plan that released moments make: of prepared features, with clips in their scale."""


class OnceSide(Protocol):
    """How a sum is released once beside the rounds: an `Outcome` with the noised sum (blocks, width), flat."""

    @property
    def records(self) -> NDArray[int64]:
        """Records in the sum, by cell or group, (c,); public. Known after `round`."""

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """The one exchange, at the model `theta` (r,)."""


class OneRelease(Side, OnceSide, Protocol):
    """A side whose one round releases what a generator is then trained on: an `Outcome` with its numbers, flat."""

    @property
    def records_by_client(self) -> Mapping[int, int]:
        """Records of every client whose own release is there; empty where the server has their sum alone."""

    @property
    def grows(self) -> bool:
        """Whether who was missing can still be added to what was released."""


def _nothing(*arguments: object) -> Any:
    raise TypeError("this trust model does nothing of the kind")


@dataclass(frozen=True)
class Sides:
    """What a trust model does at the server and at a client.

    Attributes:
        plan: what is fixed before the first round: batch sizes, rates, sensitivities and noise, from public numbers.
        server: what asks the clients in the rounds of one run, and releases.
        handlers: what a client answers in each of its exchanges.
        moments, tally: what releases the moments of all records before the rounds, and measures the records that
            clients kept out of training; for one with `gradients`.
        epsilon, planned: what a client's own ledger accounts for in a run, at a delta, and what the run costs its
            records at most; for one that is `local`.
        require_ready: refuses, at the greeting, a run whose guarantee a client could not give; for one that is `local`.
    """

    plan: Callable[[Problem, Sequence[Site]], Plan]
    server: Callable[[Context], Side]
    handlers: Mapping[AnyExchange, Handler]
    moments: Callable[[Context], OnceSide] = _nothing
    tally: Callable[[Context], OnceSide] = _nothing
    epsilon: Callable[[Node, float], float] = _nothing
    planned: Callable[[Node, float], Counts | Cost] = _nothing
    require_ready: Callable[[Node], object] = lambda node: None


class Served(TrustModel):
    """A trust model with what it does: everything that differs from one to another is asked of such an object."""

    serves: ClassVar[str]
    """Where its `sides` are, "module:NAME", in a module that is imported when it is asked for them."""

    @property
    def sides(self) -> Sides:
        """What it does; settings are checked without."""
        sides: Sides = pkgutil.resolve_name(self.serves)
        return sides

    def exchanges(self) -> tuple[str, ...]:
        """See `TrustModel`: those with a handler."""
        return tuple(exchange.kind for exchange in self.sides.handlers)

    def plan(self, task: Problem, sites: Sequence[Site]) -> Plan:
        """See `Sides`."""
        return self.sides.plan(task, sites)

    def promise(self, node: Node, delta: float) -> Promise:
        """What a client's own ledger accounts for in its run, at that delta."""
        from fedsw.federation.node._own_ledger import Promise

        return Promise.of(node.task.experiment, node.run, self.sides.epsilon(node, delta), delta)

    def most(self, node: Node, delta: float) -> Counts | Cost | None:
        """What a client releases at most, where a run has releases of several kinds; None where there is one."""
        return self.sides.planned(node, delta) if node.task.experiment.privacy.moments else None


def served(experiment: Experiment) -> Served:
    """The trust model of an experiment."""
    return served_by_name(experiment.privacy.trust, sketch=experiment.privacy.sketch)


def served_by_name(name: str, *, sketch: bool = False) -> Served:
    """A trust model by its name, with what it does; see `trust_model`."""
    from fedsw._tools.settings import ExperimentError

    model = trust_model(name, sketch=sketch)
    if not isinstance(model, Served):
        raise ExperimentError(f"privacy.trust {name!r} says what it is and not what it does; derive it from Served")
    return model
