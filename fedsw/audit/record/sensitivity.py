"""Sensitivities, written again from theory, section 4, not from fedsw's own: how far one record moves a sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
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


def of_sum(experiment: Mapping[str, Any], batch: Mapping[str, int], *, spread: float) -> dict[str, float]:
    """Delta of every group of a sum under `central`, SLACK included (sections 4.4 and 4.6), for these batch sizes."""
    goal, clip, bound = experiment["objective"], experiment["clip"], experiment["privacy"]["bound"]
    alpha, radius, jacobian = goal["alpha"], clip["output"], clip["jacobian"]
    task = (1 - alpha) * 2 * clip["loss"] / sum(batch.values())
    side, still = (radius, jacobian), (radius, 0.0)

    def between(n: int, own: tuple[float, float], other: tuple[float, float]) -> float:
        return distance(n, own, other, spread=spread, bound=bound)

    if goal["penalty"] == "prior-matching":
        return {g: SLACK * (task + alpha * between(n, side, (goal["prior_radius"], 0.0))) for g, n in batch.items()}
    if goal["penalty"] == "distribution-matching":
        if goal["task"] != "generation":
            return {group: SLACK * alpha * between(n, side, side) for group, n in batch.items()}
        both = goal["protected"] == "both"
        return {
            group: SLACK * alpha * max(between(n, still, side), between(n, side, still) if both else 0.0)
            for group, n in batch.items()
        }
    weight = comparisons(batch, odds=goal["penalty"] == "equality-of-odds")
    return {group: SLACK * (task + alpha * weight * between(n, side, side)) for group, n in batch.items()}


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
