"""The attempts that a node has answered in a run: each exchange of one is answered once, and reported at the greeting.

A real node writes them to its `state-dir` or $FEDSW_STATE, on the disk before the answer leaves; a simulated one has
them in memory.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools import files
from fedsw.federation.messages import AnyExchange
from fedsw.federation.node.own_ledger import state_folder
from fedsw.federation.node.simulated import is_simulated

FIRST, LAST = 1, 2
"""The first of an attempt's two exchanges, after which nothing can be released yet; and the last, or the only one."""

_KEY = "attempts"
_PATIENCE = 60.0


class AlreadyAnswered(ValueError):
    """This attempt was answered before: a server that asks again has forgotten what it released."""


class Answered:
    """The attempts of one run that a node has answered: in a file, or in what the node keeps between messages."""

    def __init__(self, path: Path | None, memory: MutableMapping[str, Any]) -> None:
        self._path, self._memory = path, memory

    @classmethod
    def of(cls, node_config: Mapping[str, Any], client: int, run: str, memory: MutableMapping[str, Any]) -> Answered:
        """The attempts answered by a node (named by its first client) in a run; a real node needs a folder for them."""
        if is_simulated(node_config):
            return cls(None, memory)
        twice = "and after its next start would answer a restored server for a second time"
        folder = state_folder(node_config, client, f"to write down what it answers, {twice}")
        name = f"answered-{client}-{hashlib.sha256(run.encode()).hexdigest()[:16]}.log"
        return cls(folder / name, memory)

    @property
    def file(self) -> Path | None:
        """The file that is there from the first answer on; None for a simulated node."""
        return self._path

    def note(self, exchange: AnyExchange, round_: int, attempt: int) -> None:
        """Write down, once, that an exchange of an attempt is answered; on the disk before the answer leaves."""
        if self._path is None:
            before = bytes(self._memory.get(_KEY, b""))
            self._memory[_KEY] = before + _line(before, exchange, round_, attempt)
            return
        try:
            files.new_folder(self._path.parent)
            with files.locked(self._path.with_suffix(".lock"), _PATIENCE), files.opened(self._path, "a+b") as file:
                file.seek(0)
                file.write(_line(file.read(), exchange, round_, attempt))
                file.flush()
                files.sync(self._path)
        except OSError as fault:
            raise RuntimeError(
                f"this node cannot write down what it has answered ({fault.strerror}), and answers nothing without; "
                "its operator must make its state folder writable"
            ) from None

    def all(self) -> NDArray[np.int64]:
        """All answered exchanges, (A, 3): round, attempt, and `FIRST` or `LAST`."""
        lines = re.findall(rb"^(\d+) (\d+) ([12])$", self._content(), flags=re.MULTILINE)
        return np.array(lines, dtype=np.int64).reshape(-1, 3)

    def _content(self) -> bytes:
        if self._path is None:
            return bytes(self._memory.get(_KEY, b""))
        return self._path.read_bytes() if self._path.exists() else b""


def _line(before: bytes, exchange: AnyExchange, round_: int, attempt: int) -> bytes:
    """The line to append for an exchange; raises `AlreadyAnswered` if it, or a later one of the attempt, is there."""
    stage = FIRST if exchange.followed else LAST
    for other in range(stage, LAST + 1):
        line = b"%d %d %d\n" % (round_, attempt, other)
        if before.startswith(line) or b"\n" + line in before:
            raise AlreadyAnswered(
                f"round {round_}, attempt {attempt} was answered by this node before; it answers every attempt once. A "
                "server whose folder was put back from a backup must be resumed with what clients remember"
            )
    cut_short = b"\n" if before and not before.endswith(b"\n") else b""  # by a machine that died
    return cut_short + b"%d %d %d\n" % (round_, attempt, stage)
