"""Read records from Python objects: those of this process, or a function or object of a module."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedsw._tools import own_objects as registry
from fedsw._tools.later import torch
from fedsw._tools.own_objects import load_object
from fedsw._tools.settings import ExperimentError
from fedsw.data._declared import DeclaredRecords, as_records
from fedsw.data.columns.declaration import Columns, difference
from fedsw.data.formats import BadRecords
from fedsw.data.records import Records, validate
from fedsw.data.settings import ObjectDescription
from fedsw.data.units import Units, require_one_client_each

_DECLARE_ALIKE = "declare data.columns, or groups= and classes= for every client alike"


@dataclass(frozen=True)
class Own:
    """Records of a run's clients: one table that is split among them (``shared``), or a table for each.

    All are read under one declaration; ``held_out`` is the server's own records to measure on.
    """

    parts: tuple[DeclaredRecords, ...]
    shared: bool
    held_out: Records | None = None

    @property
    def columns(self) -> Columns:
        """The declaration of all of them."""
        return self.parts[0].columns

    @property
    def read_off(self) -> tuple[str, ...]:
        """Lists of the declaration, "groups" or "classes", that are undeclared and read off the records."""
        return tuple(sorted({listed for part in self.parts for listed in part.read_off}))

    @property
    def described(self) -> tuple[ObjectDescription, ...]:
        """Types and numbers of records, or of units: facts that may be written down under every guarantee."""
        return tuple(ObjectDescription(kind=part.kind, records=len(Units.of(part))) for part in self.parts)


def in_this_process(source: str) -> Own | None:
    """The records that this process holds under a `data.source`; None if there are none."""
    records = registry.in_this_process(source)
    return records if isinstance(records, Own) else None


def read_all(source: object, columns: Columns | None, clients: int, *, what: str) -> Own:
    """Read the records of all clients of a simulation, validated, under one declaration.

    ``source`` is one object, a list or tuple with one for every client, or a function of a client's number and the
    number of clients; ``what`` opens every message. ExperimentError if their number is not that of the clients, or
    their declarations differ; BadRecords, ValueError for records that cannot be used, or clients with a unit in common.
    """
    if isinstance(source, list | tuple):
        wrapped = ". A list of records is wrapped in as_records(...), and federation.clients is the number of clients"
        _require_one_each(source, clients, what, wrapped)
        objects: Sequence[object] = source
    elif takes_client(source, what=what):
        objects = [asked(source, client, clients, what=what) for client in range(clients)]
    else:
        whole = read_one(asked(source, 0, clients, what=what), columns, what=what)
        return Own((whole,), shared=True)
    parts: list[DeclaredRecords] = []
    for client, one in enumerate(objects):
        part = read_one(one, columns, what=f"{what} of client {client}")
        if parts and (differs := difference(parts[0].columns, part.columns)):
            raise ExperimentError(
                f"{what} of client {client} is read under other columns than client 0's: {differs}; {_DECLARE_ALIKE}"
            )
        parts.append(part)
    require_one_client_each([part.unit for part in parts], range(clients), str(parts[0].columns.unit))
    return Own(tuple(parts), shared=False)


def read_one(source: object, columns: Columns | None, *, what: str) -> DeclaredRecords:
    """One object's records, validated; messages of `fedsw.data.as_records` begin with `what`."""
    try:
        records = as_records(source, columns=columns)
    except BadRecords as fault:
        raise BadRecords(f"{what}: {fault}") from None
    except ExperimentError as fault:
        raise ExperimentError(f"{what}: {fault}") from None
    declared = records.columns
    validate(records, what, groups=declared.groups, classes=declared.classes, feature_names=declared.feature_names)
    return records


def asked(source: object, client: int, clients: int, *, what: str) -> object:
    """Return a function's answer for a client, or the object itself; ValueError with what the function raised."""
    if not callable(source):
        return source
    arguments = (client, clients) if takes_client(source, what=what) else ()
    try:
        answer: object = source(*arguments)
    except Exception as fault:
        words = f"{what}, called for client {client} of {clients}, raised {type(fault).__name__}: {fault}"
        raise ValueError(words) from fault
    if callable(answer):
        raise ExperimentError(f"{what} returned a function again; return the records themselves")
    return answer


def takes_client(source: object, *, what: str) -> bool:
    """True if the source is a function of the client's number and the number of clients."""
    if not callable(source):
        return False
    positional, needed = _arity(source)
    if positional == 2:
        return True
    if needed:
        raise ExperimentError(
            f"{what} is a function of {needed} arguments; write one without arguments, or of the client's number and "
            "the number of clients"
        )
    return False


def loaded(reference: str, columns: Columns | None, clients: int, *, what: str) -> Own:
    """Read the records of all clients of a simulation from `module:name`; see `read_all`."""
    return read_all(load_object(reference, what=what), columns, clients, what=f"{what} {reference!r}")


def client_records(
    source: str, columns: Columns, client: int, clients: int, *, alone: bool, several: bool
) -> tuple[Records, bool]:
    """Return a client's records, with ids of the whole federation, and True if they are all clients', to be split.

    It is ``alone`` on a machine of its own, where what the module gives is this client's; where that holds ``several``
    clients, they cannot have the same records. ExperimentError for Python objects that are not in this process.
    """
    if (held := in_this_process(source)) is not None:
        if held.shared:
            return held.parts[0], True
        _require_one_each(held.parts, clients, "data")
        return numbered(held.parts[client], client, clients), False
    if (refusal := registry.absence(source)) is not None:
        raise ExperimentError(refusal)
    what = f"data.source {source!r}"
    named = load_object(source, what="data.source")
    if isinstance(named, list | tuple):
        if alone:
            raise ExperimentError(f"{what} is a list of all clients' records; a client on its own machine brings one")
        _require_one_each(named, clients, what)
        answer = named[client]
    elif alone or takes_client(named, what=what):
        if alone and several and not takes_client(named, what=what):
            raise ExperimentError(
                f"{what} gives one set of records, and this node holds several clients, {client} among them: each "
                "record would be in the federation several times. Write a function of the client's number and the "
                "number of clients"
            )
        answer = asked(named, client, clients, what=what)
    else:
        return _shared_table(source, columns), True
    return numbered(read_one(answer, columns, what=f"{what} of client {client}"), client, clients), False


def _require_one_each(objects: Sequence[object], clients: int, what: str, remedy: str = "") -> None:
    if len(objects) != clients:
        raise ExperimentError(
            f"{what} has {len(objects)} objects for {clients} clients; a list has one for each{remedy}"
        )


def numbered(records: Records, client: int, clients: int) -> Records:
    """A client's records with ids that interleave those of all clients, so that no two share one."""
    return records.renumbered(torch.arange(len(records)) * clients + client)


@functools.lru_cache(maxsize=2)
def _shared_table(reference: str, columns: Columns) -> DeclaredRecords:
    """One table of a simulation, read once in this process for all of its clients."""
    return loaded(reference, columns, 1, what="data.source").parts[0]


def _arity(function: Callable[..., Any]) -> tuple[int, int]:
    """Return how many arguments a function takes by position, and how many of them it needs."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0, 0
    placed = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(placed), sum(parameter.default is parameter.empty for parameter in placed)
