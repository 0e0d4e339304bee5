"""How far a record moves a sum of several parts, written again from theory and not from fedsw's code, for tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedsw.privacy.sensitivity import Side, swd_sensitivity

SLACK = 1.001
TABLES = "noised tables"
"""The bound of a contribution whose ranks come from noised tables."""

Sides = tuple[float, float]
"""A side of a distance: radius of its outputs, norm of its Jacobians."""


def distance(n: int, this: Sides, other: Sides, *, spread: float, bound: str) -> float:
    """The bound of that name (its laws are in tests/privacy/test_sensitivity.py); of own terms given noised tables."""
    if bound == TABLES:  # section 8
        return 4 * this[1] * (spread * this[0] + math.sqrt(spread) * other[0]) / n
    return swd_sensitivity(Side(n, *this), Side(n, *other), bound=bound, spread=spread).value


def of_sum(
    experiment: Mapping[str, Any], batch: Mapping[str, int], *, spreads: Sequence[float], bound: str = ""
) -> dict[str, float]:
    """Delta of every stratum of a sum, SLACK included (sections 4.4, 4.6 and 8), for these batch sizes.

    Of several penalties it is the sum of what each moves, with its own weight, clip and directions: a record is in one
    cell of each, of the size of all the cell's strata.
    """
    goal, clip, bound = experiment["objective"], experiment["clip"], bound or experiment["privacy"]["bound"]
    penalties = [{**goal, "weight": goal["alpha"]}, *goal.get("also", ())]
    left = max(0.0, 1.0 - sum(penalty["weight"] for penalty in penalties))
    total = dict.fromkeys(batch, left * 2 * clip["loss"] / sum(batch.values()))
    for penalty, spread in zip(penalties, spreads, strict=True):
        side = (penalty.get("radius") or clip["output"], penalty.get("jacobian") or clip["jacobian"])
        kind = penalty["penalty"]
        named = {name: name if kind == "equality-of-odds" else name.split(",")[-1] for name in batch}
        named = dict.fromkeys(batch, "all") if kind == "prior-matching" else named
        cells = dict.fromkeys(named.values(), 0)
        for name, cell in named.items():
            cells[cell] += batch[name]
        classes = len({cell.split(",")[0] for cell in cells}) if kind == "equality-of-odds" else 1
        times = 1.0 if kind == "prior-matching" else (len(cells) // classes - 1) / classes
        other = (penalty["prior_radius"], 0.0) if kind == "prior-matching" else side
        for name, cell in named.items():
            moved = distance(cells[cell], side, other, spread=spread, bound=bound)
            total[name] += penalty["weight"] * times * moved
    return {name: SLACK * moved for name, moved in total.items()}


def of_matched(experiment: Mapping[str, Any], n: int, spread: float, *, still: bool) -> float:
    """Delta where n private records are matched with public ones; ``still`` if the private ones are as they are."""
    goal, clip, bound = experiment["objective"], experiment["clip"], experiment["privacy"]["bound"]
    side = (clip["output"], clip["jacobian"])
    return SLACK * goal["alpha"] * distance(n, (side[0], 0.0) if still else side, side, spread=spread, bound=bound)


def of_sketch(experiment: Mapping[str, Any], cells: int) -> float:
    """How far a replaced record moves a sketch (docs/guarantees/sketches.md, K1): in a cell, or between two.

    Waves of norm 1 are up to 2 apart; codes, of which no number is negative, and moments up to sqrt(2); each with its
    part of the squared norm.
    """
    sketch = experiment["sketch"]
    parts = [sketch, *sketch["also"]]
    never_negative = ("features", "moments", "code", "table")
    squares = sum(part["weight"] * (2.0 if part["kind"] in never_negative else 4.0) for part in parts)
    between = 2 * (1 + sketch["counts"]) if cells > 1 else 0.0
    return SLACK * math.sqrt(max(squares / sum(part["weight"] for part in parts), between))
