"""A deployed run under injections: submitted again until it has ended, then the audit of what it left."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import torch

from fedsw.experiment import Experiment
from fedsw.privacy.accounting import Composition, Head, Ledger, Step
from fedsw.privacy.accounting.ledger import Entry
from fedsw.runs.directory import RunDirectory
from tests.laws.chaos import injections
from tests.laws.chaos.background import Background
from tests.laws.chaos.conductor import CLIENTS, LEAST, experiment_of, require
from tests.laws.chaos.injections import Injection, script
from tests.laws.chaos.injector import BEGUN, INJECTED, Injector, read_lines
from tests.laws.chaos.site import Site

POLLED = "polled.jsonl"
_POLL_SECONDS = 2.0
_READING = 1e-9
"""How far readings of one account may lie apart, relatively, when it was read in between; a fresh one is exact."""


def campaign_experiment(rounds: int) -> Experiment:
    """The run of `conductor.experiment_of`, evaluated after every round on many held-out records.

    A round then takes some tenths of a second, as it does with clients that have more to compute.
    """
    return experiment_of(rounds, "data.test_records=100000", "federation.timeout=10.0", "evaluate_every=1")


def run_campaign(seed: int, rounds: int, directory: Path) -> dict[str, Any]:
    """Run `rounds` rounds on a SuperLink and five SuperNodes under the injections of that seed; returns the audit.

    A run that stopped is resumed, as by `fedsw resume`, when all nodes are back.

    Raises:
        ChaosFailed: naming the first thing that is wrong.
    """
    torch.set_num_threads(1)  # as the server's: sums of another order differ in the last digits
    experiment, planned = campaign_experiment(rounds), script(seed, rounds)
    directory.mkdir(parents=True)
    started, ends = time.monotonic(), list[str]()
    site = Site(directory, experiment, seed)
    RunDirectory(site.run).write_config(experiment, "deployed")
    with site, Poll(directory) as poll:
        patience = experiment.federation.timeout
        with Injector(site, planned, directory, timeout=patience, clients=CLIENTS, least=LEAST) as injector:
            while (end := site.run_once(resume=bool(ends))) != "completed":
                ends.append(end)
                require(injector.failure is None, f"the injector failed: {injector.failure!r}")
                require(len(ends) <= 3 * len(planned) + 5, f"it stopped {len(ends)} times: {ends}; see {directory}")
        require(injector.failure is None, f"the injector failed: {injector.failure!r}")
        strangers = site.strangers()
    require(not strangers, f"processes outlived what they served: {strangers}")
    require(poll.failure is None, f"the ledger could not be polled: {poll.failure!r}")
    (directory / "ends.json").write_text(json.dumps(ends, indent=1) + "\n", encoding="utf-8")
    left = [*site.processes.alive(), *psutil.Process().children(recursive=True), *filter(_running, site.seen)]
    return {
        "seed": seed,
        "rounds": rounds,
        "seconds": time.monotonic() - started,
        "lives": len(ends) + 1,
        **audit(directory, planned, ends, left),
    }


class Poll(Background):
    """Looks at the ledger again and again while others write it, and remembers what it said."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._ledger, self._polled = directory / "run" / "ledger.sqlite", directory / POLLED

    def _work(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            with contextlib.suppress(FileNotFoundError, sqlite3.OperationalError):  # not begun yet; being written
                with Ledger.open(self._ledger, read_only=True) as ledger:
                    head, spent = ledger.head(), ledger.epsilon()
                    if ledger.head() != head:
                        continue  # a row came between the two
                line = {"time": time.time(), "epsilon": spent, **asdict(head)}
                with self._polled.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


def audit(directory: Path, planned: list[Injection], ends: list[str], left: list[psutil.Process]) -> dict[str, Any]:
    """Compare what a run under injections left with what was seen of it meanwhile.

    Args:
        ends: why each of its server's processes ended, but for the last.
        left: processes of the deployment that are still there.

    Raises:
        ChaosFailed: naming the first thing that is wrong.
    """
    torch.set_num_threads(1)
    run, injected = directory / "run", read_lines(directory / INJECTED)
    summary, metrics = json.loads((run / "summary.json").read_text(encoding="utf-8")), read_lines(run / "metrics.jsonl")
    require(summary["status"] == "completed", f"the run {summary['status']}")
    require(summary["released_rounds"] == summary["rounds"], f"{summary['released_rounds']} rounds were released")
    polled = read_lines(directory / POLLED)
    with Ledger.open(run / "ledger.sqlite", read_only=True) as ledger:
        entries, epsilon, replayed, budget, delta = (
            ledger.entries(), ledger.epsilon(), ledger.replay(), ledger.budget, ledger.delta,
        )  # fmt: skip
        for line in polled:
            ledger.require(Head(line["sequence"], line["digest"]), "who polled it")
    alone, seen = epsilon_of(entries, len(entries), delta), [line["epsilon"] for line in polled]
    require(epsilon == replayed == alone, f"epsilon is {epsilon}, replayed {replayed}, recomputed {alone}")
    require(summary["epsilon_spent"] == epsilon <= budget, f"the summary says {summary['epsilon_spent']}")
    require(seen == sorted(seen), "epsilon fell while the run was polled")
    for line in polled:
        rows = line["sequence"] * len({entry.group for entry in entries})
        require(line["epsilon"] == epsilon_of(entries, rows, delta), f"epsilon of {rows} rows was {line['epsilon']}")
    sigmas, after = {(entry.round, entry.attempt): entry.sigma for entry in entries}, _epsilon_after(entries, delta)
    for line in metrics:
        name = (line["round"], line["attempt"])
        require(name in sigmas, f"round {name[0]}, attempt {name[1]} was released and never charged")
        same = line["sigma"] == sigmas[name] and math.isclose(line["epsilon"], after[name], rel_tol=_READING)
        require(same, f"round {name[0]} is not its charge")
    shown = [line["round"] for line in metrics]
    require(shown == sorted(set(shown)), "a round is twice, or out of order, in the metrics")
    begun = (run / "attempts.log").read_text(encoding="ascii").split("\n")
    begun = [line for line in begun if line]
    require(len(set(begun)) == len(begun), "an attempt number was used twice")
    require({f"{round_} {attempt}" for round_, attempt in sigmas} <= set(begun), "a charge has no attempt")
    missed = Counter(injection.kind for injection in planned) - Counter(injection["kind"] for injection in injected)
    require(not missed, f"these injections never happened: {dict(missed)}")
    ends = [end.partition("; the end of its output")[0].partition("; it said")[0] for end in ends]
    short = sum("fewer than the" in end for end in ends)
    wanted = sum(injection["kind"] == injections.TOO_MANY_DIE for injection in injected)
    require(short >= wanted, f"{wanted} times too many nodes were killed, and {short} times the run said so: {ends}")
    states = [path.name for path in sorted((directory / "nodes").iterdir())]
    require(states == [str(client) for client in range(CLIENTS)], f"of the clients' folders are left: {states}")
    require(not left, f"processes are left: {left}")
    return {
        "status": summary["status"],
        "ends": dict(Counter(map(_why, ends))),
        "blows": dict(Counter(injection["kind"] for injection in injected)),
        "positions": dict(Counter(injection["position"].split(": ")[1] for injection in injected)),
        "effects": dict(Counter(_effect(injection, begun, metrics) for injection in injected if injection["clients"])),
        "charges": len(sigmas),
        "charged_but_not_released": len(sigmas) - summary["rounds"],
        "rounds_without_a_line": summary["rounds"] - len(metrics),
        "abandoned_attempts": len(begun) - len(sigmas),
        "rounds_with_all_clients": sum(line["clients"] == CLIENTS for line in metrics),
        "polls": len(polled),
        "epsilon": epsilon,
        "epsilon_replayed": replayed,
        "epsilon_recomputed": alone,
        "budget": budget,
        "processes_left": len(left),
    }


def epsilon_of(entries: list[Entry], rows: int, delta: float) -> float:
    """Epsilon of the worst group after the first rows of the ledger, from their numbers alone."""
    groups: dict[str, Composition] = {}
    for entry in entries[:rows]:
        groups.setdefault(entry.group, Composition()).add(_step(entry))
    return max((composition.epsilon(delta) for composition in groups.values()), default=0.0)


def _epsilon_after(entries: list[Entry], delta: float) -> dict[tuple[int, int], float]:
    """Epsilon of the worst group after every release, in the ledger's order, from its numbers alone."""
    groups: dict[str, Composition] = {}
    after = {}
    for entry in entries:
        groups.setdefault(entry.group, Composition()).add(_step(entry))
        after[entry.round, entry.attempt] = max(group.epsilon(delta) for group in groups.values())
    return after


def _step(entry: Entry) -> Step:
    return Step(entry.sampling_rate, entry.sensitivity / entry.sigma)


def _effect(injection: dict[str, Any], begun: list[str], metrics: list[dict[str, Any]]) -> str:
    """What an injection on nodes did to the attempt it met, as far as the run's files show."""
    place, stage = injection["position"].split(": ")
    round_, attempt = (int(word) for word in place.replace(",", "").split()[1::2])
    if stage != BEGUN:  # the nodes had done their part: the next attempt meets it
        round_, attempt = round_ + 1, 0
    if f"{round_} {attempt + 1}" in begun:
        return "missed before all outputs had come: a fresh attempt"
    clients = {line["round"]: line["clients"] for line in metrics}
    if clients.get(round_, 0) < clients.get(round_ - 1, 0):
        return "missed between the exchanges, or offline before: the round had fewer clients"
    return "missed by nobody"


def _why(end: str) -> str:
    known = {
        "fewer than the": "too few clients, said so",
        "SuperLink ended": "the SuperLink ended",
        "without a word": "the ServerApp ended without a word",
        "interrupted": "the ServerApp was interrupted, said so",
        "never started": "the run could not start",
    }
    return next((words for sign, words in known.items() if sign in end), "the ServerApp failed, said why")


def _running(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
