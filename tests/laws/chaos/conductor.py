"""The scripted run: server processes one after another until the run has ended, then the audit of what it left."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import torch

from fedsw.experiment import Experiment, parse_experiment
from fedsw.privacy.accounting import Composition, Entry, Ledger, Step
from tests.laws.chaos.faults import Fault, schedule
from tests.laws.chaos.processes import WITNESS, run_process

CLIENTS, LEAST = 5, 3


class ChaosFailed(RuntimeError):
    """The run did not end, or its account is wrong; the message says what."""


def experiment_of(rounds: int, *overrides: str) -> Experiment:
    """A small private run of five clients, with some settings changed (`key=value`).

    About 300 records a group, of which 1.9 % (5.7) are asked and 5 are taken: rounds cost less than planned, which
    leaves room for the rounds that a crash makes the run pay twice.
    """
    return parse_experiment(
        {
            "name": "chaos",
            "data": {"records": 600, "test_records": 50},
            "objective": {"alpha": 0.5},
            "training": {"rounds": rounds, "learning_rate": 0.1, "batch_fraction": 0.019},
            "privacy": {"epsilon": 2.0},
            "federation": {"clients": CLIENTS, "min_clients": LEAST, "timeout": 3.0},
            "evaluate_every": rounds,
        },
        overrides,
    )


def run_chaos(seed: int, rounds: int, directory: Path) -> dict[str, Any]:
    """Run `rounds` rounds with the faults of that seed, starting the server again whenever it died; returns the audit.

    Must be called in a process that has trained nothing (see `run_process`).

    Raises:
        ChaosFailed: naming the first thing that is wrong.
    """
    experiment, planned = experiment_of(rounds), schedule(seed, rounds, CLIENTS)
    directory.mkdir(parents=True)
    started, ends, spent = time.monotonic(), list[int](), 0.0
    while True:
        fired = {Fault(**fault) for fault in _witnessed(directory, "fault")}
        begun = (directory / "run" / "config.json").exists()
        left = [fault for fault in planned if fault not in fired]
        ends.append(run_process(experiment, directory, left, resume=begun))
        before, spent = spent, _spent(directory)
        require(spent >= before, f"epsilon fell from {before} to {spent}")
        if ends[-1] == 0:
            break
        require(len(ends) <= 2 * len(planned) + 5, f"the server ended {len(ends)} times: {ends}; see {directory}")
    return {
        "seed": seed,
        "rounds": rounds,
        "seconds": time.monotonic() - started,
        "lives": len(ends),
        "ends": {str(code): count for code, count in sorted(Counter(ends).items())},
        "faults": dict(Counter(str(fault["kind"]) for fault in _witnessed(directory, "fault"))),
        **audit(directory, planned),
    }


def audit(directory: Path, planned: list[Fault]) -> dict[str, Any]:
    """Compare what a chaos run left with what its witness saw.

    Raises:
        ChaosFailed: naming the first thing that is wrong.
    """
    torch.set_num_threads(1)  # as the server's: sums of another order differ in the last digits
    run = directory / "run"
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    charged = _witnessed(directory, "charged")
    released = {(each["round"], each["attempt"]) for each in _witnessed(directory, "released")}
    with Ledger.open(run / "ledger.sqlite") as ledger:
        require(_rows(charged) == _rows_of(ledger.entries()), "the ledger's rows are not what was charged")
        epsilon, replayed, alone = ledger.epsilon(), ledger.replay(), _composed(charged, ledger.delta)
        budget = ledger.budget
    require(epsilon == replayed == alone, f"epsilon is {epsilon}, replayed {replayed}, from the witness {alone}")
    require(summary["epsilon_spent"] == epsilon <= budget, f"the summary says {summary['epsilon_spent']}")
    attempts = [(each["round"], each["attempt"]) for each in charged]
    require(len(set(attempts)) == len(attempts), "an attempt was charged twice")
    require(released <= set(attempts), "something was released that was never charged")
    begun = (run / "attempts.log").read_text(encoding="ascii").splitlines()
    require(len(set(begun)) == len(begun), "an attempt number was used twice")
    keys = [key["digest"] for key in _witnessed(directory, "key")]
    require(len(set(keys)) == len(keys), "a batch was drawn twice from one key")
    require(summary["status"] == "completed", f"the run {summary['status']}")
    require(summary["released_rounds"] == summary["rounds"], f"{summary['released_rounds']} rounds were released")
    left = {fault.kind for fault in planned} - {fault["kind"] for fault in _witnessed(directory, "fault")}
    require(not left, f"these faults never happened: {sorted(left)}")
    children = [process.pid for process in psutil.Process().children(recursive=True)]
    require(not children, f"processes are left: {children}")
    return {
        "status": summary["status"],
        "charges": len(attempts),
        "releases": len(released),
        "charged_but_not_released": len(attempts) - len(released),
        "abandoned_attempts": len(begun) - len(attempts),
        "epsilon": epsilon,
        "epsilon_replayed": replayed,
        "epsilon_of_the_witness": alone,
        "budget": budget,
        "processes_left": len(children),
    }


def _composed(charged: list[dict[str, Any]], delta: float) -> float:
    """Epsilon of the witness' list: the worst group's."""
    groups: dict[str, Composition] = {}
    for each in charged:
        for charge in each["charges"]:
            composition = groups.setdefault(charge["group"], Composition())
            composition.add(Step(charge["rate"], charge["sensitivity"] / each["sigma"]))
    return max((composition.epsilon(delta) for composition in groups.values()), default=0.0)


def _rows(charged: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (each["round"], each["attempt"], charge["group"], charge["rate"], charge["sensitivity"], each["sigma"])
        for each in charged
        for charge in each["charges"]
    ]


def _rows_of(entries: list[Entry]) -> list[tuple[Any, ...]]:
    return [(e.round, e.attempt, e.group, e.sampling_rate, e.sensitivity, e.sigma) for e in entries]


def _spent(directory: Path) -> float:
    path = directory / "run" / "ledger.sqlite"
    if not path.exists():
        return 0.0
    with Ledger.open(path, read_only=True) as ledger:
        return ledger.epsilon()


def _witnessed(directory: Path, event: str) -> list[dict[str, Any]]:
    path = directory / WITNESS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [{key: value for key, value in each.items() if key != "event"} for each in found if each["event"] == event]


def require(holds: bool, what: str) -> None:
    """Raise ChaosFailed if it does not hold."""
    if not holds:
        raise ChaosFailed(what)
