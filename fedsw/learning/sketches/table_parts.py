"""Parts of sketches that are tables of columns' codes: what those of two columns and of three have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
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

    Columns have so many codes as the ``sizes`` say; a coordinate is multiplied by its one of the ``weights``.
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
