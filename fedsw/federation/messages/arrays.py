"""Fields that are arrays: their shape in the table's symbols, their precision, the rows that they are filled up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
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
    """An array: a receiver in this process copies the numbers; bytes are made on demand.

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


@dataclass(frozen=True)
class ArrayField(Field):
    """An array: its shape in the symbols of `_lengths.SYMBOLS`, its precision, the limits of its numbers.

    Attributes:
        limits: of every number; None if any is taken, or any that is `finite`.
        filled: zero rows follow up to the first length of the shape; what came for them is never quoted.
        alike: all clients get the same one, alone in its record, and the message holds a `Broadcast` of it.
        by_cell: there is one for each cell, under the cell's number; the first length of cell j is that of `N_j`.
        length: the symbol of the fields after it with this array's first length.
        totals: the symbol of the fields after it with this array's columns' sums as lengths: `totals_j` of column j.
    """

    shape: str
    precision: Precision = "run"
    limits: Limits | None = None
    _: KW_ONLY
    record: Record = "arrays"
    finite: bool = False
    filled: bool = False
    alike: bool = False
    by_cell: bool = False
    length: str | None = None
    totals: str | None = None

    def keys(self, terms: Terms) -> tuple[str, ...]:
        """See `Field`."""
        return tuple(str(cell) for cell in range(terms.sizes["c"])) if self.by_cell else (self.name,)

    def bound(self, value: Any) -> Mapping[str, int]:
        """See `Field`; a value of the field's shape."""
        lengths = {} if self.length is None else {self.length: len(value)}
        if self.totals is not None:
            lengths |= {f"{self.totals}_{j}": int(total) for j, total in enumerate(value.sum(dim=0))}
        return lengths

    def put(self, value: Any, terms: Terms) -> Mapping[str, Any]:
        """See `Field`; an array of the field's shape, of fewer rows where it is filled; one for each cell, (n_j,)."""
        if self.alike:
            record: ArrayRecord = value.record(self.name)  # the one that all messages hold
            return record
        if self.by_cell:
            return {str(cell): Shared(part) for cell, part in enumerate(value)}
        rows = wire.padded(value, terms.sizes[self.shape.split()[0]]) if self.filled else value
        return {self.name: Shared(rows if self.precision == "int64" else rows.to(getattr(torch, self._dtype(terms))))}

    def take(self, get: Get, terms: Terms) -> Any:
        """See `Field`; an array of the field's shape, or one for each cell, (n_j,)."""
        if self.by_cell:
            cells = [(key, f"{self.shape}_{key}", f"{self.name} of cell {key}") for key in self.keys(terms)]
            return tuple(
                self._believed(self._checked(get(key), shape, terms, name), name) for key, shape, name in cells
            )
        array = self._checked(get(self.name), self.shape, terms, self.name)
        if not self.alike:
            return self._believed(array, self.name)
        if self.finite:  # else it is decoded when it is needed: a site gets one array for all of its clients
            self._believed(array, self.name)
        return Broadcast(array, self.name)

    def _dtype(self, terms: Terms) -> str:
        return terms.agreed.experiment.training.precision if self.precision == "run" else self.precision

    def _checked(self, array: Array, shape: str, terms: Terms, name: str) -> Array:
        """Require type, shape and length, before anything is decoded."""
        dtype, expected = self._dtype(terms), tuple(terms.sizes.get(symbol) for symbol in shape.split())
        try:
            wire.check(array.dtype, array.shape, array.stype, bytes_in(array), expected=expected, name=name)
            if array.dtype != dtype:
                raise ValueError(f"{name} came as {array.dtype!r}; expected {dtype!r}")
        except ValueError as fault:
            reason = f"{name}: not of the asked type and shape" if self.filled else str(fault)
            raise Malformed(reason, name, None if self.filled else tuple(array.shape)) from None
        return array

    def _believed(self, array: Array, name: str) -> Tensor:
        """The numbers, if the limits hold all of them; else `Malformed` with an extreme one, unless it is secret."""
        values = _decoded(array, name)
        if self.finite and not bool(torch.isfinite(values).all()):
            raise Malformed(f"{name} are not all finite", self.name)
        # Where one is no number, it is both extremes, and in no limits.
        extremes = (values.min().item(), values.max().item()) if values.numel() else ()
        for extreme in () if self.limits is None else [value for value in extremes if value not in self.limits]:
            wanted = f"{'floats' if values.is_floating_point() else 'whole numbers'} {self.limits}"
            if not self.seen.quoted:
                raise Malformed(f"{name} did not come as {wanted}", self.name)
            raise Malformed(f"{name} came with {extreme}; expected {wanted}", self.name, extreme)
        return values


def _decoded(array: Array, name: str) -> Tensor:
    tensor: Tensor | None = vars(array).get("_tensor")
    if tensor is not None:
        return tensor.clone()
    every = (None,) * len(array.shape)
    try:
        return wire.decode(array.dtype, array.shape, array.stype, array.data, expected=every, name=name)
    except ValueError as fault:
        raise Malformed(str(fault), name) from None
