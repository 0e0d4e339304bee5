"""Several observers as one, none of which can end the run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fedsw.runs.observer import Ending, Observer, Witness
from fedsw.runs.telemetry import LOGGER, event

if TYPE_CHECKING:
    from torch import Tensor

    from fedsw.runs.outcome import Outcome


class Observers:
    """Tells every observer, in order; one that raises is left out from then on, with one warning.

    A run spends budget, and what it has released must not be lost because a server of metrics is gone. What is no
    error, `KeyboardInterrupt` above all, passes. Where none of them is shown models or ends of runs, nothing is.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = list(observers)

    def started(self, plan: dict[str, Any]) -> None:
        """Tell everyone."""
        self._tell("started", plan)

    def round_done(self, record: dict[str, Any]) -> None:
        """Tell everyone."""
        self._tell("round_done", record)

    def finished(self, summary: dict[str, Any]) -> None:
        """Tell everyone."""
        self._tell("finished", summary)

    def released(self, round_: int, theta: Tensor, outcome: Outcome) -> None:
        """Show the model (r,) to those that are shown models."""
        self._tell("released", round_, theta, outcome, kind=Witness)

    def broke_off(self, status: str) -> None:
        """Tell those that want to know."""
        self._tell("broke_off", status, kind=Ending)

    def _tell(self, what: str, *given: Any, kind: type | None = None) -> None:
        for observer in list(self._observers):
            if kind is not None and not isinstance(observer, kind):
                continue
            try:
                getattr(observer, what)(*given)
            except Exception as fault:
                self._observers = [other for other in self._observers if other is not observer]
                name = type(observer).__name__
                words = f"the observer {name} failed and is left out from now on: {type(fault).__name__}: {fault}"
                logging.getLogger(LOGGER).warning(words, extra=event("observer left out"))
