"""Records of a user's own: Python objects of this process, and what a function or an object of a module gives."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedsw._tools.settings import ExperimentError
from fedsw.data import BadRecords, DeclaredRecords, Records, as_records, validate
from fedsw.data.columns.declaration import Columns, difference
from fedsw.data.units import Units, require_one_client_each
from fedsw.experiment import own_objects as registry
from fedsw.experiment.own_objects import load_object
from fedsw.experiment.sections import Held

_TWICE = "declare data.columns, or groups= and classes= for every client alike"


@dataclass(frozen=True)
class Own:
    """What a run's clients hold: one table that is split among them (``shared``), or a table for each.

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
        """What of the declaration is that of some client's records, and of nobody's own words."""
        return tuple(sorted({each for part in self.parts for each in part.read_off}))

    @property
    def described(self) -> tuple[Held, ...]:
        """What may be written down of them under every guarantee: types and numbers of records, or of units."""
        return tuple(Held(kind=part.kind, records=len(Units.of(part))) for part in self.parts)


def in_this_process(source: str) -> Own | None:
    """The records that this process holds under a `data.source`; None if there are none."""
    found = registry.in_this_process(source)
    return found if isinstance(found, Own) else None


def read_all(source: object, columns: Columns | None, clients: int, *, what: str) -> Own:
    """What all clients of a simulation hold, validated, under one declaration.

    ``source`` is one object, a list or tuple with one for every client, or a function of a client's number and the
    number of clients; ``what`` opens every message. ExperimentError if their number is not that of the clients, or
    their declarations differ; BadRecords, ValueError for records that cannot be used, or clients with a unit in common.
    """
    if isinstance(source, list | tuple):
        wrapped = ". A list of records is wrapped in as_records(...), and federation.clients is the number of clients"
        _require_one_each(source, clients, what, wrapped)
        each: Sequence[object] = source
    elif takes_client(source, what=what):
        each = [asked(source, client, clients, what=what) for client in range(clients)]
    else:
        whole = read_one(asked(source, 0, clients, what=what), columns, what=what)
        return Own((whole,), shared=True)
    parts: list[DeclaredRecords] = []
    for client, one in enumerate(each):
        part = read_one(one, columns, what=f"{what} of client {client}")
        if parts and (found := difference(parts[0].columns, part.columns)):
            raise ExperimentError(
                f"{what} of client {client} is read under other columns than client 0's: {found}; {_TWICE}"
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
    """What a function gives for a client, or the object itself; ValueError with what the function raised."""
    if not callable(source):
        return source
    arguments = (client, clients) if takes_client(source, what=what) else ()
    try:
        found: object = source(*arguments)
    except Exception as fault:
        words = f"{what}, called for client {client} of {clients}, raised {type(fault).__name__}: {fault}"
        raise ValueError(words) from fault
    if callable(found):
        raise ExperimentError(f"{what} returned a function again; return the records themselves")
    return found


def takes_client(source: object, *, what: str) -> bool:
    """Whether records are asked from a function of the client's number and the number of clients."""
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
    """What `module:name` gives to all clients of a simulation; see `read_all`."""
    return read_all(load_object(reference, what=what), columns, clients, what=f"{what} {reference!r}")


def client_records(
    source: str, columns: Columns, client: int, clients: int, *, alone: bool, several: bool
) -> tuple[Records, bool]:
    """What a client holds, with ids of the whole federation, and whether it is everybody's table, to be split.

    It is ``alone`` on a machine of its own, where what the module gives is this client's; where that holds ``several``
    clients, they cannot have the same records. ExperimentError for Python objects that are not in this process.
    """
    if (found := in_this_process(source)) is not None:
        if found.shared:
            return found.parts[0], True
        _require_one_each(found.parts, clients, "data")
        return numbered(found.parts[client], client, clients), False
    if source == registry.OBJECT or registry.is_held(source):
        raise ExperimentError(absent(source))
    what = f"data.source {source!r}"
    given = load_object(source, what="data.source")
    if isinstance(given, list | tuple):
        if alone:
            raise ExperimentError(f"{what} is a list of all clients' records; a client on its own machine brings one")
        _require_one_each(given, clients, what)
        own = given[client]
    elif alone or takes_client(given, what=what):
        if alone and several and not takes_client(given, what=what):
            raise ExperimentError(
                f"{what} gives one set of records, and this node holds several clients, {client} among them: each "
                "record would be in the federation several times. Write a function of the client's number and the "
                "number of clients"
            )
        own = asked(given, client, clients, what=what)
    else:
        return _everybodys(source, columns), True
    return numbered(read_one(own, columns, what=f"{what} of client {client}"), client, clients), False


def _require_one_each(objects: Sequence[object], clients: int, what: str, remedy: str = "") -> None:
    if len(objects) != clients:
        raise ExperimentError(
            f"{what} has {len(objects)} objects for {clients} clients; a list has one for each{remedy}"
        )


def numbered(records: Records, client: int, clients: int) -> Records:
    """A client's records with ids that interleave those of all clients, so that no two share one."""
    return records.renumbered(torch.arange(len(records)) * clients + client)


def absent(source: str) -> str:
    """What is said of a run whose Python objects are not at hand."""
    if source == registry.OBJECT:
        return "data.source 'object' is passed in Python: fedsw.run(experiment, data=...)"
    return (
        "the records of this run were Python objects of the process that started it, and are on no disk; pass them "
        "again: fedsw.resume(directory, data=...)"
    )


@functools.lru_cache(maxsize=2)
def _everybodys(reference: str, columns: Columns) -> DeclaredRecords:
    """One table of a simulation, read once in this process for all of its clients."""
    return loaded(reference, columns, 1, what="data.source").parts[0]


def _arity(function: Callable[..., Any]) -> tuple[int, int]:
    """How many arguments a function takes by position, and how many of them it needs."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0, 0
    placed = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(placed), sum(each.default is each.empty for each in placed)
