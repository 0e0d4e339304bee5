"""Columns of cells from CSV, Parquet, npz and IDX files, some thousand rows at a time; nothing is unpickled.

What a file announces (rows, columns, lengths) is compared with limits and with the bytes that are there before memory
is taken for it. Cells are not interpreted here.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedsw.columns import Columns
from fedsw.data.idx import read_idx

MAX_FILE_BYTES = 2**31
"""Largest file that is opened."""
MAX_COLUMNS = 20_000
"""Most columns of a file, whether they are read or not."""

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What parts the cells of most tables, by its name."""

Cells = Sequence[Any] | NDArray[Any]

_MOST_ROWS, _MOST_CELLS = 8192, 2**20
_IMAGES = re.compile(r"images([-.])idx3-ubyte(\.gz)?$")
_PLAIN = re.compile(r"u?int\d+|halffloat|float|double|decimal.*|bool|date32.*|(dictionary<values=)?(large_)?string.*")
_NPY_HEADERS = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}


class BadRecords(ValueError):
    """Records that cannot be used; the message names the file, and the row and column with the value and the limit.

    It may quote a record, so it is for whoever holds the records.
    """


@dataclass(frozen=True)
class Chunk:
    """Some rows of a file.

    Attributes:
        first_row: number of the first of them, as the file's reader counts.
        cells: for every column that is read, one cell a row.
    """

    first_row: int
    cells: Mapping[str, Cells]


@dataclass(frozen=True)
class Format:
    """How a kind of file is read, and how its rows are counted in messages."""

    read: Callable[[Path, Columns], Iterator[Chunk]]
    counted: str


def format_of(path: Path) -> Format:
    """What reads a file, by its name.

    Raises:
        BadRecords: if nothing does.
    """
    if _IMAGES.search(path.name):
        return FORMATS["idx"]
    if path.suffix.lower() in (".csv", ".parquet", ".npz"):
        return FORMATS[path.suffix.lower().removeprefix(".")]
    raise BadRecords(f"{path}: its name does not say what it is; use .csv, .parquet, .npz or ...images-idx3-ubyte[.gz]")


def require_file(path: Path) -> None:
    """Refuse what is no file, or a larger one than is read.

    Raises:
        FileNotFoundError, BadRecords: naming it.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if not path.is_file():
        raise BadRecords(f"{path} is not a file")
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise BadRecords(f"{path} has {size} bytes; at most {MAX_FILE_BYTES} are read: give this node a part of it")


def _csv_chunks(path: Path, columns: Columns) -> Iterator[Chunk]:
    with path.open("rb") as raw:
        text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, strict=True, delimiter=columns.separator)
        try:
            header = [name.strip() for name in next(reader, [])]
            if not header:
                raise BadRecords(f"{path} is empty; its first row must name the columns")
            require_separator(path, header, columns.separator)
            places = columns_among(path, header, columns.names)
            rows: list[list[str]] = []
            first, most = 2, _rows_of(len(header))
            for number, row in enumerate(reader, start=2):
                if row and len(row) != len(header):
                    raise BadRecords(f"{path}: row {number} has {len(row)} cells; the header (row 1) has {len(header)}")
                if len(rows) == most or not row:  # a blank line ends a chunk, so that rows keep their numbers
                    yield from _csv_chunk(first, rows, places)
                    rows, first = [], number + (not row)
                if row:
                    rows.append(row)
            yield from _csv_chunk(first, rows, places)
        except UnicodeDecodeError:
            raise BadRecords(f"{path}: line {_first_undecodable(path)} is not UTF-8; save the file as UTF-8") from None
        except csv.Error as fault:
            raise BadRecords(f"{path}: line {reader.line_num} is no CSV: {fault}") from None


def _csv_chunk(first: int, rows: list[list[str]], places: Mapping[str, int]) -> Iterator[Chunk]:
    if rows:
        yield Chunk(first, {name: [row[place] for row in rows] for name, place in places.items()})


def _first_undecodable(path: Path) -> int:
    with path.open("rb") as raw:
        for number, line in enumerate(raw, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1


def _parquet_chunks(path: Path, columns: Columns) -> Iterator[Chunk]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise BadRecords(f"{path}: reading Parquet takes pyarrow; pip install 'fedsw[tables]', or use CSV") from None
    with _damaged(path, "Parquet file"):
        source = parquet.ParquetFile(path)
        names = list(source.schema_arrow.names)
    with source:
        columns_among(path, names, columns.names)
        for field in source.schema_arrow:
            if field.name in columns.names and not _PLAIN.fullmatch(str(field.type)):
                raise BadRecords(f"{path}: column {field.name!r} is {field.type}; numbers or text are expected")
        first = 1
        batches = source.iter_batches(batch_size=_rows_of(len(columns.names)), columns=list(columns.names))
        while True:
            with _damaged(path, "Parquet file"):
                batch = next(batches, None)
                cells = {} if batch is None else {name: batch.column(name).to_pylist() for name in columns.names}
            if batch is None:
                return
            yield Chunk(first, cells)
            first += batch.num_rows


def _npz_chunks(path: Path, columns: Columns) -> Iterator[Chunk]:
    """Arrays by column; a feature with `count` is one array (n, count) of its name."""
    counts = {feature.name: feature.count for feature in columns.features if feature.count is not None}
    inside = {column: feature.name for feature in columns.features for column in feature.columns}
    names = tuple(dict.fromkeys(inside.get(name, name) for name in columns.names))
    arrays: dict[str, NDArray[Any]] = {}
    with _damaged(path, "npz file"), zipfile.ZipFile(path) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        columns_among(path, members, names)
        for name in names:
            member = archive.getinfo(f"{name}.npy")
            with archive.open(member) as stream:
                arrays[name] = _npy(stream, member.file_size, f"{path}: array {name!r}")
    rows = len(arrays[names[0]]) if arrays[names[0]].ndim else 0
    for name, array in arrays.items():
        wanted = (rows, counts[name]) if name in counts else (rows,)
        if array.shape != wanted:
            raise BadRecords(f"{path}: array {name!r} has shape {array.shape}; {wanted} is expected")
    cells: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        cells |= {name: array} if name not in counts else {f"{name}{j}": array[:, j] for j in range(array.shape[1])}
    yield from slices(cells, rows)


def _npy(stream: IO[bytes], size: int, what: str) -> NDArray[Any]:
    """The array of an .npy member of `size` bytes; its header is checked against them before memory is taken."""
    if size > MAX_FILE_BYTES:
        raise BadRecords(f"{what} has {size} bytes; at most {MAX_FILE_BYTES} are read")
    version = np.lib.format.read_magic(stream)
    if version[0] not in _NPY_HEADERS:
        raise BadRecords(f"{what} is in .npy format {version}; 1.0 or 2.0 is expected")
    shape, fortran, dtype = _NPY_HEADERS[version[0]](stream)
    if dtype.hasobject or dtype.kind not in "biufU":
        raise BadRecords(f"{what} is {dtype}; numbers or text are expected, and Python objects are never loaded")
    length = math.prod(shape) * dtype.itemsize
    content = stream.read(length) if 0 <= length <= size and min(shape, default=0) >= 0 else b""
    if len(content) != length or stream.read(1):
        raise BadRecords(f"{what} announces shape {shape} of {dtype}, which its {size} bytes are not; write it again")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def _idx_chunks(path: Path, columns: Columns) -> Iterator[Chunk]:
    """Images as rows of pixels, with the labels of the file beside it where classes are declared."""
    if len(columns.features) != 1 or columns.features[0].count is None or columns.sensitive or columns.targets:
        raise BadRecords(
            f"{path}: an IDX file has images and labels; declare one feature with a count of pixels, at most a target, "
            "and no sensitive column"
        )
    feature = columns.features[0]
    with _damaged(path, "IDX file"):
        images = read_idx(path, dims=3)
    if (pixels := images.shape[1] * images.shape[2]) != feature.count:
        raise BadRecords(f"{path}: images of {images.shape[1]}x{images.shape[2]} pixels; {feature.count} are declared")
    flat = images.reshape(len(images), pixels)
    cells: dict[str, NDArray[Any]] = {column: flat[:, index] for index, column in enumerate(feature.columns)}
    if columns.target is not None:
        beside = path.with_name(_IMAGES.sub(r"labels\1idx1-ubyte\2", path.name))
        require_file(beside)
        with _damaged(beside, "IDX file"):
            labels = read_idx(beside, dims=1)
        if len(labels) != len(images):
            raise BadRecords(f"{beside}: {len(labels)} labels for {len(images)} images; each has one")
        cells[columns.target.name] = labels
    yield from slices(cells, len(images))


def slices(cells: Mapping[str, NDArray[Any]], rows: int, *, first_row: int = 1) -> Iterator[Chunk]:
    """Arrays (rows, ...), one a column, some rows at a time."""
    most = _rows_of(len(cells))
    for start in range(0, rows, most):
        yield Chunk(start + first_row, {name: array[start : start + most] for name, array in cells.items()})


def _rows_of(columns: int) -> int:
    """Rows of a chunk, so that wide ones take no more memory than long ones."""
    return max(1, min(_MOST_ROWS, _MOST_CELLS // columns))


def require_separator(path: Path, header: Sequence[str], separator: str) -> None:
    """Refuse a header of one cell that another separator would part, as a table from a spreadsheet has it.

    Raises:
        BadRecords: naming the file, the separator that it seems to have, and the setting.
    """
    if len(header) != 1:
        return
    seen = {other: header[0].count(other) for other in SEPARATORS if other != separator}
    other = max(seen, key=lambda each: seen[each])
    if seen[other]:
        raise BadRecords(
            f"{path}: its cells seem to be parted by {SEPARATORS[other]}, and {SEPARATORS.get(separator, separator)} "
            f'are declared; set separator = {json.dumps(other)} in [data.columns], and decimal = "," where numbers '
            "have decimal commas"
        )


def columns_among(path: Path | str, found: Sequence[str], wanted: Sequence[str]) -> dict[str, int]:
    """Where the columns that are read are among those of a file."""
    if len(found) > MAX_COLUMNS:
        raise BadRecords(f"{path} has {len(found)} columns; at most {MAX_COLUMNS} are read")
    places: dict[str, int] = {}
    needed = set(wanted)
    for place, name in enumerate(found):
        if name in needed and name in places:
            raise BadRecords(f"{path} has two columns {name!r}; rename one")
        places[name] = place
    if missing := [name for name in wanted if name not in places]:
        names = ", ".join(repr(name) for name in list(found)[:20]) + (", ..." if len(found) > 20 else "")
        others = f", nor {len(missing) - 1} more of them" if len(missing) > 1 else ""
        raise BadRecords(f"{path} has no column {missing[0]!r}, which data.columns declares{others}; it has {names}")
    return {name: places[name] for name in wanted}


@contextmanager
def _damaged(path: Path, kind: str) -> Iterator[None]:
    """Whatever a decoder says of bytes it cannot read, as one error that names the file."""
    try:
        yield
    except BadRecords:
        raise
    except (Exception, MemoryError) as fault:
        words = (str(fault).splitlines() or [type(fault).__name__])[0][:200]
        raise BadRecords(words if words.startswith(str(path)) else f"{path} is not a whole {kind}: {words}") from None


FORMATS: Mapping[str, Format] = {
    "csv": Format(_csv_chunks, "the header is row 1"),
    "parquet": Format(_parquet_chunks, "the first record is row 1"),
    "npz": Format(_npz_chunks, "the first record is row 1"),
    "idx": Format(_idx_chunks, "the first image is row 1"),
}
