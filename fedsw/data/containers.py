"""Tables out of whatever holds them in Python: tensors, arrays, data frames, data sets; nothing is interpreted here."""

from __future__ import annotations

import importlib
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.later import torch
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.values import normal, text_of
from fedsw.data.formats import BadRecords, Chunk, columns_among, slices

Array = NDArray[Any]

_MOST_WHOLE = 2.0**53
_ITEM = ("x", "y", "group")
_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d*)")
_ACCEPTED = (
    "a torch tensor, a NumPy array, a mapping of columns, a pandas, polars or pyarrow frame, a torch Dataset with a "
    "length, a Hugging Face datasets.Dataset, or a function without arguments that returns one of these"
)


@dataclass(frozen=True)
class Table:
    """Columns of equal length, whatever container (``kind``) they came from; each is converted when it is asked for.

    One of width p, (n, p), stands for `name`0, ..., `name`p-1. ``levels`` are values that the container itself
    declares, ``roles`` the columns of "target" and "group", where it has a place for them, ``labels`` those that pandas
    gives its rows.
    """

    kind: str
    names: tuple[str, ...]
    rows: int
    column: Callable[[str], object] = field(repr=False)
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    roles: Mapping[str, str] = field(default_factory=dict)
    labels: Any = field(default=None, repr=False)
    _converted: dict[str, Array] = field(default_factory=dict, repr=False)

    def cells(self, name: str) -> Array:
        """The column of a name, (n,) or (n, p); a column of width 1 is (n,)."""
        if name not in self._converted:
            columns_among(self.kind, self.names, [name])
            cells = as_cells(self.column(name), f"{self.kind}: column {name!r}")
            if len(cells) != self.rows:
                raise BadRecords(f"{self.kind}: column {name!r} has {len(cells)} rows; there are {self.rows} records")
            self._converted[name] = cells
        return self._converted[name]

    def single(self, name: str) -> Array:
        """The cells (n,) of a declared column: one of the table's, or a numbered part of a wide one."""
        match = _NUMBERED.fullmatch(name)
        if name not in self.names and match is not None and match[1] in self.names:
            wide = self.cells(match[1])
            if wide.ndim == 2 and int(match[2]) < wide.shape[1]:
                return np.asarray(wide[:, int(match[2])])
        cells = self.cells(name)
        if cells.ndim == 2:
            raise BadRecords(
                f"{self.kind}: column {name!r} has {cells.shape[1]} numbers a record; declare count = {cells.shape[1]}"
            )
        return cells

    def chunks(self, columns: Columns) -> Iterator[Chunk]:
        """The declared columns, some rows at a time; rows are counted from 0."""
        arrays: dict[str, Array] = {}
        for feature in columns.features:
            if feature.count is None or feature.name not in self.names:
                continue
            cells = self.cells(feature.name).reshape(self.rows, -1)
            if cells.shape[1] != feature.count:
                raise BadRecords(
                    f"{self.kind}: column {feature.name!r} has {cells.shape[1]} numbers a record; {feature.count} are "
                    "declared"
                )
            arrays |= {column: cells[:, index] for index, column in enumerate(feature.columns)}
        dates = {number.name for number in (*columns.features, *columns.targets) if number.reader.stored == "days"}
        for name in columns.names:
            if name not in arrays:
                arrays[name] = self.single(name)
            if arrays[name].dtype.kind == "M" and name not in dates:
                raise BadRecords(
                    f"{self.kind}: column {name!r} holds dates; numbers, truth values or text are expected: declare "
                    f"its public bounds in features, as in {{'name': {name!r}, 'kind': 'date', 'low': '1990-01-01', "
                    "'high': '2024-12-31'}, or leave it out of them"
                )
        return slices({name: arrays[name] for name in columns.names}, self.rows, first_row=0)

    def label(self, name: str) -> Array:
        """The cells (n,) of a column of groups or classes; whole numbers where all of its floats are whole."""
        cells = self.single(name)
        if cells.dtype.kind == "f" and bool((np.abs(cells) <= _MOST_WHOLE).all() and (cells == np.floor(cells)).all()):
            return cells.astype(np.int64)
        return cells

    def with_column(self, name: str, cells: Array) -> Table:
        """The table with one more column; its rows are counted when it is asked for."""
        before = self.column
        return replace(
            self,
            names=(*self.names, name),
            column=lambda wanted: cells if wanted == name else before(wanted),
            _converted=dict(self._converted),
        )


def tabulated(source: object, *, names: Sequence[str] | None = None) -> Table:
    """The table in a container that `as_records` takes, but a function; ``names`` are of a matrix's columns."""
    kind = kind_of(source)
    if names is not None and not isinstance(source, torch.Tensor | np.ndarray):
        raise BadRecords(f"names are for the columns of a matrix; {kind} has its own: leave names out")
    if _is_a(source, "pandas", "DataFrame"):
        return _of_frame(source, kind)
    if _is_a(source, "pandas", "Series"):
        raise BadRecords(
            f"{kind} is one row or one column, and records are rows of a table: pass a frame, as in frame.iloc[[0]] or "
            "series.to_frame().T"
        )
    if _is_a(source, "datasets", "Dataset"):
        return _of_hugging_face(source, kind)
    if hasattr(source, "__arrow_c_stream__") or _is_a(source, "pyarrow", "RecordBatch"):
        return _of_arrow(source, kind)
    if isinstance(source, np.ndarray) and source.dtype.names is not None:
        array = source
        return Table(kind, source.dtype.names, len(source), lambda name: array[name])
    if isinstance(source, torch.Tensor | np.ndarray):
        return _of_matrix(as_cells(source, kind), kind, names)
    if isinstance(source, torch.utils.data.TensorDataset):
        return _of_parts(dict(zip(_ITEM, _items_of(source.tensors, kind), strict=False)), kind, roles=True)
    if _is_a(source, "datasets", "DatasetDict", "IterableDatasetDict"):
        raise BadRecords(f"{kind} has several splits; pass one of them, as in data['train']")
    if isinstance(source, torch.utils.data.IterableDataset) or _is_a(source, "datasets", "IterableDataset"):
        raise BadRecords(f"{kind} has no length, and records are sampled by their place; pass list(data)")
    if isinstance(source, Mapping):
        return _of_parts({normal(str(name)): values for name, values in source.items()}, kind, roles=False)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, str | bytes):
        return _of_items(source, kind)
    raise BadRecords(f"records in {kind} cannot be read; pass {_ACCEPTED}")


def kind_of(source: object) -> str:
    """The type of a container as its library's users write it: "pandas.DataFrame", "list"."""
    module, name = type(source).__module__.partition(".")[0], type(source).__qualname__
    return name if module == "builtins" else f"{module}.{name}"


def aligned(values: object, labels: Any, what: str) -> object:
    """Values in the order of a table's rows with pandas ``labels``: a Series of the same labels, put in order.

    Anything else stays as it is, and so does a Series where rows have no labels.

    Raises:
        BadRecords: if the Series has other labels, or one twice: values cannot be assigned to rows.
    """
    if labels is None or not _is_a(values, "pandas", "Series"):
        return values
    series: Any = values
    if series.index.equals(labels):
        return series
    if len(series) == len(labels) and series.index.is_unique and labels.is_unique and labels.isin(series.index).all():
        return series.reindex(labels)
    raise BadRecords(
        f"{what} is a pandas.Series whose index is not that of the rows; give one with their labels, or .to_numpy() of "
        "it if its order is that of the rows"
    )


def as_cells(values: object, what: str) -> Array:
    """Values of one column as an array (n,) or (n, p): numbers, truth values, text, or objects of several kinds.

    What a masked array masks is a missing cell.
    """
    if isinstance(values, np.ma.MaskedArray):
        values = _unmasked(values)
    if isinstance(values, torch.Tensor):
        dense = values.detach().cpu()
        values = (dense.double() if dense.is_floating_point() else dense).numpy()
    elif _is_a(values, "pandas", "Series", "Index"):
        values = _of_series(values)
    elif isinstance(values, Sequence) and not isinstance(values, str | bytes):
        values = _array_of(list(values), what)
    elif hasattr(values, "__array__"):
        values = _of_series(values) if _is_a(values, "pandas", "api.extensions.ExtensionArray") else np.asarray(values)
    if not isinstance(values, np.ndarray):
        raise BadRecords(f"{what} is {kind_of(values)}; an array, a tensor or a list of one cell a record is expected")
    if values.dtype.kind == "O":
        values = _array_of(values.tolist(), what)
    if values.dtype.kind == "M":
        values = values.astype("datetime64[D]")
    if values.dtype.kind not in "biufUOM":
        raise BadRecords(f"{what} is {values.dtype}; numbers, truth values or text are expected, convert it")
    if values.ndim == 0:
        raise BadRecords(f"{what} is a single value; one cell a record is expected")
    if values.ndim > 2 or values.shape[1:] == (1,):
        values = values.reshape(len(values), -1 if values.ndim > 2 else 1)
        values = values[:, 0] if values.shape[1] == 1 else values
    return values


def _of_series(series: Any) -> object:
    """The cells of a pandas column: local times of a time zone; None for missing ones of nullable and Arrow types."""
    if getattr(series.dtype, "tz", None) is not None:
        return _local(series)
    if _holds_intervals(series.dtype):
        cells = np.empty(len(series), dtype=object)
        cells[:] = [None if cell != cell else str(cell) for cell in series.tolist()]
        return cells
    if isinstance(series.dtype, np.dtype):
        return series.to_numpy()
    if not bool(series.isna().any()):
        if getattr(series.dtype, "kind", "O") in "biuf" and hasattr(series.dtype, "numpy_dtype"):
            return np.asarray(series, dtype=series.dtype.numpy_dtype)
        return series.astype(object).to_numpy() if hasattr(series, "to_numpy") else np.asarray(series, dtype=object)
    cells = np.empty(len(series), dtype=object)
    cells[:] = [None if absent else cell for cell, absent in zip(series.tolist(), series.isna(), strict=True)]
    return cells


def _holds_intervals(kind: Any) -> bool:
    """Say whether cells are pandas' intervals, as those that `pandas.cut` gives: their text is the value."""
    return str(getattr(getattr(kind, "categories", None), "dtype", kind)).startswith("interval")


def _local(series: Any) -> object:
    """Moments in a time zone as its clocks showed them, so that days are those that their text has."""
    moments = series.dt if hasattr(series, "dt") else series
    return np.asarray(moments.tz_localize(None), dtype="datetime64[ns]")


def _unmasked(values: Any) -> Array:
    """A masked array with empty cells: NaN among numbers with a point and in rows of several, else None."""
    if not np.ma.is_masked(values):
        return np.asarray(values.data)
    if values.dtype.kind == "f" or (values.dtype.kind in "biu" and values.ndim > 1):
        return np.asarray(values.astype(np.float64).filled(np.nan))
    cells = np.asarray(values.data).astype(object)
    cells[np.ma.getmaskarray(values)] = None
    return cells


def _array_of(values: list[Any], what: str) -> Array:
    """Cells from a list: stacked where they are arrays, and else as they are."""
    values = [None if value is np.ma.masked else value for value in values]
    if values and (
        isinstance(values[0], list | tuple | np.ndarray | torch.Tensor) or hasattr(values[0], "__array_interface__")
    ):
        parts = [np.asarray(_plain(value)) for value in values]
        shapes = [part.shape for part in parts]
        if odd := [row for row, shape in enumerate(shapes) if shape != shapes[0]]:
            raise BadRecords(
                f"{what} has shape {shapes[odd[0]]} in row {odd[0]} and {shapes[0]} in row 0; pad or resize"
            )
        return np.stack(parts)
    plain = values
    if not {type(value) for value in values} <= _ORDINARY:
        pandas: Any = sys.modules.get("pandas")  # one that is not imported has no missing cells here
        absent = () if pandas is None else (pandas.NA, pandas.NaT)
        plain = [None if any(value is none for none in absent) else _plain(value) for value in values]
    kinds = {type(value) for value in plain}
    if kinds in ({bool}, {float}) or (kinds == {int} and all(-(2**63) <= value < 2**63 for value in plain)):
        return np.array(plain)
    cells = np.empty(len(plain), dtype=object)
    cells[:] = plain
    return cells


_ORDINARY = frozenset((str, int, float, bool, type(None)))
"""Types of cells that are as they are."""


def _plain(value: Any) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        return _unmasked(value)
    if _is_a(value, "pandas", "Interval"):
        return str(value)
    if isinstance(value, torch.Tensor):
        return (value.detach().cpu().double() if value.is_floating_point() else value.detach().cpu()).numpy()
    return value.item() if isinstance(value, np.generic) else value


def _of_frame(source: Any, kind: str) -> Table:
    names = [normal(str(label)) for label in source.columns]
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise BadRecords(f"{kind} has two columns {twice!r}; rename one")
    places = {name: index for index, name in enumerate(names)}
    levels = {}
    for name, index in places.items():
        text = str if _holds_intervals(declared_kind := source.iloc[:, index].dtype) else text_of
        declared = getattr(declared_kind, "categories", None)
        texts = [text(value) for value in declared.tolist()] if declared is not None else [None]
        if None not in texts:
            levels[name] = tuple(text for text in texts if text is not None)
    return Table(
        kind, tuple(names), len(source), lambda name: source.iloc[:, places[name]], levels, labels=source.index
    )


def _of_arrow(source: Any, kind: str) -> Table:
    """A frame of any library that hands its columns over as Arrow's: pyarrow, polars, DuckDB."""
    try:
        arrow: Any = importlib.import_module("pyarrow")
    except ModuleNotFoundError:
        raise BadRecords(
            f"{kind} is read by pyarrow, which is not installed: pip install pyarrow, or pass a pandas.DataFrame or a "
            "mapping of columns"
        ) from None
    table = arrow.table(source) if not isinstance(source, arrow.RecordBatch) else arrow.Table.from_batches([source])
    names = [normal(str(name)) for name in table.column_names]
    if len(set(names)) < len(names):
        raise BadRecords(f"{kind} has two columns {max(names, key=names.count)!r}; rename one")
    places = {name: index for index, name in enumerate(names)}
    levels = {}
    for name, index in places.items():
        if arrow.types.is_dictionary(table.column(index).type) and table.num_rows:
            listed = [
                text_of(value) for value in table.column(index).unify_dictionaries().chunk(0).dictionary.to_pylist()
            ]
            if None not in listed:
                levels[name] = tuple(text for text in listed if text is not None)

    def column(name: str) -> object:
        cells = table.column(places[name])
        if arrow.types.is_timestamp(cells.type):
            if cells.type.tz is not None:
                cells = importlib.import_module("pyarrow.compute").local_timestamp(cells)
            return cells.to_numpy()
        plain = arrow.types.is_integer(cells.type) or arrow.types.is_floating(cells.type)
        return cells.to_numpy() if plain and not cells.null_count else cells.to_pylist()

    return Table(kind, tuple(names), table.num_rows, column, levels)


def _of_hugging_face(source: Any, kind: str) -> Table:
    plain = source.with_format(None)
    levels = {name: tuple(feature.names) for name, feature in source.features.items() if hasattr(feature, "int2str")}

    def column(name: str) -> object:
        values = list(plain.select_columns([name])[:][name])
        named = levels.get(name)
        if named is None:
            return values
        return [named[value] if value is not None and value >= 0 else None for value in values]

    return Table(kind, tuple(source.column_names), len(source), column, levels)


def _of_matrix(matrix: Array, kind: str, names: Sequence[str] | None) -> Table:
    if names is None:
        return Table(kind, ("x",), len(matrix), lambda name: matrix)
    wide = matrix[:, None] if matrix.ndim == 1 else matrix
    if len(names) != wide.shape[1] or len(set(names)) < len(names):
        raise BadRecords(f"{kind} has {wide.shape[1]} columns and {len(set(names))} different names; give one for each")
    places = {name: index for index, name in enumerate(names)}
    return Table(kind, tuple(names), len(wide), lambda name: wide[:, places[name]])


def _of_items(source: Any, kind: str) -> Table:
    """Items of a data set, one a record: mappings, or (x,), (x, y) or (x, y, group)."""
    items = [source[index] for index in range(len(source))]
    if not items:
        raise BadRecords(f"{kind} holds no records; a client takes part with at least one")
    if isinstance(items[0], Mapping):
        names = tuple(str(name) for name in items[0])
        for row, item in enumerate(items):
            if not isinstance(item, Mapping) or tuple(str(name) for name in item) != names:
                raise BadRecords(f"{kind}: row {row} has other keys than row 0, which has {', '.join(names)}")
        keys = list(items[0])
        return _of_parts({str(key): [item[key] for item in items] for key in keys}, kind, roles=False)
    if not isinstance(items[0], tuple | list):
        items = [(item,) for item in items]
    sizes = [len(item) if isinstance(item, tuple | list) else 0 for item in items]
    if odd := [row for row, size in enumerate(sizes) if size != sizes[0]]:
        raise BadRecords(f"{kind}: row {odd[0]} is no tuple of {sizes[0]}, as row 0 is")
    parts = _items_of([[item[position] for item in items] for position in range(sizes[0])], kind)
    return _of_parts(dict(zip(_ITEM, parts, strict=False)), kind, roles=True)


def _items_of(parts: Sequence[Any], kind: str) -> Sequence[Any]:
    if not 1 <= len(parts) <= len(_ITEM):
        raise BadRecords(
            f"{kind} gives {len(parts)} things a record; (x,), (x, y), (x, y, group) or a dict is expected"
        )
    return parts


def _of_parts(parts: Mapping[str, Any], kind: str, *, roles: bool) -> Table:
    if not parts:
        raise BadRecords(f"{kind} has no columns")
    name, first = next(iter(parts.items()))
    if not hasattr(first, "__len__") or isinstance(first, str):
        raise BadRecords(f"{kind}: column {name!r} is a single value; one cell a record is expected")
    places = {"target": "y", "group": "group"} if roles else {}
    named = {role: name for role, name in places.items() if name in parts}
    labels = next((values.index for values in parts.values() if _is_a(values, "pandas", "Series")), None)

    def column(name: str) -> object:
        return aligned(parts[name], labels, f"{kind}: column {name!r}")

    return Table(kind, tuple(parts), len(first), column, roles=named, labels=labels)


def _is_a(value: object, module: str, *names: str) -> bool:
    """Say whether a value is of a library's class; a library that is not imported has no objects."""
    library = sys.modules.get(module)
    classes = [operator.attrgetter(name)(library) for name in names if hasattr(library, name.partition(".")[0])]
    return any(isinstance(value, known) for known in classes)
