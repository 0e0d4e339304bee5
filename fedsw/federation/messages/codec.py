"""Messages to Flower's records and back, as the fields of their classes say; the only place where either is done.

Under the local trust models a node gets a request once for many clients, with the positions of those that are asked.
Its reply holds what each of them would send singly, its records under its position, and why a client sends nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar, cast, dataclass_transform, get_type_hints

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsw._tools.text import shown
from fedsw.federation import flower, wire
from fedsw.federation.messages._lengths import Terms
from fedsw.federation.messages.arrays import bytes_in
from fedsw.federation.messages.fields import PUBLIC, Field, Get, Limits, Malformed, NumberField, Record

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
