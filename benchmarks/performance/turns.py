"""Two sides of a comparison, timed in turns: whoever else uses the machine disturbs both alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping

Row = dict[str, object]
Times = Mapping[str, list[float]]

_TURN = 0.05


def in_turns(sides: Mapping[str, Callable[[], object]], *, turns: int) -> dict[str, list[float]]:
    """Seconds of every side, by name, turn by turn; what takes little is done several times a turn.

    The first turn of each is not counted; it says how often a side fits into a twentieth of a second.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    calls = {}
    for name, side in sides.items():
        side()
        calls[name] = max(1, int(_TURN / _seconds(side, 1)))
    gc.collect()
    for _ in range(turns):
        for name, side in sides.items():
            times[name].append(_seconds(side, calls[name]))
    return times


def _seconds(side: Callable[[], object], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        side()
    return (time.perf_counter() - began) / calls


def spread(times: list[float]) -> str:
    """The least and the median, in words."""
    return f"best {min(times):.3g} s, median {statistics.median(times):.3g} s of {len(times)}"


def faster(what: str, against: str, times: Times, *, goal: float, note: str = "") -> Row:
    """A row whose goal is that ours is so many times faster; medians of the turns are compared."""
    ours, other = statistics.median(times["ours"]), statistics.median(times["other"])
    return _row(what, against, times, other / ours, f">= {goal:g} times faster", other / ours >= goal, note)


def at_most(what: str, against: str, times: Times, *, goal: float, note: str = "") -> Row:
    """A row whose goal is that ours takes at most so many times as long."""
    ours, other = statistics.median(times["ours"]), statistics.median(times["other"])
    return _row(what, against, times, ours / other, f"<= {goal:g} times the time", ours / other <= goal, note)


def figure(what: str, against: str, value: float, *, goal: str, met: bool, spread: str = "", note: str = "") -> Row:
    """A row of one figure that is no time of two sides."""
    return {
        "what": what, "against": against, "ours": value, "other": None, "ratio": value, "goal": goal, "met": met,
        "spread": spread, "note": "" if met else note,
    }  # fmt: skip


def _row(what: str, against: str, times: Times, ratio: float, goal: str, met: bool, note: str) -> Row:
    return {
        "what": what, "against": against,
        "ours": statistics.median(times["ours"]), "other": statistics.median(times["other"]),
        "ratio": ratio, "goal": goal, "met": met,
        "spread": f"ours {spread(times['ours'])}; other {spread(times['other'])}",
        "note": "" if met else note,
    }  # fmt: skip
