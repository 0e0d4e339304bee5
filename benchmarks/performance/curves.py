"""How costs grow: exponents fitted to logarithms of times, with what takes the time.

The exponent of a cost in a size is the slope of log seconds on log size, least squares over the sizes, everything else
fixed. Sorting n numbers is n log n, so that its exponent is a little above 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from benchmarks.performance.comparing import Row, figure, sides
from benchmarks.performance.transport import directions, points
from fedsw.mathematics.clipping import Term, clipped_sum, record
from fedsw.mathematics.transport import sliced


def measure(quick: bool) -> list[Row]:
    """Exponents of the cotangents' cost in n, k and d, and of the clipped step's in the number of parameters."""
    turns, few = (1, 2) if quick else (5, 5)
    n = [2_000 * 4**i for i in range(few)]
    k = [8 * 2**i for i in range(few)]
    d = [8 * 4**i for i in range(2 if quick else 3)]
    widths = [64 * 2**i for i in range(few)]
    return [
        _curve("cotangents, d = 2, k = 20, in n", n, _of_cotangents(lambda size: (size, 2, 20)), 1.3, "the sort", turns),
        _curve("cotangents, n = 5000, d = 2, in k", k, _of_cotangents(lambda s: (5_000, 2, s)), 1.15, "the sort", turns),
        _curve(
            "cotangents, n = 5000, k = 50, in d", d, _of_cotangents(lambda size: (5_000, size, 50)), 1.15,
            "the sort for small d, then projections coordinate by coordinate (memory)", turns,
        ),
        _curve(
            "clipped step of 256 records, two layers, in parameters r", widths, _of_step, 1.15,
            "matrix products", turns, size=lambda width: width * (100 + 1 + width + 1 + 2) + 2,
        ),
    ]  # fmt: skip


def _of_cotangents(sizes: Callable[[int], tuple[int, int, int]]) -> Callable[[int], Callable[[], object]]:
    def at(size: int) -> Callable[[], object]:
        n, d, k = sizes(size)
        own, other, theta = points(n, d, 0), points(n, d, 2), directions(d, k)
        return lambda: sliced.cotangents(own, other, theta)

    return at


def _of_step(width: int) -> Callable[[], object]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(100, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh(),
        torch.nn.Linear(width, 2),
    )  # fmt: skip
    features, cotangents = torch.randn(256, 100), torch.randn(256, 2, dtype=torch.float64)

    def step() -> object:
        tape = record(model, features)
        return clipped_sum(tape, [Term(tape.raw, cotangents, 1.0)])

    return step


def _curve(
    what: str,
    sizes: Sequence[int],
    at: Callable[[int], Callable[[], object]],
    most: float,
    bottleneck: str,
    turns: int,
    *,
    size: Callable[[int], int] = lambda given: given,
) -> Row:
    times = sides({str(given): at(given) for given in sizes}, turns=turns)
    least = [times[str(given)].best for given in sizes]
    logs = [math.log(size(given)) for given in sizes]
    slope = float(np.polyfit(logs, np.log(least), 1)[0])
    seen = ", ".join(f"{size(given)}: {seconds:.3g} s" for given, seconds in zip(sizes, least, strict=True))
    row = figure(what, "log-log fit", slope, goal=f"exponent <= {most:g}", met=slope <= most, spread=seen)
    return row | {"note": f"bottleneck: {bottleneck}"}
