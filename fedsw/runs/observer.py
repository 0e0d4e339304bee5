"""A round's release, and the interface of a run's observers, which receive releasable numbers only."""

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
    post-processing of noised features. `spent` is the epsilon of everything released so far, of the worst client if
    each has its own guarantee. The training loss is un-noised, and given only with `unsafe_metrics`.
    """

    vector: Tensor
    sigma: float | None
    spent: float
    attempt: int
    clients: int
    training_loss: float | None = None


class Observer(Protocol):
    """Receives what may be shown during a run: every number is releasable, or marked unsafe.

    An error that it raises ends the run; `fedsw.runs.observers.Observers` drops such an observer instead.
    """

    def started(self, plan: dict[str, Any]) -> None:
        """The run's plan and its `directory`, before the first round."""

    def round_done(self, record: dict[str, Any]) -> None:
        """One released round; also a line of metrics.jsonl."""

    def finished(self, summary: dict[str, Any]) -> None:
        """The summary; also summary.json."""


@runtime_checkable
class Witness(Observer, Protocol):
    """An observer that also receives every model and every released vector.

    The guarantee covers them: an attacker may have them (`fedsw audit --one-run`), and none of them is un-noised.
    """

    def released(self, round_: int, theta: Tensor, outcome: Outcome) -> None:
        """The model (r,), float64, that a round began with, and what the round released; before the step along it."""


@runtime_checkable
class Ending(Observer, Protocol):
    """An observer that is also called if a run breaks off; `finished` is then not called."""

    def broke_off(self, status: str) -> None:
        """Reason why a started run broke off, in the words of its summary: releasable."""


@runtime_checkable
class Attending(Observer, Protocol):
    """An observer that also receives the roll call of clients that run on other machines."""

    def roll_called(self, called: Sequence[Called]) -> None:
        """The clients online and the state of each: before the run begins, and after each change."""


class NoObserver:
    """An observer that does nothing."""

    def started(self, plan: dict[str, Any]) -> None:
        """Ignore the plan."""

    def round_done(self, record: dict[str, Any]) -> None:
        """Ignore the round."""

    def finished(self, summary: dict[str, Any]) -> None:
        """Ignore the summary."""
