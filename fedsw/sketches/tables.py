"""Sketches of tables: one-way and two-way counts of declared columns, and what is read off them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw.randomness import Stream
from fedsw.sketches.drift import Means
from fedsw.sketches.noised import NoisedSketch
from fedsw.sketches.parts import Columns, DrawnPart

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Pairs:
    """One-hot codes of columns as they are, and the products of the codes of every two columns.

    With u_k the code of column k of K, shortened to norm 1 and without negative numbers, a record's vector holds
    sqrt(singles / K) u_k for every k and sqrt((1 - singles) / P) u_k x u_l for each of the P = K (K - 1) / 2 pairs: its
    norm is at most 1, and its mean over records is all one-way and two-way marginals. Its numbers are not negative,
    whatever a record holds, so two records' inner product is not either, and they are at most sqrt(2) apart.

    The vector is linear in every u_k. Rows of chances (softmax) therefore have the mean vector of the rows that are
    drawn from them, column by column: a generator of chances is trained on what it will write, without a gap.

    Attributes:
        ranges: of the features that are each column's code, (first, end).
        singles: part of the squared norm that single columns have; pairs have the rest. With one column all of it.
        weight: see `fedsw.sketches.parts.Part`.

    Raises:
        ValueError: if ranges are empty or overlap, or `singles` is not above 0 and at most 1.

    Sources: McKenna, Miklau, Sheldon 2021 (marginals of a table, noised); Liu, Vietri, Wu 2021 (GEM: a network whose
        outputs are products of chances).
    """

    ranges: Ranges
    singles: float = 0.2
    weight: float = 1.0

    def __post_init__(self) -> None:
        ends = [place for pair in self.ranges for place in pair]
        if not ends or ends != sorted(ends) or any(first >= end for first, end in self.ranges) or ends[0] < 0:
            raise ValueError(f"ranges are {list(self.ranges)}; give increasing ranges of columns without overlap")
        if not 0 < self.singles <= 1:
            raise ValueError(f"singles = {self.singles}; it lies above 0 and at most at 1")

    @property
    def columns(self) -> Columns:
        """The features of all codes."""
        return tuple(place for first, end in self.ranges for place in range(first, end))

    @property
    def least_product(self) -> float:
        """0: no number of a record's vector is negative."""
        return 0.0

    def built(self, features: int, stream: Stream) -> DrawnPart:
        """Codes (n, features) to vectors; nothing is drawn."""
        return PairsOfCodes(tuple(end - first for first, end in self.ranges), self.singles)


class PairsOfCodes(DrawnPart):
    """Codes (n, q) side by side to their singles and products, (n, coordinates), of norm at most 1.

    Args:
        sizes: codes of each column, with sum q.
        singles: see `Pairs`.

    Attributes:
        single, pair: what a code, and a product of two, is multiplied by.
        first, second: the codes of every product, by their places (coordinates - q,) among all.
    """

    def __init__(self, sizes: tuple[int, ...], singles: float) -> None:
        super().__init__()
        self.sizes = sizes
        count = len(sizes)
        single = singles if count > 1 else 1.0
        self.single = math.sqrt(single / count)
        self.pair = math.sqrt((1 - single) / max(1, count * (count - 1) // 2))
        column = torch.repeat_interleave(torch.arange(count), torch.tensor(sizes))
        first, second = torch.nonzero(column.unsqueeze(1) < column.unsqueeze(0), as_tuple=True)
        self.first: Tensor
        self.second: Tensor
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.coordinates = len(column) + len(first)

    def forward(self, rows: Tensor) -> Tensor:
        """The vectors (n, coordinates) of rows (n, q): singles, then products in the order of (first, second)."""
        codes = self._codes(rows)
        return torch.cat(
            [self.single * codes, self.pair * codes[:, self.first] * codes[:, self.second]],
            dim=1,
        )

    def summed(self, rows: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
        """Sums (cells, coordinates) and of squared norms (cells,), without making the vectors: matrix products."""
        codes = self._codes(rows)
        sums = []
        for chosen in members:
            own = codes * chosen.unsqueeze(1)
            products = own.T @ codes
            pairs = products[self.first, self.second]
            sums.append(torch.cat([self.single * own.sum(dim=0), self.pair * pairs]))
        squares = torch.stack([part.square().sum(dim=1) for part in torch.split(codes, list(self.sizes), dim=1)], dim=1)
        pairs_squared = (squares.sum(dim=1).square() - squares.square().sum(dim=1)) / 2
        norms = self.single**2 * squares.sum(dim=1) + self.pair**2 * pairs_squared
        return torch.stack(sums), members @ norms

    def _codes(self, rows: Tensor) -> Tensor:
        """Every column's code without negative numbers, in the ball of norm 1."""
        parts = []
        for part in torch.split(rows.clamp(min=0), list(self.sizes), dim=1):
            length = torch.linalg.vector_norm(part, dim=1, keepdim=True)
            parts.append(part / length.clamp(min=1))
        return torch.cat(parts, dim=1)


_APART = math.sqrt(2)
"""Two one-hot codes."""


def column_means(sketch: NoisedSketch) -> tuple[Means, ...]:
    """How often every code of every column is there, in a sketch whose only part is `Pairs`, of one-hot codes.

    A column's frequencies stand in the sketch once by themselves, and once with every other column, as the pairs with
    any of its codes; the noise of each is known and independent, and they are averaged with the inverse variances.

    Guarantee: post-processing of the release.

    Returns:
        For each column its frequencies (codes,), over all cells, with their noise.

    Raises:
        ValueError: if the sketch measures something else.
    """
    (part,) = sketch.law.parts if len(sketch.law.parts) == 1 else (None,)
    if not isinstance(part, Pairs):
        raise ValueError("the sketch measures no single columns: only those of a declared table (kind 'table') do")
    measured = PairsOfCodes(tuple(end - first for first, end in part.ranges), part.singles)
    sums, cells = sketch.blocks.sum(dim=0), sketch.law.cells
    codes = sum(measured.sizes)
    column = torch.repeat_interleave(torch.arange(len(measured.sizes)), torch.tensor(measured.sizes))
    means, precisions = torch.zeros(codes, dtype=torch.float64), torch.zeros(codes, dtype=torch.float64)
    means += measured.single * sums[:codes]
    precisions += measured.single**2
    if measured.pair > 0:
        sizes = torch.tensor(measured.sizes, dtype=torch.float64)
        for own, other in ((measured.first, measured.second), (measured.second, measured.first)):
            # A pair adds one noise to a column's code for every code of the other column.
            means.index_add_(0, own, measured.pair * sums[codes:] / sizes[column[other]])
        precisions += measured.pair**2 * (1 / sizes).sum() - measured.pair**2 / sizes[column]
    frequencies = means / precisions
    deviations = sketch.deviation * (cells / precisions).sqrt()
    return tuple(
        Means(frequencies[first:end], float(deviations[first]), sketch.records, _APART)
        for first, end in _ends(measured.sizes)
    )


def cell_means(sketch: NoisedSketch) -> tuple[Means, Means]:
    """How often every label (classes,), and every group (groups,), is there, by the sketch's counts of its cells.

    Guarantee: post-processing of the release.
    """
    law = sketch.law
    counted = (sketch.counts / sketch.records).reshape(law.classes, law.groups)
    deviation = sketch.deviation / math.sqrt(law.counts)
    return (
        _counted(counted.sum(dim=1), deviation * math.sqrt(law.groups), sketch.records),
        _counted(counted.sum(dim=0), deviation * math.sqrt(law.classes), sketch.records),
    )


def _counted(frequencies: Tensor, deviation: float, records: int) -> Means:
    return Means(frequencies, deviation, records, _APART)


def _ends(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    places = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    return list(zip(places[:-1], places[1:], strict=True))
