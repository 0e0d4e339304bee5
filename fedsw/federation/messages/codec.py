"""Messages to Flower's records and back, as the fields of their classes say; the only place where either is done.

Under the local trust models a node gets a request once for many clients, with the positions of those that are asked.
Its reply holds what each of them would send alone, its records under its position, and says why a client sends nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar, cast, dataclass_transform, get_type_hints

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsw._tools.text import shown
from fedsw.federation import flower, wire
from fedsw.federation.messages._lengths import Terms
from fedsw.federation.messages.arrays import bytes_in
from fedsw.federation.messages.fields import PUBLIC, Field, Get, Limits, Malformed, Reals, Record

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
    """A message to clients, whose docstring says when it is sent, and their answer; and Flower's type of both.

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
        table["nonce"] = Reals(wire.NONCE, PUBLIC, about=about, record=kind.nonce, limits=Limits(0.0, 1.0), count=2)
    _FIELDS[kind] = table
    return table


class Unmade(UserDict[str, ArrayRecord | ConfigRecord | MetricRecord]):
    """The records of a message, made when somebody looks at them: who decodes it in this process reads the parts.

    What the `parts` hold is never changed.
    """

    def __init__(self, parts: Mapping[str, Mapping[str, Any]], nonce: Record | None) -> None:
        self.parts, self.nonce = parts, nonce

    @functools.cached_property
    def data(self) -> dict[str, ArrayRecord | ConfigRecord | MetricRecord]:  # type: ignore[override]
        """All records, as they travel."""
        fresh = {wire.NONCE: wire.nonce()}
        return {
            name: _record(name, {**part, **fresh} if name == self.nonce else part)
            for name, part in ((name, self.parts[name]) for name in _RECORDS if name in self.parts)
        }

    def __getitem__(self, name: str) -> ArrayRecord | ConfigRecord | MetricRecord:
        """Look up a record; that it is missing is known without making any."""
        if name not in self.parts and "data" not in vars(self):
            raise KeyError(name)
        return self.data[name]

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the process as records."""
        return dict, (self.data,)

    def twin(self) -> Unmade:
        """The same for a receiver: what it does with its records is not seen by anybody else."""
        return Unmade({name: dict(part) for name, part in self.parts.items()}, self.nonce)


def unmade(content: RecordDict) -> Unmade | None:
    """The parts of a message made in this process; None once somebody has looked at its records."""
    held = flower.records_in(content)
    return held if isinstance(held, Unmade) and "data" not in vars(held) else None


def bytes_of(content: RecordDict) -> int:
    """Bytes of the arrays in a message."""
    records = _parts(content)
    return sum(bytes_in(value) for record in records.values() for value in record.values() if isinstance(value, Array))


def _parts(content: RecordDict) -> Mapping[str, Mapping[str, Any]]:
    """The records of a message, or the parts that they will be made of."""
    held = unmade(content)
    return cast(Any, content) if held is None else held.parts


def encode(message: Message, terms: Terms) -> RecordDict:
    """Encode a message: all fields that the run's settings let travel, and an error for any other."""
    parts: dict[str, Mapping[str, Any]] = {}
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
        parts[field.record] = put if isinstance(put, ArrayRecord) else {**parts.get(field.record, {}), **put}
    content = RecordDict()
    flower.put_records(content, Unmade(parts, message.nonce))
    return content


def decode(kind: type[M], content: RecordDict, terms: Terms) -> M:
    """Decode a message, after a check of every key, type, shape and number in it.

    Raises:
        Malformed: naming the field, what came (unless it is secret) and what was expected.
    """
    records = _parts(content)
    _refuse_undeclared(kind, records, terms)
    values: dict[str, Any] = {}
    for attribute, field in fields_of(kind).items():
        if attribute == "nonce":
            if records is content and field.record in records:
                field.take(_getter(records, field), terms)
            continue
        values[attribute] = None
        if not field.present(terms):
            continue
        try:
            values[attribute] = value = field.take(_getter(records, field), terms)
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
    return field.take(_getter(cast(Any, content), field), terms)


def declared(kind: type[Message], terms: Terms) -> Mapping[str, frozenset[str]]:
    """The keys that a message of a run has, by record."""
    by_record: dict[str, set[str]] = {}
    for field in fields_of(kind).values():
        if field.present(terms):
            by_record.setdefault(field.record, set()).update(field.keys(terms))
    if kind.nonce is not None and by_record[kind.nonce] == {wire.NONCE}:
        del by_record[kind.nonce]  # of a record that is not there
    return {record: frozenset(keys) for record, keys in by_record.items()}


def _refuse_undeclared(kind: type[Message], records: Mapping[str, Mapping[str, Any]], terms: Terms) -> None:
    allowed = declared(kind, terms)
    for name, record in records.items():
        for key in record:
            if key not in allowed.get(name, ()):
                unknown = f"{name}[{str(key)[:40]!r}]"
                raise Malformed(f"{unknown} came, which {kind.__name__} does not hold in this run", unknown)


def _getter(records: Mapping[str, Mapping[str, Any]], field: Field) -> Get:
    record, kind = records.get(field.record), _RECORDS[field.record]

    def get(key: str) -> Any:
        if not isinstance(record, (kind, dict)) or key not in record:
            raise Malformed(f"no {_CALLED[kind]} {key!r} came", field.name)
        return record[key]

    return get


def _record(name: Record, content: Mapping[str, Any]) -> ArrayRecord | ConfigRecord | MetricRecord:
    if isinstance(content, ArrayRecord):
        return content
    if name in ("config", "metrics"):
        return ConfigRecord(dict(content)) if name == "config" else MetricRecord(dict(content))
    record = ArrayRecord()  # filled afterwards: its constructor looks at what kind of thing it got, at some length
    for key, array in content.items():
        record[key] = array
    return record


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
