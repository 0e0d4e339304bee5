"""Predictions as CSV: columns of equal length, thousands of rows at a time, and texts made safe for spreadsheets."""

from __future__ import annotations

import codecs
import csv
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.text import for_spreadsheets, shown

_ROWS = 2**16
"""Rows that are written at a time."""
_LEAST, _MOST = 1e-4, 1e9
"""Between them pyarrow and Python write equal texts of a number that is not whole: shortest digits, no exponent."""
_QUOTED = (b'"', b",", b"\r", b"\n")


def texts_in(columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Iterator[str]:
    """The names of columns of equal length (n,), and each text in them once."""
    yield from columns
    for values in columns.values():
        cells = values.tolist() if isinstance(values, np.ndarray) and values.dtype.kind in "OU" else values
        yield from () if isinstance(cells, np.ndarray) else (cell for cell in set(cells) if isinstance(cell, str))


def columns_for_spreadsheets(columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> dict[str, Any]:
    """Columns of equal length (n,), with names and texts that no spreadsheet takes for a formula."""
    written: dict[str, Any] = {}
    for name, values in columns.items():
        numbers = isinstance(values, np.ndarray) and values.dtype.kind not in "OU"
        written[for_spreadsheets(name)] = values if numbers else [for_spreadsheets(cell) for cell in values]
    return written


def require_written(columns: Mapping[str, Sequence[Any] | NDArray[Any]], file: TextIO) -> None:
    """Refuse texts of columns (n,) that the output's encoding cannot hold: ValueError that names the first one.

    In messages letters may be spelt; a category with other letters is another category.
    """
    for text in texts_in(columns):
        try:
            text.encode(file.encoding or "utf-8")
        except UnicodeEncodeError:
            raise ValueError(
                f"the table has {shown(repr(text))}, and the output's encoding, {codecs.lookup(file.encoding).name}, "
                "has not all of its letters: -o FILE writes it in UTF-8"
            ) from None


def write_columns(file: IO[str], columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
    """Write columns of equal length (n,) under their names, some thousand rows at a time."""
    try:
        arrow: Any = importlib.import_module("pyarrow.compute")
    except ModuleNotFoundError:
        arrow = None
    writer = csv.writer(file)
    writer.writerow(columns)
    for start in range(0, max(map(len, columns.values())), _ROWS):
        parts = [values[start : start + _ROWS] for values in columns.values()]
        if (text := None if arrow is None else _text(arrow, parts)) is not None:
            file.write(text)
        else:
            cells = [part.tolist() if isinstance(part, np.ndarray) else part for part in parts]
            writer.writerows(zip(*cells, strict=True))


def _text(arrow: Any, parts: Sequence[Sequence[Any] | NDArray[Any]]) -> str | None:
    """The lines of some rows; None if a cell needs quotes, or is not a number or text."""
    texts = [_as_text(arrow, part) for part in parts]
    if any(text is None for text in texts):
        return None
    *first, last = texts
    lines = arrow.binary_join_element_wise(*first, arrow.binary_join_element_wise(last, "", "\r\n"), ",")
    return _bytes_of(lines).decode("utf-8")


def _bytes_of(texts: Any) -> bytes:
    """The bytes of an array of pyarrow's texts, without separators."""
    _, ends, content = texts.buffers()
    start, end = np.frombuffer(ends, np.int32)[[texts.offset, texts.offset + len(texts)]]
    written: bytes = content.slice(int(start), int(end - start)).to_pybytes()
    return written


def _as_text(arrow: Any, part: Sequence[Any] | NDArray[Any]) -> Any:
    """The cells of a column as pyarrow's texts; None if Python's writer might write them differently."""
    kind = part.dtype.kind if isinstance(part, np.ndarray) else "U" if set(map(type, part)) == {str} else "O"
    if kind == "f":
        return _numbers(arrow, np.asarray(part, dtype=np.float64))
    if kind in "iu":
        return arrow.cast(_array(part), "string")
    if kind != "U":
        return None
    array = _array(part)
    content = _bytes_of(array)
    return None if any(mark in content for mark in _QUOTED) else array


def _numbers(arrow: Any, values: NDArray[np.float64]) -> Any:
    size = np.abs(values)
    alike = (size >= _LEAST) & (size < _MOST) & (values != np.floor(values))
    cells = arrow.cast(_array(values), "string")
    if alike.all():
        return cells
    others = _array([repr(value) for value in values[~alike].tolist()])
    return arrow.replace_with_mask(cells, _array(~alike), others)


def _array(values: Any) -> Any:
    return importlib.import_module("pyarrow").array(values)
