"""The roll call: nodes that are online, with key, code and clock, from the server's first second on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsw.federation import messages
from fedsw.federation.exchange.exchange import answers_to
from fedsw.federation.messages import Fault, Malformed, Terms
from fedsw.federation.messages.table import Here, RollAsked
from fedsw.runs.roll_call import WAITED_FOR, Called, RollState, keep_roll
from fedsw.runs.run_files import found_json
from fedsw.runs.telemetry import event

_VALID_SECONDS = 60.0
_PATIENCE_SECONDS = 10.0
"""For answers to the call, which no greeting waits for longer."""
_POLL_SECONDS = 0.05
_log = logging.getLogger("fedsw.server")


class Roll:
    """The list of all nodes that were seen, reported whenever it changes: to the log, and in the run's folder.

    Without a `folder` the clients are of this process: none is called unless a name is needed, and nothing is printed.
    """

    def __init__(self, grid: Grid, run: str, folder: Path | None = None, keys: Path | None = None) -> None:
        self._grid, self._run, self._folder, self._keys_file = grid, run, folder, keys
        self._called: dict[int, Called] = {}
        self._asked: dict[str, tuple[int, float]] = {}

    def see(self, nodes: Iterable[int]) -> None:
        """Note who is connected, and call those that were not seen before; answers are heard as they come."""
        if fresh := [node for node in nodes if node not in self._called]:
            self._called |= {node: Called(node) for node in fresh}
            if self._folder is not None:
                keys = self.keys()
                self._called |= {node: Called(node, key=keys.get(node, "")) for node in fresh}
                for node in fresh:
                    self._tell(node)
                self.call(fresh)
        self.hear()

    def keys(self) -> dict[int, str]:
        """The key file of every node that the SuperLink admitted; empty if unknown."""
        said: dict[str, Any] = {} if self._keys_file is None else found_json(self._keys_file)
        return {int(node): str(key) for node, key in said.items() if node.isdecimal()}

    def call(self, nodes: Sequence[int]) -> None:
        """Ask nodes who they are; no record is read for it, and nothing is charged."""
        content, kind, now = messages.encode(RollAsked(self._run), Terms()), messages.ROLL.kind, time.time()
        sent = [Message(content, node, kind, group_id="roll", ttl=_VALID_SECONDS) for node in nodes]
        names = self._grid.push_messages(sent)
        self._asked |= {name: (node, now) for name, node in zip(names, nodes, strict=True) if name}

    def call_again(self, nodes: Sequence[int]) -> None:
        """Ask nodes that are back who they are now: they may have been started with other code."""
        if self._folder is not None:
            self.call(nodes)

    def hear(self, seconds: float = 0.0) -> None:
        """Take note of answers that have come; wait for the others up to a time limit."""
        deadline, now = time.monotonic() + seconds, time.time()
        self._asked = {name: (node, sent) for name, (node, sent) in self._asked.items() if now - sent < _VALID_SECONDS}
        while self._asked:
            for name, reply in answers_to(self._grid, {name: node for name, (node, _) in self._asked.items()}).items():
                self._hear(*self._asked.pop(name), reply)
            if time.monotonic() >= deadline:
                return
            time.sleep(_POLL_SECONDS)

    def settle(self) -> None:
        """Wait a moment for those that were called, before they are greeted; for none twice."""
        last = max((sent for _, sent in self._asked.values()), default=0.0)
        self.hear(last + _PATIENCE_SECONDS - time.time())

    def _hear(self, node: int, sent: float, reply: RecordDict | Fault) -> None:
        """A node that does not say who it is stays unknown: whether it may take part is for the greeting."""
        if isinstance(reply, Fault):
            return
        try:
            here = messages.decode(Here, reply, Terms())
        except Malformed:
            return
        said = here.clock / 1000  # at some time between the call and now
        clock = round(min(0.0, said - sent) + max(0.0, said - time.time()), 1)
        before = self._of(node)
        known = replace(before, client=here.number, code=here.code or "", flower=here.flower, clock=clock)
        self._called[node] = known
        if replace(known, clock=before.clock) != before:
            self._tell(node)

    def mark(self, node: int, state: RollState, why: str = "") -> None:
        """Note how a node stands from now on, and why; reported once while it stays so."""
        before = self._of(node)
        self._called[node] = replace(before, state=state, why=why)
        if self._called[node] != before:
            self._tell(node)

    def name(self, node: int, *, alone: bool = False, answers: bool = False) -> str:
        """The name of a node for people; one that is `alone` needs no name. An unknown one that answers is asked."""
        if self._folder is None and not alone and answers:
            self.call([node])
            self.settle()
        return "a client" if alone and not self._of(node).key else self._of(node).name

    def _of(self, node: int) -> Called:
        return self._called.get(node) or Called(node)

    def _tell(self, node: int) -> None:
        if self._folder is None:
            return
        entry = self._called[node]
        keep_roll(self._folder, self._called.values())
        fields = {"client": entry.client, "key": entry.key, "software": entry.code, "flower": entry.flower}
        said = event("roll call", **fields, clock=entry.clock, state=entry.state)  # not why: a client's words
        _log.log(logging.INFO if entry.state in WAITED_FOR else logging.WARNING, "%s", entry.line(), extra=said)
