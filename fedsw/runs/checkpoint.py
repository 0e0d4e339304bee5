"""Checkpoints: the released model and the optimizer, written whole or not at all."""

from __future__ import annotations

import hashlib
import io
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsw import files
from fedsw.accounting import Head

NAME = "checkpoint.pt"
RECENT = ("checkpoint.recent-0.pt", "checkpoint.recent-1.pt")
NAMES = (NAME, *RECENT)
_SYNCHRONISE_SECONDS = 1.0
_TITLE = b"fedsw checkpoint 2 "


@dataclass(frozen=True)
class Checkpoint:
    """State after `round` released rounds: functions of released vectors only.

    It holds no un-noised sum, no outputs, no counts and no sampling secret. `ledger` is the last row of the run's
    ledger (None where the clients keep their own): a ledger without that row was put back from an older copy.
    """

    round: int
    theta: Tensor
    average: Tensor
    optimizer: dict[str, Any]
    ledger: Head | None = None


class CheckpointDamaged(ValueError):
    """There are checkpoint files, and none of them is whole."""


class Checkpoints:
    """A run's checkpoint files: one after every round, one of them synchronised to disk about every second.

    The others take turns under two names, so that the round before is whole while a round is written. The newest
    survives the death of the process; the synchronised one survives that of the machine. Each is written whole or not
    at all, and an old one is safe: the ledger, which is ahead of it, decides what was spent.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self._synchronised = directory, -math.inf
        self.size = 0  # bytes of the last file

    def save(self, state: Checkpoint) -> None:
        """Write the state after a round; rounds that take a second or more are synchronised one by one."""
        durable = time.monotonic() - self._synchronised >= _SYNCHRONISE_SECONDS
        name = NAME if durable else RECENT[state.round % 2]  # the one that does not hold the round before
        content = io.BytesIO()
        torch.save({**vars(state), "ledger": None if state.ledger is None else asdict(state.ledger)}, content)
        title = _TITLE + hashlib.sha256(content.getbuffer()).hexdigest().encode() + b"\n"
        if not durable:  # a file system may send at once to the disk what replaces a file, which costs ten times more
            (self.directory / name).unlink(missing_ok=True)
        files.replace(self.directory / name, title, content.getbuffer(), durable=durable)
        self.size = len(title) + content.getbuffer().nbytes
        if durable:
            self._synchronised = time.monotonic()


def load(directory: Path) -> Checkpoint | None:
    """The last whole checkpoint of a run, or None if it never finished a round.

    Raises:
        CheckpointDamaged: if there are files and none is whole; training from the start again would be charged again.
    """
    present = [path for name in NAMES if (path := directory / name).exists()]
    found = [state for path in present if (state := _read(path)) is not None]
    if present and not found:
        raise CheckpointDamaged(
            f"{' and '.join(map(str, present))} cannot be read: damaged, or of another version. Put back a whole copy "
            "(an older one is safe, the ledger knows what was spent), or start a new run"
        )
    return max(found, key=lambda state: state.round, default=None)


def _read(path: Path) -> Checkpoint | None:
    """The state in a file; None if its checksum does not match (torch itself checks none)."""
    title, _, content = path.read_bytes().partition(b"\n")
    if title != _TITLE + hashlib.sha256(content).hexdigest().encode():
        return None
    stored = torch.load(io.BytesIO(content), weights_only=True)
    ledger = stored.pop("ledger")
    return Checkpoint(**stored, ledger=None if ledger is None else Head(**ledger))
