"""Cells of text and numbers, read as the declared kind of their column says; what does not fit becomes NaN."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw.columns import Number, as_text, number_text
from fedsw.columns.texts import FALSE, TRUE
from fedsw.data.formats import Cells

_MOST_SHOWN = 60
_TRUTHS = dict.fromkeys(TRUE, 1.0) | dict.fromkeys(FALSE, 0.0)


def read_numbers(cells: Cells, number: Number, *, decimal: str) -> NDArray[np.float64]:
    """float64 of every cell (n,), NaN where it is not what is declared; a value above float64 is infinite."""
    if number.kind == "date":
        assert number.since is not None
        since = number.since.toordinal()
        return np.array([_as_days(cell, number.format, since) for cell in cells], dtype=np.float64)
    if number.kind == "boolean":
        return np.array([_as_truth(cell) for cell in as_list(cells)], dtype=np.float64)
    values = as_floats(cells, decimal=decimal)
    if number.kind == "integer":
        whole = values == np.floor(values)
        values = np.where(whole, values, np.nan)
    return values


def as_floats(cells: Cells, *, decimal: str = ".") -> NDArray[np.float64]:
    """float64 of every cell (n,), NaN where it is no number; a value above float64 is infinite."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    if decimal == ",":
        return np.array([_as_float(_with_point(cell)) for cell in cells], dtype=np.float64)
    return np.array([_as_float(cell) for cell in cells], dtype=np.float64)


def missing_among(cells: Cells, markers: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which cells (n,) are among those that stand for a missing value; "" stands for empty ones, None and NaN."""
    if not markers:
        return np.zeros(len(cells), dtype=bool)
    known = set(markers)
    return np.array([_marker(cell) in known for cell in as_list(cells)], dtype=bool)


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


def _as_float(cell: Any) -> float:
    if isinstance(cell, str) and "_" in cell:
        return np.nan  # Python's float would read "1_000" as 1000
    try:
        return float(cell)
    except (TypeError, ValueError):
        return np.nan
    except OverflowError:
        return np.inf


def _with_point(cell: Any) -> Any:
    """A text with a decimal comma as one with a point; with a point of its own, which may part thousands, no number."""
    if not isinstance(cell, str):
        return cell
    return None if "." in cell else cell.replace(",", ".", 1)


def _as_truth(cell: Any) -> float:
    if isinstance(cell, float):
        return cell if cell in (0.0, 1.0) else np.nan
    text = text_of(cell)
    return np.nan if text is None else _TRUTHS.get(text.lower(), np.nan)


def _as_days(cell: Any, written: str | None, since: int) -> float:
    """Days from a date's ordinal to what a cell holds: a date, or its text."""
    if isinstance(cell, datetime.date):
        return float(cell.toordinal() - since)
    if not isinstance(cell, str):
        return np.nan
    try:
        if written is None:
            date = datetime.date.fromisoformat(cell.strip())
        else:
            date = datetime.datetime.strptime(cell.strip(), written).date()
    except ValueError:
        return np.nan
    return float(date.toordinal() - since)


def _marker(cell: Any) -> str | None:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return "" if math.isnan(cell) else number_text(cell) if math.isfinite(cell) else None
    return text_of(cell)
