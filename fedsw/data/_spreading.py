"""How records are spread over simulated clients: equally at random, by group, or by Dirichlet shares."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedsw.data.records import Records
from fedsw.data.units import Units

Index = npt.NDArray[np.int64]

_DIRICHLET_ATTEMPTS = 100
"""Draws of shares until every client has a record."""


def owners(
    records: Records,
    clients: int,
    scheme: Literal["iid", "group", "dirichlet"] = "iid",
    *,
    concentration: float = 0.5,
    by: Literal["sensitive", "target"] = "sensitive",
    seed: int = 0,
) -> Index:
    """The number of the client that holds each record, (n,); every client has one, at least.

    "iid" deals the records at random into parts of equal size, up to one. "group" gives every client records of one
    group only, if there are at least as many clients as groups; with fewer clients, whole groups are put together.
    "dirichlet" draws for each value of `by` the clients' shares of its records from a symmetric Dirichlet law, as
    flwr-datasets' DirichletPartitioner does; draws that leave a client without a record are repeated. All rows of a
    unit go to one client; "dirichlet" goes by the first of them.

    A partition may depend on record values. It sets up a simulation; it is not a private release. ValueError if there
    are more clients than records (or units), a setting is unknown or out of range, or a client stays empty after 100
    Dirichlet draws (it is named).

    Source: for the Dirichlet law, Hsu, Qi, Brown 2019, Measuring the effects of non-identical data distribution.
    """
    if clients < 1:
        raise ValueError(f"clients = {clients}; a federation has at least 1")
    if records.unit is not None:
        units = Units.of(records)
        one_each = dataclasses.replace(records.take(units.firsts), unit=None)
        by_unit = owners(one_each, clients, scheme, concentration=concentration, by=by, seed=seed)
        owner = np.empty(len(records), dtype=np.int64)
        owner[units.rows] = np.repeat(by_unit, np.diff(units.starts))
        return owner
    if clients > len(records):
        raise ValueError(f"{clients} clients for {len(records)} records; use at most one client per record")
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    if scheme == "iid":
        # equal parts, up to one; the first are the larger ones, as numpy's `array_split` cuts
        sizes = np.full(clients, len(records) // clients) + (np.arange(clients) < len(records) % clients)
        return _dealt(rng.permutation(len(records)), sizes)
    elif scheme == "group":
        parts = _by_group(_column(records, "sensitive"), clients, rng)
    elif scheme == "dirichlet":
        parts = _dirichlet(_column(records, by), clients, concentration, rng)
    else:
        raise ValueError(f"partition scheme {scheme!r} is unknown: choose 'iid', 'group' or 'dirichlet'")
    return _dealt(np.concatenate(parts), np.array([len(part) for part in parts]))


def from_flwr_datasets(partitioner: Any, records: Records) -> list[Index]:
    """Row indices of each client's records, as a partitioner of flwr-datasets deals them.

    It sees the columns "index", "sensitive" and, for classes, "target". ValueError if it drops or repeats records,
    parts a unit, or leaves a client empty.
    """
    try:
        library = importlib.import_module("datasets")
    except ModuleNotFoundError as fault:
        raise ModuleNotFoundError(
            "flwr-datasets is not installed: `pip install flwr-datasets`, or use fedsw.data.owners, which "
            "needs nothing more"
        ) from fault
    columns: dict[str, Any] = {"index": np.arange(len(records)), "sensitive": _column(records, "sensitive")}
    if records.is_classification:
        columns["target"] = _column(records, "target")
    partitioner.dataset = library.Dataset.from_dict(columns)
    parts = [
        np.sort(np.asarray(partitioner.load_partition(c)["index"], dtype=np.int64))
        for c in range(partitioner.num_partitions)
    ]
    counts = np.bincount(np.concatenate(parts), minlength=len(records))
    unit = None if records.unit is None else records.unit.numpy()
    if unit is not None and sum(len(np.unique(unit[part])) for part in parts) > len(np.unique(unit)):
        raise ValueError(
            f"{type(partitioner).__name__} parts the rows of a unit among clients; use fedsw.data.owners, which "
            "keeps them together"
        )
    if (counts != 1).any():
        row = int(np.flatnonzero(counts != 1)[0])
        raise ValueError(f"{type(partitioner).__name__} gives row {row} to {counts[row]} clients; each belongs to one")
    _require_no_empty(parts, f"from {type(partitioner).__name__}: change its settings")
    return parts


def _dealt(rows: Index, lengths: Index) -> Index:
    """The owner of every row: client after client takes as many of the rows as its length says."""
    owner = np.empty(len(rows), dtype=np.int64)
    owner[rows] = np.repeat(np.arange(len(lengths)), lengths)
    return owner


def _column(records: Records, name: str) -> Index:
    if name not in ("sensitive", "target"):
        raise ValueError(f"partition by {name!r} is unknown: choose 'sensitive' or 'target'")
    if name == "target" and not records.is_classification:
        raise ValueError("partition by 'target' needs classes, and this target is a number; use by='sensitive'")
    values: Index = getattr(records, name).cpu().numpy()
    return values


def _by_group(group: Index, clients: int, rng: np.random.Generator) -> list[Index]:
    members = [rng.permutation(np.flatnonzero(group == g)) for g in np.unique(group)]
    members.sort(key=len, reverse=True)
    if clients <= len(members):
        bins: list[list[Index]] = [[] for _ in range(clients)]
        for rows in members:
            min(bins, key=lambda held: sum(map(len, held))).append(rows)
        return [np.concatenate(held) for held in bins]
    shares = [1] * len(members)
    for _ in range(clients - len(members)):
        fullest = max(range(len(members)), key=lambda g: len(members[g]) / shares[g])
        shares[fullest] += 1
    return [part for rows, share in zip(members, shares, strict=True) for part in np.array_split(rows, share)]


def _dirichlet(values: Index, clients: int, concentration: float, rng: np.random.Generator) -> list[Index]:
    if not 0 < concentration < float("inf"):
        raise ValueError(f"concentration = {concentration}; a Dirichlet law needs a finite one above 0")
    for _ in range(_DIRICHLET_ATTEMPTS):
        dealt: list[list[Index]] = [[] for _ in range(clients)]
        for value in np.unique(values):
            rows = rng.permutation(np.flatnonzero(values == value))
            shares = rng.dirichlet(np.full(clients, concentration))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
            for held, part in zip(dealt, np.split(rows, cuts), strict=True):
                held.append(part)
        parts = [np.concatenate(held) for held in dealt]
        if min(map(len, parts)) > 0:
            return parts
    _require_no_empty(
        parts,
        f"in the last of {_DIRICHLET_ATTEMPTS} draws with concentration {concentration}: use "
        "fewer clients or another seed",
    )
    return parts


def _require_no_empty(parts: list[Index], remedy: str) -> None:
    empty = [str(client) for client, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise ValueError(f"client {', '.join(empty)} of {len(parts)} has no record {remedy}")
