"""A deployed run of masked sums in which a site is killed in every tenth round, and the audit of all ledgers."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from fedsw.experiment import Experiment
from fedsw.privacy.accounting import Ledger
from fedsw.privacy.accounting.ledger import Entry
from fedsw.runs.directory import RunDirectory
from tests.laws.chaos import injections
from tests.laws.chaos.campaign import epsilon_of
from tests.laws.chaos.conductor import CLIENTS, experiment_of, require
from tests.laws.chaos.faults import EVERY
from tests.laws.chaos.injections import Injection
from tests.laws.chaos.injector import INJECTED, Injector, read_lines
from tests.laws.chaos.site import Site

LEAST = CLIENTS - 1
"""Clients of a sum: one may be missing, so that one is killed."""


def masked_experiment(rounds: int) -> Experiment:
    """Five sites, four of which a sum needs; half as many attempts again as rounds are paid for."""
    return experiment_of(
        rounds,
        "privacy.trust=distributed",
        "training.batch_fraction=0.2",
        "local.colluding=1",
        "local.failing=0.5",
        "local.bins=8",
        f"federation.min_clients={LEAST}",
        "federation.timeout=15.0",
    )


def script(seed: int, rounds: int) -> list[Injection]:
    """A site and its worker die in every tenth round, at any moment of it."""
    chance = random.Random(seed)
    return [
        Injection(round_, injections.NODES_DIE, injections.MOMENTS[0], chance.random(), chance.randrange(2**32))
        for round_ in range(EVERY, rounds + 1, EVERY)
        if round_ < rounds
    ]


def run_masked(seed: int, rounds: int, directory: Path) -> dict[str, Any]:
    """Run `rounds` rounds on a SuperLink and five SuperNodes, and audit all ledgers; a run that stops is resumed.

    Raises:
        ChaosFailed: naming the first thing that is wrong.
    """
    torch.set_num_threads(1)
    experiment, planned = masked_experiment(rounds), script(seed, rounds)
    directory.mkdir(parents=True)
    started, ends = time.monotonic(), list[str]()
    site = Site(directory, experiment, seed)
    RunDirectory(site.run).write_config(experiment, "deployed")
    patience = experiment.federation.timeout
    with site, Injector(site, planned, directory, timeout=patience, clients=CLIENTS, least=LEAST) as injector:
        while (end := site.run_once(resume=bool(ends))) != "completed":
            ends.append(end)
            require(injector.failure is None, f"the injector failed: {injector.failure!r}")
            require(len(ends) <= len(planned) + 5, f"it stopped {len(ends)} times: {ends}; see {directory}")
        require(injector.failure is None, f"the injector failed: {injector.failure!r}")
    left = [process for process in site.seen if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    require(not left, f"processes are left: {left}")
    return {
        "seed": seed,
        "rounds": rounds,
        "seconds": time.monotonic() - started,
        "lives": len(ends) + 1,
        **audit_masked(directory, planned),
    }


def audit_masked(directory: Path, planned: list[Injection]) -> dict[str, Any]:
    """Compare every site's ledger with its replay, with its rows alone, with the summary, and with what was released.

    Raises:
        ChaosFailed: naming the first thing that is wrong.
    """
    torch.set_num_threads(1)
    run, injected = directory / "run", read_lines(directory / INJECTED)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    require(summary["status"] == "completed", f"the run {summary['status']}")
    require(summary["released_rounds"] == summary["rounds"], f"{summary['released_rounds']} rounds were released")
    require(len(injected) == len(planned), f"{len(injected)} of {len(planned)} sites were killed")
    require(not (run / "ledger.sqlite").exists(), "the server has a ledger")
    charged = [_charged(directory, client, summary) for client in range(CLIENTS)]
    for line in read_lines(run / "metrics.jsonl"):
        name = line["round"], line["attempt"]
        paid = sum(name in each for each in charged)
        require(paid >= line["clients"] >= LEAST, f"{line['clients']} clients are in {name}, {paid} were charged")
    every = set[tuple[int, int]]().union(*charged)
    return {
        "status": summary["status"],
        "blows": len(injected),
        "attempts": len(every),
        "failed_attempts": len(every) - summary["rounds"],
        "charges": sum(map(len, charged)),
        "rounds_with_all_clients": sum(line["clients"] == CLIENTS for line in read_lines(run / "metrics.jsonl")),
        "epsilon": summary["epsilon_spent"],
        "budget": summary["epsilon"],
    }


def _charged(directory: Path, client: int, summary: dict[str, Any]) -> set[tuple[int, int]]:
    """The attempts in a site's ledger, whose epsilon is the same whoever works it out, and what the run says of it."""
    said = summary["epsilon_spent_by_client"][str(client)]
    with Ledger.open(directory / "nodes" / str(client) / f"client-{client}.sqlite", read_only=True) as ledger:
        entries: list[Entry] = list(ledger.entries())
        spent, replayed = ledger.epsilon(), ledger.replay()
        alone = epsilon_of(entries, len(entries), ledger.delta)
        budget = ledger.budget
    same = all(math.isclose(spent, other, rel_tol=1e-9) for other in (replayed, alone, said))
    require(same, f"client {client}: epsilon is {spent}, replayed {replayed}, recomputed {alone}, and said {said}")
    require(spent <= budget, f"client {client} spent {spent} of {budget}")
    names = [(entry.round, entry.attempt) for entry in entries]
    require(len(set(names)) == len(names), f"client {client} was charged twice for an attempt")
    return set(names)
