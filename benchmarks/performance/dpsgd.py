"""DP-SGD, users a second: fedsw with alpha = 0 against Apple's pfl-research, and against a loop without any engine."""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import fedsw
from benchmarks.performance.pfl_python import Job, NoPfl, Pfl
from benchmarks.performance.runs import synthetic, timed_run
from benchmarks.performance.timing import Times, in_turns, spread
from fedsw.data import Records
from fedsw.data._synthetic import synthetic as draw
from fedsw.learning.models import mlp

_CLIP = fedsw.Clip(output=0.5, jacobian=1.0, loss=2.0)
_MOST = {1: 1.3, 1000: 1.5}
"""Times a bare loop, by clients."""
_EPSILON, _DELTA = 8.0, "0.1/n"
_DIFFERENT = (
    "pfl clips the sum of a user's records and protects users; fedsw clips every record and protects records; both draw "
    "the same number of records a round. fedsw composes a ledger on disk, keeps checkpoints, and draws noise from a "
    "cryptographic stream; pfl does not, here"
)
_SAME = (
    "users of one record: both clip every record. fedsw composes a ledger on disk, keeps checkpoints, and draws noise from "
    "a cryptographic stream; pfl does not, here"
)


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """See `benchmarks.performance.rows`."""
    turns = 1 if quick else 5
    for job in _jobs(quick):
        yield _against_pfl(job, turns)
    for clients in (1, 20) if quick else (1, 1000):
        yield _against_a_loop(_bare_job(quick), clients, turns)


def _jobs(quick: bool) -> tuple[Job, ...]:
    if quick:
        return (Job(users=20, records_per_user=10, cohort=4, iterations=4),)
    return (
        Job(users=1000, records_per_user=10, cohort=100, iterations=60),
        Job(users=1000, records_per_user=10, cohort=100, iterations=60, hidden=(64,)),
        Job(users=10_000, records_per_user=1, cohort=1000, iterations=30),
    )


def _bare_job(quick: bool) -> Job:
    iterations = 4 if quick else 60
    return Job(users=20 if quick else 1000, records_per_user=10, cohort=4 if quick else 100, iterations=iterations)


def _settings(job: Job, clients: int) -> dict[str, Any]:
    """The job as an experiment: as many records a round as the cohort holds."""
    return synthetic(
        clients=clients,
        records=job.users * job.records_per_user,
        rounds=job.iterations,
        model={"kind": "mlp", "hidden": job.hidden} if job.hidden else {},
        objective={"alpha": 0.0},
        training={"batch_fraction": job.cohort / job.users},
        privacy={"epsilon": _EPSILON, "delta": _DELTA},
    )


def _federated(settings: dict[str, Any]) -> float:
    """Seconds of a round in the mean (a log's times are whole milliseconds); the first fills caches."""
    return statistics.mean(timed_run(settings).rounds[1:])


def _against_pfl(job: Job, turns: int) -> dict[str, Any]:
    model = f"perceptron of width {job.hidden[0]}" if job.hidden else "logistic"
    row: dict[str, Any] = {
        "what": f"DP-SGD, {model}: cohorts of {job.cohort} of {job.users} users of {job.records_per_user} record{'s' * (job.records_per_user > 1)}",
        "against": "pfl (PyPI), simulated backend, central Gaussian noise",
        "unit": "users/s",
        "goal": "above pfl",
        "note": _SAME if job.records_per_user == 1 else _DIFFERENT,
    }
    missing: dict[str, Any] = {"ours": None, "other": None, "ratio": None, "met": None, "spread": ""}
    records, settings = draw(job.users * job.records_per_user).train, _settings(job, job.users)
    try:
        other = Pfl(job, records)
        ways = {"ours": lambda: _federated(settings), "pfl": lambda: statistics.mean(other.iterations())}
        taken = in_turns({**ways, "loop": lambda: _loop(job, records)}, turns=turns, warm_up=0)
    except (NoPfl, RuntimeError) as failure:
        return {**row, **missing, "note": str(failure)}
    ours, theirs = job.cohort / taken["ours"].median, job.cohort / taken["pfl"].median
    against = f"pfl {other.pfl} (PyPI, torch {other.torch}), simulated backend, central Gaussian noise"
    measured = {"against": against, "ours": ours, "other": theirs, "ratio": ours / theirs, "met": ours > theirs}
    note = row["note"] if ours > theirs else f"{_share(job, taken['ours'], taken['loop'])}. {row['note']}"
    return {**row, **measured, "note": note, "spread": f"seconds of a round: {spread(**taken)}"}


def _share(job: Job, ours: Times, loop: Times) -> str:
    return (
        f"a round takes {ours.median * 1e3:.1f} ms, of which the private steps alone, in one loop, take "
        f"{loop.median * 1e3:.1f} ms; the rest is the engine with {job.users} clients"
    )


def _against_a_loop(job: Job, clients: int, turns: int) -> dict[str, Any]:
    """Rounds of the engine against the same private steps in a loop: draw, clip, charge, noise, step."""
    records = draw(job.users * job.records_per_user).train
    settings = _settings(job, clients)
    taken = in_turns(
        {"ours": lambda: _federated(settings), "loop": lambda: _loop(job, records)}, turns=turns, warm_up=1
    )
    ours, loop = taken["ours"], taken["loop"]
    ratio, most = ours.median / loop.median, _MOST.get(clients, 1.5)
    return {
        "what": f"a DP-SGD round in process, {clients} client{'s' * (clients > 1)}, {job.cohort * job.records_per_user} records",
        "against": "the same steps in one loop: draw, clip, charge on disk, noise, step; no messages, no checkpoints",
        "ours": ours.median,
        "other": loop.median,
        "ratio": ratio,
        "goal": f"at most {most:g} times",
        "met": ratio <= most,
        "spread": spread(**taken),
        "note": "" if ratio <= most else _what_remains(clients, ours, loop),
    }


def _what_remains(clients: int, ours: Times, loop: Times) -> str:
    extra = (ours.median - loop.median) * 1e3
    return (
        f"{extra:.2f} ms a round are an exchange (encode, hand over to the clients' thread, decode, check), the counts of "
        f"every client ({clients}), and what three files get of it: the release, a line of metrics and one of the log"
    )


def _loop(job: Job, records: Records) -> float:
    """Seconds of a step in the mean: no engine, no messages, no checkpoint; the same bound, ledger and noise."""
    objective, plan = _planned(job)
    model = mlp(records.features.shape[1], job.hidden, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.learning_rate)
    times = []
    with tempfile.TemporaryDirectory() as folder, fedsw.Ledger.create(Path(folder) / "ledger.sqlite", plan) as ledger:
        began = time.perf_counter()
        for batch in plan.batches(records, ledger=ledger):
            released = fedsw.release(objective.gradient(model, batch, _CLIP), plan, ledger)
            fedsw.set_gradient(model, released)
            optimizer.step()
            ended = time.perf_counter()
            times.append(ended - began)
            began = ended
    return statistics.mean(times[1:])


@functools.cache
def _planned(job: Job) -> tuple[fedsw.Objective, fedsw.Plan]:
    """The plan costs an accountant's search; it is the same for every turn."""
    records = draw(job.users * job.records_per_user).train
    objective = fedsw.Objective("classification", [fedsw.Parity(0.0)])
    sizes = tuple(int((records.sensitive == group).sum()) for group in (0, 1))
    fraction = job.cohort / job.users
    plan = fedsw.plan(
        objective, _CLIP, sizes=sizes, rounds=job.iterations, epsilon=_EPSILON, delta=_DELTA, batch_fraction=fraction
    )
    return objective, plan
