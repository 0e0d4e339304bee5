"""What a trust model is to a federation: its plan, its side at the server, its handlers and promises at a client."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from fedsw.experiment.trust import TrustModel, trust_model

if TYPE_CHECKING:
    from types import TracebackType

    from flwr.app import Context as Memory
    from flwr.app import Message
    from numpy import int64
    from numpy.typing import NDArray
    from torch import Tensor

    from fedsw.accounting.lifetime import Cost, Counts
    from fedsw.experiment import Experiment
    from fedsw.federation.exchange.cohort import Site
    from fedsw.federation.messages import AnyExchange
    from fedsw.federation.node.account import Promise
    from fedsw.federation.node.node import Node
    from fedsw.federation.trust.context import Context
    from fedsw.federation.trust.plan import Plan
    from fedsw.runs.observer import Outcome
    from fedsw.tasks.problem import Problem

Handler = Callable[["Message", "Memory"], "Message"]
"""Answers a server's request at a client."""


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Prepared(Side, Protocol):
    """A side whose rounds may follow a release of moments."""

    def prepare(self, plan: Plan) -> None:
        """Go on with the plan that released moments make: of prepared features, with clips in their scale."""


class OneRelease(Side, Protocol):
    """A side whose one round releases what a generator is then trained on: an `Outcome` with its numbers, flat."""

    @property
    def records(self) -> int:
        """How many records are in what was released; public. Known after `round`."""

    @property
    def records_by_client(self) -> Mapping[int, int]:
        """The same of every client whose own release is there; empty where the server has their sum alone."""

    @property
    def grows(self) -> bool:
        """Whether who was missing can still be added to what was released."""


class MomentsSide(Protocol):
    """How the moments of all records are released once: an `Outcome` with the noised sums (cells, u), flat."""

    @property
    def records(self) -> tuple[int, ...]:
        """Records of each cell in the sums; public. Known after `round`."""

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """The one exchange; the model `theta` (r,) is not looked at."""


class TallySide(Protocol):
    """How kept records are measured once: an `Outcome` with the noised sums (groups, t), flat."""

    @property
    def records(self) -> NDArray[int64]:
        """Kept records of each group in the sums, (groups,); public. Known after `round`."""

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """The one exchange, at the released model `theta` (r,)."""


class Served(TrustModel):
    """A trust model with what it does: everything that differs from one to another is asked of such an object."""

    @abstractmethod
    def plan(self, task: Problem, sites: Sequence[Site]) -> Plan:
        """What is fixed before the first round: batch sizes, rates, sensitivities and noise, from public numbers."""

    @abstractmethod
    def server(self, context: Context) -> Side:
        """What asks the clients in the rounds of one run, and releases."""

    @abstractmethod
    def handlers(self) -> Mapping[AnyExchange, Handler]:
        """What a client answers in each of its exchanges."""

    def exchanges(self) -> tuple[str, ...]:
        """See `TrustModel`: those with a handler."""
        return tuple(exchange.kind for exchange in self.handlers())

    def moments(self, context: Context) -> MomentsSide:
        """What releases the moments of all records before the rounds; for one with `gradients`."""
        raise TypeError(f"trust {self.name!r} releases no moments")

    def tally(self, context: Context) -> TallySide:
        """What measures the records that clients kept out of training; for one with `gradients`."""
        raise TypeError(f"trust {self.name!r} measures no kept records")

    def promise(self, node: Node, delta: float) -> Promise:
        """What a client's own ledger accounts for in a run, at a delta; for one that is `local`."""
        raise TypeError(f"under trust {self.name!r} clients keep no ledgers")

    def planned(self, node: Node, delta: float) -> Counts | Cost:
        """What a run costs a client's records at most; for one that is `local`."""
        raise TypeError(f"under trust {self.name!r} clients keep no ledgers")

    def require_ready(self, node: Node) -> None:
        """Refuse, at the greeting, a run whose guarantee a client could not give; for one that is `local`."""


def served(experiment: Experiment) -> Served:
    """The trust model of an experiment.

    Raises:
        ExperimentError: if it is not one that can be served.
    """
    return served_by_name(experiment.privacy.trust, sketch=experiment.privacy.sketch)


def served_by_name(name: str, *, sketch: bool = False) -> Served:
    """A trust model by its name, with what it does; see `trust_model`."""
    from fedsw.settings import ExperimentError

    found = trust_model(name, sketch=sketch)
    if not isinstance(found, Served):
        raise ExperimentError(f"privacy.trust {name!r} says what it is and not what it does; derive it from Served")
    return found
