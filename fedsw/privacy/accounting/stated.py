"""Mechanisms of which only a profile is known: a pure epsilon, Renyi divergences, a table. They compose like any step.

Source: docs/guarantees/ledger.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from fedsw._tools.text import upward
from fedsw.privacy.accounting._arrays import Values, library, like, on_processor

_LONGEST = 600.0
"""Losses beyond it leave double precision: such a mechanism counts as one without noise."""
_NODES = 4000
_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pure:
    """Any (epsilon, 0)-private mechanism: randomised response dominates it (Kairouz, Oh, Viswanath 2015, Thm 2.5)."""

    epsilon: float
    left_out = 0.0

    @property
    def size(self) -> float:
        """Largest privacy loss: epsilon."""
        return self.epsilon

    def profile(self, epsilon: Values) -> Values:
        """delta(epsilon), for epsilon >= 0, of any shape."""
        share: Values = -library(epsilon).expm1((epsilon - self.epsilon).clip(max=0.0))
        return share / (1.0 + math.exp(-self.epsilon))

    def reach(self, tail: float) -> float:
        """The loss beyond which its profile is at most `tail`."""
        return self.epsilon

    def divergence(self, order: float) -> float:
        """Renyi divergence at an order above 1: that of randomised response."""
        moment = np.logaddexp(order * self.epsilon, (1 - order) * self.epsilon)
        return float(moment - np.logaddexp(0.0, self.epsilon)) / (order - 1)

    def raised(self, up: Callable[[float], float]) -> Pure:
        """A mechanism that costs at least as much, its numbers rounded up."""
        return Pure(up(self.epsilon))

    def covers(self, other: Stated | None) -> bool:
        """True if whatever the other describes costs at most as much."""
        return isinstance(other, Pure) and self.epsilon >= other.epsilon

    @property
    def words(self) -> str:
        """Its known numbers in words, for an account's page."""
        return f"(ε {upward(self.epsilon)}, δ 0)"


class _OneOfItsKind:
    """Base of mechanisms that several numbers describe: one covers only an equal one, and its numbers stay exact."""

    words = "(a selection)"

    def raised(self, up: Callable[[float], float]) -> Self:
        """Return it unchanged: its numbers are not rounded."""
        return self

    def covers(self, other: Stated | None) -> bool:
        """True for an equal one."""
        return self == other


@dataclass(frozen=True)
class Renyi(_OneOfItsKind):
    """Any mechanism with these Renyi divergences at ascending orders above 1, in both orders of the neighbours."""

    orders: tuple[float, ...]
    divergences: tuple[float, ...]
    left_out = 0.0

    def __post_init__(self) -> None:
        if not self.orders or len(self.orders) != len(self.divergences):
            raise ValueError(f"{len(self.orders)} orders came with {len(self.divergences)} divergences; one for each")
        if not all(1.0 < order < math.inf for order in self.orders) or not all(d >= 0.0 for d in self.divergences):
            raise ValueError("an order is not above 1 and finite, or a divergence is below 0.")

    @property
    def size(self) -> float:
        """mu of a Gaussian release with such a divergence; inf where its losses reach too far to be computed."""
        if self.reach(1e-20) > _LONGEST:
            return math.inf
        return math.sqrt(2 * min(d / order for order, d in zip(self.orders, self.divergences, strict=True)))

    def delta(self, epsilon: float) -> float:
        """A delta of (epsilon, delta)-privacy, the least over the orders (Canonne, Kamath, Steinke 2020, Prop. 12)."""
        return float(self._bound(np.array([epsilon]))[0])

    def epsilon(self, delta: float) -> float:
        """An epsilon such that the mechanism is (epsilon, delta)-private: the least over the orders."""
        return max(0.0, self._least(delta))

    def profile(self, epsilon: Values) -> Values:
        """delta(epsilon), for epsilon >= 0, of any shape: the largest profile that `delta` allows."""
        return _between(*_hull(self), epsilon)

    def reach(self, tail: float) -> float:
        """The loss beyond which its profile is at most `tail`."""
        return max(1e-6, self._least(tail))

    def divergence(self, order: float) -> float:
        """Renyi divergence at an order above 1, from above; inf beyond the last.

        (order - 1) times the divergence is convex and 0 at order 1: below the chord between two known orders.
        """
        if order > self.orders[-1]:
            return math.inf
        logs = [(known - 1) * value for known, value in zip(self.orders, self.divergences, strict=True)]
        return float(np.interp(order, [1.0, *self.orders], [0.0, *logs])) / (order - 1)

    def _least(self, delta: float) -> float:
        order, divergence = np.array(self.orders), np.array(self.divergences)
        return float((divergence + (log_factor(order) - math.log(delta)) / (order - 1)).min())

    def _bound(self, epsilon: _Array) -> _Array:
        order, divergence = np.array(self.orders)[:, None], np.array(self.divergences)[:, None]
        logs = (order - 1) * (divergence - epsilon) + log_factor(order)
        bound: _Array = np.exp(np.minimum(logs.min(axis=0), 0.0))
        return bound


@dataclass(frozen=True)
class Tabled(_OneOfItsKind):
    """Any mechanism with a profile of at most that of a table, plus what is left out.

    ``values`` are delta at ``losses``, 0 and upwards, from `convex_below`: linear in e^loss in between, convex, and 0
    at the last; ``left_out`` counts in full beside it.
    """

    losses: tuple[float, ...]
    values: tuple[float, ...]
    left_out: float

    @property
    def size(self) -> float:
        """mu of a Gaussian release of the same delta at loss 0, at most one that reaches as far."""
        at_zero = 2 * float(scipy.special.ndtri((1 + min(self.values[0], 1.0)) / 2))
        return max(min(at_zero, math.sqrt(2 * self.losses[-1])), 1e-9)

    def profile(self, epsilon: Values) -> Values:
        """delta(epsilon) without what is left out, for epsilon >= 0, of any shape."""
        return _between(np.array(self.losses), np.array(self.values), epsilon)

    def reach(self, tail: float) -> float:
        """The loss beyond which its profile is at most `tail`."""
        return self.losses[-1]

    def divergence(self, order: float) -> float:
        """Infinite: a profile alone bounds none."""
        return math.inf


Stated = Pure | Renyi | Tabled
_IN_FILES: tuple[type[Pure] | type[Renyi], ...] = (Pure, Renyi)
"""Those that an account's file keeps, as a mapping of their fields."""


def from_fields(written: Mapping[str, Any]) -> Stated:
    """Rebuild a mechanism from its fields, as `dataclasses.asdict` wrote them; ValueError for those of no kind."""
    for kind in _IN_FILES:
        if {field.name for field in fields(kind)} == set(written):
            values: Any = (tuple(one) if isinstance(one, list | tuple) else float(one) for one in written.values())
            return kind(**dict(zip(written, values, strict=True)))
    known = " or ".join(str([field.name for field in fields(kind)]) for kind in _IN_FILES)
    raise ValueError(f"a stated mechanism has {sorted(written)}; there are {known}")


def convex_below(losses: _Array, values: _Array) -> tuple[_Array, _Array]:
    """The largest function of e^loss that is convex and nowhere above the values at these losses, by its corners."""
    hull: list[int] = []
    for new in range(len(losses)):
        while len(hull) > 1 and _slope(losses, values, hull[-2], hull[-1]) >= _slope(losses, values, hull[-1], new):
            hull.pop()
        hull.append(new)
    return losses[hull], values[hull]


def _between(losses: _Array, values: _Array, epsilon: Values) -> Values:
    """A function of e^loss that is linear between these losses."""
    at = on_processor(epsilon).clip(0.0, losses[-1])
    left = np.clip(np.searchsorted(losses, at, side="right") - 1, 0, len(losses) - 2)
    width = np.expm1(losses[left + 1] - losses[left])
    weight = np.expm1(at - losses[left]) / width
    between = values[left] + weight * (values[left + 1] - values[left])
    moved: Values = like(between, epsilon)
    return moved


def log_factor(order: _Array) -> _Array:
    """ln of (1 - 1/order)^order / (order - 1)."""
    factor: _Array = order * np.log1p(-1 / order) - np.log(order - 1)
    return factor


@lru_cache(maxsize=64)
def _hull(curve: Renyi) -> tuple[_Array, _Array]:
    """Losses >= 0 and values at them of the largest function that is convex in e^loss and nowhere above the bound.

    The profile of a pair is convex in e^epsilon over all real epsilon, and at -epsilon it is 1 - e^-epsilon +
    e^-epsilon times that of the pair turned round. So it is nowhere above the hull of the bound's values on both sides.
    """
    reach = curve.reach(1e-20)
    up = np.linspace(0.0, reach, _NODES)
    bound = curve._bound(up)
    down = up[:0:-1]
    losses = np.concatenate([-down, up])
    values = np.concatenate([-np.expm1(-down) + np.exp(-down) * bound[:0:-1], bound])
    losses, values = convex_below(losses, values)
    start = int(np.searchsorted(losses, 0.0))
    if losses[start] > 0.0:
        left, right = start - 1, start
        part = -math.expm1(losses[left]) / (math.expm1(losses[right]) - math.expm1(losses[left]))
        middle = values[left] + part * (values[right] - values[left])
        return np.append(0.0, losses[start:]), np.append(middle, values[start:])
    return losses[start:], values[start:]


def _slope(losses: _Array, values: _Array, left: int, right: int) -> float:
    """Slope of the chord between two points, in e^loss; it is unscaled, so that slopes at different points compare."""
    return float((values[right] - values[left]) * np.exp(-losses[left]) / np.expm1(losses[right] - losses[left]))
