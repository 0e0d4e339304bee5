"""Cases in which every two values of different arguments meet, in place of all products."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def pairwise(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Tuples of a value of each axis; greedily, each next one has the most pairs that no tuple before it has."""
    sides = list(itertools.combinations(range(len(axes)), 2))
    rows = [tuple(row) for row in itertools.product(*(range(len(axis)) for axis in axes))]
    left = {(i, j, row[i], row[j]) for row in rows for i, j in sides}
    chosen = []
    while left:
        best = max(rows, key=lambda row: sum((i, j, row[i], row[j]) in left for i, j in sides))
        left -= {(i, j, best[i], best[j]) for i, j in sides}
        chosen.append(tuple(axis[place] for axis, place in zip(axes, best, strict=True)))
    return chosen
