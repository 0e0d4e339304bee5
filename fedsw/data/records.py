"""Records and data sets: frozen tables of tensors, validated when they are loaded, never during a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from fedsw._tools.later import torch
from fedsw._tools.subnormal import flushed
from fedsw._tools.text import Short

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Records(Short):
    """One row per record; construction checks shapes and dtypes, `validate` checks values.

    It prints neither values nor the number of records: the size of a batch may be secret.

    Numbers below the smallest normal float32, 1.2e-38, become 0, whatever they came from: see `fedsw._tools.subnormal`.

    Attributes:
        features: (n, p) float32.
        sensitive: (n,) int64, the group of each record.
        target: (n,) int64 for classes, or (n, t) float32 for regression.
        ids: (n,) int64, 0 or more, global record ids: a record has the same id at every client, in every run.
        unit: (n,) int64, the privacy unit of each record: one number for all its rows. None: every record is a unit.
    """

    features: Tensor
    sensitive: Tensor
    target: Tensor
    ids: Tensor
    unit: Tensor | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _require_tensor("features", self.features, torch.float32, columns=True)
        _require_tensor("sensitive", self.sensitive, torch.int64, columns=False)
        _require_tensor("ids", self.ids, torch.int64, columns=False)
        if self.target.ndim == 2:
            _require_tensor("target", self.target, torch.float32, columns=True)
        else:
            _require_tensor("target", self.target, torch.int64, columns=False)
        n = self.ids.shape[0]
        if self.unit is not None:
            _require_tensor("unit", self.unit, torch.int64, columns=False)
            if len(self.unit) != n:
                raise ValueError(f"records differ in length (unit {len(self.unit)}, ids {n}); every record has a unit")
        if not self.features.shape[0] == self.sensitive.shape[0] == self.target.shape[0] == n:
            sizes = {name: len(getattr(self, name)) for name in ("features", "sensitive", "target", "ids")}
            lengths = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise ValueError(f"records differ in length ({lengths}); every field needs one row per record")
        object.__setattr__(self, "features", flushed(self.features))
        if self.target.is_floating_point():
            object.__setattr__(self, "target", flushed(self.target))

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def is_classification(self) -> bool:
        """True if the target is a class; otherwise it is a point of R^t."""
        return self.target.ndim == 1

    def to(self, device: torch.device) -> Records:
        """The same records on a device; themselves if they are there."""
        if self.ids.device == device:
            return self
        return self._each(lambda values: values.to(device))

    def take(self, index: object) -> Records:
        """The records at the given rows (integers, in the given order) or where a boolean mask holds."""
        rows = torch.as_tensor(index, device=self.ids.device)
        if rows.dtype == torch.bool:
            rows = rows.nonzero().squeeze(1)
        return self._each(lambda values: values.index_select(0, rows))

    def part(self, start: int, end: int) -> Records:
        """The records of some rows that follow each other, which lie where they are."""
        return self._each(lambda values: values[start:end])

    def copied(self) -> Records:
        """A copy of the records: changing it changes no other object."""
        return self._each(torch.clone)

    def renumbered(self, ids: Tensor) -> Records:
        """The same records with other ids (n,) int64."""
        return unchecked(self.features, self.sensitive, self.target, ids, self.unit)

    def _facts(self) -> Mapping[str, object]:
        target = "a class" if self.is_classification else f"{self.target.shape[1]} numbers"
        return {"features": self.features.shape[1], "target": target}

    def _each(self, change: Callable[[Tensor], Tensor]) -> Records:
        unit = None if self.unit is None else change(self.unit)
        return unchecked(change(self.features), change(self.sensitive), change(self.target), change(self.ids), unit)


def with_features(records: Records, features: Tensor) -> Records:
    """The same records with other features (n, p), row i a function of record i only; nothing is copied."""
    return unchecked(features, records.sensitive, records.target, records.ids, records.unit)


def unchecked(features: Tensor, sensitive: Tensor, target: Tensor, ids: Tensor, unit: Tensor | None) -> Records:
    """Records of tensors (n, ...) as they are, which were checked and flushed once; nothing is copied."""
    records = object.__new__(Records)
    for name, value in zip(("features", "sensitive", "target", "ids"), (features, sensitive, target, ids), strict=True):
        object.__setattr__(records, name, value)
    object.__setattr__(records, "unit", unit)
    return records


@dataclass(frozen=True, eq=False)
class Dataset:
    """Private training records and a public held-out test set of one kind; construction validates both.

    The names of features, groups and classes, and so their numbers, are public: they come from a data set's
    documentation, never from its records. `classes` is empty for regression.

    ValueError if a value is outside its range, a group has no record, or a record is in both parts.
    """

    name: str
    train: Records
    test: Records
    feature_names: tuple[str, ...]
    groups: tuple[str, ...]
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part, records in (("train", self.train), ("test", self.test)):
            where = f"{self.name} ({part})"
            validate(records, where, groups=self.groups, classes=self.classes, feature_names=self.feature_names)
            require_groups(records, where, self.groups)
        if self.train.target.shape[1:] != self.test.target.shape[1:]:
            raise ValueError(
                f"{self.name}: targets of train and test have {tuple(self.train.target.shape[1:])} and "
                f"{tuple(self.test.target.shape[1:])} columns; they must agree"
            )
        shared = torch.isin(self.test.ids, self.train.ids)
        if bool(shared.any()):
            record = int(self.test.ids[shared][0])
            raise ValueError(
                f"{self.name}: record {record} is in train and in test; "
                "held-out metrics are outside the guarantee only if the records are different"
            )

    @property
    def targets(self) -> int:
        """Number of regression targets: the width of a target (n, t); 0 for classes."""
        return 0 if self.train.is_classification else self.train.target.shape[1]


Part: TypeAlias = "tuple[Tensor, Tensor, Tensor]"
"""Features (n, p) float32, target (n,) int64 and ids (n,) int64 of one part of a data set."""


def ungrouped(name: str, train: Part, test: Part, feature_names: tuple[str, ...], classes: tuple[str, ...]) -> Dataset:
    """A data set of records that are all in the group "all", from its two parts."""
    private, held_out = (Records(x, torch.zeros(len(ids), dtype=torch.int64), y, ids) for x, y, ids in (train, test))
    return Dataset(name, private, held_out, feature_names, ("all",), classes)


def concatenate(parts: Sequence[Records]) -> Records:
    """The records of several parts one after the other; they agree in widths and units, and share no unit."""
    if not parts:
        raise ValueError("no records to concatenate: give at least one part")
    widths = {(part.features.shape[1], part.target.shape[1:]) for part in parts}
    if len(widths) > 1:
        shapes = ", ".join(f"{p.features.shape[1]} features and target {tuple(p.target.shape[1:])}" for p in parts)
        raise ValueError(f"parts have different widths ({shapes}); records of one data set share them")
    return unchecked(
        joined([part.features for part in parts]),
        joined([part.sensitive for part in parts]),
        joined([part.target for part in parts]),
        joined([part.ids for part in parts]),
        _units_of(parts),
    )


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Tensors (n_i, ...) one after the other; if they lie so in memory, nothing is copied."""
    first, size = parts[0], sum(map(len, parts))
    # `read_tables` lays files one behind the other in one storage: a view of it is then the whole
    offset = first.storage_offset()
    for part in parts:
        beside = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (beside and part.is_contiguous() and part.storage_offset() == offset):
            return torch.cat(list(parts))
        offset += part.numel()
    return first.as_strided((size, *first.shape[1:]), first.stride())


def _units_of(parts: Sequence[Records]) -> Tensor | None:
    """The privacy unit of every record; None if each is a unit."""
    units = [part.unit for part in parts if part.unit is not None]
    if not units:
        return None
    if len(units) < len(parts):
        raise ValueError(f"{len(units)} of {len(parts)} parts have privacy units; declare a unit for all")
    if common := sum(map(len, map(torch.unique, units))) - len(torch.unique(torch.cat(units))):
        raise ValueError(f"{common} units of a part are also in an earlier one; the rows of a unit are one client's")
    return joined(units)


def validate(
    records: Records,
    name: str,
    *,
    groups: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
) -> None:
    """Check every value once, at load time, so that no round ever raises or branches on a record.

    Values are looked at as far as names of groups, classes (empty for regression) and features are given. ValueError,
    naming the client, row and column of the first fault, its value and its limit.
    """
    if len(records) == 0:
        raise ValueError(f"{name}: there are no records; a client takes part with at least one")
    width = records.features.shape[1]
    if feature_names is not None and len(feature_names) != width:
        raise ValueError(f"{name}: {width} feature columns but {len(feature_names)} feature names")
    columns = [f"features[{j}]" for j in range(width)]
    if feature_names is not None:
        columns = [f"{column} ({label})" for column, label in zip(columns, feature_names, strict=True)]
    _require_finite(records.features, name, columns)
    _require_range(records.sensitive, name, "sensitive", groups)
    if classes is not None and records.is_classification != bool(classes):
        kind = "classes (n,) int64" if classes else "numbers (n, t) float32"
        raise ValueError(f"{name}: target has shape {tuple(records.target.shape)}; {kind} are expected")
    if records.is_classification:
        _require_range(records.target, name, "target", classes)
    else:
        _require_finite(records.target, name, [f"target[{j}]" for j in range(records.target.shape[1])])
    _require_range(records.ids, name, "ids", None)
    _require_unique(records.ids, name)


def require_groups(records: Records, name: str, groups: Sequence[str]) -> None:
    """Refuse records in which a group is empty: a distance between groups needs every one, in the union of clients."""
    counts = torch.bincount(records.sensitive, minlength=len(groups)).tolist()
    empty = [group for group, count in zip(groups, counts, strict=True) if count == 0]
    if empty:
        raise ValueError(f"{name}: no record of group {', '.join(empty)}; add records of it or leave the group out")


def within_reach(numbers: Tensor, count: int, what: str, owner: str, setting: str) -> None:
    """Refuse numbers (n,) of classes, groups or cells that are not 0 .. count - 1, when records are loaded.

    Raises:
        ValueError: naming the first record and its number, the range, and the setting behind it.
    """
    outside = (numbers < 0) | (numbers >= count)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"{what} of record {row} is {int(numbers[row])}, and {owner} has {count}, numbered 0 to {count - 1}: "
            f"number them from 0, or set {setting}"
        )


def _require_tensor(name: str, value: Tensor, dtype: torch.dtype, *, columns: bool) -> None:
    shape = "(n, columns)" if columns else "(n,)"
    if value.ndim != (2 if columns else 1) or (columns and value.shape[1] == 0):
        raise ValueError(f"{name} has shape {tuple(value.shape)}; {shape} is expected")
    if value.dtype != dtype:
        raise ValueError(f"{name} is {value.dtype}; {dtype} is expected, convert it when loading")


def _require_finite(values: Tensor, name: str, columns: Sequence[str]) -> None:
    faults = (~torch.isfinite(values)).nonzero()
    if len(faults):
        row, column = faults[0].tolist()
        raise ValueError(
            f"{name}: row {row}, column {columns[column]} is {float(values[row, column])}; "
            f"every value must be finite ({len(faults)} are not): impute or drop those rows"
        )


def _require_range(values: Tensor, name: str, column: str, labels: Sequence[str] | None) -> None:
    outside = values < 0 if labels is None else (values < 0) | (values >= len(labels))
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        limit = "0 or more" if labels is None else f"0 .. {len(labels) - 1} ({', '.join(labels)})"
        raise ValueError(f"{name}: row {row}, column {column} is {int(values[row])}; it must be {limit}")


def _require_unique(ids: Tensor, name: str) -> None:
    order = torch.sort(ids, stable=True)
    repeated = (order.values[1:] == order.values[:-1]).nonzero()
    if len(repeated):
        first, second = order.indices[int(repeated[0])], order.indices[int(repeated[0]) + 1]
        raise ValueError(
            f"{name}: row {int(second)}, column ids is {int(ids[second])}, as in row {int(first)}; a "
            "record counts once, or replacing it would move more than the sensitivity allows"
        )
