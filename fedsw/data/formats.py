"""Columns of cells from CSV, Parquet, npz and IDX files, some thousand rows at a time; nothing is unpickled.

What a file announces (rows, columns, lengths) is compared with limits and with the bytes that are there before memory
is taken for it. Cells are not interpreted here.
"""

from __future__ import annotations

import csv
import functools
import importlib
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedsw.data.blocks import BLOCK, TABLES, ColumnLayout, arrow_cells, blocks, is_plain, is_text, parsed
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.distinct_cells import Cells
from fedsw.data.columns.values import normal
from fedsw.data.image_sets import read_idx

MAX_FILE_BYTES = 2**31
"""Largest file that is opened."""
MAX_COLUMNS = 20_000
"""Most columns of a file, whether they are read or not."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""Separators of cells that tables mostly have, and their names in messages."""

_MOST_ROWS, _MOST_CELLS, _ARROW_ROWS = 8192, 2**20, 2**14
"""Rows of a chunk at most, cells of a wide one, and rows of one that pyarrow reads."""
_LONGEST_HEADER = 2**24
"""Bytes of a first line that are read at most."""
_IMAGES = re.compile(r"images([-.])idx3-ubyte(\.gz)?$")
_PLAIN = re.compile(
    r"u?int\d+|halffloat|float|double|decimal.*|bool|date32.*|(large_)?string.*|null"
    r"|dictionary<values=((large_)?string|u?int\d+|float|double|bool)\b.*"
)
_MOMENT = re.compile(r"timestamp\[\w+(, tz=.+)?\]")
_PARTED_BY = re.compile(rb"(?:\xef\xbb\xbf)?sep=(.)\r?\n?", re.IGNORECASE)
_PACKED: Mapping[bytes, str] = {
    b"\x1f\x8b": "is packed by gzip: unpack it first (gunzip)",
    b"PK\x03\x04": "is a zip archive, as workbooks of spreadsheets are: unpack it, or save the sheet as CSV",
    b"PAR1": "is a Parquet file: call it .parquet",
    b"\xd0\xcf\x11\xe0": "is a workbook of a spreadsheet: save the sheet as CSV",
    b"\xfd7zXZ": "is packed by xz: unpack it first (unxz)",
    b"\x28\xb5\x2f\xfd": "is packed by zstd: unpack it first (unzstd)",
    b"BZh": "is packed by bzip2: unpack it first (bunzip2)",
    b"SQLite format 3": "is a SQLite database: export the table as CSV",
    b"\xff\xfe": "is UTF-16: save it as UTF-8",
    b"\xfe\xff": "is UTF-16: save it as UTF-8",
}
"""How files begin that are not text in UTF-8, whatever they are called, and what to do."""
_NPY_HEADERS = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}


class BadRecords(ValueError):
    """Records that cannot be used, with file, row, column, value and limit: for the holder of the records."""


@dataclass(frozen=True)
class Chunk:
    """Some rows of a file: cells by column, also as they are ``written`` there, for messages and copies."""

    first_row: int
    cells: Mapping[str, Cells]
    written: Callable[[], Mapping[str, Cells]] | None = None

    def as_written(self, column: str) -> Cells:
        """A column's cells as the file has them."""
        return (self.cells if self.written is None else self.written())[column]


def no_column(column: str) -> bool:
    """Select none: the default of ``beside``."""
    return False


Beside = Callable[[str], bool]
"""Selects, by their names, columns that are read as text beside the declared ones."""


@dataclass(frozen=True)
class Format:
    """How a kind of file is read, a large one ``ahead`` of its use, and how its rows are counted in messages."""

    chunks: Callable[[Path, Columns, Beside], Iterator[Chunk]]
    counted: str
    ahead: bool = False

    def read(self, path: Path, columns: Columns, *, beside: Beside = no_column) -> Iterator[Chunk]:
        """The declared columns of a file and those beside, ahead in a thread that reads while a chunk is used."""
        chunks = self.chunks(path, columns, beside)
        if not self.ahead or path.stat().st_size < BLOCK:
            return (yield from chunks)
        with ThreadPoolExecutor(max_workers=1) as helper:
            coming = helper.submit(next, chunks, None)
            while (chunk := coming.result()) is not None:
                coming = helper.submit(next, chunks, None)
                yield chunk


def format_of(path: Path) -> Format:
    """Format of a file, by its name; the file must exist and be no larger than `MAX_FILE_BYTES`."""
    require_file(path)
    if _IMAGES.search(path.name):
        return FORMATS["idx"]
    ends = "csv" if is_text(path) else path.suffix.lower().removeprefix(".")
    if ends in ("csv", "parquet", "npz"):
        return FORMATS[ends]
    raise BadRecords(f"{path}: its name does not say what it is; a table is {TABLES}, images ...images-idx3-ubyte[.gz]")


def require_file(path: Path) -> None:
    """Refuse what is not a file, or a larger one than is read."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if not path.is_file():
        raise BadRecords(f"{path} is not a file")
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise BadRecords(f"{path} has {size} bytes; at most {MAX_FILE_BYTES} are read: give this node a part of it")


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Whatever the system says of a file that is there and cannot be read, as one error that names it."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as fault:
        raise BadRecords(f"{where} cannot be read: {fault.strerror or fault}") from None


def open_text(path: Path) -> IO[bytes]:
    """A table of text, opened behind a first line sep=; if there is one; BadRecords for what is not text."""
    raw = path.open("rb")
    first = raw.readline(_LONGEST_HEADER)
    for begin, remedy in _PACKED.items():
        if first.startswith(begin):
            raw.close()
            raise BadRecords(f"{path} {remedy}")
    raw.seek(len(first) if _PARTED_BY.fullmatch(first) else 0)
    return raw


def parted_by(path: Path) -> str | None:
    """The separator that the first line of a table of text names, as sep=; does; None if none does."""
    with path.open("rb") as raw:
        named = _PARTED_BY.fullmatch(raw.readline(_LONGEST_HEADER))
    return None if named is None else named[1].decode("ascii", "replace")


def _csv_chunks(path: Path, columns: Columns, beside: Beside) -> Iterator[Chunk]:
    laid_out = functools.partial(_layout, path, columns, beside)
    with open_text(path) as raw:
        begin = raw.tell()
        first = raw.readline(_LONGEST_HEADER)
        if not is_plain(first, columns.separator) or not first.endswith(b"\n") or columns.skip_rows:
            raw.seek(begin)
            return (yield from _csv_rows(path, raw, columns.separator, 1, laid_out, skip=columns.skip_rows))
        header = next(csv.reader([first.decode("utf-8-sig")], delimiter=columns.separator), [])
        yield from _csv_blocks(path, raw, laid_out(header))


def _csv_blocks(path: Path, raw: IO[bytes], layout: ColumnLayout) -> Iterator[Chunk]:
    """Rows behind the header, block by block, as long as lines are rows."""
    arrow, row, start = _arrow("csv"), 2, raw.tell()
    for block in blocks(raw):
        if not is_plain(block, layout.separator):
            raw.seek(start)
            return (yield from _csv_rows(path, raw, layout.separator, row, layout))
        cells = None if arrow is None else parsed(arrow, block, layout)
        if cells is None:
            yield from _csv_rows(path, io.BytesIO(block), layout.separator, row, layout)
        else:
            yield Chunk(row, cells, functools.cache(functools.partial(_cells_of, block, layout)))
        lines = block.count(b"\n") if cells is None else len(next(iter(cells.values())))
        row, start = row + lines, start + len(block)


def _cells_of(block: bytes, layout: ColumnLayout) -> Mapping[str, Cells]:
    rows = list(csv.reader(io.StringIO(block.decode("utf-8"), newline=""), delimiter=layout.separator))
    return {name: [row[index] for row in rows] for name, index in layout.places.items()}


def _layout(path: Path, columns: Columns, beside: Beside, header: list[str]) -> ColumnLayout:
    names = [normal(name) for name in header]
    if not names:
        raise BadRecords(f"{path} is empty; its first row must name the columns")
    require_separator(path, names, columns.separator)
    if names[0].startswith("#") and not set(columns.names) <= set(names):
        raise BadRecords(f"{path} begins with a comment, {names[0][:60]!r}; its first row must name the columns")
    places = columns_among(path, names, columns.names)
    places |= {name: index for index, name in enumerate(names) if beside(name)}
    return ColumnLayout.of(columns, places, len(names), beside)


def _csv_rows(
    path: Path,
    raw: IO[bytes],
    separator: str,
    first: int,
    layout: ColumnLayout | Callable[[list[str]], ColumnLayout],
    *,
    skip: int = 0,
) -> Iterator[Chunk]:
    """Rows as Python's own reader finds them, from row `first`, which is the header that a layout is still made of."""
    encoding = "utf-8" if isinstance(layout, ColumnLayout) else "utf-8-sig"
    text = io.TextIOWrapper(raw, encoding=encoding, newline="")
    reader = csv.reader(text, strict=True, delimiter=separator)
    before = first - 1
    try:
        if not isinstance(layout, ColumnLayout):
            layout, first = layout(next(reader, [])), first + 1 + skip
            for _ in range(skip):  # rows that are no records, as of questions below their names
                next(reader, [])
        rows: list[list[str]] = []
        most = _rows_of(layout.width)
        for number, row in enumerate(reader, start=first):
            if row and len(row) != layout.width:
                yield from _csv_chunk(first, rows, layout.places)
                raise BadRecords(f"{path}: row {number} has {len(row)} cells; the header (row 1) has {layout.width}")
            if len(rows) == most or not row:  # a blank line ends a chunk, so that rows keep their numbers
                yield from _csv_chunk(first, rows, layout.places)
                rows, first = [], number + (not row)
            if row:
                rows.append(row)
        yield from _csv_chunk(first, rows, layout.places)
    except UnicodeDecodeError:
        raise BadRecords(f"{path}: line {_first_undecodable(path)} is not UTF-8; save the file as UTF-8") from None
    except csv.Error as fault:
        raise BadRecords(f"{path}: line {before + reader.line_num} is no CSV: {fault}") from None


def _csv_chunk(first: int, rows: list[list[str]], places: Mapping[str, int]) -> Iterator[Chunk]:
    if rows:
        yield Chunk(first, {name: [row[index] for row in rows] for name, index in places.items()})


def _arrow(part: str) -> Any:
    """A module of pyarrow; None if it is not installed."""
    try:
        return importlib.import_module(f"pyarrow.{part}")
    except ModuleNotFoundError:
        return None


def _first_undecodable(path: Path) -> int:
    with path.open("rb") as raw:
        for number, line in enumerate(raw, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1


def _parquet_chunks(path: Path, columns: Columns, beside: Beside) -> Iterator[Chunk]:
    parquet = parquet_of(path)
    with damaged(path, "Parquet file"):
        source = parquet.ParquetFile(path)
        names = [normal(name) for name in source.schema_arrow.names]
        stored = dict(zip(names, source.schema_arrow.names, strict=True))
        texts = [field.name for field in source.schema_arrow if str(field.type) in ("string", "large_string")]
        if coded := [name for name in texts if normal(name) in columns.listed]:
            with source:
                source = parquet.ParquetFile(path, metadata=source.metadata, read_dictionary=coded)
    with source:
        wanted = columns_among(path, names, columns.names)
        wanted |= {
            normal(field.name): index
            for index, field in enumerate(source.schema_arrow)
            if beside(normal(field.name)) and _PLAIN.fullmatch(str(field.type))
        }
        layout = ColumnLayout.of(columns, wanted, len(names), beside)
        for field in source.schema_arrow:
            moment = _MOMENT.fullmatch(str(field.type))
            if normal(field.name) not in columns.names or _PLAIN.fullmatch(str(field.type)):
                continue
            if not (moment and normal(field.name) in layout.dates):
                remedy = '; declare kind = "date" for it' if moment else ""
                if str(field.type).startswith("time"):
                    remedy = remedy or "; times of day are not read: write hours as numbers, or leave the column out"
                raise BadRecords(f"{path}: column {field.name!r} is {field.type}; numbers or text are expected{remedy}")
        first, most = 1, max(1, min(_ARROW_ROWS, _MOST_CELLS // len(wanted)))
        batches = source.iter_batches(batch_size=most, columns=[stored[name] for name in wanted])
        while True:
            with damaged(path, "Parquet file"):
                batch = next(batches, None)
                batch = None if batch is None else _in_days(batch, layout)
                cells = {} if batch is None else arrow_cells(batch, layout)
            if batch is None:
                return
            yield Chunk(first, cells, functools.cache(batch.to_pydict))
            first += batch.num_rows


def _in_days(batch: Any, layout: ColumnLayout) -> Any:
    """The same, names in NFC, with the day alone of every declared date that has a time of day, its zone's own."""
    names = [normal(name) for name in batch.schema.names]
    columns = []
    for name, column in zip(names, batch.columns, strict=True):
        moment = _MOMENT.fullmatch(str(column.type)) if name in layout.dates else None
        if moment and moment[1]:
            column = importlib.import_module("pyarrow.compute").local_timestamp(column)
        columns.append(column.cast("date32", safe=False) if moment else column)
    return type(batch).from_arrays(columns, names=names)


def parquet_of(path: Path) -> Any:
    """The module that reads a Parquet file, or one error that names the file."""
    if (parquet := _arrow("parquet")) is None:
        raise BadRecords(
            f"{path}: reading Parquet takes pyarrow; pip install '.[tables]' in fedsw's checkout, or use CSV"
        )
    return parquet


def _npz_chunks(path: Path, columns: Columns, beside: Beside) -> Iterator[Chunk]:
    """Arrays by column; a feature with `count` is one array (n, count) of its name."""
    counts = {feature.name: feature.count for feature in columns.features if feature.count is not None}
    inside = {column: feature.name for feature in columns.features for column in feature.columns}
    names = tuple(dict.fromkeys(inside.get(name, name) for name in columns.names))
    arrays: dict[str, NDArray[Any]] = {}
    with damaged(path, "npz file"), zipfile.ZipFile(path) as archive:
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
    with zipfile.ZipFile(path) as archive:  # an undeclared array is read only if it is a column
        for name in (name for name in members if name not in arrays and beside(name)):
            member = archive.getinfo(f"{name}.npy")
            with suppress(BadRecords), damaged(path, "npz file"), archive.open(member) as stream:
                if (array := _npy(stream, member.file_size, name)).shape == (rows,):
                    cells[name] = array
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


def _idx_chunks(path: Path, columns: Columns, beside: Beside) -> Iterator[Chunk]:
    """Images as rows of pixels, with the labels of the file beside it where classes are declared."""
    other = columns.sensitive or columns.targets or columns.unit
    if len(columns.features) != 1 or columns.features[0].count is None or other:
        raise BadRecords(
            f"{path}: an IDX file has images and labels; declare one feature with a count of pixels, at most a target, "
            "and no sensitive column or unit"
        )
    feature = columns.features[0]
    with damaged(path, "IDX file"):
        images = read_idx(path, dims=3)
    if (pixels := images.shape[1] * images.shape[2]) != feature.count:
        raise BadRecords(f"{path}: images of {images.shape[1]}x{images.shape[2]} pixels; {feature.count} are declared")
    flat = images.reshape(len(images), pixels)
    cells: dict[str, NDArray[Any]] = {column: flat[:, index] for index, column in enumerate(feature.columns)}
    if columns.target is not None:
        labelled = path.with_name(_IMAGES.sub(r"labels\1idx1-ubyte\2", path.name))
        require_file(labelled)
        with damaged(labelled, "IDX file"):
            labels = read_idx(labelled, dims=1)
        if len(labels) != len(images):
            raise BadRecords(f"{labelled}: {len(labels)} labels for {len(images)} images; each has one")
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
    """Refuse a header of one cell that another separator would part, as a table from a spreadsheet has it."""
    if len(header) != 1:
        return
    seen = {other: header[0].count(other) for other in SEPARATORS if other != separator}
    other = max(seen, key=lambda mark: seen[mark])
    if seen[other]:
        raise BadRecords(
            f"{path}: its cells seem to be parted by {SEPARATORS[other]}, and {SEPARATORS.get(separator, separator)} "
            f"are declared; if every client's table is written so, set separator = {json.dumps(other)} in "
            '[data.columns], and decimal = "," where numbers have decimal commas; if this one alone is, write it as '
            "the others are"
        )


def columns_among(path: Path | str, present: Sequence[str], wanted: Sequence[str]) -> dict[str, int]:
    """Where the columns that are read are among those of a file."""
    if len(present) > MAX_COLUMNS:
        raise BadRecords(f"{path} has {len(present)} columns; at most {MAX_COLUMNS} are read")
    places: dict[str, int] = {}
    needed = set(wanted)
    for index, name in enumerate(present):
        if name in needed and name in places:
            raise BadRecords(f"{path} has two columns {name!r}; rename one")
        places[name] = index
    if missing := [name for name in wanted if name not in places]:
        names = ", ".join(repr(name) for name in list(present)[:20]) + (", ..." if len(present) > 20 else "")
        others = f", nor {len(missing) - 1} more of them" if len(missing) > 1 else ""
        raise BadRecords(f"{path} has no column {missing[0]!r}, which data.columns declares{others}; it has {names}")
    return {name: places[name] for name in wanted}


@contextmanager
def damaged(path: Path, kind: str) -> Iterator[None]:
    """Whatever a decoder says of bytes it cannot read, as one error that names the file."""
    try:
        yield
    except BadRecords:
        raise
    except (Exception, MemoryError) as fault:
        words = (str(fault).splitlines() or [type(fault).__name__])[0][:200]
        raise BadRecords(words if words.startswith(str(path)) else f"{path} is not a whole {kind}: {words}") from None


FORMATS: Mapping[str, Format] = {
    "csv": Format(_csv_chunks, "the header is row 1", ahead=True),
    "parquet": Format(_parquet_chunks, "the first record is row 1", ahead=True),
    "npz": Format(_npz_chunks, "the first record is row 1"),
    "idx": Format(_idx_chunks, "the first image is row 1"),
}
