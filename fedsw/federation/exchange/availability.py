"""Who can take part in a round: members that are online and, if they were away, have been greeted since."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsw.errors import FederationError
from fedsw.federation import messages
from fedsw.federation.exchange.cohort import Member, greeting, member_of, online
from fedsw.federation.exchange.exchange import Fault, Traffic, bytes_of, content_of
from fedsw.federation.exchange.spending import Spending
from fedsw.runs.telemetry import event
from fedsw.tasks.problem import Problem

_log = logging.getLogger("fedsw.server")

_LOOK_SECONDS = 5.0  # a look at greetings of the dead takes Flower up to a second
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class _Greeting:
    member: Member
    until: float


class Availability:
    """Keeps the members of a run that can be asked for a batch.

    A client that was lost may be dead, busy for a while, or started again: it then knows nothing of this run. It is
    greeted as in the beginning, and asked again once it answers with the records it had. The round does not wait for
    it: a client that is dead costs one time limit, not one a round, and one that comes back takes part again. Who is
    away is settled before counts are drawn, and not by what a record holds: a greeting is about the settings and the
    public sizes.

    Args:
        run: the run's name.
        spending: what clients report from ledgers of their own.
    """

    def __init__(
        self, grid: Grid, task: Problem, members: Sequence[Member], run: str, traffic: Traffic, spending: Spending
    ) -> None:
        self._grid, self._members, self._traffic, self.spending = grid, members, traffic, spending
        self._task, self._run, self._timeout = task, run, task.experiment.federation.timeout
        self._greetings: dict[str, _Greeting] = {}
        self._next_look = 0.0
        self.away: dict[int, str] = {}

    def hear_members(self) -> None:
        """Take note of what the members' own ledgers have spent.

        Raises:
            FederationError: if one has spent less than its client reported before in this run.
        """
        for member in self._members:
            self._hear_spent(member)

    def lose(self, client: int, reason: str) -> None:
        """Count a client as away until it is back."""
        self.away[client] = reason

    def present(self, least: int, *, without: Collection[int] = ()) -> tuple[Member, ...]:
        """The members that can be asked now; those that are away are greeted meanwhile.

        Waits for answers to greetings only if fewer than `least` are there, and only until messages expire.

        Args:
            without: clients that do not count, whether they are there or not.
        """
        here = self._online()
        if self._greet(here) or time.monotonic() >= self._next_look:
            self._look()
        while len(found := self._found(here, without)) < least and self._awaited(here, without):
            time.sleep(_POLL_SECONDS)
            self._look()
            here = self._online()
        return found

    def _online(self) -> tuple[Member, ...]:
        here = online(self._grid, self._members)
        for member in self._members:
            if member not in here:
                self.away.setdefault(member.client, "it is offline")
        return here

    def _found(self, here: Sequence[Member], without: Collection[int]) -> tuple[Member, ...]:
        return tuple(m for m in here if m.client not in self.away and m.client not in without)

    def _awaited(self, here: Sequence[Member], without: Collection[int]) -> bool:
        now = time.monotonic()
        pending = [sent.member for sent in self._greetings.values() if sent.until > now]
        return any(member in here and member.client not in without for member in pending)

    def _greet(self, here: Sequence[Member]) -> bool:
        """Greet who is online, away, and was not greeted lately; returns whether there was anybody."""
        now = time.monotonic()
        self._greetings = {name: sent for name, sent in self._greetings.items() if sent.until > now}
        greeted = {sent.member.client for sent in self._greetings.values()}
        fresh = [m for m in here if m.client in self.away and m.client not in greeted]
        if not fresh:
            return False
        content = greeting(self._task, self._run)
        kind = messages.HELLO.kind
        sent = [Message(content, m.node, kind, group_id="hello", ttl=self._timeout) for m in fresh]
        for name, member in zip(self._grid.push_messages(sent), fresh, strict=True):
            if name:
                self._greetings[name] = _Greeting(member, now + self._timeout)
        return True

    def _look(self) -> None:
        self._next_look = time.monotonic() + _LOOK_SECONDS
        if not self._greetings:
            return
        for message in self._grid.pull_messages(list(self._greetings)):
            if sent := self._greetings.pop(message.metadata.reply_to_message_id, None):
                self._hear(sent.member, content_of(message))

    def _hear(self, member: Member, reply: RecordDict | Fault) -> None:
        if isinstance(reply, Fault):
            self.away[member.client] = reply.reason
            return
        self._traffic.up += bytes_of(reply)
        try:
            back = member_of(member.node, reply, self._task)
            same = _same(back, member)
            if same:
                self._hear_spent(back)
        except FederationError as fault:
            self.away[member.client] = str(fault)
            return
        if same:
            self.away.pop(member.client, None)
            _log.info("client %d is back", member.client, extra=event("client back", client=member.client))
        else:
            self.away[member.client] = "it came back as another client, or with other records"

    def _hear_spent(self, member: Member) -> None:
        if member.spent is not None:
            self.spending.hear(member.client, member.spent)


def _same(one: Member, other: Member) -> bool:
    """Whether a client that came back has the node, the number and the records that the plan was made with."""
    if (one.node, one.client, one.sizes) != (other.node, other.client, other.sizes):
        return False
    return (one.ids is None) == (other.ids is None) and all(
        np.array_equal(mine, its) for mine, its in zip(one.ids or (), other.ids or (), strict=True)
    )
