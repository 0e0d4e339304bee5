"""Messages to Flower's records and back, as the fields of their classes say; the only place where either is done.

Read the public facts that both sides know (`Terms`), then a field (`Field`) and its kinds (texts, numbers, arrays),
then messages and exchanges, and how both sides encode and decode them.

Under the local trust models a node gets a request once for many clients, with the positions of those that are asked.
Its reply holds what each of them would send singly, its records under its position, and why a client sends nothing.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Generic, Literal, NoReturn, TypeVar, cast, dataclass_transform, get_type_hints

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedsw._tools.text import shown
from fedsw.experiment.sections import TableSettings
from fedsw.experiment.trust import RunGuarantee
from fedsw.federation import flower, wire
from fedsw.learning.moments.beside_rounds import histograms_of, moments_layout, scores_of, tally_of
from fedsw.learning.moments.preparation import Preparation
from fedsw.learning.sketches.from_settings import sent_size
from fedsw.learning.tasks.measures import sketcher_of
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import RegressionSums
from fedsw.privacy.accounting import Slicing

SYMBOLS: Mapping[str, str] = {
    "r": "parameters of the model",
    "d": "dimension of the outputs",
    "k": "directions of the attempt",
    "c": "cells: the strata of sampling",
    "B": "bins of a table",
    "S": "clients of the node: 1, or those of a site",
    "L": "clients of the node that are lost",
    "P": "rows that a node's arrays are filled up to: more than it is ever asked for, so that no size tells a count",
    "n": "records of the client's batch, or all of them where it releases once; public under the local trust models",
    "N": "records of the client",
    "q": "cells of a sketch: a block for each label and group that it tells apart",
    "w": "numbers of a sketch's cell in the stage: cosines and sines or codes, and the count",
    "z": "weights of the classifier that later stages look through, or pairs of columns",
    "g": "groups",
    "t": "numbers of a group's tally: counts and sums over the records that are kept out of training",
    "h": "3 for each target: a centre, and how far from it targets and answers of a tally may be",
    "s": "blocks of scores: the groups where thresholds are asked for, or 1",
    "o": "numbers of a block's scores: counts by class and bin of the probability",
    "b": "blocks of moments: the cells, or 1 where no penalty compares them",
    "u": "numbers of a block's moments: products of 1, inputs and target in pairs",
    "f": "columns of numbers that histograms are of",
    "p": "public parts of the column that has most, with one for a missing cell",
    "v": "numbers of a preparation: a centre, a square matrix and a scale, all of the inputs",
    "A": "exchanges that the node has answered in this run before; 0 in a new one",
    "x": "numbers of all tables of an attempt: of every penalty, cell, direction and bin",
    "y": "numbers of a masked sum: of all tables, the contribution, a sketch, histograms, moments, a tally or scores",
    "e": "3: what an exchange is numbered by",
    "N_j": "records of the node's clients in cell j",
}
"""Lengths that the shapes of the table are written in."""


@dataclass(frozen=True)
class Terms:
    """Facts that one side knows before a message comes: the task, once a client was greeted, and lengths by symbol.

    Any length is taken for the symbols that this side does not know.
    """

    task: Problem | None = None
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, task: Problem, **sizes: int) -> Terms:
        """The terms of a task, with lengths that it does not say."""
        known = {"r": task.parameters, "d": task.columns, "c": len(task.objective.cells), "e": 3}
        if isinstance(local := task.experiment.local, TableSettings):
            known["B"] = local.bins
        if task.experiment.stages:
            sketcher = sketcher_of(task)
            known |= {"q": sketcher.law.cells, "w": sketcher.coordinates + 1}
            if task.experiment.sketch.stages:
                known["z"] = sent_size(task.experiment, task.shape)
        if (tally := tally_of(task)) is not None:
            known |= {"g": tally.groups, "t": tally.width}
            if isinstance(tally, RegressionSums):
                known["h"] = 3 * tally.targets
        if (counts := scores_of(task)) is not None:
            known |= {"s": counts.groups, "o": counts.width}
        if (histograms := histograms_of(task)) is not None:
            known |= {"f": len(histograms.columns), "p": histograms.width}
        if (layout := moments_layout(task)) is not None:
            known |= {"b": layout.cells, "u": layout.width, "v": Preparation.length(task.features)}
        return cls(task, {**known, **sizes})

    def knowing(self, **sizes: int) -> Terms:
        """A copy of the terms with more lengths."""
        return Terms(self.task, {**self.sizes, **sizes})

    @property
    def agreed(self) -> Problem:
        """The task; RuntimeError before there is one."""
        if self.task is None:
            raise RuntimeError("this message is checked against a task, and none was agreed yet")
        return self.task

    @property
    def guarantee(self) -> RunGuarantee:
        """Guarantee of the run, which limits what may be stated of its noise."""
        return self.agreed.experiment.privacy.guarantee


@dataclass(frozen=True)
class Condition:
    """Condition for a field to be in its message; it follows from public settings only, so that both sides know it."""

    text: str
    holds: Callable[[Problem], bool]


def _draws_directions(task: Problem) -> bool:
    slicing = task.experiment.slicing
    law = Slicing(task.dimension, slicing.directions, slicing.scheme)
    return OWN_LEDGER.holds(task) and not law.fixed


SEEDED = Condition("in runs with `seed`", lambda task: task.experiment.seed is not None)
HELD_OUT_RELEASED = Condition(
    'with `data.held_out_to = "everybody"`', lambda task: task.experiment.data.held_out_released
)
WITH_MOMENTS = Condition("with `privacy.moments`", lambda task: bool(task.experiment.privacy.moments))
UNSAFE = Condition("with `unsafe_metrics`", lambda task: task.experiment.unsafe_metrics)
OWN_LEDGER = Condition("where clients add noise", lambda task: bool(task.experiment.privacy.paying(range(1))))
WITH_CUT = Condition(
    "where these records have numbers to predict", lambda task: isinstance(tally_of(task), RegressionSums)
)
WITH_STAGES = Condition("with `sketch.stages`", lambda task: bool(task.experiment.sketch.stages))
WITH_TABLES = Condition("with a penalty", lambda task: task.objective.alpha > 0)
THROUGH_MODEL = Condition("where features pass through the model", lambda task: task.private_parameters)
OWN_DIRECTIONS = Condition("where directions are not whole orthogonal blocks", _draws_directions)


Record = Literal["config", "metrics", "model", "prepared", "arrays"]
Get = Callable[[str], Any]
"""The value of a key that came, or `Malformed`."""

_LONGEST = 120  # letters of what came, in an error
_LEAST_POWER = 20  # of two, from which a limit is written as one


class Seen(Enum):
    """Parties that may see a field."""

    PUBLIC = "public"
    RELEASED = "released"
    NOISED = "noised"
    SECRET = "secret"
    COUNTED = "public, or secret"

    @property
    def quoted(self) -> bool:
        """True if an error may quote what came."""
        return self not in (SECRET, COUNTED)


PUBLIC, RELEASED, NOISED, SECRET, COUNTED = Seen

SEEN: Mapping[Seen, str] = {
    PUBLIC: "settings, public sizes, or random numbers that follow from no record",
    RELEASED: "the model: what earlier rounds released, noised in every trust model but `none`",
    NOISED: "noised by the client, or made of such numbers alone; everybody may see it",
    SECRET: "an un-noised function of records, or of which were drawn: for the server and this client only, which "
    "keep it to themselves; no error quotes it",
    COUNTED: 'how many records there are: public; with `privacy.relation = "add-remove"`, which protects that number, '
    "secret",
}


class Malformed(ValueError):
    """A message does not match the table of messages.

    `value` is what came for the field `name`; None for what is secret, and where nothing came.
    """

    def __init__(self, reason: str, name: str, value: object = None) -> None:
        super().__init__(reason)
        self.name, self.value = name, value


@dataclass(frozen=True)
class Limits:
    """The values of a number that are accepted: from `least` to `most`."""

    least: float = -math.inf
    most: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        least = _number(self.least)
        if self.least == self.most:
            return least
        if self.most == sys.float_info.max:
            return f"from {least}, finite"
        return f"from {least}" + (f" to {_number(self.most)}" if self.most < math.inf else "")


@dataclass(frozen=True)
class Field(ABC):
    """A field of a message.

    Attributes:
        name: its key in its record.
        seen: who may see it.
        about: what it is, for the table: the text beside the field in an attribute's annotation.
        record: of Flower's, that it is in.
        when: whether it is there; None for always. It is None in the message where it is not.
        spare: a message is taken without it if it is malformed: a diagnostic, on which nothing rests.
    """

    name: str
    seen: Seen
    _: KW_ONLY
    about: str = ""
    record: Record
    when: Condition | None = None
    spare: bool = False

    def present(self, terms: Terms) -> bool:
        """True if the field is in the messages of a run."""
        return self.when is None or self.when.holds(terms.agreed)

    def keys(self, terms: Terms) -> tuple[str, ...]:
        """Keys of the record that it takes."""
        return (self.name,)

    def bound(self, value: Any) -> Mapping[str, int]:
        """Lengths of later fields that this value determines, by symbol."""
        return {}

    @abstractmethod
    def put(self, value: Any, terms: Terms) -> Mapping[str, Any]:
        """Encode a value: the entries that travel, by key."""

    @abstractmethod
    def take(self, get: Get, terms: Terms) -> Any:
        """Decode the field's value from a received record; `Malformed` if it is not what the table says."""

    def refuse(self, value: object, wanted: str) -> NoReturn:
        """Raise the `Malformed` that names what came and what was expected; it does not quote a secret value."""
        if not self.seen.quoted:
            raise Malformed(f"{self.name} did not come as {wanted}", self.name)
        raise Malformed(f"{self.name} came as {_short(value)}; expected {wanted}", self.name, value)


@dataclass(frozen=True, kw_only=True)
class Text(Field):
    """A text with a limit of letters; all of it matches a `pattern`, which `form` describes in words."""

    record: Record = "config"
    most: int
    pattern: str | None = None
    form: str = ""

    def put(self, value: str, terms: Terms) -> Mapping[str, Any]:
        """See `Field`; `Malformed` if it has not the form that the other side takes."""
        self._require(value)
        return {self.name: value}

    def take(self, get: Get, terms: Terms) -> str:
        """See `Field`."""
        value = get(self.name)
        self._require(value)
        return str(value)

    def _require(self, value: object) -> None:
        if not isinstance(value, str):
            self.refuse(value, "a text")
        if len(value) > self.most:
            self.refuse(f"a text of {len(value)} letters", f"at most {self.most}")
        if self.pattern is not None and re.fullmatch(self.pattern, value) is None:
            self.refuse(value, self.form)


@dataclass(frozen=True)
class NumberField(Field):
    """A number of one type within the limits, or a list of them; the size of a whole one on the wire shows it.

    Attributes:
        promised: what its limits are in `RunGuarantee`, where a run without noise has others.
        count: how many a list has, or the symbol of that length; None for a number that is alone.
    """

    limits: Limits
    _: KW_ONLY
    record: Record = "config"
    kind: type[int] | type[float] = int
    promised: Literal["deviations", "epsilons"] | None = None
    count: str | int | None = None

    def put(self, value: Any, terms: Terms) -> Mapping[str, Any]:
        """See `Field`."""
        return {self.name: self.kind(value) if self.count is None else [self.kind(number) for number in value]}

    def take(self, get: Get, terms: Terms) -> Any:
        """See `Field`; a tuple of a list's numbers."""
        value, count, limits = get(self.name), self.count, self.limits
        if self.promised is not None:
            limits = Limits(*getattr(terms.guarantee, self.promised))
        called = "whole number" if self.kind is int else "float"
        if count is None:
            if type(value) is self.kind and value in limits:
                return value
            self.refuse(value, f"a {called} {limits}")
        wanted = terms.sizes.get(count) if isinstance(count, str) else count
        fits = isinstance(value, list) and wanted in (None, len(value))
        if fits and all(type(number) is self.kind and number in limits for number in value):
            return tuple(value)
        self.refuse(value, f"{'' if wanted is None else f'{wanted} '}{called}s {limits}")


def _number(value: float) -> str:
    if not isinstance(value, int):
        return f"{value:g}"
    for below in (0, 1):
        power = (value + below).bit_length() - 1
        if power >= _LEAST_POWER and value + below == 2**power:
            return f"2^{power}" + " - 1" * below
    return str(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


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
    """An array: its shape in the symbols of `SYMBOLS`, its precision, the limits of its numbers.

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


_RECORDS: Mapping[Record, type[ArrayRecord] | type[ConfigRecord] | type[MetricRecord]] = {
    "model": ArrayRecord,
    "prepared": ArrayRecord,
    "arrays": ArrayRecord,
    "config": ConfigRecord,
    "metrics": MetricRecord,
}
_CALLED = {ArrayRecord: "array", ConfigRecord: "setting", MetricRecord: "metric"}


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
class Message:
    """A message in one direction, a frozen dataclass; every attribute is annotated with what it is and its `Field`."""

    nonce: ClassVar[Record | None] = None
    """The record that holds a nonce, so that it equals no other (`fedsw.federation.wire`)."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False)(cls)


Down = TypeVar("Down", bound=Message)
Up = TypeVar("Up", bound=Message)


@dataclass(frozen=True)
class Exchange(Generic[Down, Up]):
    """A message to clients, with a docstring of when it is sent, and their answer; and Flower's type of both.

    If it is `followed` by another exchange of the attempt, nothing can be released yet when it is answered.
    """

    kind: str
    down: type[Down]
    up: type[Up]
    followed: bool = False

    @property
    def action(self) -> str:
        """The name under which Flower's ClientApp answers."""
        return self.kind.partition(".")[2]


M = TypeVar("M", bound=Message)
_FIELDS: dict[type[Message], Mapping[str, Field]] = {}


def fields_of(kind: type[Message]) -> Mapping[str, Field]:
    """The fields of a kind of message, by attribute, in the order in which they travel; a nonce is under `nonce`."""
    if kind in _FIELDS:
        return _FIELDS[kind]
    table: dict[str, Field] = {}
    for attribute, hint in get_type_hints(kind, include_extras=True).items():
        if attribute == "nonce":
            continue
        said = getattr(hint, "__metadata__", ())
        fields = [part for part in said if isinstance(part, Field)]
        if len(fields) != 1:
            raise TypeError(f"{kind.__name__}.{attribute} has {len(fields)} fields in the table; annotate it with one")
        table[attribute] = replace(fields[0], about="".join(part for part in said if isinstance(part, str)))
    if kind.nonce is not None:
        about = "drawn afresh for every message, so that no record equals another"
        limits = Limits(0.0, 1.0)
        table["nonce"] = NumberField(
            wire.NONCE, PUBLIC, about=about, record=kind.nonce, kind=float, limits=limits, count=2
        )
    _FIELDS[kind] = table
    return table


def bytes_of(content: RecordDict) -> int:
    """Bytes of the arrays in a message."""
    return sum(bytes_in(value) for record in content.values() for value in record.values() if isinstance(value, Array))


def encode(message: Message, terms: Terms) -> RecordDict:
    """Encode a message: all fields that the run's settings let travel, and an error for any other."""
    records: dict[Record, Any] = {}
    for attribute, field in fields_of(type(message)).items():
        if attribute == "nonce":
            continue
        value = getattr(message, attribute)
        if (value is not None) != field.present(terms):
            fault = "is missing" if value is None else "may not travel"
            rule = "it always travels" if field.when is None else f"it travels {field.when.text}"
            raise RuntimeError(f"{type(message).__name__}.{attribute} {fault}: {rule}")
        if value is None:
            continue
        put = field.put(value, terms)
        if isinstance(put, ArrayRecord):
            records[field.record] = put
            continue
        if (record := records.get(field.record)) is None:
            records[field.record] = record = _RECORDS[field.record]()
        # The field has made sure of the types; to have Flower check each item once more takes as long as all the rest.
        flower.records_in(record).update(put)
    if message.nonce in records:
        records[message.nonce][wire.NONCE] = wire.nonce()
    content = RecordDict()
    flower.put_records(content, {name: records[name] for name in _RECORDS if name in records})
    return content


def decode(kind: type[M], content: RecordDict, terms: Terms) -> M:
    """Decode a message, after a check of every key, type, shape and number in it.

    Raises:
        Malformed: naming the field, what came (unless it is secret) and what was expected.
    """
    allowed = declared(kind, terms)
    for name, record in content.items():
        for key in record:
            if key not in allowed.get(name, ()):
                unknown = f"{name}[{str(key)[:40]!r}]"
                raise Malformed(f"{unknown} came, which {kind.__name__} does not hold in this run", unknown)
    values: dict[str, Any] = {}
    for attribute, field in fields_of(kind).items():
        if attribute == "nonce":
            if field.record in content:
                field.take(_getter(content, field), terms)
            continue
        values[attribute] = None
        if not field.present(terms):
            continue
        try:
            values[attribute] = value = field.take(_getter(content, field), terms)
        except Malformed:
            if not field.spare:
                raise
            continue
        if bound := field.bound(value):
            terms = terms.knowing(**bound)
    return cast(M, cast(Any, kind)(**values))


def decode_one(kind: type[Message], attribute: str, content: RecordDict, terms: Terms) -> Any:
    """Decode one field of a message as `decode` does, and ignore the others."""
    field = fields_of(kind)[attribute]
    return field.take(_getter(content, field), terms)


def declared(kind: type[Message], terms: Terms) -> Mapping[str, frozenset[str]]:
    """The keys that a message of a run has, by record."""
    by_record: dict[str, set[str]] = {}
    for field in fields_of(kind).values():
        if field.present(terms):
            by_record.setdefault(field.record, set()).update(field.keys(terms))
    if kind.nonce is not None and by_record[kind.nonce] == {wire.NONCE}:
        del by_record[kind.nonce]  # of a record that is not there
    return {record: frozenset(keys) for record, keys in by_record.items()}


def _getter(content: RecordDict, field: Field) -> Get:
    record, kind = content.get(field.record), _RECORDS[field.record]

    def get(key: str) -> Any:
        if not isinstance(record, kind) or key not in record:
            raise Malformed(f"no {_CALLED[kind]} {key!r} came", field.name)
        return record[key]

    return get


CLIENTS = "clients"
"""The record of a request that says who is asked."""
_POSITIONS, _FAULTS, _BETWEEN = "positions", "faults", "/"


@dataclass(frozen=True)
class Fault:
    """Reason why a client's answer is missing: in words, and by Flower's code of its error if it sent one."""

    reason: str
    code: int | None = None


def addressed(content: RecordDict, positions: Sequence[int]) -> RecordDict:
    """A request, encoded once for all nodes, to the clients at some positions of a node, ascending."""
    return RecordDict({**content, CLIENTS: ConfigRecord({_POSITIONS: [int(position) for position in positions]})})


def opened(content: RecordDict, clients: int) -> tuple[RecordDict, list[int]]:
    """A request, and which of the node's clients it is for, by ascending positions; else `Malformed`."""
    record = content.get(CLIENTS)
    positions = record.get(_POSITIONS) if isinstance(record, ConfigRecord) else None
    chosen = [position for position in positions if type(position) is int] if isinstance(positions, list) else []
    if not chosen or chosen != positions or chosen != sorted(set(chosen)) or not 0 <= chosen[0] <= chosen[-1] < clients:
        raise Malformed(
            f"the request does not say for which of this node's {clients} clients it is", CLIENTS, positions
        )
    return RecordDict({name: held for name, held in content.items() if name != CLIENTS}), chosen


def packed(answers: Mapping[int, RecordDict | Fault]) -> RecordDict:
    """A node's reply: what each of its clients sends, by position."""
    reply, faults = RecordDict(), dict[str, str | int | None]()
    for position, answer in answers.items():
        if isinstance(answer, Fault):
            faults |= {f"{position}{_BETWEEN}reason": answer.reason, f"{position}{_BETWEEN}code": answer.code}
            continue
        for name, record in answer.items():
            reply[f"{position}{_BETWEEN}{name}"] = record
    if faults:
        reply[_FAULTS] = ConfigRecord(faults)  # type: ignore[arg-type]
    return reply


def unpacked(content: RecordDict, positions: Sequence[int]) -> Mapping[int, RecordDict | Fault]:
    """The answer of each asked client, by position; a `Fault` where there is none.

    Answers of clients that were not asked are ignored.
    """
    answers: dict[int, RecordDict] = {}
    for name, record in content.items():
        position, between, record_name = name.partition(_BETWEEN)
        if between and position.isdecimal() and len(position) < 20:
            answers.setdefault(int(position), RecordDict())[record_name] = record
    faults = content.get(_FAULTS)
    return {client: answers.get(client) or _refusal(faults, client) for client in positions}


def is_packed(content: RecordDict) -> bool:
    """True if a reply holds one answer for each client (`packed`), and not one for all of them."""
    return _FAULTS in content or any(name.partition(_BETWEEN)[0].isdecimal() for name in content)


def answered_for(content: RecordDict, clients: int) -> list[int]:
    """The positions of a node's clients that a reply holds something of; all of them where it is one answer for all."""
    packed_for = {name.partition(_BETWEEN)[0] for name in content}
    return [position for position in range(clients) if not is_packed(content) or str(position) in packed_for]


def _refusal(faults: object, position: int) -> Fault:
    held = faults if isinstance(faults, ConfigRecord) else {}
    reason, code = held.get(f"{position}{_BETWEEN}reason"), held.get(f"{position}{_BETWEEN}code")
    if isinstance(reason, str) and type(code) is int:
        return Fault(shown(reason), code)
    return Fault("its node sent no answer of it", 0)
