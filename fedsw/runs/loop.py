"""The loop of a training in rounds, on one machine and in a federation: what every round does, and in which order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from torch import Tensor

from fedsw.privacy.accounting import BudgetExhausted, Ledger
from fedsw.runs import checkpoint, recovery
from fedsw.runs.observer import Outcome


class Stepping(Protocol):
    """A model that moves along released vectors (r,) only; `steps` is their number so far."""

    steps: int

    def step(self, released: Tensor, /) -> None:
        """Move along a released vector (r,)."""

    def state(self) -> checkpoint.Checkpoint:
        """All that is needed to resume from here."""


class TrainingLoop(ABC):
    """A training in rounds; what differs between one machine and a federation are its methods.

    A round is charged, noised and released; put on file; stepped along; and reported. In this order a reported round
    can be stepped along again, and a process that dies in between has charged at least what it released.
    """

    ended: BudgetExhausted | str = ""
    """Why the rounds ended early, "" if they did not; not raised: an end in order keeps the whole state on file."""

    def train(self, model: Stepping, folder: Path, rounds: int, ledger: Ledger | None) -> BudgetExhausted | str:
        """Run the remaining ones of `rounds` rounds; return `ended`. The ledger is None if clients have their own."""
        for _ in self.rounds(model, folder, rounds, ledger):
            pass
        return self.ended

    def rounds(self, model: Stepping, folder: Path, rounds: int, ledger: Ledger | None) -> Iterator[int]:
        """Do as `train`; yield each round's number before it runs, so that the caller can draw its batch."""
        self.ended = self.unsound()
        if self.ended:
            return
        # The last row is read at each release: a checkpoint remembers the ledger as it was then.
        with checkpoint.Checkpoints(
            folder, model.step, model.state, lambda: None if ledger is None else ledger.head()
        ) as checkpoints:
            for round_ in range(model.steps + 1, rounds + 1):
                recovery.require_space(folder, checkpoints.size)  # before the round is charged
                self.ended = self.barred(round_)
                if self.ended:
                    return
                yield round_
                try:
                    outcome = self.released(round_)
                except BudgetExhausted as exhausted:
                    self.ended = exhausted
                    return
                checkpoints.take(round_, outcome.vector)
                self.report(round_, outcome)
                self.ended = self.unsound()
                if self.ended:
                    return

    @abstractmethod
    def released(self, round_: int) -> Outcome:
        """Charge, noise and release a round at the model as it is; BudgetExhausted if it would cost too much."""

    @abstractmethod
    def unsound(self) -> str:
        """Reason to stop training (a diverged model), for the status; "" to continue."""

    @abstractmethod
    def report(self, round_: int, outcome: Outcome) -> None:
        """Write a round's line of metrics, and pass it to observers."""

    def barred(self, round_: int) -> str:
        """Reason why a round may not begin although the budget suffices; "" if it may."""
        return ""
