"""The loop of a training in rounds, on one machine and in a federation: what every round does, and in which order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from pathlib import Path
from typing import Protocol

from torch import Tensor

from fedsw.privacy.accounting import BudgetExhausted, Ledger
from fedsw.runs import checkpoint, recovery
from fedsw.runs.observer import Outcome


class Stepping(Protocol):
    """A model that moves along released vectors (r,) only: `steps` of them so far."""

    steps: int

    def step(self, released: Tensor, /) -> None:
        """Move along a released vector (r,)."""

    def state(self) -> checkpoint.Checkpoint:
        """All that is needed to go on from here."""


class TrainingLoop(ABC):
    """A training in rounds; what differs between one machine and a federation are its methods.

    A round is charged, noised and released; put on file; stepped along; and reported. In that order, so that whatever
    was reported can be stepped along again, and a process that dies in between has charged at least what it released.
    """

    def train(self, model: Stepping, folder: Path, rounds: int, ledger: Ledger | None) -> BudgetExhausted | str:
        """Run what is left of `rounds` rounds; return why they ended early, "" if they did not."""
        made = self.rounds(model, folder, rounds, ledger)
        while True:
            try:
                next(made)
            except StopIteration as ended:
                reason: BudgetExhausted | str = ended.value
                return reason

    def rounds(
        self, model: Stepping, folder: Path, rounds: int, ledger: Ledger | None
    ) -> Generator[int, None, BudgetExhausted | str]:
        """Run what is left of `rounds` rounds, each after its number is taken; return as `train` does.

        The reason is returned, not raised: a training that ends in order keeps its whole state in the folder. The
        ledger is None if clients have their own.
        """
        if reason := self.unsound():
            return reason
        with checkpoint.Checkpoints(
            folder, model.step, model.state, lambda: None if ledger is None else ledger.head()
        ) as checkpoints:
            for round_ in range(model.steps + 1, rounds + 1):
                recovery.require_space(folder, checkpoints.size)  # before the round is charged
                if reason := self.barred(round_):
                    return reason
                yield round_
                try:
                    outcome = self.released(round_)
                except BudgetExhausted as exhausted:
                    return exhausted
                checkpoints.take(round_, outcome.vector)
                self.report(round_, outcome)
                if reason := self.unsound():
                    return reason
        return ""

    @abstractmethod
    def released(self, round_: int) -> Outcome:
        """Charge, noise and release a round at the model as it is; BudgetExhausted if it would cost too much."""

    @abstractmethod
    def unsound(self) -> str:
        """Reason to stop training (a diverged model), for the status; "" to continue."""

    @abstractmethod
    def report(self, round_: int, outcome: Outcome) -> None:
        """Write a round's line of metrics, and tell observers of it."""

    def barred(self, round_: int) -> str:
        """Reason why a round may not begin although the budget suffices; "" if it may."""
        return ""
