"""Settings of rivals and the preset's scores, on sets that judge nothing.

    python -m benchmarks.rivals.tuning --rivals-python PYTHON [--only preset|descent|dp-sgd] [--seeds 3] [--sets NAME ...]
        [--folder FOLDER] [--tables]

A share is what is reached of what a linear model without privacy has above a constant, from -1 to 1. Of descent and DP-SGD
every setting of a grid is tried, on sets of at most `MOST` private records; of the preset the default path is run on every
set. Rows are stored as they come, a set and a seed at a time, so that the command goes on where it was ended; whoever checks
what is stored names a folder that has no rows. `ours.DESCENT` and `ours.DP_SGD` hold what rivals are measured with.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import statistics
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.own_data.store import Cell, Row, measure_missing, rows_of
from benchmarks.rivals import ours, page
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
Grid = tuple[Callable[..., np.ndarray], Sequence[Steps], Mapping[str, Steps]]
GRIDS: Mapping[str, Grid] = {
    "descent": (ours.descent, _DESCENTS, ours.DESCENT),
    "dp-sgd": (ours.dp_sgd, _DP_SGDS, ours.DP_SGD),
}
"""Of a rival what trains it, the settings that are tried, and those it is measured with, by what is predicted."""
MOST = 2_000
"""Most private records of a set on which settings of rivals are tried: they cost some thousand runs."""
_LEAST = 0.02
"""Least of what can be learnt that a share is taken of."""
_KINDS = {"two classes": "two", "more classes": "more", "numbers": "numbers"}
"""What is predicted, as `sets` and as `ours` call it."""


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


def cells(only: str | None, names: Sequence[str], seeds: int, python: str) -> list[Cell]:
    """What is measured: of the preset a set, a seed and an epsilon, of a rival a set that is small enough and a seed."""
    small = [name for name in names if len(_told(name, 0, python).x) <= MOST]
    found: list[Cell] = []
    if only in (None, "preset"):
        found += [("preset", *cell) for cell in itertools.product(names, range(seeds), EPSILONS)]
    for rival in GRIDS:
        if only in (None, rival):
            found += [(rival, *cell) for cell in itertools.product(small, range(seeds))]
    return found


def measured(part: str, name: str, seed: int, epsilon: float | None = None, *, python: str) -> Row:
    """The preset's score beside those of descent and AdaSSP, or the shares of a rival's settings, those in use last."""
    given, linear = _told(name, seed, python), _linear(name, seed, python)
    delta, common = read_delta("auto", records=len(given.x)), {"records": len(given.x), "constant": given.constant}

    def of_rival(rival: Callable[..., np.ndarray], budget: float, **how: Any) -> float:
        return float(given.measures(np.nan_to_num(rival(given, budget, delta, seed, **how)))["score"])

    if epsilon is not None:
        answers, chosen = ours.default(parted(name, seed, python), epsilon)
        score = float(given.measures(answers)["score"])
        beside = {"descent": of_rival(ours.descent, epsilon), "adassp": of_rival(ours.adassp, epsilon)}
        reached = {"score": score, "share": share(given, score, linear)}
        return {**common, "linear": linear, **reached, **beside, "chosen": chosen["chosen"]}
    train, grid, used = GRIDS[part]
    tried = (*grid, used[given.predicted])
    shares = [
        statistics.fmean(share(given, of_rival(train, budget, steps=steps), linear) for budget in EPSILONS)
        for steps in tried
    ]
    rounded = [round(each, 4) for each in shares]
    return {**common, "best": max(shares), "used": shares[-1], "grid": _mark(tried), "shares": rounded}


def steps_table(rows: Sequence[Row]) -> str:
    """The best setting of each rival's grid, for all sets of a kind of target and all epsilons, beside the one in use."""
    lines = []
    for (rival, (_, grid, used)), (kind, names) in itertools.product(GRIDS.items(), TUNING.items()):
        tried = (*grid, used[_KINDS[kind]])
        found = [[_shares(row, tried) for row in rows if row["cell"][:2] == [rival, name]] for name in names]
        if not any(found):
            continue
        by_set = [np.mean(shares, axis=0) for shares in found if shares]
        means = np.mean(by_set, axis=0)
        best = int(means[:-1].argmax())
        behind = [float(shares[best] - shares[-1]) for shares in by_set]
        error = statistics.stdev(behind) / math.sqrt(len(behind)) if len(behind) > 1 else math.nan
        lines.append(
            [
                rival,
                kind,
                len(by_set),
                min(len(shares) for shares in found if shares),
                _words(grid[best]),
                f"{means[best]:.3f}",
                _words(tried[-1]),
                f"{means[-1]:.3f}",
                f"{round(statistics.fmean(behind), 3) + 0.0:.3f} ± {text.number(error, 1)}",
            ]
        )
    return text.table(
        ["rival", "target", "sets", "seeds", "best of the grid", "share", "in use", "share", "behind by"], lines
    )


def _shares(row: Row, tried: Sequence[Steps]) -> list[float]:
    """A row's shares, in the order of what was tried.

    Raises:
        ValueError: It is a row of another grid, or of other settings in use.
    """
    if row["grid"] != _mark(tried):
        raise ValueError(
            f"the row {row['cell']} is of settings that are tried no more: take it out, or name a --folder"
        )
    shares: list[float] = row["shares"]
    return shares


def _mark(tried: Sequence[Steps]) -> int:
    """A number that another grid does not have."""
    return zlib.crc32(repr(tried).encode())


def _words(steps: Steps) -> str:
    return f"{steps.rounds} rounds, clip {steps.clip:g}, rate {steps.rate:.3g}"


def preset_table(rows: Sequence[Row]) -> str:
    """What the preset reaches on every set at every epsilon, the better of descent and AdaSSP, and where it is behind."""
    own = [row for row in rows if row["cell"][0] == "preset"]
    lines, shares = [], []
    behind: dict[str, list[str]] = {"rival": [], "constant": []}
    for name in dict.fromkeys(row["cell"][1] for row in own):
        of_set = [row for row in own if row["cell"][1] == name]
        line = [name, f"{of_set[0]['records']:,}", *(_mean(of_set, key) for key in ("constant", "linear"))]
        for epsilon in EPSILONS:
            alike = [row for row in of_set if row["cell"][3] == epsilon]
            line.append(_scores(alike) if alike else "–")
            if alike and _behind(alike, [row[_better(alike)] for row in alike]):
                behind["rival"].append(f"{name} {text.upward(epsilon)}")
            if alike and _behind(alike, [statistics.fmean(row["constant"] for row in alike)] * len(alike)):
                behind["constant"].append(f"{name} {text.upward(epsilon)}")
        shares.append(statistics.fmean(row["share"] for row in of_set))
        lines.append([*line, text.number(shares[-1]), len({row["cell"][2] for row in of_set})])
    head = ["data", "records", "a constant", "linear, not private", *(f"ε = {text.upward(each)}" for each in EPSILONS)]
    return (
        f"{text.table([*head, 'share', 'seeds'], lines)}\n\nMean share of the {len(shares)} sets "
        f"{statistics.fmean(shares):.3f}. Behind the rival by more than a standard error: {_listed(behind['rival'])}; "
        f"below a constant by more than that: {_listed(behind['constant'])}."
    )


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words) or "nowhere"


def _behind(rows: Sequence[Row], beside: list[float]) -> bool:
    return page.sign([row["score"] for row in rows], beside) == "-"


def _better(rows: Sequence[Row]) -> str:
    """The better rival."""
    return max(("descent", "adassp"), key=lambda name: statistics.fmean(row[name] for row in rows))


def _mean(rows: Sequence[Row], key: str) -> str:
    return text.number(statistics.fmean(row[key] for row in rows))


def _scores(rows: Sequence[Row]) -> str:
    """The preset's mean score with its standard error, and the better rival's."""
    scores, rival = [row["score"] for row in rows], _better(rows)
    error = f" ± {text.number(statistics.stdev(scores) / math.sqrt(len(scores)), 1)}" if len(scores) > 1 else ""
    return f"{_mean(rows, 'score')}{error}; {_mean(rows, rival)} ({rival})"


def content(folder: Path = page.FOLDER) -> str:
    """The tables of the rows of a folder."""
    rows: list[Any] = rows_of("tuning", folder)
    tables = [
        table(rows)
        for table, parts in ((steps_table, GRIDS), (preset_table, ("preset",)))
        if any(row["cell"][0] in parts for row in rows)
    ]
    return "\n\n".join(tables)


def main() -> None:
    """Measure what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = tuple(name for of_kind in TUNING.values() for name in of_kind)
    parser.add_argument("--rivals-python", required=True, metavar="PYTHON")
    parser.add_argument("--only", choices=("preset", *GRIDS))
    parser.add_argument("--sets", nargs="*", default=names, choices=names, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=page.FOLDER)
    parser.add_argument("--tables", action="store_true", help="measure nothing; print what is there")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # of few records, and Opacus' own: one for every model
    if not asked.tables:
        what = cells(asked.only, asked.sets, asked.seeds, asked.rivals_python)
        measure_missing("tuning", (what, functools.partial(measured, python=asked.rivals_python)), asked.folder)
    print(content(asked.folder))


if __name__ == "__main__":
    main()
