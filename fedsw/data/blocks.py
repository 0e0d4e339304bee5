"""Blocks of a CSV file, whole lines of two megabytes, as columns; what is not plain is left to Python's own reader.

Both readers read the same rows as the same cells. This one (pyarrow's) is the quicker one. It gets only blocks of which
both must make the same cells (`is_plain`), and returns None, in place of an error, for what it cannot read.
"""

from __future__ import annotations

import csv
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedsw.data.cells import missing_numbers
from fedsw.data.columns.column import Spelling
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature
from fedsw.data.columns.distinct_cells import Distinct, Gaps

BLOCK = 2**21
"""Bytes of a block, about."""

_LONGEST = 2**17
"""Longest line of a plain block, of bytes."""
csv.field_size_limit(max(csv.field_size_limit(), 2**27))  # a cell may hold a letter, or a page of notes
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'

TABLES = ".csv, .tsv, .txt, .parquet or .npz"
"""Ends of the names of tables, in words."""


def is_text(path: Path) -> bool:
    """Say, by its name, whether a file is text with the declared separator between cells."""
    return path.suffix.lower() in (".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class ColumnLayout:
    """How the columns of a file are read: where those that are read are (``places``) among ``width`` in all.

    Columns of ``numbers`` are read as such, never as text; ``gaps`` are those of them with cells among ``markers``,
    which stand for missing ones; ``dates`` are read as dates only.
    """

    places: Mapping[str, int]
    width: int
    separator: str
    decimal: str
    numbers: Set[str]
    gaps: Set[str]
    markers: tuple[str, ...]
    dates: Set[str]

    @classmethod
    def of(cls, columns: Columns, places: Mapping[str, int], width: int, beside: Callable[[str], bool]) -> ColumnLayout:
        """The layout of a file for some declared columns; those of `beside` are read as text, declared or not."""
        # read as text: listed values and identifiers, what a caller wants as it is written, and numbers in another
        # spelling than the table's, which pyarrow has one of
        texts = set() if columns.target is None else {columns.target.name}
        texts |= set(columns.sensitive.columns) if columns.sensitive is not None and columns.sensitive.values else set()
        texts |= {columns.unit or ""} | {name for name in places if beside(name)}
        texts |= {
            column
            for number in (*columns.features, *columns.targets)
            if (spelling := columns.spelling_of(number)).thousands or spelling.decimal != columns.decimal
            for column in (number.columns if isinstance(number, Feature) else (number.name,))
        }
        # pyarrow takes one list of null values: of columns with missing numbers those with the first one's markers fit
        plain = [number for number in columns.features if number.reader.stored == "numbers"]
        markers = next((number.missing for number in plain if number.missing and number.name not in texts), ())
        fit = [number for number in plain if not number.missing or set(number.missing) == set(markers)]
        numbers = {name for number in fit for name in number.columns}
        numbers |= {number.name for number in columns.targets if number.reader.stored == "numbers"}
        cut = columns.group_number
        if cut is not None and cut.reader.stored == "numbers" and columns.spelling_of(cut) == Spelling(columns.decimal):
            numbers.add(cut.name)
        gaps = {number.name for number in fit if number.missing} & (numbers - texts)
        dates = {
            number.name for number in (*columns.features, *columns.targets) if number.reader.stored == "days"
        } - texts
        return cls(places, width, columns.separator, columns.decimal, numbers - texts, gaps, markers, dates)


def blocks(raw: IO[bytes]) -> Iterator[bytes]:
    """Whole lines, about `BLOCK` bytes of them at a time; a line that is too long is cut."""
    while block := raw.read(BLOCK):
        yield block if block.endswith(b"\n") else block + raw.readline(_LONGEST)


def is_plain(block: bytes, separator: str) -> bool:
    """Say whether both readers find the same cells: lines end alike and are short, quotes are round whole cells."""
    if b"\0" in block or (b"\r" in block and block.count(b"\r") != block.count(b"\r\n")) or not _is_utf8(block):
        return False
    start = 0
    while start < len(block):
        end = block.rfind(b"\n", start, start + _LONGEST)
        if end < 0 and len(block) - start >= _LONGEST:
            return False
        start = len(block) if end < 0 else end + 1
    return b'"' not in block or _quotes_are_plain(block, separator)


def parsed(arrow: Any, block: bytes, layout: ColumnLayout) -> dict[str, Any] | None:
    """The cells of a plain block by column: numbers, `Gaps` and `Distinct` texts; None if one is not as declared."""
    missing_anywhere = len(layout.gaps) == len(layout.places)
    if layout.width == 1 or (missing_anywhere and any(blank in b"\n" + block for blank in (b"\n\n", b"\n\r\n"))):
        return None  # a blank line is no row, and would be one of missing cells; one other column shows it below
    try:
        table = _table(arrow, block, layout)
    except Exception:  # whatever it is, the other reader names it
        return None
    cells: dict[str, Any] = {}
    for name in layout.places:
        column = table.column(name).combine_chunks()
        if column.null_count and name not in layout.gaps:
            return None
        if name not in layout.numbers:
            cells[name] = Distinct(column.dictionary.to_pylist(), _numbers(column.indices))
            continue
        absent = _nulls(column)
        values = _floats(column, absent)
        if name in layout.gaps:
            if np.count_nonzero(np.isnan(values)) != np.count_nonzero(absent):
                return None
            absent = absent | missing_numbers(values, tuple(marker for marker in layout.markers if marker))
            cells[name] = Gaps(values, absent)
        else:
            cells[name] = values
    return cells


def _nulls(column: Any) -> NDArray[np.bool_]:
    """Where a column (n,) has no value."""
    valid = column.buffers()[0]
    if not column.null_count or valid is None:
        return np.zeros(len(column), dtype=bool)
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
    return np.asarray(bits[column.offset : column.offset + len(column)] == 0)


def _floats(column: Any, absent: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Float64 values of a column (n,), NaN if it has none."""
    if not column.null_count:
        return _numbers(column)
    values = np.frombuffer(column.buffers()[1], np.float64)[column.offset : column.offset + len(column)].copy()
    values[absent] = np.nan
    return values


def _numbers(column: Any) -> NDArray[Any]:
    """Numbers (n,) of a column that has them all; pyarrow's own conversion would load pandas, a third of a second."""
    return np.from_dlpack(column)


def arrow_cells(batch: Any, layout: ColumnLayout) -> dict[str, Any]:
    """The cells of a part of a Parquet file by column: numbers and dates, `Distinct` texts, or Python objects."""
    types = importlib.import_module("pyarrow.types")
    return {name: _of_arrow(batch.column(name), types, layout, name) for name in layout.places}


def _of_arrow(column: Any, types: Any, layout: ColumnLayout, name: str) -> Any:
    kind = column.type
    if types.is_dictionary(kind):
        if types.is_string(kind.value_type) and (cells := _coded(column)) is not None:
            return cells
        column, kind = column.dictionary_decode(), kind.value_type
    if name in layout.numbers:
        if types.is_floating(kind) or (column.null_count == 0 and types.is_integer(kind)):
            return column.to_numpy(zero_copy_only=False)
    elif name in layout.dates and types.is_date32(kind):
        return column.to_numpy(zero_copy_only=False)
    if any(holds(kind) for holds in (types.is_integer, types.is_boolean, types.is_string, types.is_large_string)):
        coded = column.dictionary_encode(null_encoding="encode")
        return Distinct(coded.dictionary.to_pylist(), coded.indices.to_numpy())
    return column.to_pylist()


def _coded(column: Any) -> Distinct | None:
    """Texts as the file has them, by their places among different ones; None if some of these are in no row."""
    words, codes = column.dictionary, column.indices
    if len(words) > len(codes) or words.null_count:
        return None
    values = words.to_pylist()
    if codes.null_count:
        values, codes = [*values, None], codes.fill_null(len(values))
    places = codes.to_numpy(zero_copy_only=False)
    return Distinct(values, places) if np.bincount(places, minlength=len(values)).all() else None


def _table(arrow: Any, block: bytes, layout: ColumnLayout) -> Any:
    types: Any = importlib.import_module("pyarrow")
    text, number = types.dictionary(types.int32(), types.string()), types.float64()
    named = {index: name for name, index in layout.places.items()}
    names = [named.get(index, f"\0{index}") for index in range(layout.width)]
    return arrow.read_csv(
        types.BufferReader(block),
        arrow.ReadOptions(column_names=names, block_size=len(block) + 1),
        arrow.ParseOptions(delimiter=layout.separator, double_quote=False, ignore_empty_lines=False),
        arrow.ConvertOptions(
            include_columns=list(layout.places),
            column_types={name: number if name in layout.numbers else text for name in layout.places},
            null_values=list(layout.markers) if layout.gaps else [],
            decimal_point=layout.decimal,
        ),
    )


@functools.cache
def _is_utf8(block: bytes) -> bool:
    try:
        return block.isascii() or bool(block.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def _quotes_are_plain(block: bytes, separator: str) -> bool:
    """Say whether quotes stand in pairs at both ends of cells, with no line end between them."""
    if not separator.isascii():
        return False
    bytes_ = np.frombuffer(block, dtype=np.uint8)
    quotes = np.flatnonzero(bytes_ == _QUOTE)
    if len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    ends = np.flatnonzero(bytes_ == _NEWLINE)
    before = np.where(opening > 0, bytes_[opening - 1], _NEWLINE)
    after = np.where(closing + 1 < len(bytes_), bytes_[np.minimum(closing + 1, len(bytes_) - 1)], _NEWLINE)
    outside = np.isin(before, (ord(separator), _NEWLINE)) & np.isin(after, (ord(separator), _NEWLINE, _RETURN))
    return bool(outside.all() and np.array_equal(np.searchsorted(ends, opening), np.searchsorted(ends, closing)))
