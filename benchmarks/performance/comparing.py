"""Rows of two sides that were timed in turns, and of single figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from benchmarks.performance.timing import Times, in_turns, repeated, spread

Row = dict[str, object]


def sides(given: Mapping[str, Callable[[], object]], *, turns: int) -> dict[str, Times]:
    """Seconds of one call of every side, by name, in turns; on as many threads as torch has now."""
    ways = {name: repeated(call) for name, call in given.items()}
    return in_turns(ways, turns=turns, warm_up=2, threads=torch.get_num_threads())


def faster(what: str, against: str, times: Mapping[str, Times], *, goal: float, note: str = "") -> Row:
    """A row whose goal is that ours is so many times faster; medians of the turns are compared."""
    ratio = times["other"].median / times["ours"].median
    return _row(what, against, times, ratio, f">= {goal:g} times faster", ratio >= goal, note)


def at_most(what: str, against: str, times: Mapping[str, Times], *, goal: float, note: str = "") -> Row:
    """A row whose goal is that ours takes at most so many times as long."""
    ratio = times["ours"].median / times["other"].median
    return _row(what, against, times, ratio, f"<= {goal:g} times the time", ratio <= goal, note)


def figure(what: str, against: str, value: float, *, goal: str, met: bool, spread: str = "", note: str = "") -> Row:
    """A row of one figure that is no time of two sides."""
    return {
        "what": what, "against": against, "ours": value, "other": None, "ratio": value, "goal": goal, "met": met,
        "spread": spread, "note": "" if met else note,
    }  # fmt: skip


def _row(what: str, against: str, times: Mapping[str, Times], ratio: float, goal: str, met: bool, note: str) -> Row:
    ours, other = times["ours"], times["other"]
    return {
        "what": what, "against": against, "ours": ours.median, "other": other.median,
        "ratio": ratio, "goal": goal, "met": met,
        "spread": spread(ours=ours, other=other), "note": "" if met else note,
    }  # fmt: skip
