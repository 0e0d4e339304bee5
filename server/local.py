"""What the local trust models share at the server: attempts, drop-outs, and what the clients say they have spent."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsw import wire
from fedsw.accounting import BudgetExhausted
from server.cohort import FederationError, Member, online
from server.exchange import Fault, Request, Traffic, exchange
from server.method import Outcome
from server.plan import Plan
from server.telemetry import event

_log = logging.getLogger("fedsw.server")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Answer(Generic[_T]):
    """A client's release, and the epsilon that its ledger stands at."""

    release: _T
    epsilon: float


class LocalMethod(ABC):
    """Runs rounds in which every client protects its own records; a `Method`.

    There is no ledger here: what a client spent is in the client's own, and `spent` repeats what they say. A client
    that is lost is missing from the round; what it noised was charged. With fewer than `federation.min_clients` left
    an attempt is given up, and a fresh one is charged again.

    Args:
        begin: the next unused attempt number of a round.
        history: round records of the run before it was resumed.
    """

    def __init__(
        self,
        grid: Grid,
        plan: Plan,
        members: Sequence[Member],
        traffic: Traffic,
        begin: Callable[[int], int],
        history: Sequence[Mapping[str, Any]],
    ) -> None:
        self._grid, self._task, self._members, self._traffic, self._begin = grid, plan.task, members, traffic, begin
        self._plan = plan
        settings = plan.task.experiment.federation
        self._least = settings.min_clients or settings.clients
        self._timeout, self._max_attempts = settings.timeout, settings.max_attempts
        self._rounds = {int(record["round"]) for record in history}
        self._before = max((float(record["epsilon"]) for record in history), default=0.0)
        self._spent: dict[int, float] = {}
        self._exhausted: dict[int, str] = {}

    @abstractmethod
    def _attempt(
        self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member], lost: dict[int, str]
    ) -> Outcome | None:
        """One attempt with these clients; None if too few of them answered."""

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """One round at the model `theta` (flat, float64).

        Raises:
            BudgetExhausted: when too few clients are left because the others' budgets are used up.
            FederationError: when fewer clients than `federation.min_clients` answer, or no attempt succeeds.
        """
        lost: dict[int, str] = {}
        for _ in range(self._max_attempts):
            gone = lost.keys() | self._exhausted.keys()
            members = [member for member in online(self._grid, self._members) if member.client not in gone]
            self._require_enough(round_, members, lost)
            outcome = self._attempt(round_, self._begin(round_), theta, members, lost)
            if outcome is not None:
                return outcome
        raise FederationError(
            f"round {round_}: no attempt of {self._max_attempts} (federation.max_attempts) succeeded. {describe(lost)}"
        )

    def epsilon(self) -> float:
        """Epsilon spent so far by the worst client, as the clients tell."""
        return max((self._before, *self._spent.values()))

    def epsilon_by_client(self) -> dict[int, float]:
        """Epsilon that each client last told."""
        return dict(sorted(self._spent.items()))

    def released_rounds(self) -> int:
        """Rounds of which something noised arrived."""
        return len(self._rounds)

    def __enter__(self) -> LocalMethod:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to let go of: the ledgers are the clients'."""
        return None

    def _ask(
        self,
        kind: str,
        round_: int,
        members: Sequence[Member],
        content: Mapping[str, ArrayRecord | ConfigRecord],
        read: Callable[[Member, RecordDict], _T],
        lost: dict[int, str],
    ) -> dict[int, Answer[_T]]:
        """One exchange: what the clients that answer released, by client.

        Args:
            read: a client's release from its reply; a ValueError or KeyError of it means that the client is lost.
        """
        requests = [Request(member.node, RecordDict(dict(content))) for member in members]
        replies = exchange(
            self._grid, kind, requests, group=kind, timeout=self._timeout, traffic=self._traffic
        )
        answers: dict[int, Answer[_T]] = {}
        for member in members:
            answer = _answer(member, replies[member.node], read)
            if isinstance(answer, Fault):
                lost[member.client] = answer.reason
                if answer.code == wire.BUDGET_EXHAUSTED:
                    self._exhausted[member.client] = answer.reason
                lines = event("client lost", client=member.client, code=answer.code)
                _log.warning("client %d lost: %s", member.client, answer.reason, extra=lines)
            else:
                answers[member.client] = answer
                self._spent[member.client] = answer.epsilon
                self._rounds.add(round_)
        return answers

    def _require_enough(self, round_: int, members: Sequence[Member], lost: Mapping[int, str]) -> None:
        if len(members) >= self._least:
            return
        if self._exhausted:
            raise BudgetExhausted(
                f"{len(members)} of {len(self._members)} clients are left, fewer than the {self._least} of "
                f"federation.min_clients. {describe(self._exhausted)}"
            )
        raise FederationError(
            f"round {round_}: {len(members)} of {len(self._members)} clients are left, fewer than the {self._least} of "
            f"federation.min_clients. {describe(lost)} The checkpoint and the clients' ledgers are kept: mend the "
            "clients, then `fedsw resume` the run"
        )


def require_array(reply: RecordDict, name: str, shape: tuple[int | None, ...]) -> Tensor:
    """The finite array of that name and shape in a reply.

    Raises:
        ValueError, KeyError: if there is none.
    """
    array = cast(ArrayRecord, reply["arrays"])[name]
    values = wire.decode(array.dtype, array.shape, array.stype, array.data, expected=shape, name=name)
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{name} are not all finite")
    return values


def describe(reasons: Mapping[int, str]) -> str:
    """One sentence for each client."""
    return " ".join(f"Client {client}: {reason}." for client, reason in reasons.items())


def _answer(
    member: Member, reply: RecordDict | Fault, read: Callable[[Member, RecordDict], _T]
) -> Answer[_T] | Fault:
    if isinstance(reply, Fault):
        return reply
    try:
        return Answer(read(member, reply), float(cast(dict[str, Any], reply["metrics"])["epsilon"]))
    except (KeyError, TypeError, ValueError) as fault:
        return Fault(f"unreadable release: {fault}")
