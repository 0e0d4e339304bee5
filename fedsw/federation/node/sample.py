"""Sampling of a node's units: their strata, those kept out of training, samples of many clients at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.randomness import Stream, smallest_keys
from fedsw.data import Records
from fedsw.data.units import Units, numbers_by_value
from fedsw.experiment import Experiment, ExperimentError
from fedsw.learning.tasks.problem import Problem


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
    places = _ranges(starts[taking], lengths)
    drawn_keys = keys(places)
    ends = np.cumsum(lengths)
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
    limit = np.where(share < 1.0, share * 2.0**64, 2.0**64 - 2.0**11).astype(np.uint64)
    limit[share >= 1.0] = np.iinfo(np.uint64).max
    few = np.flatnonzero(keys <= limit[client])
    enough = np.bincount(client[few], minlength=len(lengths)) >= counts
    if not bool(enough.all()):
        few = np.arange(len(keys))
    return few


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The whole numbers from every start on, as many as its length says, one run after the other."""
    before = np.cumsum(lengths) - lengths
    places: NDArray[np.int64] = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
    return places
