"""Parts of sketches that are tables of columns' codes: of two columns, and of three, with how these are chosen."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.learning.models.labelled import TableGenerator
from fedsw.learning.sketches.maps import Seen
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.parts import Columns, DrawnPart
from fedsw.learning.sketches.sketch_law import MOST_RECORDS, STEP, Sketcher, count_steps

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TablePart(ABC):
    """A part of a sketch that reads columns' codes, and makes products of them.

    Each code is shortened to norm 1 first, and its negative numbers count as 0: no number of a record's vector is
    negative, whatever a record holds, so two records' inner product is not either, and they are at most sqrt(2) apart.

    The ``ranges`` are those of the features that are each column's code, (first, end). ValueError unless they increase
    and are apart.
    """

    ranges: Ranges
    least_product = 0.0  # no number of a record's vector is negative

    def __post_init__(self) -> None:
        ends = [edge for pair in self.ranges for edge in pair]
        if not ends or ends != sorted(ends) or any(first >= end for first, end in self.ranges) or ends[0] < 0:
            raise ValueError(f"ranges are {list(self.ranges)}; give increasing ranges of columns without overlap")

    @property
    def columns(self) -> Columns:
        """The features of all codes."""
        return tuple(column for first, end in self.ranges for column in range(first, end))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of every column."""
        return tuple(end - first for first, end in self.ranges)

    @property
    @abstractmethod
    def of_codes(self) -> TablesOfCodes:
        """The module that measures codes, in float64."""

    def built(self, features: int, stream: Stream) -> DrawnPart:
        """Codes (n, features) to vectors; nothing is drawn."""
        return self.of_codes


class TablesOfCodes(DrawnPart, ABC):
    """Codes (n, q) side by side to the numbers of their tables, (n, coordinates), of norm at most 1; see `TablePart`.

    ``sizes`` are the numbers of codes by column; a coordinate is multiplied by its number of the ``weights``.
    """

    def __init__(self, sizes: tuple[int, ...], weights: Tensor) -> None:
        super().__init__()
        self.sizes = sizes
        self.weights: Tensor
        self.register_buffer("weights", weights, persistent=False)
        self.coordinates = len(weights)

    @property
    def measured(self) -> int:
        """Numbers of the tables that have a weight."""
        return int((self.weights > 0).sum())

    @abstractmethod
    def counts(self, codes: list[np.ndarray], where: np.ndarray, cells: int) -> np.ndarray:
        """Records with each coordinate's codes, (cells, coordinates) float64; 0 suffices at weight 0.

        Records have codes (n,) int64 of every column, and are in the cells ``where`` (n,).
        """

    def short_codes(self, rows: Tensor) -> list[Tensor]:
        """Every column's code (n, codes) of rows (n, q), without negative numbers, in the ball of norm 1."""
        parts = []
        for part in torch.split(rows.clamp(min=0), list(self.sizes), dim=1):
            length = torch.linalg.vector_norm(part, dim=1, keepdim=True)
            parts.append(part / length.clamp(min=1))
        return parts


def sums_of_codes(sketcher: Sketcher, codes: Tensor, cells: Tensor) -> Tensor | None:
    """`Sketcher.sums` of one-hot rows of codes (n, K) int64, to the last bit, without these rows; WITHOUT NOISE.

    A record adds one public number of steps to a coordinate wherever it has its codes, and 0 elsewhere: the sum is how
    many have them, times that, in float64 without rounding. It leaves as a `Bounded` only.

    The result is (cells, F + 1), float64, on the host. None if the law has another part than one `TablePart` of all
    columns, or records are none or too many.
    """
    law, (part, *others) = sketcher.law, sketcher.parts
    whole = law.parts[0].columns == tuple(range(law.features))
    if others or not isinstance(part, TablesOfCodes) or not whole or not 1 <= len(codes) <= MOST_RECORDS:
        return None
    where = cells.clamp(0, law.cells - 1).cpu().numpy()
    counts = part.counts([np.ascontiguousarray(of_column) for of_column in codes.cpu().numpy().T], where, law.cells)
    steps = ((math.sqrt(law.weights[0]) * part.weights).nan_to_num(0.0, 0.0, 0.0) / STEP).round().to(torch.float64)
    of_cells = torch.from_numpy(np.bincount(where, minlength=law.cells).astype(np.float64))
    counted = torch.from_numpy(counts) * steps.cpu()
    return torch.cat([counted, (of_cells * count_steps(law)).unsqueeze(1)], dim=1) * STEP


Triple = tuple[int, int, int]

MOST_CODES = 1000
"""Most numbers of one table of three columns in a cell: of more, noise leaves little."""
MOST_COLUMNS = 128
_POWER = 2 / 3
"""Exponent of a table's numbers in its squared weight, as `Pairs` has it with balance "size"."""


@dataclass(frozen=True)
class Triples(TablePart):
    """Products of the codes of three columns, of some triples of them.

    With u_k the code of column k, shortened to norm 1 and without negative numbers, a record's vector holds
    w_t u_i x u_j x u_k for every chosen triple t = (i, j, k), squares of w proportional to c^(2/3) for a table of c
    numbers, and adding up to 1: its norm is at most 1. No number is negative, whatever a record holds, so two records'
    inner product is not either, and they are at most sqrt(2) apart.

    Ranges are those of each column's code, (first, end), increasing and apart. ValueError if there is no triple, one is
    not i < j < k of the columns, or one comes twice.
    """

    chosen: tuple[Triple, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        many, once = len(self.ranges), len(set(self.chosen)) == len(self.chosen)
        if not (self.chosen and once and all(0 <= i < j < k < many for i, j, k in self.chosen)):
            raise ValueError(f"chosen triples are {list(self.chosen)}; give each i < j < k of {many} columns once")

    @property
    def of_codes(self) -> TriplesOfCodes:
        """The module that measures codes, in float64."""
        return TriplesOfCodes(self.sizes, self.chosen)


class TriplesOfCodes(TablesOfCodes):
    """Codes (n, q) side by side to products of three, (n, coordinates), of norm at most 1; see `Triples`.

    Tables stand in the order of the triples, each row by row; a coordinate is multiplied by its one of the ``weights``,
    a table by its one of ``factors`` (triples,).
    """

    def __init__(self, sizes: tuple[int, ...], chosen: Sequence[Triple]) -> None:
        chosen = tuple(chosen)
        shapes = [(sizes[i], sizes[j], sizes[k]) for i, j, k in chosen]
        numbers = torch.tensor([math.prod(shape) for shape in shapes])
        shares = numbers.to(torch.float64) ** _POWER
        factors = (shares / shares.sum()).sqrt()
        super().__init__(sizes, factors.repeat_interleave(numbers))
        self.chosen, self.shapes = chosen, shapes
        self.factors: Tensor
        self.register_buffer("factors", factors, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """The vectors (n, coordinates) of rows (n, q)."""
        codes = self.short_codes(rows)
        tables = [
            (codes[i][:, :, None, None] * codes[j][:, None, :, None] * codes[k][:, None, None, :]).flatten(1)
            for i, j, k in self.chosen
        ]
        return torch.cat(tables, dim=1) * self.weights

    def summed(self, rows: Tensor, members: Tensor, seen: Seen | None = None) -> tuple[Tensor, Tensor]:
        """Sums (cells, coordinates) and of squared norms (cells,), without making the vectors: matrix products."""
        codes = self.short_codes(rows)
        sums = [self._products([code * chosen.unsqueeze(1) for code in codes], codes) for chosen in members]
        norms = torch.stack([code.square().sum(dim=1) for code in codes], dim=1)
        shares = zip(self.factors.square(), self.chosen, strict=True)
        squares = [share * norms[:, list(triple)].prod(dim=1) for share, triple in shares]
        return torch.stack(sums) * self.weights, members @ torch.stack(squares).sum(dim=0)

    def counts(self, codes: list[np.ndarray], where: np.ndarray, cells: int) -> np.ndarray:
        """As `TablesOfCodes.counts`."""
        counted = []
        for (i, j, k), shape in zip(self.chosen, self.shapes, strict=True):
            joint = ((where * shape[0] + codes[i]) * shape[1] + codes[j]) * shape[2] + codes[k]
            counted.append(np.bincount(joint, minlength=cells * math.prod(shape)).reshape(cells, -1))
        return np.concatenate(counted, axis=1).astype(np.float64)

    def law(self, chances: Tensor) -> Tensor:
        """Tables (cells, coordinates), unweighed, of the law that picks rows of chances (cells, R, q) evenly."""
        of_cells = [torch.split(rows, list(self.sizes), dim=1) for rows in chances]
        return torch.stack([self._products(codes, codes) for codes in of_cells]) / chances.shape[1]

    def _products(self, weighed: Sequence[Tensor], codes: Sequence[Tensor]) -> Tensor:
        tables = []
        for i, j, k in self.chosen:
            both = (weighed[i].unsqueeze(2) * codes[j].unsqueeze(1)).flatten(1)
            tables.append((both.T @ codes[k]).flatten())
        return torch.cat(tables)


class TriplesOf:
    """A sketch's tables of three columns, on the processor."""

    def __init__(self, sketch: NoisedSketch) -> None:
        (part,) = sketch.law.parts
        assert isinstance(part, Triples)
        self.measured, self.blocks = part.of_codes, sketch.blocks.cpu()
        self.proportions = sketch.proportions.cpu().to(torch.float64)
        self.noise = sketch.deviation**2 * sketch.coordinates * len(self.blocks)

    def distance(self, chances: Tensor, proportions: Tensor) -> Tensor:
        """The squared distance, noise taken off, of the law that picks rows of chances (cells, R, q) evenly.

        Cells have proportions (cells,): those of the first stage, which counts them better.
        """
        made = self.measured.law(chances) * proportions.unsqueeze(1) * self.measured.weights
        return (self.blocks - made).square().sum() - self.noise


def triples_within(sizes: Sequence[int]) -> tuple[Triple, ...]:
    """All triples of columns, of these ``sizes``, with a table of at most `MOST_CODES` numbers in a cell."""
    every = itertools.combinations(range(len(sizes)), 3)
    return tuple((i, j, k) for i, j, k in every if sizes[i] * sizes[j] * sizes[k] <= MOST_CODES)


def next_triples(network: TableGenerator, count: int) -> tuple[Triple, ...]:
    """Triples with the most information on a record's cell under the network's law of rows, up to a number.

    Guarantee: post-processing; rows of chances (cells, R, q) were moved to released sketches, and nothing else is read.
    """
    sizes = [end - first for first, end in network.codes]
    rows, proportions = network.rows.cpu().to(torch.float64), network.proportions.cpu().to(torch.float64)
    information = {}
    for triple in triples_within(sizes):
        law = TriplesOfCodes(tuple(sizes), [triple]).law(rows) * proportions.unsqueeze(1)
        apart = law.sum(dim=0) * law.sum(dim=1, keepdim=True)
        information[triple] = float(torch.where(law > 0, law * (law / apart).log(), 0.0).sum())
    return tuple(sorted(sorted(information, key=lambda triple: -information[triple])[:count]))
