"""A run's checkpoint: its last whole state, and what its rounds released since."""

from __future__ import annotations

import hashlib
import io
import math
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedsw._tools import files
from fedsw._tools.later import torch
from fedsw.privacy.accounting import Head

if TYPE_CHECKING:
    from torch import Tensor

NAME = "checkpoint.pt"
RELEASED = "checkpoint.released"
NAMES = (NAME, RELEASED)
# Releases are synchronised once a second: each time waits for the disk. A whole state follows after these rounds or
# bytes, which a resumed run reads and steps along again.
_SYNCHRONISE_SECONDS = 1.0
_MOST_ROUNDS, _MOST_BYTES = 100, 2**26
_TITLE = b"fedsw checkpoint 2 "
_FRAME = struct.Struct("<Q32s")  # bytes of what follows, and its digest
_ABOUT = struct.Struct("<QQ32s")  # round, the ledger's last row and that row's digest
_NO_LEDGER = bytes(32)


@dataclass(frozen=True)
class ReleasedStep:
    """A round's release, a vector (r,), float64, on the host; and the ledger's last row at that time."""

    round: int
    released: Tensor
    ledger: Head | None = None


@dataclass(frozen=True)
class Checkpoint:
    """State after `round` released rounds, and `later` releases: functions of released vectors only.

    It holds no un-noised sum, no outputs, no counts and no sampling secret. `ledger` is the last row of the run's
    ledger (None if the clients keep their own): a ledger that lacks this row was restored from an older copy.
    """

    round: int
    theta: Tensor
    average: Tensor
    optimizer: dict[str, Any]
    ledger: Head | None = None
    later: tuple[ReleasedStep, ...] = ()

    @property
    def last(self) -> Checkpoint | ReleasedStep:
        """The last released round on file, with the ledger's last row at that time."""
        return self.later[-1] if self.later else self


class CheckpointDamaged(ValueError):
    """The checkpoint files hold no whole state."""


class Checkpoints:
    """A run's last whole state, and a file to which every later round appends what it released.

    A release is on file before the optimizer steps along it, so before anything that depends on it leaves; the file is
    synchronised to disk about every second. Its content survives the death of the process; what was synchronised also
    survives that of the machine. After `_MOST_ROUNDS` rounds or `_MOST_BYTES` bytes, and at an end in order, a whole
    state replaces both, synchronised at once. Each release has its length, and a digest of itself and of all before it,
    beginning with the whole state's: the rest of a write that was cut short, or of another state, is ignored. An old
    state beside its ledger is safe: the ledger, which is ahead of it, decides what was spent.

    Use it as a context manager. `step` moves the model, as a function of the released vector and the model's state.
    """

    def __init__(
        self,
        directory: Path,
        step: Callable[[Tensor], None],
        state: Callable[[], Checkpoint],
        head: Callable[[], Head | None],
    ) -> None:
        self.directory, self._step, self._state, self._head = directory, step, state, head
        self._handle: int | None = None
        self._digest, self._synchronised = b"", -math.inf
        self._rounds = self._bytes = 0  # released since the whole state
        self.size = 0  # bytes of a whole state and a release

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        try:
            # After an error the state may be half of a step; the releases on file lead to the whole one.
            if kind is None and (self.directory / RELEASED).exists():  # this process' or an earlier one's
                self._whole()
                (self.directory / RELEASED).unlink()
        finally:
            if self._handle is not None:
                os.close(self._handle)

    def take(self, round_: int, released: Tensor) -> None:
        """Append a round's release (r,), and step along it; before the first one of a process write the whole state."""
        handle = self._whole() if self._handle is None else self._handle
        self._append(handle, ReleasedStep(round_, released, self._head()))
        self._step(released)
        if self._rounds >= _MOST_ROUNDS or self._bytes >= _MOST_BYTES:
            self._whole()

    def _append(self, handle: int, step: ReleasedStep) -> None:
        body = _body(step)
        self._digest = _chained(self._digest, body)
        files.append(handle, _FRAME.pack(len(body), self._digest) + body)
        self._rounds, self._bytes = self._rounds + 1, self._bytes + len(body)
        if time.monotonic() - self._synchronised >= _SYNCHRONISE_SECONDS:
            os.fdatasync(handle)
            self._synchronised = time.monotonic()

    def _whole(self) -> int:
        """Write the whole state, and return the handle of the emptied file of later releases.

        A death in between leaves releases that are chained to the older state's digest: they are ignored.
        """
        state = replace(self._state(), ledger=self._head())
        self._digest, self.size = write(self.directory, state)
        if self._handle is None:
            self._handle = files.appending(self.directory / RELEASED)
            files.sync(self.directory)
        else:
            os.ftruncate(self._handle, 0)
        self.size += len(_body(ReleasedStep(state.round, state.theta)))
        self._rounds, self._bytes, self._synchronised = 0, 0, time.monotonic()
        return self._handle


def write(directory: Path, state: Checkpoint) -> tuple[bytes, int]:
    """Write a whole state atomically, synchronised, without later releases; returns its digest and bytes."""
    content = io.BytesIO()
    ledger = None if state.ledger is None else asdict(state.ledger)
    torch.save({**{name: value for name, value in vars(state).items() if name != "later"}, "ledger": ledger}, content)
    digest = hashlib.sha256(content.getbuffer())
    title = _TITLE + digest.hexdigest().encode() + b"\n"
    files.replace(directory / NAME, title, content.getbuffer())
    return digest.digest(), len(title) + content.getbuffer().nbytes


def load(directory: Path) -> Checkpoint | None:
    """The whole state of a run, and later releases; None if no round is on file. Of a live run a recent state.

    Raises:
        CheckpointDamaged: if the files hold no whole state: training anew would be charged again.
    """
    if (stored := read(directory)) is None:
        return None
    state, steps = stored
    ledger = state.pop("ledger")
    return Checkpoint(**state, ledger=None if ledger is None else Head(**ledger), later=steps)


def read(directory: Path) -> tuple[dict[str, Any], tuple[ReleasedStep, ...]] | None:
    """The state as stored, unchecked, and later releases: see `load`."""
    later = _content(directory / RELEASED)  # first: if the state is replaced meanwhile, these are ignored
    content = _content(directory / NAME)
    if content is None and later is None:
        return None
    title, _, stored = (content or b"").partition(b"\n")
    digest = hashlib.sha256(stored)  # torch's format has none
    if title != _TITLE + digest.hexdigest().encode():
        raise CheckpointDamaged(
            f"{directory / NAME} cannot be read: damaged, gone, or of another version. Put back a whole copy "
            "(an older one will do beside the newest ledger, which knows what was spent, with --go-on), or start anew"
        )
    return torch.load(io.BytesIO(stored), weights_only=True), tuple(_steps(later or b"", digest.digest()))


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _body(step: ReleasedStep) -> bytes:
    row, digest = (0, _NO_LEDGER) if step.ledger is None else (step.ledger.sequence, bytes.fromhex(step.ledger.digest))
    return _ABOUT.pack(step.round, row, digest) + step.released.numpy().astype("<f8", copy=False).tobytes()


def _steps(content: bytes, before: bytes) -> Iterator[ReleasedStep]:
    """The releases after the state of that digest, up to the first that is not whole."""
    left = memoryview(content)
    while len(left) >= _FRAME.size:
        length, digest = _FRAME.unpack_from(left)
        body, left = left[_FRAME.size :][:length], left[_FRAME.size + length :]
        if len(body) < length or _chained(before, body) != digest:
            return
        round_, row, of_row = _ABOUT.unpack_from(body)
        vector = torch.frombuffer(bytearray(body), dtype=torch.float64, offset=_ABOUT.size)
        yield ReleasedStep(round_, vector, None if of_row == _NO_LEDGER else Head(row, of_row.hex()))
        before = digest


def _chained(before: bytes, body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(before)
    digest.update(body)
    return digest.digest()
