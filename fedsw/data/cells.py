"""Cells that stand for missing values, and cells in messages and lists."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw.data.columns.distinct_cells import Cells, Gaps, mapped
from fedsw.data.columns.number import as_float
from fedsw.data.columns.values import number_text, same_as

_MOST_SHOWN = 60

MISSING = (
    "", "NA", "N/A", "n/a", "na", "NaN", "nan", "?", "null", "NULL", "None", "<NA>", "#N/A", "NaT", "-", "--", ".",
    "#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "0000-00-00", "0000-00-00 00:00:00",
)  # fmt: skip
"""Cells that mostly stand for a missing value."""


def missing_among(cells: Cells, markers: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which cells (n,) are among those that stand for a missing value; "" stands for empty ones, None and NaN."""
    if not markers:
        return np.zeros(len(cells), dtype=bool)
    if isinstance(cells, Gaps):
        return cells.absent
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "f":
        return missing_numbers(cells, markers)
    return mapped(cells, same_as(markers), np.bool_)


def missing_numbers(cells: NDArray[Any], markers: tuple[str, ...]) -> NDArray[np.bool_]:
    """The same of numbers (n,): NaN is an empty cell, and a marker stands for the number that is written so."""
    absent = np.isnan(cells) if "" in markers else np.zeros(len(cells), dtype=bool)
    for marker in markers:
        value = as_float(marker)
        if math.isfinite(value) and number_text(value) == marker:
            absent |= cells.astype(np.float64) == value  # as Python compares them: a float32 is no decimal
    return absent


def as_list(cells: Cells) -> list[Any]:
    """Cells as Python objects."""
    listed: list[Any] = cells.tolist() if isinstance(cells, np.ndarray) else list(cells)
    return listed


def shown(cell: Any) -> str:
    """A cell for a message."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return "empty"
    text = repr(cell.item() if isinstance(cell, np.generic) else cell)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."
