"""Cells of text and numbers, read as the declared kind of their column says; what does not fit becomes NaN."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw.columns.kinds import FALSE, TRUE, Number, as_text, number_text
from fedsw.data.distinct import Distinct, Gaps, mapped
from fedsw.data.formats import Cells

_MOST_SHOWN = 60
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_TRUTHS = dict.fromkeys(TRUE, 1.0) | dict.fromkeys(FALSE, 0.0)


def read_numbers(cells: Cells, number: Number, *, decimal: str) -> NDArray[np.float64]:
    """float64 of every cell (n,), NaN where it is not what is declared; a value above float64 is infinite."""
    if number.kind == "date":
        return _days(cells, number)
    if number.kind == "boolean":
        return mapped(cells, _as_truth, np.float64)
    values = as_floats(cells, decimal=decimal)
    if number.kind == "integer":
        values[values != np.floor(values)] = np.nan
    return values


def as_floats(cells: Cells, *, decimal: str = ".") -> NDArray[np.float64]:
    """float64 of every cell (n,), NaN where it is no number; a value above float64 is infinite."""
    if isinstance(cells, Gaps):
        return cells.values.copy()
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    if isinstance(cells, Distinct):
        return as_floats(cells.values, decimal=decimal)[cells.codes]
    if decimal == "." and (plain := _plain_floats(cells)) is not None:
        return plain
    return np.array([as_float(cell, decimal=decimal) for cell in cells], dtype=np.float64)


MISSING = ("", "NA", "N/A", "NaN", "nan", "?", "null", "NULL", "None")
"""Cells that mostly stand for a missing value."""


def missing_among(cells: Cells, markers: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which cells (n,) are among those that stand for a missing value; "" stands for empty ones, None and NaN."""
    if not markers:
        return np.zeros(len(cells), dtype=bool)
    if isinstance(cells, Gaps):
        return cells.absent
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "f":
        return _missing_numbers(cells, markers)
    known = set(markers)
    return mapped(cells, lambda cell: _marker(cell) in known, np.bool_)


def _missing_numbers(cells: NDArray[Any], markers: tuple[str, ...]) -> NDArray[np.bool_]:
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


def text_of(cell: Any) -> str | None:
    """What a cell is compared with declared values by; None if it is no text, whole number or truth value."""
    return as_text(cell) if isinstance(cell, int | str) else None


def shown(cell: Any) -> str:
    """A cell for a message."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return "empty"
    text = repr(cell.item() if isinstance(cell, np.generic) else cell)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def _plain_floats(cells: Cells) -> NDArray[np.float64] | None:
    """The numbers of texts that are all numbers; None if they are not, and each is to be looked at."""
    if isinstance(cells, np.ndarray) or set(map(type, cells)) != {str} or "_" in "".join(cells):
        return None
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None


def _days(cells: Cells, number: Number) -> NDArray[np.float64]:
    assert number.since is not None
    since = number.since.toordinal()
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "M":
        days = cells.astype("datetime64[D]").astype(np.int64) + (_EPOCH - since)
        return np.where(np.isnat(cells), np.nan, days)
    return mapped(cells, lambda cell: _as_days(cell, number.format, since), np.float64)


def as_float(cell: Any, *, decimal: str = ".") -> float:
    """The number in a cell, NaN if it is none; beside decimal commas one with a point is none."""
    if isinstance(cell, str):
        if "_" in cell or (decimal == "," and "." in cell):
            return np.nan  # Python's float reads "1_000" as 1000, and a point may part thousands
        cell = cell if decimal == "." else cell.replace(decimal, ".", 1)
    try:
        return float(cell)
    except (TypeError, ValueError):
        return np.nan
    except OverflowError:
        return np.inf


def _as_truth(cell: Any) -> float:
    if isinstance(cell, float):
        return cell if cell in (0.0, 1.0) else np.nan
    text = text_of(cell)
    return np.nan if text is None else _TRUTHS.get(text.lower(), np.nan)


def _as_days(cell: Any, written: str | None, since: int) -> float:
    if isinstance(cell, datetime.date):
        return np.nan if cell != cell else float(cell.toordinal() - since)
    date = date_in(cell.strip(), written) if isinstance(cell, str) else None
    return np.nan if date is None else float(date.toordinal() - since)


def date_in(text: str, written: str | None) -> datetime.date | None:
    """The date behind a text, in ISO 8601 where no format is given; None if it is none."""
    try:
        if written is None:
            return datetime.date.fromisoformat(text)
        return datetime.datetime.strptime(text, written).date()
    except ValueError:
        return None


def _marker(cell: Any) -> str | None:
    if cell is None or cell != cell:  # NaN, or a date that is none
        return ""
    if isinstance(cell, float):
        return number_text(cell) if math.isfinite(cell) else None
    return text_of(cell)
