"""The faults that chaos inflicts: at clients, on the wire, on the server's process, on its disk."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message

from fedsw.federation import wire
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import InProcessGrid
from fedsw.privacy.accounting import Ledger
from fedsw.privacy.accounting.journal import Journal
from fedsw.runs.checkpoint import NAMES, RELEASED, Checkpoints
from fedsw.runs.directory import RunDirectory

EVERY = 10
"""A fault every so many rounds."""

_OUTPUTS, _GRADIENTS = "train.outputs", "train.gradients"


@dataclass(frozen=True)
class Fault:
    """What happens in a round, once; to that client, where it is a client's."""

    round: int
    kind: str
    client: int


def stretches(chance: random.Random, kinds: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """The first round of every stretch of `EVERY`, and a kind for it: in random order, all before one comes again."""
    left: list[str] = []
    for start in range(1, rounds + 1, EVERY):
        left = left or chance.sample(kinds, len(kinds))
        yield start, left.pop()


class Chaos:
    """The faults of one server process, armed; each fires once, and `fired` is called right before.

    Args:
        faults: those that have not fired in an earlier process.
        patience: seconds after which the server gives up on a client.
    """

    def __init__(self, faults: Iterable[Fault], patience: float, fired: Callable[[Fault], None]) -> None:
        self._left = list(faults)
        self._patience, self._fired = patience, fired
        self.round = 0

    def take(self, *kinds: str, client: int | None = None) -> str | None:
        """The kind among these that is due in this round (at this client), which then counts as fired."""
        for fault in self._left:
            mine = client is None or client == fault.client
            if fault.round == self.round and fault.kind in kinds and mine:
                self._left.remove(fault)
                self._fired(fault)
                return fault.kind
        return None

    def client(self, message: Message, context: Context) -> Message:
        """A ClientApp that fails as scheduled."""
        name = message.metadata.message_type
        where = {_OUTPUTS: "before its outputs", _GRADIENTS: "between the exchanges"}.get(name)
        if where is None:
            return client_app(message, context)
        who = int(str(context.node_config["partition-id"]))
        if name == _GRADIENTS and self.take("killed before the second exchange"):
            die()
        if self.take(f"raises {where}", client=who):
            raise OSError("the client's disk is on fire")
        if self.take(f"hangs {where}", client=who):
            time.sleep(3 * self._patience)
            raise TimeoutError("awake again, too late")
        reply = client_app(message, context)
        if name == _OUTPUTS:
            spoilt = self.take("NaN outputs", "wrong shape of outputs", client=who)
        else:
            kinds = ("NaN contribution", "wrong shape of its contribution", "contribution above its bound")
            spoilt = self.take(*kinds, client=who)
        if spoilt:
            _spoil(reply, "outputs" if name == _OUTPUTS else "contribution", spoilt)
        return reply

    @contextlib.contextmanager
    def server(self) -> Iterator[None]:
        """Let the server's own process and disk fail as scheduled, meanwhile."""
        with contextlib.ExitStack() as stack:

            def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
                genuine = getattr(owner, name)
                setattr(owner, name, lambda *given, **named: around(genuine, *given, **named))
                stack.callback(setattr, owner, name, genuine)

            wrap(RunDirectory, "begin_attempt", self._begin_attempt)
            wrap(Ledger, "spend", self._spend)
            wrap(Journal, "append", self._append)
            wrap(Checkpoints, "take", self._take)
            wrap(os, "write", self._write)
            wrap(os, "replace", self._rename)
            wrap(RunDirectory, "append_metrics", self._metrics)
            yield

    def _begin_attempt(self, genuine: Callable[..., int], directory: RunDirectory, round_: int) -> int:
        self.round = round_
        if self.take("full disk at the attempt"):
            raise _full(directory.path / "attempts.log")
        return genuine(directory, round_)

    def _spend(self, genuine: Callable[..., float], *given: Any, **named: Any) -> float:
        self._die_if("killed before the charge")
        spent = genuine(*given, **named)
        self._die_if("killed after the charge")
        return spent

    def _append(self, genuine: Callable[..., None], *given: Any, **named: Any) -> None:
        if self.take("full disk at the charge"):
            fault = sqlite3.OperationalError("database or disk is full")
            fault.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise fault
        genuine(*given, **named)

    def _take(self, genuine: Callable[..., None], checkpoints: Checkpoints, *released: Any) -> None:
        self._die_if("killed before the checkpoint")
        if self._due("killed while the checkpoint is renamed"):
            checkpoints._rounds = sys.maxsize  # a whole state comes after this round
        full = self.take("full disk at the checkpoint")
        with _no_room(checkpoints.directory / RELEASED) if full else contextlib.nullcontext():
            genuine(checkpoints, *released)
        self._die_if("killed after the checkpoint")

    def _write(self, genuine: Callable[..., int], handle: int, content: memoryview) -> int:
        if self._due("killed while a release is appended") and _path_of(handle).name == RELEASED:
            genuine(handle, content[: len(content) // 2])
            self._die_if("killed while a release is appended")
        return genuine(handle, content)

    def _rename(self, genuine: Callable[..., None], source: Any, target: Any) -> None:
        if Path(target).name in NAMES:
            self._die_if("killed while the checkpoint is renamed")
        genuine(source, target)

    def _metrics(self, genuine: Callable[..., None], directory: RunDirectory, record: Any) -> None:
        if self.take("full disk at the metrics"):
            raise _full(directory.path / "metrics.jsonl")
        genuine(directory, record)
        self._die_if("killed between rounds")

    def _due(self, kind: str) -> bool:
        return any(fault.round == self.round and fault.kind == kind for fault in self._left)

    def _die_if(self, kind: str) -> None:
        if self.take(kind):
            die()


class ChaosGrid(InProcessGrid):
    """A network that delivers replies twice, and again a round later, as scheduled."""

    def __init__(self, chaos: Chaos, clients: int) -> None:
        configs = [{"partition-id": client, "num-partitions": clients} for client in range(clients)]
        super().__init__(chaos.client, configs)  # type: ignore[arg-type]  # anything that answers messages
        self._chaos, self._before = chaos, list[Message]()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there, and what the network makes of them."""
        replies = list(super().pull_messages(message_ids))
        late = self._before if self._chaos.take("replies of the round before again") else []
        twice = replies if self._chaos.take("every reply twice") else []
        self._before = replies
        return [*late, *replies, *twice]


def die() -> None:
    """SIGKILL to this process."""
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _no_room(path: Path) -> Iterator[None]:
    """Let the kernel take a few bytes more of a file, and no more of any that is longer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((path.stat().st_size if path.exists() else 0) + 7, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _path_of(handle: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{handle}"))


def _full(path: Path) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _spoil(reply: Message, name: str, kind: str) -> None:
    sent: Array = reply.content["arrays"][name]  # type: ignore[assignment]
    every = (None,) * len(sent.shape)
    values = wire.decode(sent.dtype, sent.shape, sent.stype, sent.data, expected=every, name=name)
    if kind.startswith("NaN"):
        values = values * torch.nan
    elif kind.startswith("wrong shape"):
        values = torch.cat([values, values])
    else:
        values = torch.full_like(values, 1e6)
    reply.content["arrays"] = ArrayRecord({**reply.content["arrays"], name: Array(*wire.encode(values))})
