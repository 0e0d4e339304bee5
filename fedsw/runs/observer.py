"""A round's release, and the observer of a run that is told of it: releasable numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fedsw.runs.roll_call import Called


@dataclass(frozen=True)
class Outcome:
    """A round's release: a vector (r,), float64, that the optimizer moves against.

    `sigma` is the standard deviation of the noise in each coordinate of a noised gradient, None if the vector is
    post-processing of noised features; `spent` the epsilon of everything released so far, of the worst client where
    each has its own guarantee. The training loss is un-noised, and there only where `unsafe_metrics` asks for it.
    """

    vector: Tensor
    sigma: float | None
    spent: float
    attempt: int
    clients: int
    training_loss: float | None = None


class Observer(Protocol):
    """Receives what may be shown while a run goes on (theory: every number here is releasable or marked unsafe).

    What it raises ends the run; `fedsw.runs.observers.Observers` leaves an observer that raises out instead.
    """

    def started(self, plan: dict[str, Any]) -> None:
        """The run's plan and its `directory`, before the first round."""

    def round_done(self, record: dict[str, Any]) -> None:
        """One released round; also a line of metrics.jsonl."""

    def finished(self, summary: dict[str, Any]) -> None:
        """The summary; also summary.json."""


@runtime_checkable
class Witness(Observer, Protocol):
    """An observer that is also shown every model and every released vector, all of which the guarantee is about.

    They are public in the sense of the guarantee (an attacker may have them, `fedsw audit --one-run`), and nothing
    un-noised is among them.
    """

    def released(self, round_: int, theta: Tensor, outcome: Outcome) -> None:
        """The model (r,), float64, that a round began with, and what the round released; before the step along it."""


@runtime_checkable
class Ending(Observer, Protocol):
    """An observer that is also called when a run does not end in order; `finished` is then not called."""

    def broke_off(self, status: str) -> None:
        """Reason why a started run broke off, in the words of its summary: releasable."""


@runtime_checkable
class Attending(Observer, Protocol):
    """An observer that is also told which clients are there, where these are on machines of their own."""

    def roll_called(self, called: Sequence[Called]) -> None:
        """The clients online and the state of each, from before the run begins on and whenever it changes."""


class NoObserver:
    """An observer that does nothing."""

    def started(self, plan: dict[str, Any]) -> None:
        """Ignore the plan."""

    def round_done(self, record: dict[str, Any]) -> None:
        """Ignore the round."""

    def finished(self, summary: dict[str, Any]) -> None:
        """Ignore the summary."""
