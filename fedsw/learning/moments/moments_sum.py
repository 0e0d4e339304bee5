"""Moments of all training records, summed once: counts, means and second moments of inputs and target, cell by cell.

What one record adds is the outer product of a vector of norm at most 1 with itself, whatever the record holds, so that
the bound trusts no column. The sums are whole numbers of steps: exact, in any order and however records are spread over
clients. What is read off them, noised, is in `fedsw.learning.moments.released_moments`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.subnormal import flushing_to_zero
from fedsw.data import Records
from fedsw.data.columns.declared_kinds import Feature
from fedsw.experiment import Experiment
from fedsw.experiment.task_kinds import MODELS
from fedsw.learning.models.coded import middle_of
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.sensitivity import VectorSum

MOST_FEATURES = 256
"""Inputs of a record, at most: the sums have about half their square of numbers, and so has their noise."""

MOST_OF_IMAGES = 2_048
"""Numbers that fixed filters make of an image, at most."""

MOST_NUMBERS = 2**22
"""Numbers of all cells together, at most."""

GRID = 14
"""A record's vector is made of whole multiples of 2^-GRID."""

SIDE_WEIGHT = 181 / 128
"""Weight of a product of two different coordinates: the square root of 2, rounded down to 7 binary digits,
so that the norm of a record's vector is at most the Frobenius norm of its outer product."""

STEP = 2.0 ** -(2 * GRID + 7)
"""Step of the sums, which are whole multiples of it; 2^27 records fit in 64 bits."""

MOST_RECORDS = 2**27

_WEIGHTS = (128, 181)  # of a square, and of a product of two coordinates: 1 and `SIDE_WEIGHT` in units of 2^-7
_ONE = 2**GRID
_CHUNK_NUMBERS = 2**22  # products of some records at a time


@dataclass(frozen=True)
class Layout(VectorSum):
    """Layout of the summed vectors, from public numbers only.

    A record with inputs x and target y has the vector a = (k, x - c, t(y - d))/B; a class y counts as its indicators.
    The weights k and t let counts, means and targets stand out of the noise beside many inputs (`weighted`).
    Where x - c or y - d is longer than the bounds of columns allow, it is cut to that length, so that a has norm 1 at
    most, and counts and targets are those of all records whatever their inputs. It adds svec(a a^T) to the block of
    its cell: squares, and products weighed with SIDE_WEIGHT, row by row of the upper triangle.

    Guarantee: `moved` is sqrt(2), and 1 for a record that comes or goes, without any room for rounding. *Proof.* A
    record's integers q, a times 2^GRID rounded towards 0, have a whole sum of squares that is at most
    4^GRID (1 + 1e-12), hence at most 4^GRID. So A = q q^T/4^GRID is positive semidefinite with trace at most 1, and
    ||A||_F <= 1. Of two records in one cell ||A - A'||_F^2 = ||A||^2 + ||A'||^2 - 2 <A, A'> <= 2, because the inner
    product of two positive semidefinite matrices is not negative; their vectors are at most as far apart, as
    SIDE_WEIGHT < sqrt(2). In two cells the vectors share no coordinate, and 1 + 1 = 2. One record adds a vector of
    norm at most ||A||_F <= 1. What is not finite counts as 0.

    There is a block for each of the ``cells`` (strata of the objective), or one for all; p is ``features``, ``targets``
    are numbers of a regression or ``classes``, B is ``bound``, c (p,) ``centre``, the middle of what the inputs are
    declared to lie in, d the ``middle`` of every target, k ``constant`` and t ``emphasis``. With no ``features`` the
    moments are those of the targets only, whatever inputs a record has.
    """

    cells: int
    features: int
    targets: int
    classes: bool
    bound: float
    centre: tuple[float, ...]
    middle: float
    constant: float = 1.0
    emphasis: float = 1.0

    @classmethod
    def weighted(
        cls,
        cells: int,
        features: int,
        targets: int,
        *,
        classes: bool,
        centre: tuple[float, ...],
        reach: float,
        least: float = 1.0,
    ) -> Layout:
        """The layout with weights that share B^2 = k^2 + R^2 + t^2 Y^2 among the constant, the inputs and the targets.

        R^2 is what the inputs reach and Y^2 what the targets do. The noise in a mean of targets is B^2/(k t): each of k
        and t Y gets a third of R, which makes that of a square 5/3 of what it is without weights, and that of a mean
        small. Weights are ``least`` at least: with 1, they are 1 where inputs reach less than the targets. Without
        features the constant and the targets have half each.
        """
        layout = cls(cells, features, targets, classes, 1.0, centre, 0.0 if classes else 0.5)
        constant = math.sqrt(max(least, reach / 3))
        emphasis = math.sqrt(max(least, reach / 3 / layout.reach) if features else constant**2 / layout.reach)
        bound = math.sqrt(constant**2 + reach + emphasis**2 * layout.reach)
        return replace(layout, bound=bound, constant=constant, emphasis=emphasis)

    @property
    def side(self) -> int:
        """D = 1 + p + t, the length of a record's vector a."""
        return 1 + self.features + self.targets

    @property
    def width(self) -> int:
        """w = D(D + 1)/2, the numbers of a cell."""
        return self.side * (self.side + 1) // 2

    @property
    def reach(self) -> float:
        """Y^2, the most that targets without their weight add to |B a|^2: 1 for a class, 1/4 for each number."""
        return 1.0 if self.classes else 0.25 * self.targets

    @property
    def radius(self) -> float:
        """R, the largest distance of inputs from their middle; a record beyond is cut to it."""
        return math.sqrt(max(0.0, self.bound**2 - self.constant**2 - self.emphasis**2 * self.reach))

    @property
    def weights(self) -> NDArray[np.float64]:
        """The weights of a record's coordinates, (D,)."""
        weights = np.ones(self.side)
        weights[0], weights[1 + self.features :] = self.constant, self.emphasis
        return weights

    @property
    def squared(self) -> float:
        """See `VectorSum`, and the proof above: no vector is longer than 1."""
        return 1.0

    def integers(self, inputs: Tensor, target: Tensor) -> Tensor:
        """The vectors a (n, D) in multiples of 2^-GRID, of any inputs (n, p) and targets (n,) or (n, t); float64."""
        rows = torch.ones((len(inputs), self.side), dtype=torch.float64, device=inputs.device)
        centre = torch.tensor(self.centre, dtype=torch.float64, device=inputs.device)
        rows[:, 1 : 1 + self.features] = _inside(inputs[:, : self.features].double() - centre, self.radius)
        rows[:, 1 + self.features :] = _inside(self._targets(target.to(inputs.device)), math.sqrt(self.reach))
        rows *= torch.from_numpy(self.weights / self.bound).to(inputs.device)
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return rows.div_(norms.clamp_(min=1.0)).mul_(_ONE).trunc_()

    def _targets(self, target: Tensor) -> Tensor:
        if not self.classes:
            return target.double().reshape(len(target), self.targets) - self.middle
        return (target[:, None] == torch.arange(self.targets, device=target.device)).double()

    def vectors(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Return each record's addition to its cell, (n, w) float64; see `integers`. For one record, or few."""
        whole = self.integers(inputs, target)
        first, second = _places(self.side)
        return whole[:, first] * whole[:, second] * _weights(self.side) * STEP

    def matrix(self, values: Tensor) -> NDArray[np.float64]:
        """Products of (1, x - c, y - d), (D, D) and symmetric, from numbers (w,) in the units of `vectors`."""
        first, second = _places(self.side)
        products = torch.zeros((self.side, self.side), dtype=torch.float64)
        plain = values * (_WEIGHTS[0] / _weights(self.side)) * self.bound**2
        products[first, second] = plain
        products[second, first] = plain
        matrix: NDArray[np.float64] = products.numpy() / np.outer(self.weights, self.weights)
        return matrix

    @property
    def rounded(self) -> NDArray[np.float64]:
        """Rounding factors (D,) of coordinates that are 0 or their weight in every record: the 1, and classes."""
        rounded = np.ones(self.side)
        places = [0, *range(1 + self.features, self.side)] if self.classes else [0]
        whole = _ONE * self.weights[places] / self.bound
        rounded[places] = whole / np.trunc(whole)
        return rounded

    def fits(self, totals: Tensor, records: Tensor) -> bool:
        """True if sums (cells, w) in whole steps can be those of these ``records`` of each cell, (cells,).

        Squares are not negative and together at most as many as records, the first at most k^2/B^2 each; a
        product of two coordinates is at most the root of their squares (Cauchy and Schwarz).
        """
        if tuple(totals.shape) != (self.cells, self.width) or totals.dtype != torch.int64:
            return False
        first, second = _places(self.side)
        weights = _weights(self.side).long()
        if bool((totals % weights != 0).any()):
            return False
        sums = (totals // weights).double() / 4.0**GRID
        squares = sums[:, first == second]
        if bool((squares < 0).any()):
            return False
        many = records.double()
        first_most = many * (self.constant / self.bound) ** 2
        if bool((squares.sum(1) > many * (1 + 1e-9)).any()) or bool((squares[:, 0] > first_most * (1 + 1e-9)).any()):
            return False
        return bool((sums.abs() <= (squares[:, first] * squares[:, second]).sqrt() * (1 + 1e-9)).all())


def _inside(rows: Tensor, radius: float) -> Tensor:
    """Rows (n, k), 0 if they are not finite, in the ball of a radius, or next to it where that would round up."""
    rows = rows.nan_to_num(0.0, 0.0, 0.0)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(norms > radius, rows * (radius * (1 - 1e-12) / norms.clamp(min=1e-300)), rows)


@functools.lru_cache(maxsize=8)
def _places(side: int) -> tuple[Tensor, Tensor]:
    """Row and column (w,) of every number of a symmetric matrix, upper triangle, row by row."""
    indices = torch.triu_indices(side, side)
    return indices[0], indices[1]


@functools.lru_cache(maxsize=8)
def _weights(side: int) -> Tensor:
    """Weight of every number (w,) in steps: of a square, or of a product of two coordinates."""
    first, second = _places(side)
    return torch.where(first == second, float(_WEIGHTS[0]), float(_WEIGHTS[1])).double()


def layout_of(problem: Problem) -> Layout | None:
    """Return the layout of a problem's moments, from public numbers; None if there are none, or too many."""
    shape, target, features = problem.shape, problem.task.facts.target, problem.features
    compared = problem.objective.lone
    if compared is None or compared.other_side is not None or problem.experiment.stages:
        return None
    predicted = (
        shape.classes if target == "class" and shape.classes > 1 else shape.targets if target == "numbers" else 0
    )
    if features > (MOST_OF_IMAGES if MODELS.get(problem.experiment.model.kind).filtered else MOST_FEATURES):
        return None
    if not predicted:
        return None
    centre, reach = _coding(problem)
    least = 1.0 if problem.coding is None else 0.0
    if problem.experiment.model.inputs == "constant-first":
        features, centre, reach, least = 0, (), 0.0, 1.0
    cells, classes = 1 if _alike(problem.experiment) else len(problem.objective.cells), target == "class"
    layout = Layout.weighted(cells, features, predicted, classes=classes, centre=centre, reach=reach, least=least)
    return layout if layout.cells * layout.width <= MOST_NUMBERS else None


def _alike(experiment: Experiment) -> bool:
    """True if groups make no difference to what is learnt: one block then holds all records, with less noise."""
    return not experiment.objective.alpha and not experiment.objective.also


_NAMED = {"adult": (0.0, 11.0), "communities": (0.5, 24.5), "law-school": (0.0, 7.0)}
"""Named data sets: the middle of every input, and the squared distance from it that none exceeds, or few."""


def _coding(problem: Problem) -> tuple[tuple[float, ...], float]:
    """The public middle (p,) of the inputs, and the squared distance from it that no record exceeds, if it is known."""
    spec, p, coding = problem.experiment.data, problem.features, problem.coding
    if coding is not None:
        return tuple(coding.middle.tolist()), coding.reach
    if spec.row_norm is not None:
        return (0.0,) * p, float(spec.row_norm) ** 2
    if spec.columns is not None:
        centre = tuple(number for feature in spec.columns.features for number in middle_of(feature))
        return centre, sum(_reach(feature) for feature in spec.columns.features)
    middle, reach = _NAMED.get(spec.source, (0.0, float(p)))
    return (middle,) * p, reach


def _reach(feature: Feature) -> float:
    """Return a column's squared distance from its middle: of a number in bounds half of the most."""
    missing = 0.25 if feature.missing else 0.0
    if feature.categories:
        return max(1 - 1 / len(feature.categories), 1 / len(feature.categories)) + missing
    return (0.25 / 2 if feature.in_unit else 1.0) * (feature.count or 1) + missing


@flushing_to_zero
def sums_of(problem: Problem, layout: Layout, records: Records) -> Tensor:
    """Sums over records by cell, WITHOUT NOISE, in whole steps of `STEP`: (cells, w) int64.

    Products of whole numbers up to 2^14 are summed in float64 over so few records at a time that every sum is below
    2^53, hence exact; the sums are then added as integers. The records are one row of every unit; the caller draws
    it. ValueError if there are more than MOST_RECORDS.
    """
    if len(records) > MOST_RECORDS:
        raise ValueError(f"{len(records)} records; moments are summed over at most {MOST_RECORDS}")
    total = torch.zeros((layout.cells, layout.side, layout.side), dtype=torch.int64)
    size = max(1, _CHUNK_NUMBERS // layout.side)
    for start in range(0, len(records), size):
        part = records if len(records) <= size else records.take(np.arange(start, min(start + size, len(records))))
        whole = layout.integers(problem.numbers(part), part.target.to(problem.device))
        cell = problem.objective.cell_of(part.sensitive, part.target).to(whole.device)
        cell = cell if layout.cells > 1 else torch.zeros_like(cell)
        for number in range(layout.cells):
            rows = whole[cell == number]
            total[number] += (rows.T @ rows).cpu().to(torch.int64)
    first, second = _places(layout.side)
    return total[:, first, second] * _weights(layout.side).long()
