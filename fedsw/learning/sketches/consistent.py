"""Noised tables that agree: one-way and two-way counts of a sketch, made into laws with the same margins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.table_counts import Pair, pairs_measured

_ROUNDS = 4
"""Rounds that make margins right and numbers positive, in turn, before margins are fitted by factors."""
_FITTED = 30
"""Rounds of factors for rows and columns in turn."""


@dataclass(frozen=True, eq=False)
class Tables:
    """Laws of single columns and of pairs of them within every cell, all of them with the same margins.

    ``proportions`` are of the cells (cells,), ``singles`` of every column (cells, codes), with the proportions as sums,
    ``pairs`` of columns i < j (cells, codes of i, codes of j), with the singles as margins; ``deviations`` are those of
    the noise that was in every number of a pair.
    """

    proportions: Tensor
    singles: tuple[Tensor, ...]
    pairs: Mapping[Pair, Tensor]
    deviations: Mapping[Pair, float]


def consistent(*sketches: NoisedSketch) -> Tables:
    """Read the tables off sketches with `Pairs` as their only part, of the same columns, and make them agree.

    Whatever several tables say of one thing, how often a cell, a code or a pair is there, is averaged with the inverse
    variances of its noise: the weighted least squares of it. What a table says beyond is moved by least squares to
    that, and numbers that noise made negative are taken away by a projection onto the laws (a simplex); rows and
    columns are then multiplied by factors until margins are those of the singles.

    Guarantee: post-processing; it reads the released numbers and nothing else.

    The first sketch is of all columns. ValueError if one measures something else.

    Sources: Qardaji, Yang, Li 2014 (PriView: averages over what tables share); Duchi and others 2008 (projection);
        Deming, Stephan 1940 (factors).
    """
    read = [_PairsRead(sketch) for sketch in sketches]
    columns = range(len(read[0].spans))
    pairs = {
        (k, j): _averaged([tables.pair(k, j) for tables in read if tables.measures(k, j)])
        for k in columns
        for j in columns[k + 1 :]
        if any(tables.measures(k, j) for tables in read)
    }
    singles = [_averaged([*(said for tables in read for said in tables.of_column(k))]) for k in columns]
    counted = [tables.counted for tables in read]
    totals = [(law.sum(dim=1), variance * law.shape[1]) for law, variance in singles]
    proportions = projected(_averaged([*counted, *totals])[0].unsqueeze(0), torch.ones(1, dtype=torch.float64))[0]
    laws = tuple(projected(law, proportions) for law, _ in singles)
    return Tables(
        proportions,
        laws,
        {(k, j): with_margins(table, laws[k], laws[j]) for (k, j), (table, _) in pairs.items()},
        {pair: variance**0.5 for pair, (_, variance) in pairs.items()},
    )


_Said = tuple[Tensor, float]
"""Numbers read off a table, and the variance of the noise in each of them."""


class _PairsRead:
    def __init__(self, sketch: NoisedSketch) -> None:
        self.measured, blocks = pairs_measured(sketch).cpu(), sketch.blocks.cpu()
        codes, column = len(self.measured.column), self.measured.column
        self.spans = torch.split(torch.arange(codes), list(self.measured.sizes))
        self.variance = sketch.deviation**2
        self.alone = _over(blocks[:, :codes], self.measured.single[column])
        self.square = torch.zeros(len(blocks), codes, codes, dtype=torch.float64)
        values = _over(blocks[:, codes:], self.measured.weights[codes:])
        self.square[:, self.measured.first, self.measured.second] = values
        self.square[:, self.measured.second, self.measured.first] = values
        self.counted: _Said = (sketch.counts.cpu() / sketch.records, self.variance / sketch.law.counts)

    def measures(self, k: int, j: int) -> bool:
        return k != j and bool(self.measured.pair[k, j] > 0)

    def pair(self, k: int, j: int) -> _Said:
        variance = self.variance / float(self.measured.pair[k, j]) ** 2
        return self.square[:, self.spans[k]][:, :, self.spans[j]], variance

    def of_column(self, k: int) -> list[_Said]:
        """Return the frequencies of a column's codes by its own table, and by every pair with it."""
        said = []
        if bool(self.measured.single[k] > 0):
            said.append((self.alone[:, self.spans[k]], self.variance / float(self.measured.single[k]) ** 2))
        for j, other in enumerate(self.spans):
            if self.measures(k, j):
                table, variance = self.pair(k, j)
                said.append((table.sum(dim=2), variance * len(other)))
        return said


def with_margins(table: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The law (cells, a, b) near noised numbers (cells, a, b) that has the margins (cells, a) and (cells, b)."""
    shape, totals = table.shape, rows.sum(dim=1)
    for _ in range(_ROUNDS):
        table = table + ((rows - table.sum(dim=2)) / shape[2]).unsqueeze(2)
        table = table + ((columns - table.sum(dim=1)) / shape[1]).unsqueeze(1)
        table = projected(table.reshape(len(table), -1), totals).reshape(shape)
    for _ in range(_FITTED):
        table = table * _factor(rows, table.sum(dim=2)).unsqueeze(2)
        table = table * _factor(columns, table.sum(dim=1)).unsqueeze(1)
    # A row that noise emptied has no factor: what its margin lacks is spread as if columns were independent.
    lacking = (rows - table.sum(dim=2)).clamp(min=0)
    missing = (columns - table.sum(dim=1)).clamp(min=0)
    total = lacking.sum(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    return table + lacking.unsqueeze(2) * missing.unsqueeze(1) / total[:, None, None]


def projected(numbers: Tensor, totals: Tensor) -> Tensor:
    """The nearest rows (n, c) that are not negative and have sums (n,) of at least 0."""
    falling = numbers.sort(dim=1, descending=True).values
    over = (falling.cumsum(dim=1) - totals.unsqueeze(1)) / torch.arange(1, numbers.shape[1] + 1)
    last = ((falling > over).sum(dim=1, keepdim=True) - 1).clamp(min=0)
    return (numbers - over.gather(1, last)).clamp(min=0)


def _averaged(said: list[_Said]) -> _Said:
    """The mean of what several tables say, by inverse variances, and the mean's variance."""
    precisions = [1 / max(variance, torch.finfo(torch.float64).tiny) for _, variance in said]
    largest = max(precisions)
    parts = [precision / largest for precision in precisions]
    mean = torch.stack([part * numbers for part, (numbers, _) in zip(parts, said, strict=True)]).sum(dim=0)
    return mean / sum(parts), 1 / largest / sum(parts)


def _over(numbers: Tensor, weights: Tensor) -> Tensor:
    """Numbers (cells, m) over weights (m,), 0 if nothing was measured."""
    return numbers / torch.where(weights > 0, weights, torch.inf)


def _factor(wanted: Tensor, sums: Tensor) -> Tensor:
    return torch.where(sums > 0, wanted / sums.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
