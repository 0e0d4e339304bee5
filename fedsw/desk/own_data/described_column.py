"""One column's noised histogram, and what it says of its bounds."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Array = NDArray[np.float64]

LEVEL = 0.95
_WIDE = 3.0
"""How many times as long as the range of nearly all records bounds are from which they are called too wide."""
_LITTLE = 0.05
"""Part of the bounds that is not worth cutting off."""
_FEW, _SURE = 0.05, 2.5
"""Largest part of the records beyond that range on either side, and the deviations of noise that are added to it."""


_FEWEST_BINS, _GAP, _MOST_CODED = 5, 0.5, 0.5
"""Bins from which on a gap is looked for, its part of the bounds, and the largest share of a code for missing cells."""


@dataclass(frozen=True)
class DescribedColumn:
    """One column's noised shares, over all records and by class.

    Attributes:
        name, role: of the column: "feature", "group" or "target".
        labels: (k,) of the bins.
        edges: (k + 1,) of the bins of numbers, in the column's own units; empty for values.
        shares: (k,) of all records, with their noise: they may be negative, and need not add up to 1.
        deviation: of the noise in each share.
        by_class: (classes, k) shares of all records that are in a bin and of a class; no row without classes.
        class_deviation: of the noise in each of these.
        missing: whether the last bin is that of missing cells.
        since: the date that its numbers are days since, in ISO 8601; empty if they are not dates.
    """

    name: str
    role: str
    labels: tuple[str, ...]
    edges: tuple[float, ...]
    shares: Array
    deviation: float
    by_class: Array
    class_deviation: float
    missing: bool
    since: str = ""

    def words(self, value: float, digits: int = 6) -> str:
        """One of its numbers as people read it: with so many digits, or the date."""
        return in_words(value, self.since, digits)

    @property
    def half_width(self) -> float:
        """Half of the interval around each share that holds the truth with probability .95."""
        return float(ndtri((1 + LEVEL) / 2)) * self.deviation

    @property
    def class_half_width(self) -> float:
        """Half of the interval around each share by class that holds the truth with probability .95."""
        return float(ndtri((1 + LEVEL) / 2)) * self.class_deviation

    @property
    def plausible(self) -> Array:
        """The shares (k,) as the nearest ones that are not negative and add up to 1."""
        return on_simplex(self.shares)

    def quantile(self, part: float) -> float | None:
        """Return the number that a part of the records lies below, missing ones left out; None for values."""
        if not self.edges:
            return None
        shares = on_simplex(self.shares[: len(self.edges) - 1])
        below = np.concatenate([[0.0], np.cumsum(shares)])
        return float(self.edges[0]) if part <= shares[0] else float(np.interp(part, below, np.array(self.edges)))

    @property
    def advice(self) -> str | None:
        """Say that bounds are much wider than what they hold, and which would do; None if they fit."""
        if (code := self._code()) is not None:
            share, end, near = code
            return (
                f"About {100 * share:.2g} % of {self.name!r} lie at or near {self.words(end)}, far from all others, up "
                f"to {self.words(near)}: if that is a code for missing cells, declare it in missing, and bounds of the "
                "others."
            )
        if (held := self._held()) is None:
            return None
        low, high = held
        times = (self.edges[-1] - self.edges[0]) / (high - low)
        if times < _WIDE:
            return None
        return (
            f"Bounds of {self.name!r} are {times:.0f} times as wide as what holds nearly all records: declare about "
            f'{self.words(low)} to {self.words(high)} (outside = "cut" for the others), and the same epsilon buys more.'
        )

    def _code(self) -> tuple[float, float, float] | None:
        """The share of records at an end of the bounds beyond a wide gap, that end, and where the others end.

        None if no gap of half the bounds has surely records at its end, and surely few within.
        """
        shares = self.shares[: len(self.edges) - 1]
        if len(shares) < _FEWEST_BINS:
            return None
        for at_top in (True, False):
            ordered = shares[::-1] if at_top else shares
            edges = self.edges[::-1] if at_top else self.edges
            end, rest = float(ordered[0]), np.cumsum(ordered[1:])
            noise = _SURE * self.deviation * np.sqrt(np.arange(1, len(rest) + 1))
            empty = int(np.argmax(np.abs(rest) > noise)) if (np.abs(rest) > noise).any() else len(rest)
            gap = abs(edges[1 + empty] - edges[1]) >= _GAP * abs(self.edges[-1] - self.edges[0])
            if end > 2 * _SURE * self.deviation and end < _MOST_CODED and gap and empty < len(rest):
                return end, float(edges[0]), float(edges[1 + empty])
        return None

    def _held(self) -> tuple[float, float] | None:
        """The range, from edge to edge, beyond which a few records lie on either side, be the noise what it may.

        None if noise hides so much that there is no such range.
        """
        shares = self.shares[: len(self.edges) - 1]
        if len(self.edges) < 5:
            return None
        noise = _SURE * self.deviation * np.sqrt(np.arange(len(self.edges)))
        below, above = (np.concatenate([[0.0], np.cumsum(part)]) + noise for part in (shares, shares[::-1]))
        first, last = (int(np.flatnonzero(part <= _FEW)[-1]) for part in (below, above))
        if first + last >= len(shares):
            return None
        (lowest, low), (high, highest) = (self.edges[0], self.edges[first]), (self.edges[-1 - last], self.edges[-1])
        little = _LITTLE * (highest - lowest)
        return lowest if low - lowest <= little else low, highest if highest - high <= little else high

    def content(self) -> dict[str, Any]:
        """All of it as plain values, for `of_content`."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> DescribedColumn:
        """The column behind `content`; KeyError, TypeError or ValueError if it is none."""
        labels, shares = tuple(map(str, content["labels"])), np.array(content["shares"], dtype=np.float64)
        by_class = np.array(content["by_class"], dtype=np.float64).reshape(-1, len(labels))
        if shares.shape != (len(labels),) or not (np.isfinite(shares).all() and np.isfinite(by_class).all()):
            raise ValueError(f"{len(labels)} labels have shares {shares.shape}, or one is no finite number")
        return cls(
            str(content["name"]),
            str(content["role"]),
            labels,
            tuple(map(float, content["edges"])),
            shares,
            float(content["deviation"]),
            by_class,
            float(content["class_deviation"]),
            bool(content["missing"]),
            str(content.get("since", "")),
        )


def in_words(value: float, since: str, digits: int = 6) -> str:
    """A number with so many digits, or the date that is so many days after another, in ISO 8601, if there is one."""
    if not since:
        return f"{value:.{digits}g}"
    return str(datetime.date.fromisoformat(since) + datetime.timedelta(days=int(np.floor(value))))


def on_simplex(shares: Array) -> Array:
    """Return the nearest numbers (k,) to these that are not negative and have sum 1, in Euclidean norm."""
    ordered = np.sort(shares)[::-1]
    spare = (np.cumsum(ordered) - 1) / np.arange(1, len(shares) + 1)
    last = int(np.flatnonzero(ordered > spare)[-1])
    return np.asarray(np.maximum(shares - spare[last], 0.0))
