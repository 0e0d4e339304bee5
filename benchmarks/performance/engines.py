"""Runs in process: against Flower on Ray, with more clients on the same batch, and with a million clients."""

from __future__ import annotations

import statistics
import time
import tomllib
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.performance.runs import EXPERIMENT, Run, run_apart, synthetic, timed_run, whole_run
from benchmarks.performance.timing import Times, in_turns, spread, timed
from fedsw.learning.models import ImageAutoencoder

_GROWTH = {10: 1.3, 100: 1.5, 1000: 2.0, 10_000: 4.0}
"""How many times slower rounds may be with so many clients than with one, on the same batch."""
_RECORDS, _BATCH = 40_000, 500
_LIMIT_SECONDS, _LIMIT_BYTES = 300.0, 6e9
_GIVE_UP = 1800.0
_END_TO_END_MOST = 3.0


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """See `benchmarks.performance.rows`."""
    yield _against_ray(quick)
    yield _end_to_end(rounds=2 if quick else 50, turns=1 if quick else 2)
    yield from _more_clients((3,) if quick else tuple(_GROWTH), rounds=3 if quick else 100, turns=1 if quick else 3)
    yield from _a_million(clients=50 if quick else 10**6, rounds=3 if quick else 100, batch=50 if quick else 5000)


def _against_ray(quick: bool) -> dict[str, Any]:
    rounds, clients, least = (2, 2, 40.0) if quick else (500, 10, 40.0)
    whole_run("inprocess", 2, clients)  # imports and caches
    taken = in_turns(
        {
            "ours": timed(lambda: whole_run("inprocess", rounds, clients)),
            "Ray": timed(lambda: whole_run("ray", rounds, clients)),
        },
        turns=1 if quick else 2,
        warm_up=0,
    )
    ours, ray = taken["ours"].median, taken["Ray"].median
    return {
        "what": f"{rounds} rounds x {clients} clients, fair classification, in process",
        "against": "the same on Flower's Ray engine",
        "ours": ours,
        "other": ray,
        "ratio": ray / ours,
        "goal": f"at least {least:g} times faster",
        "met": ray / ours >= least,
        "spread": spread(**taken),
        "note": ""
        if ray / ours >= least
        else "Ray waits and polls, in process computes: what is left is the rounds themselves",
    }


def _end_to_end(*, rounds: int, turns: int) -> dict[str, Any]:
    """A round of the shipped autoencoder at batch 600, evaluation, messages, ledger and noise included."""
    row = {
        "what": "a round of swae-mnist, batch 600, end to end",
        "against": "plain autodiff of the same network, loss and distance, and a step of Adam",
        "goal": f"at most {_END_TO_END_MOST:g} times as long",
    }
    settings = tomllib.loads((EXPERIMENT.parent / "swae-mnist.toml").read_text(encoding="utf-8"))
    settings["training"] |= {"rounds": rounds + 1, "batch_fraction": 0.01}

    def ours() -> float:
        return statistics.fmean(timed_run(settings).rounds[1:])

    try:
        taken = in_turns({"ours": ours, "plain": lambda: _plain_rounds(rounds)}, turns=turns, warm_up=0)
    except FileNotFoundError as missing:
        none = {"ours": None, "other": None, "ratio": None, "met": None, "spread": ""}
        return {**row, **none, "note": f"not measured: {missing}"}
    ratio = taken["ours"].median / taken["plain"].median
    return {
        **row,
        "ours": taken["ours"].median,
        "other": taken["plain"].median,
        "ratio": ratio,
        "met": ratio <= _END_TO_END_MOST,
        "spread": spread(**taken),
        "note": "" if ratio <= _END_TO_END_MOST else "the clipped step is most of it (clipping_autoencoder)",
    }


def _plain_rounds(rounds: int) -> float:
    """Seconds of a step that protects nobody: 600 images, 48 directions of six coordinates, sorted by torch."""
    torch.manual_seed(0)
    model, images = ImageAutoencoder(latent=6), torch.rand(600, 784)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    began = time.perf_counter()
    for _ in range(rounds):
        theta = torch.nn.functional.normalize(torch.randn(6, 48), dim=0)
        codes, logits = model(images)
        prior = torch.nn.functional.normalize(torch.randn(600, 6), dim=1)
        gaps = (codes @ theta).sort(dim=0).values - (prior @ theta).sort(dim=0).values
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, images)
        optimizer.zero_grad()
        (0.9 * loss + 0.1 * gaps.square().mean()).backward()
        optimizer.step()
    return (time.perf_counter() - began) / rounds


def _more_clients(numbers: tuple[int, ...], *, rounds: int, turns: int) -> Iterator[dict[str, Any]]:
    """Rounds with 1 client and with more, all on the same batch."""

    def way(clients: int) -> Any:
        return lambda: sum(timed_run(_same_batch(clients, rounds)).rounds)

    timed_run(_same_batch(1, 2))
    for number in numbers:
        taken = in_turns({"many": way(number), "one": way(1)}, turns=turns, warm_up=0)
        yield _growth(number, rounds, taken["many"], taken["one"])


def _same_batch(clients: int, rounds: int) -> dict[str, Any]:
    return synthetic(clients=clients, records=_RECORDS, rounds=rounds, training={"batch_size": _BATCH})


def _growth(clients: int, rounds: int, many: Times, one: Times) -> dict[str, Any]:
    ratio = many.median / one.median
    most = _GROWTH.get(clients)
    met = None if most is None else ratio <= most
    return {
        "what": f"{rounds} rounds x {clients} clients, {2 * _BATCH} records a round",
        "against": "the same batch from 1 client",
        "ours": many.median,
        "other": one.median,
        "ratio": ratio,
        "goal": "" if most is None else f"at most {most:g} times",
        "met": met,
        "spread": spread(many=many, one=one),
        "note": _growth_note(clients, many, one, rounds) if met is False else "",
        "clients": clients,
        "rounds": rounds,
        "batch": 2 * _BATCH,
    }


def _growth_note(clients: int, many: Times, one: Times, rounds: int) -> str:
    each = (many.median - one.median) / (clients - 1) / rounds * 1e6
    return f"every further client adds {each:.0f} microseconds to a round: its counts, its sample, and its part of the messages"


def _a_million(*, clients: int, rounds: int, batch: int) -> Iterator[dict[str, Any]]:
    """Two rows of one run in a process of its own: seconds and memory."""
    what = f"{clients} clients of 10 records, {rounds} rounds of {2 * batch} records"
    settings = synthetic(clients=clients, records=10 * clients, rounds=rounds, training={"batch_size": batch})
    try:
        found = run_apart(settings, timeout=_GIVE_UP)
    except RuntimeError as failure:
        for goal in ("completes in 5 minutes", "at most 6 GB"):
            yield _limit(what, None, None, goal, str(failure))
        return
    yield _limit(what, found.seconds, _LIMIT_SECONDS, "completes in 5 minutes", _where(found))
    gigabytes = _limit(
        f"{what}: largest memory", found.peak / 1e9, _LIMIT_BYTES / 1e9, "at most 6 GB", _memory(clients)
    )
    yield {**gigabytes, "unit": "GB"}


def _limit(what: str, value: float | None, most: float | None, goal: str, note: str) -> dict[str, Any]:
    met = value is not None and most is not None and value <= most
    return {
        "what": what,
        "against": "the limit",
        "ours": value,
        "other": most,
        "ratio": None if value is None or most is None else value / most,
        "goal": goal,
        "met": met,
        "spread": "one run",
        "note": "" if met else note,
    }


def _where(found: Run) -> str:
    return f"{sum(found.rounds):.1f} s in rounds, {found.around:.1f} s before and after them"


def _memory(clients: int) -> str:
    records = clients * 10 * (16 * 4 + 3 * 8) / 1e9
    return f"the records alone take {records:.1f} GB; drawing the synthetic law in float64 takes several times that for a moment"
