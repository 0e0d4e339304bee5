"""The units of a node's records in a problem: their strata, and which of them the node keeps out of training."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedsw.data import Records
from fedsw.data.units import Units
from fedsw.experiment import Experiment, ExperimentError
from fedsw.randomness import Stream
from fedsw.tasks.problem import Problem


def require_units(experiment: Experiment, records: Records) -> None:
    """Refuse records that do not say whose they are where the experiment's guarantee is that of units.

    Raises:
        ExperimentError: naming the unit.
    """
    if experiment.data.unit is not None and records.unit is None:
        raise ExperimentError(
            f"data.unit is {experiment.data.unit!r}, and these records were read without it; read them with "
            "fedsw.as_records(..., unit=...)"
        )


def cells_of_units(task: Problem, records: Records) -> tuple[NDArray[np.int64], ...]:
    """Numbers (n_j,) of the units of every cell j, in the objective's order.

    Raises:
        BadRecords: if rows of one unit are of several cells.
    """
    units = Units.of(records)
    if not units.declared:
        return task.cells_of(records)
    cells = task.objective.cell_of(records.sensitive, records.target)
    units.require_alike(cells, "group or class", f"unit {task.experiment.data.unit!r}")
    return task.cells_of(records.take(units.firsts))


def held_back(
    task: Problem, records: Records, owner: NDArray[np.int64], clients: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which rows (n,) are those of units that `data.held_out_fraction` keeps out of training.

    Of every client and cell the fraction of its units, rounded down: those whose identifiers a keyed hash puts first,
    the smaller one where two have the same, and where no unit is declared those at places that the key decides on. No
    row of a unit has a say. The key is public, and follows from `data.seed`, the client and the cell: who is kept out
    is the same in every process and after every restart, and for all neighbours of these records.

    Source: docs/guarantees/units.md.

    Args:
        owner: which of the clients holds each row, (n,).
        clients: their numbers in the federation.
    """
    units, seed, fraction = Units.of(records), task.experiment.data.seed, task.experiment.data.held_out_fraction
    held, back = owner[units.firsts], np.zeros(len(units), dtype=bool)
    for number, cell in enumerate(cells_of_units(task, records)):
        for place, client in enumerate(clients):
            own = cell[held[cell] == place]
            stream = Stream.seeded(seed, "held out", int(client), number)
            keys = stream.words_of(units.names[own]) if units.declared else stream.words(len(own))
            back[own[np.argsort(keys, kind="stable")[: math.floor(fraction * len(own))]]] = True
    found = np.zeros(len(records), dtype=bool)
    found[units.rows] = np.repeat(back, np.diff(units.starts))
    return found
