"""The law of every single column, read off a released sketch of single columns and pairs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsw.transport.noised_sketches import NoisedSketch
from fedsw.transport.pairs import Pairs, PairsOfCodes
from fedsw.transport.sketch_drift import Means

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
