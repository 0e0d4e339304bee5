"""Noised tables that agree: one-way and two-way counts of a sketch, made into laws with the same margins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw.sketches.noised import NoisedSketch
from fedsw.sketches.tables import PairsOfCodes, pairs_measured

_ROUNDS = 4
"""Of making margins right and numbers positive, one after the other, before margins are fitted by factors."""
_FITTED = 30
"""Of factors for rows and columns by turns."""

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Tables:
    """Laws of single columns and of pairs of them within every cell, all of them with the same margins.

    Attributes:
        proportions: of the cells (cells,).
        singles: of every column, (cells, codes), with the proportions as sums.
        pairs: of columns i < j, (cells, codes of i, codes of j), with the singles as margins.
        deviations: of the noise that was in every number of a pair.
    """

    proportions: Tensor
    singles: tuple[Tensor, ...]
    pairs: Mapping[Pair, Tensor]
    deviations: Mapping[Pair, float]


def consistent(sketch: NoisedSketch) -> Tables:
    """Read the tables off a sketch whose only part is `Pairs`, and make them agree.

    Whatever several tables say of one thing, how often a cell or a code is there, is averaged with the inverse
    variances of its noise: the weighted least squares of it. What a table says beyond is moved by least squares to
    that, and numbers that noise made negative are taken away by a projection onto the laws (a simplex); rows and
    columns are then multiplied by factors until margins are those of the singles.

    Guarantee: post-processing; it reads the released numbers and nothing else.

    Raises:
        ValueError: if the sketch measures something else.

    Sources: Qardaji, Yang, Li 2014 (PriView: averages over what tables share); Duchi and others 2008 (projection);
        Deming, Stephan 1940 (factors).
    """
    measured, read = pairs_measured(sketch).cpu(), sketch.blocks.cpu()
    codes, deviation = len(measured.column), sketch.deviation
    spans = torch.split(torch.arange(codes), list(measured.sizes))
    square = _square(measured, read)
    own = read[:, :codes] / measured.single[measured.column]
    noise = torch.where(measured.pair > 0, (deviation / measured.pair.clamp(min=1e-300)) ** 2, torch.inf)
    alone = (deviation / measured.single) ** 2
    singles = [
        _averaged(
            [(own[:, span], float(alone[k]), 1)]
            + [
                (square[:, span][:, :, other].sum(dim=2), float(noise[k, j]), len(other))
                for j, other in enumerate(spans)
                if j != k and bool(measured.pair[k, j] > 0)
            ]
        )
        for k, span in enumerate(spans)
    ]
    counted = (sketch.counts.cpu() / sketch.records, deviation**2 / sketch.law.counts, 1)
    totals = [(law.sum(dim=1), variance, law.shape[1]) for law, variance in singles]
    proportions = projected(_averaged([counted, *totals])[0].unsqueeze(0), torch.ones(1, dtype=torch.float64))[0]
    laws = tuple(projected(law, proportions) for law, _ in singles)
    pairs, deviations = {}, {}
    for k, span in enumerate(spans):
        for j in range(k + 1, len(spans)):
            if measured.pair[k, j] > 0:
                pairs[k, j] = with_margins(square[:, span][:, :, spans[j]], laws[k], laws[j])
                deviations[k, j] = float(noise[k, j]) ** 0.5
    return Tables(proportions, laws, pairs, deviations)


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


def _averaged(said: list[tuple[Tensor, float, int]]) -> tuple[Tensor, float]:
    """The mean of what several tables say, each the sum of so many numbers of a variance, and the mean's variance."""
    precisions = [1 / max(variance * count, torch.finfo(torch.float64).tiny) for _, variance, count in said]
    largest = max(precisions)
    parts = [precision / largest for precision in precisions]
    mean = torch.stack([part * numbers for part, (numbers, _, _) in zip(parts, said, strict=True)]).sum(dim=0)
    return mean / sum(parts), 1 / (largest * sum(parts))


def _square(measured: PairsOfCodes, read: Tensor) -> Tensor:
    """How often every two codes are there together, (cells, q, q), of the released numbers (cells, F)."""
    codes = len(measured.column)
    square = torch.zeros(len(read), codes, codes, dtype=torch.float64)
    weights = measured.weights[codes:]
    values = read[:, codes:] / torch.where(weights > 0, weights, torch.inf)
    square[:, measured.first, measured.second] = values
    square[:, measured.second, measured.first] = values
    return square


def _factor(wanted: Tensor, there: Tensor) -> Tensor:
    return torch.where(there > 0, wanted / there.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
