"""Sensitivities, written again from theory, section 4, not from fedsw's own: how far one record moves a sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

SLACK = 1.001


def paper(n: int, own: tuple[float, float], other: tuple[float, float]) -> float:
    """Section 4.1: 4 R (3 L1 + L2) / n, R the larger radius; a side is (radius, Jacobian's norm)."""
    return 4 * max(own[0], other[0]) * (3 * own[1] + other[1]) / n


def by_slice(n: int, own: tuple[float, float], other: tuple[float, float]) -> float:
    """Section 4.2."""
    (m, one), (a, two) = own, other
    return 4 / n * max(one * (m + a), 2 * one * a, max(m, a) * one + m * two, (2 * a - m) * one + m * two)


def by_vector(n: int, own: tuple[float, float], other: tuple[float, float], spread: float) -> float:
    """Section 4.3, for directions of that spread; the cosine's maximum from its three cases."""
    (m, one), (a, two) = own, other
    root = math.sqrt(spread)
    if one == 0:
        return 4 * m * root * two / n
    least = a * one * root / math.sqrt(a * a + spread * m * m)
    if two <= least:
        return 4 * one / n * (a + math.sqrt(spread * (a * a + spread * m * m)))
    squares = (m * two) ** 2 + (a * one) ** 2
    cosine = (squares - a * a * two * two / spread) / (2 * m * a * one * two)
    if cosine < -1:
        reach = root * (m * two + a * one) - spread * m * one
    elif cosine > 1:
        reach = root * abs(m * two - a * one) + spread * m * one
    else:
        reach = a * two / 2 + spread * squares / (2 * a * two)
    return 4 / n * (one * a + reach)


def distance(n: int, own: tuple[float, float], other: tuple[float, float], *, spread: float, bound: str) -> float:
    """The bound that the settings name; "auto" is the smallest."""
    found = {
        "paper": paper(n, own, other),
        "slice": by_slice(n, own, other),
        "vector": by_vector(n, own, other, spread),
    }
    return min(found.values()) if bound == "auto" else found[bound]


def of_sum(experiment: Mapping[str, Any], batch: Mapping[str, int], *, spreads: Sequence[float]) -> dict[str, float]:
    """Delta of every stratum of a sum under `central`, SLACK included (sections 4.4 and 4.6), for these batch sizes.

    Of several penalties it is the sum of what each moves, with its own weight, clip and directions: a record is in one
    cell of each, and the cell's size is that of all its strata.

    Args:
        spreads: of the directions of every penalty.
    """
    goal, clip, bound = experiment["objective"], experiment["clip"], experiment["privacy"]["bound"]
    if goal["penalty"] == "distribution-matching":
        return _to_other_records(experiment, batch, spreads[0])
    penalties = [{**goal, "weight": goal["alpha"]}, *goal.get("also", ())]
    left = max(0.0, 1 - sum(each["weight"] for each in penalties))
    task = left * 2 * clip["loss"] / sum(batch.values())
    total = dict.fromkeys(batch, SLACK * task)
    for each, spread in zip(penalties, spreads, strict=True):
        own = (each.get("radius") or clip["output"], each.get("jacobian") or clip["jacobian"])
        cell_of = {name: _cell(name, each["penalty"]) for name in batch}
        cells = {cell: sum(n for name, n in batch.items() if cell_of[name] == cell) for cell in cell_of.values()}
        if each["penalty"] == "prior-matching":
            other, times = (each["prior_radius"], 0.0), 1.0
        else:
            other, times = own, comparisons(cells, odds=each["penalty"] == "equality-of-odds")
        for name, cell in cell_of.items():
            moved = distance(cells[cell], own, other, spread=spread, bound=bound)
            total[name] += SLACK * each["weight"] * times * moved
    return total


def _to_other_records(experiment: Mapping[str, Any], batch: Mapping[str, int], spread: float) -> dict[str, float]:
    """Delta where the private records are matched with a generator's samples or with public records."""
    goal, clip, bound = experiment["objective"], experiment["clip"], experiment["privacy"]["bound"]
    side, still = (clip["output"], clip["jacobian"]), (clip["output"], 0.0)
    pairs = [(side, side)]
    if goal["task"] == "generation":
        pairs = [(still, side), *([(side, still)] if goal["protected"] == "both" else [])]
    return {
        name: SLACK * goal["alpha"] * max(distance(n, *pair, spread=spread, bound=bound) for pair in pairs)
        for name, n in batch.items()
    }


def _cell(stratum: str, penalty: str) -> str:
    """The cell of a penalty that a stratum "Y=1,A=0" or "A=0" is in."""
    if penalty == "prior-matching":
        return "all"
    return stratum if penalty == "equality-of-odds" else stratum.split(",")[-1]


def of_contribution(experiment: Mapping[str, Any], batch: Mapping[str, int], *, spread: float) -> dict[str, float]:
    """Delta of every group of a client's contribution, given the noised tables (section 8), SLACK included."""
    goal, clip = experiment["objective"], experiment["clip"]
    alpha, radius = goal["alpha"], clip["output"]
    weight = comparisons(batch, odds=goal["penalty"] == "equality-of-odds")
    task = (1 - alpha) * 2 * clip["loss"] / sum(batch.values())
    pulled = alpha * weight * 2 * (spread * radius + math.sqrt(spread) * radius)
    return {group: SLACK * (2 * clip["jacobian"] * pulled / n + task) for group, n in batch.items()}


def comparisons(groups: Mapping[str, int], *, odds: bool) -> float:
    """Summed weight of the distances that a group takes part in: with every other one, or within its class."""
    if not odds:
        return len(groups) - 1
    classes = len({name.split(",")[0] for name in groups})
    return (len(groups) // classes - 1) / classes
