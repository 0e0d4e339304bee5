"""Sensitivity of inner-clipped Wasserstein gradients and of clipped loss gradients to one record."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, get_args

from fedsw.mathematics.transport.order import require_penalty_order
from fedsw.privacy.relations import ADD_OR_REMOVE, RELATIONS, REPLACE_ANY, REPLACE_ONE

Bound = Literal["auto", "paper", "slice", "vector"]

STATED = "stated by the user"
"""Name of the bound of a user's own penalty."""

SLACK = 1.001
"""Enlarges sensitivities for float32 passes with sums in float64: docs/guarantees/sampling.md."""

_LEAST_REACH = 1e-4
"""Outputs nearer to each other, or further apart than its inverse, have powers that float64 may round to 0 or infinity:
a bound of 0 would be released without noise."""

SIZES = "the sizes of the groups and of their batches"


Norm = Literal["l2", "l1"]


@dataclass(frozen=True)
class Sensitivity:
    """A sensitivity that travels with what it bounds, and says in which norm, for which neighbours and what is public.

    Scaling (`weight * s`) and adding (`s + t`, the triangle inequality) keep the description; adding bounds
    for different neighbouring relations is refused.

    Attributes:
        value: the most the norm moves between neighbours.
        bound: the theorems behind it, joined by " + ".
        relation: one of `fedsw.privacy.relations.RELATIONS`: "replace-one", one record is replaced at its position
            within its group, sizes are fixed; sketches have a wider one, which replaces label and group, too.
        public: what the guarantee does not hide.
        norm: what Gaussian noise needs is "l2"; a bound in "l1", which Laplace noise needs, is one in "l2" as well.
    """

    value: float
    bound: str
    relation: str = REPLACE_ONE
    public: tuple[str, ...] = (SIZES,)
    norm: Norm = "l2"

    def __post_init__(self) -> None:
        _require_magnitude(sensitivity=self.value)
        RELATIONS.get(self.relation)
        if self.norm not in get_args(Norm):
            raise ValueError(f"norm is {self.norm!r}; choose one of {', '.join(get_args(Norm))}.")

    def of_replacement(self) -> Sensitivity:
        """Turn this bound for adding or removing a record into one for replacing it by any other: twice as large.

        Guarantee: a replacement is the removal of one record and the addition of another, and between the two stands a
        data set that either bound holds for: by the triangle inequality the value moves by at most the sum of both.
        ValueError for a bound for other neighbours.
        """
        if self.relation != ADD_OR_REMOVE:
            raise ValueError(f"a bound for {self.relation!r} neighbours is no bound for additions and removals")
        return replace(self, value=2 * self.value, relation=REPLACE_ANY)

    def __mul__(self, weight: float) -> Sensitivity:
        return replace(self, value=abs(weight) * self.value)

    __rmul__ = __mul__

    def __add__(self, other: Sensitivity) -> Sensitivity:
        if self.relation != other.relation:
            raise ValueError(
                f"sensitivities for {self.relation!r} and {other.relation!r} neighbours do not add: "
                "bound both terms for the same relation."
            )
        if self.norm != other.norm:
            raise ValueError(f"sensitivities in {self.norm} and {other.norm} norm do not add: bound both in the same.")
        bounds = _union(self.bound.split(" + "), other.bound.split(" + "))
        public = _union(self.public, other.public)
        return replace(self, value=self.value + other.value, bound=" + ".join(bounds), public=public)


class VectorSum(ABC):
    """A sum of a vector of every record, no two of which are further apart than orthogonal ones of their lengths.

    Guarantee: a record that is added or removed moves the sum by the root of `squared` at most, in l2 norm, and one
    that is replaced by any other by sqrt(2) times that: |a - b|^2 <= |a|^2 + |b|^2 <= 2 `squared`. Vectors of numbers
    that are not below 0 are such, as |a - b|^2 = |a|^2 + |b|^2 - 2 <a, b>.
    """

    @property
    @abstractmethod
    def squared(self) -> float:
        """The largest squared norm of a record's vector."""

    @property
    def moved(self) -> float:
        """Most that a replaced record moves the sum, in l2 norm."""
        return math.sqrt(2.0 * self.squared)

    def moved_for(self, relation: str) -> float:
        """Most that the sum moves between neighbours of a relation, by its name; KeyError for another."""
        return {REPLACE_ONE: self.moved, REPLACE_ANY: self.moved, ADD_OR_REMOVE: math.sqrt(self.squared)}[relation]


@dataclass(frozen=True)
class Side:
    """One of the two samples with a penalised Wasserstein distance between them: ``n`` records of it are in the batch.

    Its outputs are projected onto the ball of the ``radius``, or a public sample has no larger norm; its per-sample
    Jacobians are clipped to the spectral norm ``jacobian``, 0 without parameters; ``private`` records are protected.
    """

    n: int
    radius: float
    jacobian: float
    private: bool = True

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"a side of a distance between samples has n = {self.n}; it needs at least 1.")
        _require_magnitude(radius=self.radius, jacobian=self.jacobian)


def swd_sensitivity(
    replaced: Side, other: Side, *, bound: Bound = "auto", spread: float | None = None, order: float = 2.0
) -> Sensitivity:
    """Sensitivity of the inner-clipped gradient of SW_p^p when one record of one side, the `replaced` one, is replaced.

    Guarantee: for any two pairs of samples that differ by one record of `replaced`, at its position, and
    any directions of at most that spread, the two sums of clipped Jacobians (transposed) applied to
    `sliced.cotangents` of the order differ by at most `value` in l2 norm, ties included. Protects the records of
    `replaced`, not their group nor the sizes, nor anything of a public `other`. Where both sides are private, a
    record of `other` has the bound of the exchanged call, and the whole release has `worst` of the two.

    Args:
        replaced: the replaced record's side. Its Jacobian is 0 for fixed private records (a generator's target).
        other: the other side. Its Jacobian is 0 for a public sample without parameters (a prior).
        bound: "paper" (RLL, Theorem 4.1, with the larger of the two radii), "slice" (never larger than "paper",
            attained by one slice), "vector" (the slices share one Jacobian; smaller for well spread directions, may be
            larger for d = 1), or "auto", the smallest of these.
        spread: largest eigenvalue of directions @ directions.T / k (`fedsw.mathematics.transport.sliced.spread`, or
            `orthogonal_spread` before the draw). Needed by "vector"; without it "auto" leaves "vector" out.
        order: p of the distance, at least 2. "paper" is then what its proof gives for p; "vector" is for 2 only.

    ValueError if `replaced` is not private, the order is below 2, the bound is unknown or not proven for the order, or
    "vector" lacks its spread.

    Source: docs/guarantees/sensitivity.md and orders.md; RLL, Theorems 4.1 and A.1, for "paper".
    """
    order = require_penalty_order(order)
    reach = replaced.radius + other.radius
    if order != 2 and not _LEAST_REACH <= reach <= 1 / _LEAST_REACH:
        raise ValueError(
            f"outputs are up to {reach:g} apart, and their powers of order {order:g} are no exact numbers: clip them "
            "to a radius nearer 1, or use order 2"
        )
    if not replaced.private:
        raise ValueError("the replaced side is public: its records need no sensitivity. Exchange the two sides.")
    if spread is not None and not 0 < spread <= 1 + 1e-9:
        raise ValueError(f"spread = {spread}; for unit directions it lies between 1/d and 1.")
    public = (SIZES,) if other.private else (SIZES, "the other sample")
    values = {"paper": _paper(replaced, other, order), "slice": _slice(replaced, other, order)}
    if spread is not None and order == 2:
        values["vector"] = _vector(replaced, other, spread)
    chosen = min(values, key=values.__getitem__) if bound == "auto" else bound
    if chosen not in ("paper", "slice", "vector"):
        raise ValueError(f"bound {bound!r} is unknown: choose 'auto', 'paper', 'slice' or 'vector'.")
    if chosen not in values and order != 2:
        raise ValueError(f"bound 'vector' is proven for order 2, and the order is {order:g}: use 'slice' or 'auto'.")
    if chosen not in values:
        raise ValueError("bound 'vector' needs a spread: pass fedsw.mathematics.transport.sliced.spread(directions).")
    return Sensitivity(values[chosen], chosen, public=public)


def loss_sensitivity(clip: float, n: int) -> Sensitivity:
    """Sensitivity 2C/n of the mean of n per-record loss gradients clipped to l2 norm C, under replacement.

    Guarantee: protects every record of the batch; its size is public. Source: Abadi et al. 2016. ValueError if n is
    below 1 or the clip is negative or not finite.
    """
    _require_magnitude(clip=clip)
    if n < 1:
        raise ValueError(f"a mean of loss gradients over n = {n} records; it needs at least 1.")
    return Sensitivity(2 * clip / n, "loss clip")


DECLARED = "the declared number of records, which sums are divided by"
"""What is public under additions and removals, in place of the sizes of groups and batches, which are not."""


def added_sensitivity(clip: float, n: int) -> Sensitivity:
    """Sensitivity C/n of a sum of loss gradients clipped to l2 norm C over n, when a record is added or removed.

    Guarantee: n is a declared number, the same for all data sets, so that a record moves the sum by its own term and no
    other; protects every record of the batch, and how many there are. ValueError if n is below 1 or the clip is
    negative or not finite.

    Source: docs/guarantees/sampling.md.
    """
    _require_magnitude(clip=clip)
    if n < 1:
        raise ValueError(f"a sum of loss gradients over the declared number n = {n}; it is at least 1.")
    return Sensitivity(clip / n, "loss clip", ADD_OR_REMOVE, public=(DECLARED,))


def worst(sensitivities: Iterable[Sensitivity]) -> Sensitivity:
    """The largest of several sensitivities of one release, one per kind of record: it protects every record.

    A release is charged this way when all records have the same sampling rate; otherwise each group is charged its own
    sensitivity at its own rate. ValueError if there are none, or they are for different relations.
    """
    candidates = tuple(sensitivities)
    if not candidates:
        raise ValueError("worst of no sensitivities: give at least one.")
    together = reduce(lambda left, right: left + right, candidates)
    largest = max(candidates, key=lambda sensitivity: sensitivity.value)
    return replace(largest, public=together.public)


def _paper(replaced: Side, other: Side, order: float) -> float:
    radius = max(replaced.radius, other.radius)
    terms = (order + 1) * replaced.jacobian + (order - 1) * other.jacobian
    return float(order * (2 * radius) ** (order - 1) * terms / replaced.n)


def _slice(replaced: Side, other: Side, order: float) -> float:
    """Theorems 5 and 7: corners of what outputs and slots can be, of which one is the worst."""
    m, a, own_l, other_l = replaced.radius, other.radius, replaced.jacobian, other.jacobian
    far, near = (m + a) ** (order - 1), abs(m - a) ** (order - 1)
    corners: tuple[float, ...] = (2 * own_l * far, (own_l + other_l) * (far + near))
    if m < a:
        corners = (
            2 * own_l * (far + near),
            2 * own_l * near + (own_l + other_l) * (2 * m) ** (order - 1),
            (3 * own_l - other_l) * near + (own_l + other_l) * far,
        )
    return float(order * max(corners) / replaced.n)


def _vector(replaced: Side, other: Side, spread: float) -> float:
    m, a, own_l = replaced.radius, other.radius, replaced.jacobian
    # The proof holds for every other_l of at least the true one, and this is the best one to take it at.
    reach = math.hypot(a, math.sqrt(spread) * m)
    other_l = max(other.jacobian, a * own_l * math.sqrt(spread) / reach if reach > 0 else 0.0)
    # What remains is the maximum over c in [-1, 1] of sqrt(spread (squares - product c)) + spread m own_l c,
    # which is concave in c: it sits at the stationary point or at the end nearest to it.
    squares = (m * other_l) ** 2 + (a * own_l) ** 2
    product = 2 * m * other_l * a * own_l
    c = max(-1.0, min(1.0, (squares - (a * other_l) ** 2 / spread) / product)) if product > 0 else 1.0
    aligned = math.sqrt(spread * max(squares - product * c, 0.0)) + spread * m * own_l * c
    return 4 * (own_l * a + aligned) / replaced.n


def _union(left: Iterable[str], right: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*left, *right)))


def _require_magnitude(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} = {value}; it must be finite and not negative.")
