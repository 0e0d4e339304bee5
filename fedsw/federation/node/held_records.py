"""A node's records: read from files, objects or simulations; their strata, those kept out of training, and samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.files import same_file
from fedsw._tools.randomness import Stream, smallest_keys
from fedsw.data import Records, concatenate, find_table, read_table
from fedsw.data.columns.declaration import Columns, difference, read_columns
from fedsw.data.own_records import client_records, numbered
from fedsw.data.sources import declared_columns, load_dataset, owners, shared_tables, visible_places
from fedsw.data.units import Units, numbers_by_value, require_one_client_each
from fedsw.experiment import Experiment, ExperimentError
from fedsw.federation.node.simulated import is_simulated, with_substitutes
from fedsw.learning.tasks.problem import Problem


@dataclass(frozen=True, eq=False)
class Held:
    """The records of a node's clients, the client of each (n,), from 0, and the clients' numbers (S,), ascending."""

    records: Records
    owner: NDArray[np.int64]
    clients: NDArray[np.int64]

    def where(self, rows: NDArray[np.bool_]) -> Held:
        """Return the records where ``rows`` (n,) is true, of the same clients."""
        return Held(self.records.take(rows), self.owner[rows], self.clients)


def clients_of(experiment: Experiment, node_config: Mapping[str, Any]) -> tuple[range, int]:
    """The clients that a node holds, and how many there are in the federation.

    The node's configuration says that it is number `partition-id` of `num-partitions` nodes. With as many nodes as
    clients, or more, each holds one. With fewer, each holds a run of consecutive clients: it is a site. In a simulation
    the experiment says how many clients there are. On a machine of its own a node holds one, unless its operator says
    with `num-clients` that the federation has more: how its records are shared out is not for a server to choose.

    Raises:
        ExperimentError: for a missing key of its configuration, or an experiment with another number of clients.
    """
    try:
        part, parts = int(node_config["partition-id"]), int(node_config["num-partitions"])
    except KeyError as missing:
        raise ExperimentError(
            f"this node's configuration has no {missing}; start it with --node-config 'partition-id=0 num-partitions=4'"
        ) from None
    clients = experiment.federation.clients
    if not is_simulated(node_config):
        agreed = int(node_config.get("num-clients", parts))
        if "num-clients" in node_config and agreed != clients:
            raise ExperimentError(
                f"federation.clients is {clients}, and this node takes part in a federation of {agreed} (num-clients) "
                "only"
            )
        clients = agreed
    if parts >= clients:
        return range(part, part + 1), parts
    return range(part * clients // parts, (part + 1) * clients // parts), clients


def held_records(task: Problem, node_config: Mapping[str, Any]) -> Held:
    """The records of all of this node's clients (`clients_of`) that they train on, validated.

    Raises:
        ExperimentError: for a missing key of its configuration.
        ValueError: naming the client, for NaN or infinite values, or a part without records.
        BadRecords, FileNotFoundError: for a file of its own, naming the file, row and column of the first fault.
    """
    held = _all_records(task, node_config)
    if not task.experiment.data.held_out_fraction:
        return held
    return held.where(~held_back(task, held.records, held.owner, held.clients))


def held_out_records(task: Problem, node_config: Mapping[str, Any]) -> Held:
    """The records of these clients that `data.held_out_fraction` keeps out of training; no round reads them."""
    held = _all_records(task, node_config)
    return held.where(held_back(task, held.records, held.owner, held.clients))


def _all_records(task: Problem, node_config: Mapping[str, Any]) -> Held:
    """All records of this node's clients: read client by client, or as a part of one shared data set."""
    experiment = task.experiment
    clients, total = clients_of(experiment, node_config)
    if not experiment.data.own:
        held = _part(
            load_dataset(experiment.record_source, node_config.get("data-dir")).train, experiment, clients, total
        )
        first, last = held.clients[0], held.clients[-1]
        try:
            task.validate(held.records, name=f"client {first}" if first == last else f"clients {first} to {last}")
        except ValueError:
            for index, client in enumerate(held.clients):  # all at once is quick; one by one names the one at fault
                task.validate(held.records.take(np.flatnonzero(held.owner == index)), name=f"client {client}")
            raise
        return held
    read = _own_files if experiment.data.own_files is not None else _own_objects
    parts, everybodys = read(task, node_config, clients, total)
    if everybodys:
        return _part(parts[0], experiment, clients, total)
    require_one_client_each([records.unit for records in parts], clients, str(experiment.data.unit))
    owner = np.repeat(np.arange(len(clients)), [len(records) for records in parts])
    whole = parts[0] if len(parts) == 1 else concatenate(parts)
    return Held(with_substitutes(whole), owner, np.arange(clients.start, clients.stop))


def _part(everybody: Records, experiment: Experiment, clients: range, total: int) -> Held:
    """The clients' part of all records, in their order; all of them are not copied.

    ExperimentError if they would be dealt to more clients than take part: a part of them would be in no run.
    """
    if total > (wanted := experiment.federation.clients):
        raise ExperimentError(
            f"federation.clients is {wanted}, and this node is one of {total} (num-partitions): the records would be "
            f"dealt to {total} clients, and those of {total - wanted} left out. Start every node with "
            f"--num-partitions {wanted}, or set federation.clients to {total}"
        )
    owner = owners(everybody, experiment.partition, total)
    numbers = np.arange(clients.start, clients.stop)
    if len(clients) == total:
        return Held(with_substitutes(everybody), owner, numbers)
    rows = np.flatnonzero((owner >= clients.start) & (owner < clients.stop))
    return Held(with_substitutes(everybody.take(rows)), owner[rows] - clients.start, numbers)


def _own_objects(
    task: Problem, node_config: Mapping[str, Any], clients: range, total: int
) -> tuple[list[Records], bool]:
    """The clients' own objects, or the one that all clients share; and True if it is shared."""
    source, columns = task.experiment.data.source, declared_columns(task.experiment.data)
    how = {"alone": bool(node_config.get("own-data")), "several": len(clients) > 1}
    parts = list[Records]()
    for client in clients:
        records, everybodys = client_records(source, columns, client, total, **how)
        if everybodys:
            return [records], True
        parts.append(records)
    return parts, False


def _own_files(task: Problem, node_config: Mapping[str, Any], clients: range, total: int) -> tuple[list[Records], bool]:
    """Read the clients' own files, or the one file that all clients share; and True if it is shared.

    `data-path`, a file, and `data-dir`, a folder, of the node's configuration name what is its own, and nothing else is
    then looked at. A simulation has neither: there the experiment's data.data_dir holds one file that is split among
    the clients. Where there are several files the folder has one for each client, named by its number.

    Ids interleave those of all clients, so that no two records of a federation share one.
    """
    alone, columns = len(clients) == 1, declared_columns(task.experiment.data)
    if named := node_config.get("data-path"):
        if not alone:
            raise ExperimentError(
                f"this node holds several clients, {clients[0]} among them, and its data-path {named} is one file; "
                "start it with --data-dir, a folder with a folder for each client in it, named by the client's number"
            )
        return [_own_table(Path(str(named)), task, columns, clients[0], total)], False
    if folder := node_config.get("data-dir"):
        folders = {client: Path(str(folder)) / ("" if alone else str(client)) for client in clients}
        return [_own_table(find_table(path), task, columns, client, total) for client, path in folders.items()], False
    if task.experiment.data.data_dir is None:
        raise ExperimentError(
            "data.source 'files' needs to know where: start the node with --node-config 'data-dir=\"/its/folder\"' or "
            "'data-path=\"/its/file\"', or set data.data_dir for a simulation"
        )
    visible = visible_places(task.experiment.data, total)
    if visible[0].client is None:
        return shared_tables([visible[0].table], columns), True
    tables = shared_tables([visible[client].table for client in clients], columns)
    return [numbered(table, client, total) for table, client in zip(tables, clients, strict=True)], False


def _own_table(path: Path, task: Problem, columns: Columns, part: int, parts: int) -> Records:
    """A file that only this node has; not the one that the server measures on, if both are on one machine.

    The server's file is not opened: the server must not learn which of a client's rows are in a file of its choice.
    """
    held_out = task.experiment.data.held_out
    if held_out is not None and same_file(Path(held_out).expanduser(), path):
        raise ExperimentError(
            f"data.held_out {held_out} is client {part}'s own file: metrics of private records would be published "
            "without noise. Name a file of other records, or leave data.held_out out"
        )
    return read_table(path, columns, first_id=part, step=parts)


def require_agreement(columns: Columns | None, node_config: Mapping[str, Any]) -> None:
    """Refuse an experiment that declares other columns than this node's `schema`, a TOML file; without one, nothing."""
    named = node_config.get("schema")
    if named is None:
        return
    agreed = read_columns(Path(str(named)))
    if columns is None:
        raise ExperimentError(f"this node takes part with the columns of {named}; the experiment has no data.columns")
    if differs := difference(agreed, columns):
        raise ExperimentError(f"this node takes part with the columns of {named}; in the experiment, {differs}")


def require_units(experiment: Experiment, records: Records) -> None:
    """Refuse records without identifiers of units where the experiment's guarantee is for units."""
    if experiment.data.unit is not None and records.unit is None:
        raise ExperimentError(
            f"data.unit is {experiment.data.unit!r}, and these records were read without it; read them with "
            "fedsw.as_records(..., unit=...)"
        )


def cells_of_units(task: Problem, records: Records) -> tuple[NDArray[np.int64], ...]:
    """Numbers (n_j,) of the units of every cell j, in the objective's order; BadRecords if a unit is in several."""
    units = Units.of(records)
    if not units.declared:
        return task.cells_of(records)
    cells = task.objective.cell_of(records.sensitive, records.target)
    units.require_alike(cells, "group or class", f"unit {task.experiment.data.unit!r}")
    return task.cells_of(records.take(units.firsts))


def held_back(
    task: Problem, records: Records, owner: NDArray[np.int64], clients: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Mark the rows (n,) of units that `data.held_out_fraction` keeps out of training.

    From each client and cell the given fraction of units is taken, rounded down: the first ones by a keyed hash of
    their identifiers (ties: the smaller identifier first), or by a keyed order of positions if no unit is declared. A
    unit's rows do not matter. The key is public and depends on `data.seed`, the client and the cell only, so the
    choice is the same in every process, after every restart, and for all neighbouring data sets.

    Under additions and removals each unit is kept by itself, with that fraction for its probability: if the hash of its
    identifier is small, or, where no unit is declared, of all that the record says. Which others there are, and where,
    has no part in it.

    Source: docs/guarantees/units.md.
    """
    units, seed, fraction = Units.of(records), task.experiment.data.seed, task.experiment.data.held_out_fraction
    if task.experiment.privacy.hides_sizes:
        names = units.names if units.declared else numbers_by_value(records)
        small = Stream.seeded(seed, "held out").words_of(names) < np.uint64(math.floor(fraction * 2.0**64))
        return units.of_rows(small)
    held, back = owner[units.firsts], np.zeros(len(units), dtype=bool)
    for number, cell in enumerate(cells_of_units(task, records)):
        for index, client in enumerate(clients):
            candidates = cell[held[cell] == index]
            stream = Stream.seeded(seed, "held out", int(client), number)
            keys = stream.words_of(units.names[candidates]) if units.declared else stream.words(len(candidates))
            back[candidates[np.argsort(keys, kind="stable")[: math.floor(fraction * len(candidates))]]] = True
    return units.of_rows(back)


Keys = Callable[[NDArray[np.int64]], NDArray[np.uint64]]
"""Independent uniform keys of the records at some places of the cell."""

_FEW = 16
"""Clients up to which each is drawn by itself; above, sorting the keys of all of them together is quicker."""


def sampled(starts: NDArray[np.int64], counts: NDArray[np.int64], keys: Keys) -> NDArray[np.int64]:
    """Draw a sample from each client's part of a cell; returns places in the cell, ascending within each client.

    Client i holds places starts[i] to starts[i + 1] - 1; its counts[i] places with the smallest keys are taken. With
    independent uniform keys that is a uniform sample without replacement, independent across clients.

    The keys are asked once, for all records of the clients that are asked for any, in ascending order. Starts are
    (S + 1,), counts (S,) secret; that a sample is possible is for the caller to check.
    """
    taking = np.flatnonzero(counts)
    lengths = starts[taking + 1] - starts[taking]
    ends = np.cumsum(lengths)
    # the places of one client after those of another
    places: NDArray[np.int64] = np.arange(int(lengths.sum())) + np.repeat(starts[taking] - (ends - lengths), lengths)
    drawn_keys = keys(places)
    if len(taking) <= _FEW:
        parts = [
            places[begin:end][smallest_keys(drawn_keys[begin:end], int(count))]
            for begin, end, count in zip(ends - lengths, ends, counts[taking], strict=True)
        ]
        return np.concatenate(parts) if parts else places
    client = np.repeat(np.arange(len(taking)), lengths)
    few = _candidates(drawn_keys, client, lengths, counts[taking])
    order = few[np.lexsort((drawn_keys[few], client[few]))]
    held = np.bincount(client[few], minlength=len(taking))
    rank = np.arange(len(few)) - np.repeat(np.cumsum(held) - held, held)
    return places[np.sort(order[rank < np.repeat(counts[taking], held)])]


def _candidates(
    keys: NDArray[np.uint64], client: NDArray[np.int64], lengths: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Positions of all keys small enough to matter: below the expected threshold plus six standard deviations.

    Every position, if some client has too few below it; that depends on the random keys only, not on the records.
    """
    share = np.minimum((counts + 6.0 * np.sqrt(counts) + 1.0) / lengths, 1.0)
    # 2^64 itself is no uint64: the largest float64 below it stands in until the next line
    limit = np.where(share < 1.0, share * 2.0**64, 2.0**64 - 2.0**11).astype(np.uint64)
    limit[share >= 1.0] = np.iinfo(np.uint64).max
    few = np.flatnonzero(keys <= limit[client])
    enough = np.bincount(client[few], minlength=len(lengths)) >= counts
    if not bool(enough.all()):
        few = np.arange(len(keys))
    return few
