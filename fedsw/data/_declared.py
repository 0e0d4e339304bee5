"""Records out of anything that holds them in Python, with the public declaration that they were read under."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from fedsw._tools.settings import ExperimentError, explain_all, takes
from fedsw.data.columns.declaration import Columns, difference
from fedsw.data.columns.declared_kinds import CROSS, Feature, Group, GroupPart, Label, Number
from fedsw.data.columns.values import Values, as_text, numbers_rows, text_of
from fedsw.data.containers import Array, Table, aligned, as_cells, kind_of, tabulated
from fedsw.data.encoding import encoded
from fedsw.data.formats import BadRecords
from fedsw.data.persons import Marks, persons_in
from fedsw.data.records import Records
from fedsw.data.units import Units

_MOST_LEVELS = 1_000
"""Values at most that are read off a column of groups or classes."""
_MOST_NAMED = 6

Reference = str | int | Mapping[str, Any]

_Role = TypeVar("_Role", Group, Label, Number)


@dataclass(frozen=True, eq=False, repr=False)
class DeclaredRecords(Records):
    """Records, and what is public of them, which is all that they print: their number, and their declaration in short.

    ``read_off`` says "groups" and "classes", as far as they are undeclared: their lists are those of the records,
    which makes public what occurs among them.
    """

    columns: Columns
    kind: str
    read_off: tuple[str, ...] = ()

    @property
    def rows_by_group(self) -> dict[str, int]:
        """Number of records of every group, by its name, or of units where one is declared.

        Public where a guarantee keeps a record in its group; not for a sketch, which protects groups as well.
        """
        counts = np.bincount(self.sensitive.numpy()[Units.of(self).firsts], minlength=len(self.columns.groups)).tolist()
        return dict(zip(self.columns.groups, counts, strict=True))

    def _facts(self) -> Mapping[str, object]:
        columns, units = self.columns, len(Units.of(self).names)
        size = {"records": units} if self.unit is None else {"units": units}
        groups = {"groups": _some(columns.groups)}
        inputs = {"inputs": columns.inputs, "columns": _some([feature.name for feature in columns.features])}
        names = [number.name for number in columns.targets]
        target = {"targets": _some(names)} if names else {"classes": len(columns.classes)}
        return {"from": self.kind, **size, **inputs, **groups, **target}


def _some(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return " / ".join([*names[:_MOST_NAMED], *more])


@takes(group="sensitive_features")
def as_records(
    source: object,
    *,
    group: object = None,
    target: object = None,
    targets: object = None,
    features: Sequence[Reference | Feature] | None = None,
    groups: Sequence[object] | None = None,
    classes: Sequence[object] | None = None,
    edges: Sequence[float] | None = None,
    unit: object = None,
    columns: Columns | None = None,
    names: Sequence[str] | None = None,
) -> DeclaredRecords:
    """Records from a table in Python, every cell checked as a file's would be: the same table gives the same records.

    Names of columns, the groups, the classes, bounds and edges are **public**, and should come from you: a list of
    groups or classes that is left out is taken from the data, and is a public fact from then on. Clients with data that
    lack a value then disagree; declare `groups` and `classes`.

    Args:
        source: a torch tensor or NumPy array (n, ...), a mapping or structured array of columns, a pandas DataFrame, a
            torch Dataset with a length and items (x,), (x, y), (x, y, group) or dicts, a Hugging Face
            `datasets.Dataset`, or a function without arguments that returns one of these.
        group: the column of the groups: a name, a number of a column, or an array (n,); a mapping such as
            {"name": "age", "edges": [30, 50], "low": 0, "high": 120} declares more, and a list of names, or an array
            or frame (n, k), makes groups of the columns' combinations, ["sex", "race"] "f × black". None: one group,
            "all". A Series beside a DataFrame is put in the order of its rows by their labels. `sensitive_features` is
            another word.
        target: the column of the classes, in the same ways. Groups and classes are text, whole numbers (of any dtype)
            or truth values.
        targets: numbers to predict: a column or several (names, numbers or mappings with low and high), or an array
            (n,) or (n, t). Not with `target`.
        features: the inputs in order, columns or mappings with the keys of [data.columns]'s features: {"name": "work",
            "categories": ["private", "public"]} becomes one-hot, {"name": "age", "low": 0, "high": 120} is mapped to
            [0, 1]. The group's column may be among them. None: every other column, as it is.
        groups: the values of `group`, in the order of their numbers.
        classes: the values of `target`, in the order of their numbers.
        edges: cut a numeric `group` here; see `fedsw.data.columns.declared_kinds.Group`.
        unit: the column of privacy-unit ids, or an array (n,): all rows of a person are then one unit, a batch
            has one row of each of its units, and guarantees and sizes are those of units. None: each record is one.
        columns: a whole declaration in place of all of these; `DeclaredRecords.columns` of other records, say.
        names: of the columns of a tensor or array, which else is a column "x" of its width: "x0", "x1", ...

    Returns:
        Features (n, inputs) float32, groups (n,) int64, classes (n,) int64 or targets (n, t) float32; ids 0, 1, ...

    Raises:
        BadRecords: naming the column, and the row (from 0) of the first fault with its value, for the holder of the
            records; or the container, with those that are accepted.
        ExperimentError: for a declaration that does not hold together.
    """
    arguments: dict[str, Any] = {"group": group, "target": target, "targets": targets, "features": features}
    arguments |= {"groups": groups, "classes": classes, "edges": edges, "unit": unit}
    if columns is not None and (twice := [name for name, value in arguments.items() if value is not None]):
        raise ExperimentError(
            f"{twice[0]} and columns are both given; columns declares everything, leave {twice[0]} out"
        )
    source = called(source)
    if isinstance(source, DeclaredRecords):
        if again := [name for name, value in arguments.items() if value is not None]:
            raise ExperimentError(f"{again[0]} is given, and these records are declared already; leave it out")
        if columns is not None and (differences := difference(columns, source.columns)):
            raise BadRecords(
                f"records from {source.kind} were read under other columns: {differences}; read them with "
                "as_records(..., columns=...), or declare groups= and classes= alike for every client"
            )
        return source
    table = tabulated(source, names=names)
    read_off: tuple[str, ...] = ()
    if columns is None:
        declaring = _Declaring(table)
        table, columns = declaring.columns(**arguments)
        read_off = tuple(declaring.read_off)
    read = encoded(table.chunks(columns), columns, where=table.kind, counted="the first record is row 0")
    parts = (read.features, read.sensitive, read.target, read.ids)
    return DeclaredRecords(*parts, columns, table.kind, read_off, unit=read.unit)


def called(source: object) -> object:
    """Take what a function without arguments returns; anything else as it is."""
    if not callable(source):
        return source
    table: object = source()
    if callable(table):
        raise BadRecords(
            f"{kind_of(source)} returned a function again, {kind_of(table)}; return the records themselves"
        )
    return table


class _Declaring:
    """From the arguments of `as_records` to a declaration; arrays that were passed become columns of the table."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.read_off: list[str] = []  # "groups" and "classes", as far as they are those of the table

    def columns(self, *, group: Any, target: Any, targets: Any, **arguments: Any) -> tuple[Table, Columns]:
        """The table with the arrays that were passed, and the declaration."""
        names = self._table.names
        if group is None:
            group = self._table.roles.get("group")
        if target is None and targets is None and (column := self._table.roles.get("target")) is not None:
            target, targets = (None, column) if self._table.cells(column).dtype.kind == "f" else (column, None)
        for name, about, owner in (
            ("groups", group, "group"),
            ("edges", group, "group"),
            ("classes", target, "target"),
        ):
            if arguments[name] is not None and about is None:
                raise ExperimentError(f"{name} is given and {owner} is not; name the column that it is about")
        if arguments["groups"] is not None and arguments["edges"] is not None:
            raise ExperimentError(
                "groups and edges are both given; groups are declared values, or numbers cut at edges"
            )
        try:
            declared_group = None if group is None else self._group(group, arguments["groups"], arguments["edges"])
            label = None if target is None else self._label(target, arguments["classes"])
            numbers = () if targets is None else self._numbers(targets)
            unit = None if arguments["unit"] is None else self._refer(arguments["unit"], "unit")
            used = {part.name for part in (label, *numbers) if part is not None} | {unit}
            used |= set() if declared_group is None else {*declared_group.columns}
            inputs = (
                self._others(names, used) if arguments["features"] is None else self._features(arguments["features"])
            )
            declaration = Columns(features=inputs, sensitive=declared_group, target=label, targets=numbers, unit=unit)
            if unit is None:
                self._require_no_persons(names, declaration, unsaid=arguments["features"] is None)
        except ValidationError as fault:
            raise ExperimentError("; ".join(explain_all(fault.errors(), Columns))) from None
        return self._table, declaration

    def _require_no_persons(self, names: Sequence[str], columns: Columns, *, unsaid: bool) -> None:
        """Refuse a column that looks like ids of persons where it would become an input unsaid; else warn of it."""
        labels = {label.name for label in (columns.target, *columns.targets) if label is not None}
        labels |= set() if columns.sensitive is None else {*columns.sensitive.columns}
        cells = {
            name: self._table.cells(name) for name in dict.fromkeys((*names, *labels)) if name in self._table.names
        }
        marks = {name: Marks.of(array) for name, array in cells.items() if array.ndim == 1 and array.dtype.kind != "M"}
        inputs = set() if unsaid else {feature.name for feature in columns.features}
        for person in persons_in(marks, [name for name in marks if name not in labels | inputs]):
            evidence = (
                f"{self._table.kind}: column {person.column!r} seems to identify persons: {person.words}. If rows "
                f"with one value are of one person, pass unit={person.column!r}: epsilon is else that of one row"
            )
            if unsaid:
                raise BadRecords(f"{evidence}; if not, name the inputs in features=")
            warnings.warn(evidence, stacklevel=5)

    def _group(self, reference: object, groups: Sequence[object] | None, edges: Sequence[float] | None) -> Group:
        names = list(reference) if isinstance(reference, list | tuple) else []
        known = all(isinstance(name, str) and name in self._table.names for name in names)
        if len(names) > 1 and known and edges is None:
            return self._combined(names, groups)
        if not isinstance(reference, str | int | Mapping) and edges is None:
            several = np.asarray(reference, dtype=object)  # each column keeps the kind of its own cells
            if several.ndim == 2 and several.shape[1] > 1:
                parts = [as_cells(list(part), "group") for part in several.T]
                return self._combined([self._added(f"group{i}", part) for i, part in enumerate(parts)], groups)
        cut = {} if edges is None else {"edges": tuple(edges)}
        if isinstance(reference, Mapping):
            return self._in_table(Group.model_validate({**reference, **_values(groups), **cut}), "group")
        name = self._refer(reference, "group")
        values = () if cut else self._levels(name, groups, "groups", "edges= cuts them into groups")
        return Group.model_validate({"name": name, "values": values, **cut})

    def _combined(self, names: list[str], groups: Sequence[object] | None) -> Group:
        """Groups of the combinations of several columns, those that are listed, or else occur."""
        parts = [
            GroupPart(name=name, values=self._levels(name, None, "groups", "name other columns")) for name in names
        ]
        places = [[Values(part.values).place(cell) for cell in self._table.label(part.name).tolist()] for part in parts]
        combinations = [
            CROSS.join(part.values[index] for part, index in zip(parts, row, strict=True))
            for row in sorted({*zip(*places, strict=True)})
            if min(row) >= 0
        ]
        return Group.model_validate({"of": parts, "values": combinations if groups is None else _texts(groups)})

    def _label(self, reference: object, classes: Sequence[object] | None) -> Label:
        if isinstance(reference, Mapping):
            return self._in_table(Label.model_validate({**reference, **_values(classes)}), "target")
        name = self._refer(reference, "target")
        return Label(name=name, values=self._levels(name, classes, "classes", "targets= predicts them as they are"))

    def _numbers(self, reference: object) -> tuple[Number, ...]:
        numbers: list[Number] = []
        for one in reference if isinstance(reference, list | tuple) else [reference]:
            if isinstance(one, Number | Mapping):
                numbers.append(self._in_table(Number.model_validate(one), "targets"))
            else:
                numbers += [Number(name=part) for part in self._parts(self._refer(one, "targets"))]
        return tuple(numbers)

    def _features(self, references: Sequence[Reference | Feature]) -> tuple[Feature, ...]:
        return tuple(
            Feature.model_validate(one)
            if isinstance(one, Feature | Mapping)
            else self._feature(self._refer(one, "features"))
            for one in ([references] if isinstance(references, str | Mapping) else references)
        )

    def _others(self, columns: Sequence[str], used: set[str | None]) -> tuple[Feature, ...]:
        """Every column of the container that nothing else uses; of a wide one, the parts that nothing else uses."""
        names: list[Feature] = []
        for name in columns:
            if name not in used and numbers_rows(name):
                warnings.warn(
                    f"{self._table.kind}: column {name!r} numbers the rows and is no input; name it in features if it "
                    "is one",
                    stacklevel=5,
                )
                continue
            parts = self._parts(name)
            if name not in used and not used.intersection(parts):
                names.append(self._feature(name))
            elif name not in used:
                names += [Feature(name=part) for part in parts if part not in used]
        return tuple(names)

    def _feature(self, name: str) -> Feature:
        parts = self._parts(name)
        cells = self._table.single(name) if parts == [name] else self._table.cells(name)
        if cells.dtype.kind == "U" or (cells.dtype.kind == "O" and any(isinstance(cell, str) for cell in cells.flat)):
            raise BadRecords(
                f"{self._table.kind}: column {name!r} holds text; declare its public categories in features, as in "
                f"{{'name': {name!r}, 'categories': [...]}}, or leave it out of them"
            )
        return Feature(name=name) if parts == [name] else Feature(name=name, count=len(parts))

    def _parts(self, name: str) -> list[str]:
        if name not in self._table.names:
            return [name]
        cells = self._table.cells(name)
        return [name] if cells.ndim == 1 else [f"{name}{index}" for index in range(cells.shape[1])]

    def _refer(self, reference: object, role: str) -> str:
        """The column that is meant: by its name, by its number, or by an array that becomes one."""
        names, kind = self._table.names, self._table.kind
        if isinstance(reference, int) and not isinstance(reference, bool):
            return self._numbered(reference, role)
        if isinstance(reference, str):
            if reference not in names:
                try:
                    self._table.single(reference)
                except BadRecords:
                    known = ", ".join(repr(name) for name in names[:20]) + (", ..." if len(names) > 20 else "")
                    raise BadRecords(
                        f"{role} is {reference!r}, and {kind} has no such column; it has {known}"
                    ) from None
            return reference
        cells = as_cells(aligned(reference, self._table.labels, role), role)
        if role != "targets" and cells.ndim != 1:
            raise BadRecords(
                f"{role} has {cells.shape[1]} numbers a record; an array with one cell a record is expected"
            )
        return self._added(role, cells)

    def _added(self, name: str, cells: Array) -> str:
        """A further column of the table (n,), by a name that no other has."""
        while name in self._table.names:
            name += "_"
        self._table = self._table.with_column(name, cells)
        return name

    def _numbered(self, index: int, role: str) -> str:
        names, kind = self._table.names, self._table.kind
        if str(index) in names:  # the label of a data frame's column
            return str(index)
        parts = [part for name in names for part in self._parts(name)]
        if not -len(parts) <= index < len(parts):
            raise BadRecords(f"{role} is {index}, and {kind} has {len(parts)} columns, counted from 0")
        return parts[index]

    def _in_table(self, declared: _Role, role: str) -> _Role:
        self._refer(declared.name, role)
        return declared

    def _levels(self, name: str, declared: Sequence[object] | None, argument: str, remedy: str) -> tuple[str, ...]:
        """The declared values of a column, those of its container, or those that occur, in their natural order."""
        if declared is not None:
            return _texts(declared)
        self.read_off.append(argument)
        if name in self._table.levels:
            return self._table.levels[name]
        cells, kind = self._table.label(name), self._table.kind
        if cells.dtype.kind == "f":
            raise BadRecords(f"{kind}: column {name!r} holds numbers that are not all whole; {remedy}, or mend them")
        levels: set[Any] = {text_of(cell) if isinstance(cell, float) else cell for cell in cells.tolist()}
        if any(not isinstance(value, str | int) for value in levels):
            row, cell = next((row, cell) for row, cell in enumerate(cells.tolist()) if text_of(cell) is None)
            what = "empty" if cell is None or cell != cell else "neither text nor a whole number nor a truth value"
            raise BadRecords(
                f"{kind}: row {row} (the first record is row 0), column {name!r} is {what}: fill it in or drop the row"
            )
        if not 2 <= len(levels) <= _MOST_LEVELS:
            least = "one value only" if len(levels) < 2 else f"{len(levels)} different values, over {_MOST_LEVELS}"
            raise BadRecords(f"{kind}: column {name!r} holds {least}; declare {argument}=, two or more, or {remedy}")
        numeric = all(isinstance(value, int) for value in levels)
        ordered: list[Any] = (
            sorted(levels) if numeric else sorted({as_text(value) for value in levels if value is not None})
        )
        return tuple(as_text(value) for value in ordered)


def _values(declared: Sequence[object] | None) -> dict[str, Any]:
    return {} if declared is None else {"values": _texts(declared)}


def _texts(values: Sequence[object]) -> tuple[Any, ...]:
    plain: list[Any] = [value.item() if isinstance(value, np.generic) else value for value in values]
    return tuple(as_text(value) if isinstance(value, int | str) else value for value in plain)
