"""Rounds under `local-gradient` with more clients at one site: each its own ledger, table, contribution and noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.performance.runs import synthetic, timed_run
from benchmarks.performance.timing import Times, in_turns, spread

_GOALS = {10: 1.5, 100: 3.0, 1000: 10.0}
"""How many times slower rounds may be with so many clients than with one, on the same batch."""
_RECORDS, _FRACTION = 40_000, 0.05


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """See `benchmarks.performance.rows`."""
    rounds = 3 if quick else 100
    for clients, turns in {3: 1}.items() if quick else {10: 3, 100: 3, 1000: 2}.items():
        yield _growth(clients, rounds, turns)


def _growth(clients: int, rounds: int, turns: int) -> dict[str, Any]:
    """Rounds of many clients and of one, in turns, ledger writes included; and the first round of many by itself."""
    first: list[float] = []

    def once(number: int) -> float:
        found = timed_run(_settings(number, rounds)).rounds
        if number > 1:
            first.append(found[0])
        return sum(found)

    def way(number: int) -> Any:
        return lambda: once(number)

    taken = in_turns({"many": way(clients), "one": way(1)}, turns=turns, warm_up=0)
    many, one = taken["many"], taken["one"]
    ratio, goal = many.median / one.median, _GOALS.get(clients)
    met = None if goal is None else ratio <= goal
    return {
        "what": f"{rounds} rounds x {clients} clients at one site, local-gradient, {_RECORDS * _FRACTION:g} records a round",
        "against": "about the same batch from 1 client",
        "ours": many.median,
        "other": one.median,
        "ratio": ratio,
        "goal": "" if goal is None else f"at most {goal:g} times",
        "met": met,
        "spread": spread(many=many, one=one),
        "note": _note(clients, rounds, many, one, first) if met is False else "",
        "clients": clients,
        "first_round": min(first),
    }


def _note(clients: int, rounds: int, many: Times, one: Times, first: list[float]) -> str:
    each = (many.best - one.best) / (clients - 1) / rounds * 1e3
    return (
        f"a further client adds {each:.2f} ms to a round: a row in its own SQLite file, which waits for the disk with the "
        "others' rows, its two answers as messages, and one epsilon for every different rate; the first round, in which "
        f"ledgers are made and budgets calibrated, takes {min(first):.1f} s"
    )


def _settings(clients: int, rounds: int) -> dict[str, Any]:
    return synthetic(
        clients=clients,
        records=_RECORDS,
        rounds=rounds,
        training={"batch_fraction": _FRACTION},
        privacy={"trust": "local-gradient", "epsilon": 5.0},
    )
