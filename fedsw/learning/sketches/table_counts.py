"""Sketches of tables: one-way and two-way counts of declared columns, and what is read off them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedsw.learning.sketches.drift import Means
from fedsw.learning.sketches.maps import Seen
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.table_parts import TablePart, TablesOfCodes

Pair = tuple[int, int]


Balance = Literal["equal", "size", "codes"]
Share = float | Literal["auto"]


@dataclass(frozen=True)
class Pairs(TablePart):
    """One-hot codes of columns as they are, and the products of the codes of every two columns.

    With u_k the code of column k, shortened to norm 1 and without negative numbers, a record's vector holds w_k u_k for
    every column and w_kl u_k x u_l for every two of them, the squares of all w adding up to 1: its norm is at most 1,
    and its mean over records is all one-way and two-way marginals. Its numbers are not negative, whatever a record
    holds, so two records' inner product is not either, and they are at most sqrt(2) apart.

    The vector is linear in every u_k. Rows of chances (softmax) therefore have the mean vector of the rows that are
    drawn from them, column by column: a generator of chances is trained on what it will write, without a gap.

    Attributes:
        ranges: of the features that are each column's code, (first, end), increasing and apart.
        singles: part of the squared norm that single columns have, above 0; pairs have the rest. With one column all of
            it. "auto" for what they have if one balance is struck over single columns and pairs together.
        balance: w of single columns among themselves, and of pairs: "equal", "size", proportional to c^(1/3) for a
            table of c numbers, or "codes", to c^(1/2). With singles = "auto", "size" makes the noise of all numbers
            together, sum_t c_t / w_t, least; "codes" lies between that and equal noise in all tables' total variation.
        chosen: pairs of columns i < j that have the whole squared norm, balanced; all other numbers are then 0. None
            for single columns and all pairs.
        among: only pairs of this column with all others are measured; None for all pairs.

    Sources: McKenna, Miklau, Sheldon 2021 (marginals of a table, noised); Zhang and others 2021, PrivSyn (noise of
        unequal tables); Liu, Vietri, Wu 2021 (GEM: a network with products of chances as outputs).
    """

    singles: Share = 0.2
    balance: Balance = "equal"
    chosen: tuple[Pair, ...] | None = None
    among: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.singles != "auto" and not 0 < self.singles <= 1:
            raise ValueError(f"singles = {self.singles}; it lies above 0 and at most at 1, or is 'auto'")
        if self.balance not in get_args(Balance):
            raise ValueError(f"balance is {self.balance!r}; choose one of {', '.join(get_args(Balance))}")
        if self.among is not None and (self.chosen is not None or not 0 <= self.among < len(self.ranges)):
            raise ValueError(f"among is {self.among}; name one of {len(self.ranges)} columns, and choose no pairs")
        if self.chosen is not None and not (self.chosen and all(0 <= i < j < len(self.ranges) for i, j in self.chosen)):
            raise ValueError(f"chosen pairs are {list(self.chosen)}; give pairs i < j of {len(self.ranges)} columns")

    @property
    def of_codes(self) -> PairsOfCodes:
        """The module that measures codes, in float64."""
        return PairsOfCodes(self.sizes, self.singles, self.balance, self.chosen, self.among)


def table_weights(
    sizes: Sequence[int],
    singles: Share,
    balance: Balance,
    chosen: Sequence[Pair] | None = None,
    column: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the factors of a code and of a product of two: (K,) and (K, K), symmetric, float64; see `Pairs`.

    Of a ``column``, products with it alone count. The squares of the first, and of the second above its diagonal, which
    is 0, have sum 1.
    """
    size = torch.tensor(sizes, dtype=torch.float64)
    both = size.unsqueeze(0) * size.unsqueeze(1)
    power = _POWERS[balance]
    one, two = size**power, (both**power).fill_diagonal_(0)
    if column is not None:
        others = torch.arange(len(sizes)) != column
        apart = others.unsqueeze(0) & others.unsqueeze(1)
        two = two.masked_fill(apart, 0.0)
    if chosen is not None:
        among = torch.zeros_like(two)
        for i, j in chosen:
            among[i, j] = among[j, i] = 1
        two = two * among
        return torch.zeros_like(one), (two / (two.sum() / 2)).sqrt()
    ones, twos = one.sum(), two.sum() / 2
    share = 1.0 if len(sizes) == 1 else float(ones / (ones + twos)) if singles == "auto" else singles
    return (share * one / ones).sqrt(), ((1 - share) * two / twos.clamp(min=1)).sqrt()


_POWERS: dict[Balance, float] = {"equal": 0.0, "size": 2 / 3, "codes": 1.0}
"""Exponent of a table's number of codes in its squared weight."""


class PairsOfCodes(TablesOfCodes):
    """Codes (n, q) side by side to their singles and products, (n, coordinates), of norm at most 1; see `Pairs`.

    A code of each column is multiplied by ``single`` (K,), a product of two by ``pair`` (K, K), a coordinate by its one
    of the ``weights``; the codes of every product are at the places ``first`` and ``second`` (coordinates - q,) among
    all, and ``column`` (q,) has the column of each code.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        singles: Share,
        balance: Balance = "equal",
        chosen: Sequence[Pair] | None = None,
        among: int | None = None,
    ) -> None:
        column = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        first, second = _products(column, among)
        single, pair = table_weights(sizes, singles, balance, chosen, among)
        super().__init__(sizes, torch.cat([single[column], pair[column[first], column[second]]]))
        self.first: Tensor
        self.second: Tensor
        self.column: Tensor
        self.single: Tensor
        self.pair: Tensor
        named = {"first": first, "second": second, "column": column, "single": single, "pair": pair}
        for name, numbers in named.items():
            self.register_buffer(name, numbers, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """The vectors (n, coordinates) of rows (n, q): singles, then products in the order of (first, second)."""
        codes = torch.cat(self.short_codes(rows), dim=1)
        return torch.cat([codes, codes[:, self.first] * codes[:, self.second]], dim=1) * self.weights

    def summed(self, rows: Tensor, members: Tensor, seen: Seen | None = None) -> tuple[Tensor, Tensor]:
        """Sums (cells, coordinates) and of squared norms (cells,), without making the vectors: matrix products."""
        codes = torch.cat(self.short_codes(rows), dim=1)
        sums = []
        for chosen in members:
            codes_in_cell = codes * chosen.unsqueeze(1)
            products = codes_in_cell.T @ codes
            sums.append(torch.cat([codes_in_cell.sum(dim=0), products[self.first, self.second]]) * self.weights)
        squares = torch.stack([part.square().sum(dim=1) for part in torch.split(codes, list(self.sizes), dim=1)], dim=1)
        norms = squares @ self.single.square() + (squares @ self.pair.square() * squares).sum(dim=1) / 2
        return torch.stack(sums), members @ norms

    def counts(self, codes: list[np.ndarray], where: np.ndarray, cells: int) -> np.ndarray:
        """As `TablesOfCodes.counts`; of pairs without a weight, 0."""
        starts = np.concatenate([[0], np.cumsum(self.sizes)])
        alone, together = np.zeros((cells, starts[-1])), np.zeros((cells, starts[-1], starts[-1]))
        for one, size in enumerate(self.sizes):
            rows, joint = slice(starts[one], starts[one + 1]), where * size + codes[one]
            alone[:, rows] = np.bincount(joint, minlength=cells * size).reshape(cells, size)
            for other in np.flatnonzero(self.pair[one].cpu().numpy() > 0):
                if other > one:
                    shape = (cells, size, self.sizes[other])
                    counts = np.bincount(joint * shape[2] + codes[other], minlength=math.prod(shape))
                    together[:, rows, starts[other] : starts[other + 1]] = counts.reshape(shape)
        return np.concatenate([alone, together[:, self.first.cpu().numpy(), self.second.cpu().numpy()]], axis=1)


def _products(column: Tensor, among: int | None) -> tuple[Tensor, Tensor]:
    """The places (m,) of the two codes of every product, the first column's before the second's."""
    if among is None:
        first, second = torch.nonzero(column.unsqueeze(1) < column.unsqueeze(0), as_tuple=True)
        return first, second
    of_column, others = torch.nonzero(column == among).squeeze(1), torch.nonzero(column != among).squeeze(1)
    one, other = of_column.repeat_interleave(len(others)), others.repeat(len(of_column))
    return torch.minimum(one, other), torch.maximum(one, other)


_APART = math.sqrt(2)
"""Two one-hot codes."""


def column_means(sketch: NoisedSketch) -> tuple[Means, ...]:
    """How often every code of every column is there, in a sketch with `Pairs` as its only part, of one-hot codes.

    A column's frequencies stand in the sketch once by themselves, and once with every other column, as the pairs with
    any of its codes; the noise of each is known and independent, and they are averaged with the inverse variances.

    Guarantee: post-processing of the release.

    Of each column come its frequencies (codes,), over all cells, with their noise. ValueError if the sketch measures
    something else.
    """
    measured, sums = pairs_measured(sketch), sketch.blocks.sum(dim=0)
    size = torch.tensor(measured.sizes, dtype=torch.float64)
    codes, cells, column = len(measured.column), sketch.law.cells, measured.column
    means = measured.single[column] * sums[:codes]
    weighed = measured.weights[codes:] * sums[codes:]
    for codes_of_one, other in ((measured.first, measured.second), (measured.second, measured.first)):
        # A pair adds one noise to a column's code for every code of the other column.
        means.index_add_(0, codes_of_one, weighed / size[column[other]])
    precisions = (measured.single.square() + measured.pair.square() @ (1 / size))[column]
    frequencies = means / precisions
    deviations = sketch.deviation * (cells / precisions).sqrt()
    return tuple(
        Means(of_column, float(deviation[0]), sketch.records, _APART)
        for of_column, deviation in zip(
            torch.split(frequencies, list(measured.sizes)), torch.split(deviations, list(measured.sizes)), strict=True
        )
    )


def pairs_measured(sketch: NoisedSketch) -> PairsOfCodes:
    """Return the module of a sketch with `Pairs` as its only part, in float64, on its device; else ValueError."""
    (part,) = sketch.law.parts if len(sketch.law.parts) == 1 else (None,)
    if not isinstance(part, Pairs):
        raise ValueError("the sketch measures no single columns: only those of a declared table (kind 'table') do")
    return part.of_codes.to(sketch.value.device)


def cell_means(sketch: NoisedSketch) -> tuple[Means, Means]:
    """How often every label (classes,), and every group (groups,), is there, by the sketch's counts of its cells.

    Guarantee: post-processing of the release.
    """
    law = sketch.law
    counted = (sketch.counts / sketch.records).reshape(law.classes, law.groups)
    deviation = sketch.deviation / math.sqrt(law.counts)
    return (
        Means(counted.sum(dim=1), deviation * math.sqrt(law.groups), sketch.records, _APART),
        Means(counted.sum(dim=0), deviation * math.sqrt(law.classes), sketch.records, _APART),
    )


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
