"""How good the released model is on records that clients kept out of training: released once, and stored."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedsw.accounting import BudgetExhausted
from fedsw.errors import FederationError
from fedsw.federation.budgets.held_out import tally_of
from fedsw.federation.trust.model import TallySide
from fedsw.runs import recovery
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation import HeldOut
from fedsw.runs.held_out_metrics import Tallied, held_out_of, keep, kept
from fedsw.runs.telemetry import event
from fedsw.tasks.problem import Problem


def measure_kept(
    task: Problem,
    method: Callable[[], TallySide],
    theta: Tensor,
    steps: int,
    directory: RunDirectory,
    log: logging.Logger,
) -> tuple[HeldOut, dict[str, Any]]:
    """Metrics of the released model, and what the summary says of the release.

    A run that has the release takes it. One that cannot get it has no metrics and says why: the model stays.

    Args:
        method: asks the clients.
        theta: the released model (r,).
        steps: rounds that it is the model of; the exchange has the number of the next planned one.
    """
    tally = tally_of(task)
    assert tally is not None
    found = kept(directory)
    if found is None:
        asking = method()
        recovery.require_space(directory.path, 32 * tally.groups * tally.width)
        try:
            outcome = asking.round(task.experiment.training.rounds + 1, theta)
        except (FederationError, BudgetExhausted) as fault:
            said = fault.recorded if isinstance(fault, FederationError) else str(fault)
            log.warning("nothing of kept records was released: %s", fault, extra=event("nothing released"))
            return HeldOut(missing=f"nothing is known of the records that clients kept out of training: {said}"), {}
        assert outcome.sigma is not None
        values = outcome.vector.reshape(tally.groups, tally.width).numpy()
        found = Tallied(
            values, outcome.sigma, asking.records, outcome.clients, outcome.attempt, outcome.spent, round=steps
        )
        keep(directory, found)
        lines = event("kept records released", attempt=found.attempt, clients=found.clients, epsilon=found.spent)
        log.info("counts and sums over kept records released", extra=lines)
    return held_out_of(task, tally, found), {"held_out_release": found.said()}
