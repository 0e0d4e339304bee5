"""Sketches: a vector of norm 1 for every record, placed in the block of its label, and their exact sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from fedsw._tools.randomness import Stream
from fedsw._tools.subnormal import flushing_to_zero
from fedsw.data import within_reach
from fedsw.learning.models.initial import require_positive
from fedsw.learning.sketches.maps import Seen
from fedsw.learning.sketches.parts import DrawnPart, PartOfSketch, Waves
from fedsw.mathematics.clipping import kept

STEP = 2.0**-26
"""Step of the sums, which are whole multiples of it: exact, in any order, up to MOST_RECORDS."""

MOST_RECORDS = 2**26
MOST_COORDINATES = 2**24
"""Most coordinates of a record's vector: rounding each to a whole multiple moves it by at most 2^-15."""

MOST_COUNTS = 4.0
"""With it sums of counts are exact, too."""

_CHUNK_NUMBERS = 2**23  # coordinates of some records at a time


@dataclass(frozen=True)
class Law:
    """Description of a sketch's measurement, public and fixed before any record is read.

    A record (x, label, group) contributes the vector (phi(x), sqrt(counts)) to the block of its cell, label * groups +
    group; phi(x) holds the parts one after the other, each times the root of its weight over the sum of weights, so
    its norm is at most 1. The last coordinate counts the records of every cell.

    Records have p ``features``, and ``classes`` and ``groups`` are 1 where there are none; up to 1 the ``counts`` are
    free (`noised.sketch_sensitivity`); the ``seed`` is that of the public frequencies. ValueError if a
    number is out of range, or a part reads a column that is not there.
    """

    features: int
    parts: tuple[PartOfSketch, ...]
    classes: int = 1
    groups: int = 1
    counts: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(features=self.features, classes=self.classes, groups=self.groups)
        if not 0 < self.counts <= MOST_COUNTS:
            raise ValueError(f"counts = {self.counts}; it lies above 0 and at most at {MOST_COUNTS:g}")
        if not self.parts:
            raise ValueError("a sketch measures nothing: give at least one part")
        for part in self.parts:
            if not 0 < part.weight < math.inf:
                raise ValueError(f"a part's weight is {part.weight}; it must be positive and finite")
            columns = part.columns
            if columns is not None and not (columns and all(0 <= column < self.features for column in columns)):
                raise ValueError(f"a part reads columns {columns}; records have columns 0 .. {self.features - 1}")

    @property
    def cells(self) -> int:
        """Number of blocks: one for each label and group."""
        return self.classes * self.groups

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights of the parts, with sum 1."""
        total = sum(part.weight for part in self.parts)
        return tuple(part.weight / total for part in self.parts)

    def cell_of(self, labels: Tensor, groups: Tensor) -> Tensor:
        """The cell (n,) of every record, from labels (n,) and groups (n,), int64.

        ValueError for a label or a group that the law does not have: it would count in another one's cell.
        """
        within_reach(labels, self.classes, "the label", "the law", "classes=")
        within_reach(groups, self.groups, "the group", "the law", "groups=")
        return labels * self.groups + groups

    def drawn(self, dtype: torch.dtype = torch.float32) -> Sketcher:
        """The law with its public numbers drawn, in the precision of the records, on the CPU (`.to` moves it).

        The same seed gives the same numbers, up to the last bits that a machine's libraries decide. They are drawn in
        float64 whatever the precision.

        ValueError if a part does not fit the features, a record's vector is too long, or the precision is neither
        float32 nor float64.
        """
        return Sketcher(self, dtype)


class DrawnParts(nn.Module):
    """The parts of a law, all of it or at some of their coordinates, with their public numbers."""

    def __init__(self, law: Law, parts: Sequence[DrawnPart]) -> None:
        super().__init__()
        self.law, self.parts = law, nn.ModuleList(parts)

    def _measured(self) -> Iterator[DrawnPart]:
        return (cast(DrawnPart, part) for part in self.parts)

    def forward(self, features: Tensor) -> Tensor:
        """phi of every row: features (n, p) to vectors (n, F) of norm at most 1, up to rounding. Differentiable."""
        pairs = zip(self._measured(), self.law.parts, self.law.weights, strict=True)
        vectors = [math.sqrt(weight) * drawn(_columns(features, part)) for drawn, part, weight in pairs]
        return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)

    def by_cell(self, features: Tensor, cells: Tensor) -> BatchSums:
        """Sums over generated rows (m, p) in cells (m,) int64, for a distance; differentiable. Not for records."""
        law, members, seen = self.law, members_of(cells, self.law.cells).to(features), Seen()
        sums, squares = [], torch.zeros(law.cells, dtype=features.dtype, device=features.device)
        for drawn, part, weight in zip(self._measured(), law.parts, law.weights, strict=True):
            same = seen if part.columns is None else None
            total, norms = drawn.summed(_columns(features, part), members, same)
            sums.append(math.sqrt(weight) * total)
            squares = squares + weight * norms
        return BatchSums(sums[0] if len(sums) == 1 else torch.cat(sums, dim=1), squares, members.sum(dim=1))


class Sketcher(DrawnParts):
    """A law with its public numbers: the vectors of records, of F ``coordinates``, and their sum."""

    def __init__(self, law: Law, dtype: torch.dtype = torch.float32) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"a sketch in {dtype}; its bound is for torch.float32 and torch.float64")
        built = []
        for index, part in enumerate(law.parts):
            width = law.features if part.columns is None else len(part.columns)
            built.append(part.built(width, Stream.seeded(law.seed, "sketch frequencies", index)))
        super().__init__(law, built)
        self.coordinates = sum(part.coordinates for part in self._measured())
        if self.coordinates > MOST_COORDINATES:
            raise ValueError(
                f"a record's vector has {self.coordinates} coordinates; at most {MOST_COORDINATES} are summed. "
                "Take fewer frequencies"
            )
        self.to(dtype).eval()

    @property
    def measured(self) -> tuple[int, ...]:
        """Length of each part of a record's vector, but for numbers that it leaves at 0."""
        return tuple(part.measured for part in self._measured())

    @flushing_to_zero
    def sums(self, features: Tensor, cells: Tensor, *, chunk: int = 0) -> Tensor:
        """Sum (cells, F + 1) of the records' vectors by cell, float64, WITHOUT NOISE; it leaves as a `Bounded` only.

        Every coordinate of every record is rounded to a whole multiple of STEP before it is added: the sum is then
        exact, and does not depend on the order. Coordinates that are not finite, because a feature is not or a map
        overflows, count as 0, and a cell that does not exist as the nearest one; nothing branches or raises on a value.
        Maps are in evaluation mode, where every record is treated by itself, and autocast is off. The last column is
        the count times the root of `law.counts`, rounded likewise.

        Features (n, p) are of the sketcher's precision, on its device, where the sum is; cells (n,) int64. So many
        records are measured at a time as `chunk` says; 0 chooses. ValueError if shapes or precision do not fit, or
        there are more than MOST_RECORDS records.
        """
        _require_records(features, cells, self.law)
        self._require_precision(features)
        self.eval()
        size = chunk or chunk_of(self.coordinates)
        blocks = torch.arange(self.law.cells, device=features.device)
        total = torch.zeros((self.law.cells, self.coordinates + 1), dtype=torch.float64, device=features.device)
        with kept(self) as state:
            for start in range(0, len(features), size):
                rows = features[start : start + size].detach()
                members = (cells[start : start + size].clamp(0, self.law.cells - 1).unsqueeze(1) == blocks).to(
                    torch.float64
                )
                with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
                    steps = (self(rows).nan_to_num(0.0, 0.0, 0.0) / STEP).round().to(torch.float64)
                state.put_back()
                total[:, :-1] += members.T @ steps
                total[:, -1] += members.sum(dim=0) * count_steps(self.law)
        return total * STEP

    def some(self, fraction: float, generator: torch.Generator) -> tuple[DrawnParts, Tensor, Tensor]:
        """The law on a fraction of the frequencies of every part, drawn at random, of at least one each.

        Squared distances have those of the whole as their mean. With the module come its places (m,) among the
        coordinates, and what coordinates of the whole are multiplied by there, (m,). The generator is public
        randomness.
        """
        taken, places, factors, start = [], [], [], 0
        for part in self._measured():
            module, indices, factor = part.some(fraction, generator)
            taken.append(module)
            places.append(indices + start)
            factors.append(torch.full((len(indices),), factor, dtype=torch.float64))
            start += part.coordinates
        return DrawnParts(self.law, taken), torch.cat(places), torch.cat(factors)

    def _require_precision(self, features: Tensor) -> None:
        for part in self.parts:
            if isinstance(part, Waves) and (part.turns.dtype, part.turns.device) != (features.dtype, features.device):
                raise ValueError(
                    f"features are {features.dtype} on {features.device}, the frequencies {part.turns.dtype} on "
                    f"{part.turns.device}: draw them as law.drawn({features.dtype}).to({str(features.device)!r})"
                )


@dataclass(frozen=True, eq=False)
class BatchSums:
    """Sums over a batch of generated rows that a distance is computed from.

    By cell: ``sums`` of the vectors (cells, F), ``squares``, sums of their squared norms (cells,), and ``counts`` of
    rows (cells,).
    """

    sums: Tensor
    squares: Tensor
    counts: Tensor


def members_of(cells: Tensor, count: int) -> Tensor:
    """Which rows are in which cell, (count, m) bool, of cells (m,)."""
    return cells.unsqueeze(0) == torch.arange(count, device=cells.device).unsqueeze(1)


def chunk_of(coordinates: int) -> int:
    """How many records are measured at a time: an array of their coordinates has about 8 million numbers."""
    return max(1, _CHUNK_NUMBERS // coordinates)


def count_steps(law: Law) -> int:
    """Return the number that a record adds to its cell's count, in steps of STEP."""
    return round(math.sqrt(law.counts) / STEP)


def _columns(features: Tensor, part: PartOfSketch) -> Tensor:
    return features if part.columns is None else features[:, list(part.columns)]


def _require_records(features: Tensor, cells: Tensor, law: Law) -> None:
    if features.ndim != 2 or features.shape[1] != law.features or cells.shape != features.shape[:1]:
        raise ValueError(
            f"features have shape {tuple(features.shape)} and cells {tuple(cells.shape)}; the law is for "
            f"(n, {law.features}) and (n,)"
        )
    if not 1 <= len(features) <= MOST_RECORDS:
        raise ValueError(
            f"{len(features)} records are to be summed; sums are exact for 1 to {MOST_RECORDS}. Split them into "
            "several sketches"
        )
