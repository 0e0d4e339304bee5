"""One process of a server: it is forked, and runs the experiment until it ends, fails or is killed."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedsw.federation.trust.central.unnoised
from fedsw.experiment import Experiment
from fedsw.federation.node.node import batch_key
from fedsw.federation.server.federation import Job, federate
from fedsw.federation.trust.central import rounds as central
from fedsw.federation.trust.central.rounds import Aggregate
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Charge, Ledger
from fedsw.privacy.release import Released
from tests.laws.chaos.faults import Chaos, ChaosGrid, Fault

WITNESS = "witness.jsonl"
"""What was charged and released, kept by somebody who does not read the ledger."""


def run_process(experiment: Experiment, directory: Path, faults: list[Fault], *, resume: bool) -> int:
    """Run a server with faults in a process of its own; returns its exit status, negative for a signal.

    The process is forked: the caller must not have trained anything itself (autograd does not survive a fork).
    """
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    try:
        _serve(experiment, directory, faults, resume=resume)
        os._exit(0)
    except BaseException as failure:
        with (directory / "failures.log").open("a", encoding="utf-8") as file:
            traceback.print_exception(failure, file=file)
        os._exit(1)


def _serve(experiment: Experiment, directory: Path, faults: list[Fault], *, resume: bool) -> None:
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    witness = Witness(directory / WITNESS)
    chaos = Chaos(faults, experiment.federation.timeout, lambda fault: witness.note("fault", **vars(fault)))
    witness.watch()
    grid = ChaosGrid(chaos, experiment.federation.clients)
    try:
        with chaos.server():
            federate(grid, Job(experiment, directory / "run", resume=resume))
    finally:
        grid.close()


class Witness:
    """Keeps its own list of charges, releases and batch keys (by their hash), each on disk before the run goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, event: str, **content: Any) -> None:
        """Write one line and wait until the disk has it."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **content}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def watch(self) -> None:
        """Note every charge, release and key of this process from now on."""
        spend, release, key = Ledger.spend, central.release, batch_key

        def charged(ledger: Ledger, round: int, attempt: int, charges: Any, sigma: float) -> float:
            spent = spend(ledger, round, attempt, charges, sigma)
            self.note("charged", round=round, attempt=attempt, sigma=sigma, charges=_plain(charges))
            return spent

        def released(aggregate: Aggregate, plan: FederationPlan, ledger: Ledger) -> Released:
            out = release(aggregate, plan, ledger)
            self.note("released", round=aggregate.round, attempt=aggregate.attempt, spent=out.spent)
            return out

        def drawn(task: Problem, round_: int, attempt: int) -> bytes:
            found = key(task, round_, attempt)
            self.note("key", round=round_, attempt=attempt, digest=hashlib.sha256(found).hexdigest())
            return found

        _replace(Ledger, "spend", charged)
        _replace(central, "release", released)
        _replace(fedsw.federation.trust.central.unnoised, "batch_key", drawn)


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def _plain(charges: list[Charge]) -> list[dict[str, Any]]:
    return [{"group": c.group, "rate": c.sampling_rate, "sensitivity": c.sensitivity} for c in charges]
