"""Seconds of several ways to one result, in turns: a minute in which the machine is busy slows all of them alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Times:
    """Seconds of one way, turn by turn."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The quickest turn: what the machine can do."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The turn in the middle: what it does."""
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        return f"{min(self.seconds):.3g} to {max(self.seconds):.3g} in {len(self.seconds)}"


def timed(call: Callable[[], object]) -> Callable[[], float]:
    """The same call as a way that says how many seconds of wall clock it took."""

    def run() -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    return run


_TURN = 0.05


def repeated(call: Callable[[], object]) -> Callable[[], float]:
    """The same call as a way that says how many seconds one takes; what takes little is done many times a turn.

    The first turn is there to be left out (`in_turns`, warm_up): it says how often the call fits into a twentieth of a
    second.
    """
    calls = 1

    def run() -> float:
        nonlocal calls
        began = time.perf_counter()
        for _ in range(calls):
            call()
        seconds = (time.perf_counter() - began) / calls
        calls = max(1, int(_TURN / seconds))
        return seconds

    return run


def in_turns(
    ways: Mapping[str, Callable[[], float]], *, turns: int, warm_up: int = 1, threads: int = 1
) -> dict[str, Times]:
    """Let the ways take turns; every other turn goes through them backwards.

    Args:
        ways: callables that say how many seconds they took (`timed` makes one of any call).
        turns: of every way, that are kept; `warm_up` more come before them and are not.
        threads: of torch, in this process, for all ways.

    Garbage is collected before every call, so that no way pays for what another left.
    """
    if turns < 1:
        raise ValueError(f"turns = {turns}; every way takes at least 1")
    torch.set_num_threads(threads)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    gc.freeze()  # what was imported is no garbage: looking through it takes longer than most calls
    for turn in range(-warm_up, turns):
        names = list(ways) if turn % 2 == 0 else list(reversed(ways))
        for name in names:
            gc.collect()
            seconds = ways[name]()
            if turn >= 0:
                taken[name].append(seconds)
    gc.unfreeze()
    return {name: Times(tuple(seconds)) for name, seconds in taken.items()}


def spread(**sides: Times) -> str:
    """How far the turns of each side lie apart, in words: "ours 0.1 to 0.2 in 5, other 1 to 1.5 in 5"."""
    return ", ".join(f"{name} {times}" for name, times in sides.items())


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of log seconds on log size, by least squares: 1 for a cost in proportion to the size."""
    x, y = [math.log(size) for size in sizes], [math.log(each) for each in seconds]
    return statistics.linear_regression(x, y).slope
