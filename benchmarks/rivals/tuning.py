"""Settings of rivals and the preset's scores, on sets that judge nothing.

    python -m benchmarks.rivals.tuning --rivals-python PYTHON [--only preset|descent|dp-sgd] [--seeds 3] [--sets NAME ...]

A score is the share that is reached of what a linear model without privacy has above a constant, from -1 to 1. Of descent and DP-SGD the
best settings of a grid are printed, for all sets of a kind of target and all epsilons together; of the preset its share on
every set. Nothing is stored: `ours.DESCENT` and `ours.DP_SGD` hold what was found.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch

from benchmarks.rivals import ours
from benchmarks.rivals.ours import Steps
from benchmarks.rivals.sets import TUNING, Told, parted, told
from fedsw._tools import text
from fedsw.experiment import read_delta

EPSILONS = (0.5, 1.0, 3.0)
_DESCENTS = tuple(
    Steps(rounds, clip, way / clip)
    for rounds, clip, way in itertools.product(
        (10, 25, 50, 100), (0.03, 0.1, 0.3, 1.0), (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    )
)
_DP_SGDS = tuple(Steps(30, clip, way / clip) for clip, way in itertools.product((0.1, 1.0), (0.1, 0.3, 1.0, 3.0)))
_MOST = 2_000
"""Most private records of a set on which settings of rivals are tried: they cost some thousand runs."""
_LEAST = 0.02
"""Least of what can be learnt that a share is taken of."""


_told = functools.lru_cache(maxsize=128)(lambda name, seed, python: told(parted(name, seed, python)))


@functools.lru_cache(maxsize=128)
def _linear(name: str, seed: int, python: str) -> float:
    """The score of a linear model without privacy."""
    from sklearn.linear_model import LogisticRegression, RidgeCV

    given = _told(name, seed, python)
    model = LogisticRegression(C=100.0, max_iter=2000) if given.classes else RidgeCV(np.logspace(-4, 3, 15))
    return given.score(model.fit(given.x, given.y).predict(given.held))


def share(given: Told, score: float, linear: float) -> float:
    """How much of what a linear model learns is reached, from -1 to 1."""
    return max(-1.0, min(1.0, (score - given.constant) / max(_LEAST, linear - given.constant)))


def best_steps(
    rival: Callable[..., np.ndarray], grid: Sequence[Steps], names: Sequence[str], seeds: int, python: str
) -> list[tuple[float, Steps]]:
    """The settings of a grid with their mean shares on the sets, the best first; none where all sets are large."""
    small = [name for name in names if len(_told(name, 0, python).x) <= _MOST]
    means = []
    for steps in grid if small else ():
        shares = []
        for name, seed in itertools.product(small, range(seeds)):
            given = _told(name, seed, python)
            delta = read_delta("auto", records=len(given.x))
            for epsilon in EPSILONS:
                score = given.score(np.nan_to_num(rival(given, epsilon, delta, seed, steps=steps)))
                shares.append(share(given, score, _linear(name, seed, python)))
        means.append((statistics.fmean(shares), steps))
    return sorted(means, key=lambda pair: -pair[0])


def preset_table(names: Sequence[str], seeds: int, python: str) -> str:
    """What the preset reaches on every set: score, share, and what it chose."""
    lines, shares = [], []
    for name, epsilon in itertools.product(names, EPSILONS):
        scores: list[tuple[float, ...]] = []
        for seed in range(seeds):
            of, given = parted(name, seed, python), _told(name, seed, python)
            score, chosen = ours.default(of, epsilon, seed)
            delta = read_delta("auto", records=len(given.x))
            beside = [given.score(np.nan_to_num(r(given, epsilon, delta, seed))) for r in (ours.descent, ours.adassp)]
            linear = _linear(name, seed, python)
            scores.append((given.constant, linear, score, *beside))
            shares.append(share(given, score, linear))
        means = [statistics.fmean(column) for column in zip(*scores, strict=True)]
        error = statistics.stdev(row[2] for row in scores) / math.sqrt(seeds) if seeds > 1 else math.nan
        lines.append(
            [name, epsilon, *map(text.number, means), text.number(error), statistics.fmean(shares[-seeds:]), chosen]
        )
        print(*lines[-1], sep="\t", file=sys.stderr, flush=True)
    head = ["data", "ε", "a constant", "linear, not private", "preset", "descent", "AdaSSP", "± of preset", "share"]
    return f"{text.table([*head, 'it chose'], lines)}\n\nmean share {statistics.fmean(shares):.4f}"


def main() -> None:
    """Print what settings come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = tuple(name for of_kind in TUNING.values() for name in of_kind)
    parser.add_argument("--rivals-python", required=True, metavar="PYTHON")
    parser.add_argument("--only", choices=("preset", "descent", "dp-sgd"))
    parser.add_argument("--sets", nargs="*", default=names, choices=names, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    grids = {"descent": (ours.descent, _DESCENTS), "dp-sgd": (ours.dp_sgd, _DP_SGDS)}
    for rival, (train, grid) in grids.items():
        for kind, of_kind in TUNING.items() if asked.only in (None, rival) else ():
            own = [name for name in of_kind if name in asked.sets]
            for mean, steps in best_steps(train, grid, own, asked.seeds, asked.rivals_python)[:4]:
                print(f"{rival}, {kind}: share {mean:.3f} at {steps}", flush=True)
    if asked.only in (None, "preset"):
        print(preset_table(asked.sets, asked.seeds, asked.rivals_python))


if __name__ == "__main__":
    main()
