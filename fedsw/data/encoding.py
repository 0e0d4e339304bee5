"""From cells of text and numbers to records, as declared columns say; nothing is estimated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw.columns import Columns, Feature, Group, Label, Number, as_text
from fedsw.data.formats import BadRecords, Cells, Chunk
from fedsw.data.records import Records

MAX_VALUES = 2**28
"""Most numbers that records may become, 1 GiB of them: records times inputs."""

_LARGEST = float(np.finfo(np.float32).max)
_MOST_SHOWN = 60

_Fault = tuple[int, str]
"""Place in a chunk, and what is wrong there."""


def encoded(
    chunks: Iterable[Chunk], columns: Columns, *, where: str, counted: str, first_id: int = 0, step: int = 1
) -> Records:
    """Records of chunks of cells, every cell checked against what is declared.

    Numbers with declared bounds are mapped to [0, 1] or [-1, 1], categories become one-hot inputs, in the declared
    order. A cell that does not fit is refused, not clipped or filled in: what would replace it is a decision about
    private data that its owner takes before training.

    Args:
        where: what holds the cells; opens every message.
        counted: how rows are counted there, for messages: "the header is row 1".
        first_id, step: ids of the records are first_id, first_id + step, ...; different clients' must differ.

    Returns:
        Features (n, columns.inputs) float32, groups and classes (n,) int64, or targets (n, t) float32.

    Raises:
        BadRecords: naming the row and column of the first fault, its value and the limit.
    """
    features: list[NDArray[np.float32]] = []
    groups: list[NDArray[np.int64]] = []
    targets: list[NDArray[Any]] = []
    count = 0
    for chunk in chunks:
        encoder = _Encoder(chunk)
        features.append(encoder.features(columns.features))
        groups.append(encoder.group(columns.sensitive))
        targets.append(encoder.numbers(columns.targets) if columns.targets else encoder.label(columns.target))
        if encoder.fault is not None:
            place, reason = encoder.fault
            raise BadRecords(f"{where}: row {chunk.first_row + place} ({counted}), {reason}")
        count += encoder.rows
        if count * columns.inputs > MAX_VALUES:
            raise BadRecords(
                f"{where} has more than {MAX_VALUES // columns.inputs} records of {columns.inputs} inputs, the most "
                "that are kept in memory (1 GiB); give this node a part of them"
            )
    if not count:
        raise BadRecords(f"{where} holds no records; a client takes part with at least one")
    return Records(
        torch.from_numpy(np.concatenate(features)),
        torch.from_numpy(np.concatenate(groups)),
        torch.from_numpy(np.concatenate(targets)),
        torch.arange(count) * step + first_id,
    )


class _Encoder:
    """Numbers from the cells of a chunk; `fault` is the first one in the order of rows, then of columns."""

    def __init__(self, chunk: Chunk) -> None:
        self._cells = chunk.cells
        self.rows = len(next(iter(chunk.cells.values())))
        self.fault: _Fault | None = None

    def features(self, features: tuple[Feature, ...]) -> NDArray[np.float32]:
        """All inputs (rows, inputs)."""
        encoded = np.zeros((self.rows, sum(feature.inputs for feature in features)), dtype=np.float32)
        start = 0
        for feature in features:
            if feature.categories:
                chosen = self._declared(feature.name, feature.categories)
                encoded[np.arange(self.rows), start + chosen] = 1.0
            else:
                for offset, column in enumerate(feature.columns):
                    encoded[:, start + offset] = self._numeric(column, feature)
            start += feature.inputs
        return encoded

    def numbers(self, numbers: tuple[Number, ...]) -> NDArray[np.float32]:
        """Numeric targets (rows, t)."""
        return np.stack([self._numeric(number.name, number) for number in numbers], axis=1).astype(np.float32)

    def label(self, label: Label | None) -> NDArray[np.int64]:
        """Positions of the values among those declared (rows,); 0 where no column is."""
        return np.zeros(self.rows, dtype=np.int64) if label is None else self._declared(label.name, label.values)

    def group(self, group: Group | None) -> NDArray[np.int64]:
        """Numbers of the groups (rows,); 0 where no column is."""
        if group is None:
            return np.zeros(self.rows, dtype=np.int64)
        if group.values:
            return self._declared(group.name, group.values)
        within = self._finite(group.name, group.low, group.high)
        return np.searchsorted(np.array(group.edges), within, side="right").astype(np.int64)

    def _numeric(self, column: str, number: Number) -> NDArray[np.float64]:
        values = self._finite(column, number.low, number.high)
        if number.low is None or number.high is None:
            return values
        unit = (values - number.low) / (number.high - number.low)
        return unit if number.scale == "unit" else 2 * unit - 1

    def _finite(self, column: str, low: float | None, high: float | None) -> NDArray[np.float64]:
        """The numbers of a column as they are, within the bounds, or within float32's; any of them after a fault."""
        cells = self._cells[column]
        values = _as_floats(cells)
        least, most = (-_LARGEST, _LARGEST) if low is None or high is None else (low, high)
        bad = ~((values >= least) & (values <= most))
        if bad.any():
            place = int(bad.argmax())
            limit = f"from {low:g} to {high:g}" if low is not None else "that a float32 holds"
            self._note(place, f"column {column!r} is {_shown(cells[place])}; a finite number {limit} is declared")
            return np.full(self.rows, least)
        return values

    def _declared(self, column: str, values: tuple[str, ...]) -> NDArray[np.int64]:
        position: dict[str | None, int] = {value: index for index, value in enumerate(values)}
        cells = _as_list(self._cells[column])
        found = np.array([position.get(_text(cell), -1) for cell in cells], dtype=np.int64)
        if (found < 0).any():
            place = int((found < 0).argmax())
            known = ", ".join(repr(value) for value in values[:20]) + (", ..." if len(values) > 20 else "")
            self._note(place, f"column {column!r} is {_shown(cells[place])}; declared are {known}")
        return np.maximum(found, 0)

    def _note(self, place: int, reason: str) -> None:
        if self.fault is None or place < self.fault[0]:
            self.fault = (place, reason)


def _as_floats(cells: Cells) -> NDArray[np.float64]:
    """float64 of every cell, NaN where it is no number; a value above float64 is infinite."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    return np.array([_as_float(cell) for cell in cells], dtype=np.float64)


def _as_float(cell: Any) -> float:
    if isinstance(cell, str) and "_" in cell:
        return np.nan  # Python's float would read "1_000" as 1000
    try:
        return float(cell)
    except (TypeError, ValueError):
        return np.nan
    except OverflowError:
        return np.inf


def _as_list(cells: Cells) -> list[Any]:
    listed: list[Any] = cells.tolist() if isinstance(cells, np.ndarray) else list(cells)
    return listed


def _text(cell: Any) -> str | None:
    return as_text(cell) if isinstance(cell, int | str) else None


def _shown(cell: Any) -> str:
    """A cell for a message."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return "empty"
    text = repr(cell.item() if isinstance(cell, np.generic) else cell)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."
