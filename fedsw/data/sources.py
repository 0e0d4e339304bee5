"""Find and read the records that section [data] names: private, held-out, public ones; refuse held-out private ones."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import threading
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools import files
from fedsw._tools.own_objects import absence
from fedsw._tools.settings import ExperimentError
from fedsw.data import _spreading, units
from fedsw.data import own_records as own
from fedsw.data.columns.declaration import Columns
from fedsw.data.formats import BadRecords
from fedsw.data.image_sets import private_half, resized, with_classes
from fedsw.data.places import Place, places, require_places
from fedsw.data.records import Dataset, Records, require_groups
from fedsw.data.settings import ENCODERS, SOURCES, Data, Partition, RecordSource, Target
from fedsw.data.tables import read_table, read_tables, read_units
from fedsw.data.units import equal_by_chance, rows_in_common, share_of_repeated_rows

_ENCODER = "autoencoder"
"""The encoder of `data.encoded`."""
_IMAGE_SIDE = 28
"""Side at which two image sets of different sizes meet."""

_owners: deque[tuple[Records, tuple[Partition, int], NDArray[np.int64]]] = deque(maxlen=2)
"""The last answers of `owners`, with the records and the settings that each is of; under `_owners_lock`."""
_owners_lock = threading.Lock()
_tables: dict[str, Any] = {}
"""The files that `shared_tables` keeps, and the folders and columns that they are of; under `_tables_lock`."""
_tables_lock = threading.Lock()


@dataclass(frozen=True)
class Shape:
    """Public facts of a data set before a record is read: inputs, groups, classes or regression targets.

    Ratios between groups are of the class `positive`; of no class in particular where that is None. Errors of one
    declared number are in its own units, by its lower bound and the width of its bounds (`units`).
    """

    features: int
    groups: tuple[str, ...]
    classes: int
    targets: int
    positive: int | None = None
    units: tuple[float, float] | None = None


def load_shape(source: RecordSource, data_dir: str | None = None) -> Shape:
    """The shape of an experiment's data; from the declared columns alone where clients bring their own records."""
    if source.data.own:
        columns = declared_columns(source.data)
        classes, targets = len(columns.classes), len(columns.targets)
        return Shape(columns.inputs, columns.groups, classes, targets, columns.positive, columns.units)
    dataset = load_dataset(source, data_dir)
    classes = len(dataset.classes)
    return Shape(dataset.train.features.shape[1], dataset.groups, classes, dataset.targets, second_of_two(classes))


def stated_shape(source: RecordSource) -> Shape:
    """The shape of an experiment's data without a look at any file: for a named data set in files, at least."""
    spec = source.data
    if spec.own:
        return load_shape(source)
    targets, known = 0, SOURCES.get(spec.source)
    if source.target != "class":
        targets = 1 if source.target == "mean" or known.number else 2
    features, groups, classes = known.shape or (spec.core_features + spec.spurious_features, 2, 2)
    if spec.public is not None:
        features = _IMAGE_SIDE**2
    features = (features if spec.encoded is None else spec.encoded) + (classes if spec.code is not None else 0)
    classes = 0 if targets else classes
    return Shape(features, tuple(map(str, range(groups))), classes, targets, second_of_two(classes))


def second_of_two(classes: int) -> int | None:
    """The class that is positive if none is declared: the second of two, and none of more."""
    return 1 if classes == 2 else None


def load_class_names(source: RecordSource) -> tuple[str, ...]:
    """Names of the classes; empty for a regression."""
    return declared_columns(source.data).classes if source.data.own else load_dataset(source).classes


def declared_columns(spec: Data) -> Columns:
    """The columns of a user's own records; ExperimentError if they are not declared."""
    if spec.columns is not None:
        return spec.columns
    if (refusal := absence(spec.source)) is not None:
        raise ExperimentError(refusal)
    raise ExperimentError(
        f"data.source {spec.source!r} is asked at the clients, and the server must know what comes: declare "
        "[data.columns]; `fedsw run` alone reads them off the records of its simulated clients"
    )


def load_held_out(source: RecordSource, *, private: Sequence[Records] | None = None) -> Records | None:
    """The server's own records to measure on, outside the guarantee; None if clients bring theirs and it has none.

    The private records that can be seen from here may have been read already. FileNotFoundError, BadRecords if
    data.held_out names a file that is not there, or does not fit the columns; ExperimentError if it is a private file,
    or shares rows with one that can be seen from here.
    """
    spec = source.data
    if not spec.own:
        return load_dataset(source).test
    if spec.held_out is None:
        return None
    at_hand = own.in_this_process(spec.source)
    if at_hand is not None and at_hand.held_out is not None:
        return at_hand.held_out
    columns, path, what = declared_columns(spec), Path(spec.held_out).expanduser(), f"data.held_out {spec.held_out}"
    if spec.held_out == spec.source and (refusal := absence(spec.source)) is not None:
        raise ExperimentError(refusal)
    if (reference := spec.held_out_code) is not None:
        records: Records = own.loaded(reference, columns, 1, what="data.held_out").parts[0]
    else:
        records = read_table(path, columns)
    require_groups(records, what, columns.groups)
    # Its metrics are published without noise. The refusal is itself an un-noised function of private records: it is for
    # whoever owns both files. Only those of a simulation are seen here, before anything is spent, and what nodes bring
    # from elsewhere is never asked for.
    tables = visible_tables(spec, source.clients)
    if spec.shows_private_rows:
        _require_other_file(path, tables, what)
        return records
    require_file_apart(
        path,
        records,
        tables,
        columns,
        what=what,
        where=f" in {spec.data_dir}",
        private=private,
        remedy=_ALLOW,
        others=spec.of_other_people,
        by_chance=True,
    )
    return records


def visible_tables(spec: Data, clients: int) -> list[Path]:
    """The private files of a simulation, which its server sees as its clients do; none if nodes bring their own."""
    return [file.table for file in visible_places(spec, clients)]


def visible_places(spec: Data, clients: int) -> list[Place]:
    """Assign files to owners: one of all clients, or one of each client, no more and no fewer; none is a copy.

    Whatever reads clients' files of one machine finds them here. FileNotFoundError, BadRecords, ExperimentError as
    `fedsw.data.places` says.
    """
    own_files = spec.own_files
    if own_files is None or (folder := own_files.folder) is None:
        return []
    tables = places(folder)
    require_places(tables, folder, clients)
    return tables


def require_runnable(spec: Data, clients: int, *, named: str, elsewhere: bool = False) -> None:
    """Refuse a run of this machine on clients' own files that are not there, or are not one of each client.

    ``named`` is the experiment as on the command line, for messages. Files that other processes of this machine will
    read (``elsewhere``) are read here once, first: faults of theirs would stand in another log.
    """
    own_files = spec.own_files
    if own_files is not None and own_files.folder is None:
        raise ExperimentError(
            f"{named} learns from clients' own files, and nothing says where they are: add "
            "--data-dir DIR (data.data_dir), a folder with a folder 0, 1, ... for each client, each with its table (or "
            "with one table, which is split among the clients)"
        )
    tables = visible_tables(spec, clients)
    if tables and elsewhere:
        shared_tables(tables, declared_columns(spec))


def shared_tables(paths: Sequence[Path], columns: Columns) -> list[Records]:
    """Files of a simulation, each read once for all clients in this process, and again when it has changed.

    Those that are read together lie one after the other in memory (`fedsw.data.read_tables`). They are kept until files
    of another folder, or under another declaration, are read.
    """
    with _tables_lock:
        keys = [(path, path.stat().st_mtime_ns) for path in paths]
        folders = {path.parent.parent if path.parent.name.isdecimal() else path.parent for path in paths}
        about = (folders, columns)
        if _tables.get("about") != about:
            _tables.update(about=about, tables={})
        tables: dict[tuple[Path, int], Records] = _tables["tables"]
        if absent := [key for key in keys if key not in tables]:
            tables |= dict(zip(absent, read_tables([path for path, _ in absent], columns), strict=True))
        return [tables[key] for key in keys]


def require_one_client_each(spec: Data, clients: int) -> None:
    """Refuse files of a simulation that are not one of each client, or in which one unit has rows at several clients.

    What nodes bring is not seen here.
    """
    tables = visible_tables(spec, clients)
    if len(tables) < 2 or spec.unit is None:
        return
    columns = declared_columns(spec)
    try:
        owned = [records.unit for records in shared_tables(tables, columns)]
    except BadRecords:  # other columns do not fit, which their client will say
        owned = [read_units(table, columns) for table in tables]
    units.require_one_client_each(owned, [table.parent.name for table in tables], spec.unit)


_ALLOW = (
    ". If these are different people with equal rows, say so with data.held_out_overlap = "
    "'other-people': the guarantee stays, and the record says that it is your word. With 'allow' the run goes on "
    "without that word, and the record says epsilon = infinity for its reader"
)
_UNLIKELY = 0.2
"""Largest share of equal rows, beyond those that chance makes, at which the assertion of other people is accepted."""


def require_file_apart(
    path: Path,
    records: Records,
    tables: Sequence[Path],
    columns: Columns,
    *,
    what: str,
    where: str,
    private: Sequence[Records] | None = None,
    remedy: str = "",
    others: bool = False,
    by_chance: bool = False,
) -> None:
    """Refuse a file that is one of the private tables, or shares rows or persons with one: what is shown has no noise.

    With `others`, an assertion that equal rows are of other people, rows may be shared as often as private rows are
    among themselves; ``by_chance`` lets pass what chance explains (`require_apart`). The private records may have been
    read already. The refusal is itself an un-noised function of them, for the owner of both.
    """
    _require_other_file(path, tables, what)
    tables_records = shared_tables(tables, columns) if private is None else private
    _require_other_persons(records, tables_records, columns.unit, what, where)
    common = rows_in_common(records, tables_records)
    if common and any(feature.outside == "cut" for feature in (*columns.features, *columns.targets)):
        uncut = columns.uncut()  # rows that are equal only after their numbers were cut are those of others
        records, tables_records = read_table(path, uncut), read_tables(tables, uncut)
        common = rows_in_common(records, tables_records)
    if not (by_chance and not others and _chance_explains(common, records, tables_records, what)):
        _require_no_rows(common, len(records), what, where, remedy, tables_records if others else None)


def _require_other_file(path: Path, tables: Sequence[Path], what: str) -> None:
    for table in tables:
        if files.same_content(path, table):
            raise ExperimentError(
                f"{what} is the private file {table}, or a copy of it: metrics of private records would be published "
                f"without noise. Name a file of other records, or leave {what.partition(' ')[0]} out"
            )


def require_apart(held_out: Records, private: Sequence[Records], spec: Data, *, what: str, where: str = "") -> None:
    """Refuse held-out records that are also private ones: their metrics are published without noise.

    Equal rows that chance explains in a coarse table are other people's, which is said; if all are equal, it explains
    none.
    """
    if spec.shows_private_rows:
        return
    _require_other_persons(held_out, private, spec.unit, what, where)
    common = rows_in_common(held_out, private)
    if not spec.of_other_people and _chance_explains(common, held_out, private, what):
        return
    asserted_of = private if spec.of_other_people else None
    _require_no_rows(common, len(held_out), what, where, _ALLOW, asserted_of)


def _chance_explains(common: int, held_out: Records, private: Sequence[Records], what: str) -> bool:
    """Say whether other people would have that many rows in common with the private ones by chance; warn if so.

    Chance makes about rows * expected equal rows, with the deviation of a binomial law. It explains none if every row
    is in common: the table may be an extract of the private ones. It explains none either if the test could miss that a
    part `_EXTRACT` of the table is an extract: all rows of that part are equal, which is (1 - expected) of them more
    than chance makes, and less than the test reaches.
    """
    rows = len(held_out)
    expected = equal_by_chance(held_out, private) if 0 < common < rows else 0.0
    reach = _BEYOND_CHANCE * math.sqrt(rows * expected * (1 - expected))
    if not expected or common > rows * expected + reach or reach > _EXTRACT * rows * (1 - expected):
        return False
    warnings.warn(
        f"{what}: {common} of its {rows} rows equal private ones, as many as chance makes in so coarse a table (about "
        f"{rows * expected:.0f}): they are taken for other people's. Were they the same people's, their metrics would "
        f"be published without noise; fewer than about {math.ceil(reach / (1 - expected))} of those would not show",
        stacklevel=3,
    )
    return True


_BEYOND_CHANCE, _EXTRACT = 2.5, 0.25
"""Deviations above the number expected by chance that are accepted (of tables of other people one in fifty is refused,
until other-people is asserted), and the part of a table that may be an extract without being seen."""


def _require_other_persons(
    held_out: Records, private: Sequence[Records], unit: str | None, what: str, where: str
) -> None:
    if persons := units.units_in_common(held_out, private):
        raise ExperimentError(
            f"{what}: {persons} values of its column {unit!r} are also in the private records{where}; metrics of "
            "a person whose privacy counts would be published without noise. Part the records by person; different "
            "people need different identifiers"
        )


def _require_no_rows(
    common: int, rows: int, what: str, where: str, remedy: str, asserted_of: Sequence[Records] | None
) -> None:
    """Refuse rows in common; or, if equal rows are asserted to be of other people, more than can be believed.

    Rows of other people from the same population equal a private row as often as private rows equal one another: the
    share of repeated rows among the private records, to four deviations of a binomial law and three rows.
    """
    if common and asserted_of is not None:
        share = share_of_repeated_rows(asserted_of)
        most = rows * (share + _UNLIKELY * (1 - share)) + 4 * math.sqrt(rows * share * (1 - share)) + 3
        if common > most:
            raise ExperimentError(
                f"{what}: {common} of its {rows} rows are also in the private records{where}, where only "
                f"{share:.3g} of the rows equal another one: the word that these are other people (other-people) "
                "cannot be right. Part the records by person, and name a table of other ones"
            )
    elif common:
        raise ExperimentError(
            f"{what}: {common} of its {rows} rows are also in the private records{where}, whose metrics would be "
            f"published without noise. Part the records by person, not by what the rows say{remedy}"
        )


def load_dataset(source: RecordSource, data_dir: str | None = None) -> Dataset:
    """The named data set, kept in memory for the other nodes of this process; not of clients' own records."""
    if source.data.own:
        raise ValueError(
            f"with data.source {source.data.source!r} records are at their clients, and there is no data set to load"
        )
    return _load(source.data, source.target, data_dir or source.data.data_dir)


def load_public(spec: Data) -> Dataset | None:
    """The public labelled data set of domain adaptation; None for other tasks."""
    if spec.public is None:
        return None
    return _load(spec.model_copy(update={"source": spec.public, "most_records": None}), "class", spec.data_dir)


def owners(records: Records, partition: Partition, clients: int) -> NDArray[np.int64]:
    """The client that holds each record of all, (n,), by the partition seed; the last answers are kept."""
    with _owners_lock:
        for known, settings, owner in _owners:
            if known is records and settings == (partition, clients):
                return owner
        owner = _spreading.owners(
            records,
            clients,
            scheme=partition.scheme,
            by=partition.by,
            seed=partition.seed,
        )
        _owners.append((records, (partition, clients), owner))
        return owner


@functools.lru_cache(maxsize=4)
def _load(spec: Data, target: Target, data_dir: str | None) -> Dataset:
    dataset, most = _whole(spec, target, data_dir), spec.most_records
    if most is None:
        return dataset
    return dataclasses.replace(dataset, train=dataset.train.take(np.arange(len(dataset.train))[:most]))


def _whole(spec: Data, target: Target, data_dir: str | None) -> Dataset:
    if not SOURCES.get(spec.source).images:
        return _named(spec, target, data_dir)
    images = load_images(spec, data_dir)
    if spec.encoded is not None:
        made: Dataset = ENCODERS.get(_ENCODER)(images, spec.encoded, spec.encoder_epochs)
        return made
    dataset = private_half(images) if spec.half else images
    return dataset if spec.code is None else with_classes(dataset, spec.code)


def _named(spec: Data, target: Target, data_dir: str | None) -> Dataset:
    known = SOURCES.get(spec.source)
    module, _, name = known.made_by.rpartition(":")
    make = getattr(importlib.import_module(f"fedsw.data.{module}" if module else "fedsw.data"), name)
    settings = {**dict(spec), "data_dir": data_dir, "target": target}
    dataset: Dataset = make(**{parameter: settings[setting] for parameter, setting in known.parameters.items()})
    return dataset


def load_images(spec: Data, data_dir: str | None = None) -> Dataset:
    """The whole data set of images that an experiment's private records are of."""
    images = _named(spec, "class", data_dir)
    alike = spec.public is None or SOURCES.get(spec.source).small
    return images if alike else resized(images, _IMAGE_SIDE)
