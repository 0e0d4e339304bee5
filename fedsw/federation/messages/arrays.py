"""Fields that are arrays: their shape in the table's symbols, their precision, the rows that they are filled up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedsw.federation import wire
from fedsw.federation.messages._lengths import Terms
from fedsw.federation.messages.fields import Field, Get, Limits, Malformed, Record

Precision = Literal["run", "float64", "int64"]
"""That of `training.precision`, or always the same."""


class Shared(Array):
    """An array whose receiver, if it is in this process, copies the numbers; bytes are made on demand.

    Its dtype, shape and number of bytes are those that another process would get. Once its bytes were asked for, or
    anything of it is changed, it is an ordinary `Array` of bytes. Its sender may change the values (any shape) later.
    """

    def __init__(self, values: Tensor) -> None:
        tensor = values.detach().to("cpu", copy=True)
        self.__dict__.update(
            dtype=wire.dtype_of(tensor), shape=tuple(tensor.shape), stype=wire.ARRAY_FORMAT, _tensor=tensor
        )

    def __getattr__(self, name: str) -> Any:
        """Make the bytes, which are not there yet."""
        if name != "data":
            raise AttributeError(f"an array has no {name}")
        if (tensor := self.__dict__.get("_tensor")) is not None:  # or another thread has made them
            self.__dict__.setdefault("data", wire.encode(tensor)[3])
            self.__dict__.pop("_tensor", None)
            object.__setattr__(self, "__class__", Array)  # by that name Flower stores it
        return self.__dict__["data"]

    def __setattr__(self, name: str, value: Any) -> None:
        """Make the bytes before anything is changed."""
        _ = self.data
        setattr(self, name, value)  # of an `Array` now

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the process as bytes."""
        return Array, (self.dtype, self.shape, self.stype, self.data)


def bytes_in(array: Array) -> int:
    """Bytes that an array takes on the wire; none are made for it."""
    tensor = vars(array).get("_tensor")
    return len(array.data) if tensor is None else wire.size_of(tensor)


@dataclass(frozen=True, kw_only=True)
class ArrayField(Field):
    """The base of fields that are arrays: a shape in the symbols of `_lengths.SYMBOLS`, and a precision.

    Where it is `filled`, zero rows follow up to the first length of the shape; what came for them is never quoted.
    """

    record: Record = "arrays"
    shape: tuple[str, ...]
    precision: Precision = "run"
    finite: bool = False
    filled: bool = False

    def _check(self, array: Array, shape: tuple[str, ...], terms: Terms, name: str) -> None:
        """Type, shape and length, before anything is decoded."""
        dtype, expected = self._dtype(terms), tuple(terms.sizes.get(symbol) for symbol in shape)
        try:
            wire.check(array.dtype, array.shape, array.stype, bytes_in(array), expected=expected, name=name)
            if array.dtype != dtype:
                raise ValueError(f"{name} came as {array.dtype!r}; expected {dtype!r}")
        except ValueError as fault:
            reason = f"{name}: not of the asked type and shape" if self.filled else str(fault)
            raise Malformed(reason, name, None if self.filled else tuple(array.shape)) from None

    def _dtype(self, terms: Terms) -> str:
        return terms.agreed.experiment.training.precision if self.precision == "run" else self.precision


@dataclass(frozen=True, kw_only=True)
class RealValues(ArrayField):
    """An array; of no limits where any number is taken."""

    limits: Limits | None = None

    def put(self, value: Tensor, terms: Terms) -> Mapping[str, Any]:
        """See `Field`; an array of the field's shape, or of fewer rows where it is filled."""
        rows = wire.padded(value, terms.sizes[self.shape[0]]) if self.filled else value
        return {self.name: Shared(rows.to(getattr(torch, self._dtype(terms))))}

    def take(self, get: Get, terms: Terms) -> Tensor:
        """See `Field`; an array of the field's shape."""
        array = get(self.name)
        self._check(array, self.shape, terms, self.name)
        values = _decoded(array, self.name)
        if self.finite and not bool(torch.isfinite(values).all()):
            raise Malformed(f"{self.name} are not all finite", self.name)
        if (limits := self.limits) is not None:
            for value in values.flatten().tolist():
                if value not in limits:
                    self.refuse(value, f"floats {limits}")
        return values


@dataclass(frozen=True, kw_only=True)
class WholeValues(ArrayField):
    """An array of whole numbers.

    Attributes:
        length: the symbol that its first length settles for the fields after it.
        totals: the symbol of the lengths that its columns add up to: column j is that of `totals_j`.
    """

    precision: Precision = "int64"
    limits: Limits
    length: str | None = None
    totals: str | None = None

    def bound(self, value: Tensor) -> Mapping[str, int]:
        """See `Field`; a value of the field's shape."""
        lengths = {} if self.length is None else {self.length: len(value)}
        if self.totals is not None:
            lengths |= {f"{self.totals}_{j}": int(total) for j, total in enumerate(value.sum(dim=0))}
        return lengths

    def put(self, value: Tensor, terms: Terms) -> Mapping[str, Any]:
        """See `Field`; a value of the field's shape."""
        return {self.name: Shared(value)}

    def take(self, get: Get, terms: Terms) -> Tensor:
        """See `Field`; a value of the field's shape."""
        array = get(self.name)
        self._check(array, self.shape, terms, self.name)
        return self._within(_decoded(array, self.name), self.name)

    def _within(self, values: Tensor, name: str) -> Tensor:
        """The numbers, if the limits hold all of them; else `Malformed` with the first extreme, unless it is secret."""
        for extreme in (int(values.min()), int(values.max())) if values.numel() else ():
            if extreme not in self.limits:
                if not self.seen.quoted:
                    raise Malformed(f"{name} did not come as whole numbers {self.limits}", self.name)
                reason = f"{name} came with {extreme}; expected whole numbers {self.limits}"
                raise Malformed(reason, self.name, extreme)
        return values


@dataclass(frozen=True, kw_only=True)
class RecordIds(WholeValues):
    """An array for each cell, under the cell's number, of the length that an earlier field of the message said."""

    def keys(self, terms: Terms) -> tuple[str, ...]:
        """See `Field`."""
        return tuple(str(cell) for cell in range(terms.sizes["c"]))

    def bound(self, value: tuple[Tensor, ...]) -> Mapping[str, int]:  # type: ignore[override]
        """See `Field`; (n_j,) of every cell j."""
        return {}

    def put(self, value: tuple[Tensor, ...], terms: Terms) -> Mapping[str, Any]:  # type: ignore[override]
        """See `Field`; (n_j,) of every cell j."""
        return {str(cell): Shared(ids) for cell, ids in enumerate(value)}

    def take(self, get: Get, terms: Terms) -> tuple[Tensor, ...]:  # type: ignore[override]
        """See `Field`; (n_j,) of every cell j."""
        return tuple(self._cell(get(key), key, terms) for key in self.keys(terms))

    def _cell(self, array: Array, key: str, terms: Terms) -> Tensor:
        name = f"{self.name} of cell {key}"
        self._check(array, (f"{self.shape[0]}_{key}",), terms, name)
        return self._within(_decoded(array, name), name)


class Broadcast:
    """An array that a server sends to all clients alike: encoded once for all of them; decoded when asked for."""

    def __init__(self, array: Array, name: str = "a broadcast array") -> None:
        self._array, self._name = array, name
        self._records: dict[str, ArrayRecord] = {}

    @classmethod
    def of(cls, values: Tensor, terms: Terms) -> Broadcast:
        """Values of any shape in the run's precision, ready to be sent."""
        return cls(Shared(values.to(terms.agreed.dtype)))

    @classmethod
    def exact(cls, values: Tensor) -> Broadcast:
        """Values of any shape in float64, ready to be sent."""
        return cls(Shared(values.double()))

    def record(self, name: str) -> ArrayRecord:
        """The one record, with the array under that name, that all messages hold."""
        if name not in self._records:
            record = ArrayRecord()
            record[name] = self._array
            self._records[name] = record
        return self._records[name]

    def tensor(self) -> Tensor:
        """Its values; their type, shape and length were checked when it came."""
        return _decoded(self._array, self._name)


@dataclass(frozen=True, kw_only=True)
class BroadcastValues(ArrayField):
    """An array that all clients get alike, alone in its record."""

    record: Record = "model"

    def put(self, value: Broadcast, terms: Terms) -> Mapping[str, Any]:
        """See `Field`; the record is the one that all messages hold."""
        return value.record(self.name)

    def take(self, get: Get, terms: Terms) -> Broadcast:
        """See `Field`."""
        array = get(self.name)
        self._check(array, self.shape, terms, self.name)
        broadcast = Broadcast(array, self.name)
        if self.finite and not bool(torch.isfinite(broadcast.tensor()).all()):
            raise Malformed(f"{self.name} are not all finite", self.name)
        return broadcast


def _decoded(array: Array, name: str) -> Tensor:
    tensor: Tensor | None = vars(array).get("_tensor")
    if tensor is not None:
        return tensor.clone()
    every = (None,) * len(array.shape)
    try:
        return wire.decode(array.dtype, array.shape, array.stype, array.data, expected=every, name=name)
    except ValueError as fault:
        raise Malformed(str(fault), name) from None
