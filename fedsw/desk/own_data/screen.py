"""Screens of `fedsw check`, with time and memory of a run, measured on made-up records of the same number and form."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsw._tools.later import imported_later
from fedsw._tools.text import number
from fedsw.data.cells import MISSING, shown
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature
from fedsw.data.encoding import CellFault
from fedsw.data.sources import declared_columns
from fedsw.desk.own_data.examine import Examination, Examined
from fedsw.desk.own_data.understood import listed, of_columns, plain
from fedsw.experiment import Experiment
from fedsw.runs.report.document import Conclusion, Document, Listed, Strong

if TYPE_CHECKING:  # loaded for --estimate only: they take torch
    from fedsw.desk.own_data import rehearsal as rehearsal
    from fedsw.federation.engines import driver as driver
    from fedsw.federation.server import settling as settling

globals().update(imported_later(__spec__))

_WARM, _TIMED = 1, 4
"""Rounds of the run that loads libraries, and of the one that is timed."""


@dataclass(frozen=True)
class MachineCost:
    """Seconds of all rounds of a run in one process, with its start, and the most memory that it had had."""

    seconds: float
    bytes: int
    how: str


def measured_cost(experiment: Experiment, sizes: Sequence[Mapping[str, int]]) -> MachineCost:
    """Time and memory of a run, by one of 4 rounds on made-up records of the public sizes."""
    together = {
        name: sum(client_sizes.get(name, 0) for client_sizes in sizes)
        for name in declared_columns(experiment.data).groups
    }
    experiment = settling.settled(experiment, settling.numbers_of(experiment, together))
    columns = declared_columns(experiment.data)
    counts = [sum(by_group.values()) for by_group in sizes]
    before = [sum(counts[:client]) for client in range(len(counts))]
    records = [
        rehearsal.made_up(columns, by_group, first_unit=first) for by_group, first in zip(sizes, before, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for rounds in (_WARM, _TIMED):  # the first one loads libraries
            result = driver.run(rehearsal.on_objects(experiment, rounds, len(records)), data=records, runs=Path(folder))
    seconds, rounds = float(result.summary["seconds"]), experiment.training.rounds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    how = f"{_TIMED} rounds on made-up records of these sizes took {seconds:.2g} s; {rounds} rounds are asked for"
    return MachineCost(seconds / _TIMED * rounds, peak, how)


def examination_view(experiment: Experiment, examination: Examination, cost: MachineCost | None) -> Document:
    """Sizes, every fault, what is public, and what a run takes."""
    columns = declared_columns(experiment.data)
    faults = [line for file in examination.files for line in _faults_of(file, columns)]
    verdict = "a run cannot start: mend what is red"
    if examination.fits:
        verdict = "these records fit what the experiment declares"
        if cost is not None:
            verdict = "a run can start"
        elif not examination.alone:
            verdict += "; --estimate tries its settings on made-up records of these sizes, for time and memory"
    takes = "" if cost is None else f"a run takes about {number(cost.seconds, 2)} s and {cost.bytes / 1e9:.2g} GB"
    return Document(
        "",
        begins=(
            _sizes(examination, columns.unit),
            listed(of_columns(columns)),
            *map(Conclusion, _warnings(examination)),
            *map(Strong, (*faults, *examination.together)),
            f"public: {'; '.join(public_words(experiment))}",
            "" if cost is None else f"{takes} ({cost.how})",
            (Conclusion if examination.fits else Strong)(verdict),
        ),
    )


def _warnings(examination: Examination) -> Iterator[str]:
    for file in examination.files:
        yield from file.warnings
    yield from examination.warnings


def as_plain(experiment: Experiment, examination: Examination, cost: MachineCost | None) -> dict[str, Any]:
    """Write an examination and the cost of a run as plain values."""
    return {
        "fits": examination.fits,
        "files": [{**asdict(file), "file": str(file.file), "fits": file.fits} for file in examination.files],
        "together": list(examination.together),
        "warnings": list(_warnings(examination)),
        "public": list(public_words(experiment)),
        "understood": plain(of_columns(declared_columns(experiment.data))),
        "cost": None if cost is None else asdict(cost),
    }


def public_words(experiment: Experiment) -> Iterator[str]:
    """Yield what the output reveals of the data, whatever the noise."""
    columns = declared_columns(experiment.data)
    more = ", ..." if len(columns.names) > 8 else ""
    yield f"the names of {len(columns.names)} columns ({', '.join(columns.names[:8])}{more})"
    yield "their bounds, categories, fills, groups and classes, as the experiment declares them"
    counted = "records" if columns.unit is None else f"different {columns.unit!r}"
    if (declared := experiment.privacy.records) is None:
        yield f"the number of {counted} of each group at each client"
    else:
        yield f"the declared number of {counted}, {declared}, and that every client has one"
    if columns.rows != "all":
        yield "how many rows have a target"
    yield "every setting of the experiment"
    if experiment.data.held_out is not None:
        yield f"metrics of the records in {experiment.data.held_out}, without noise"


def _sizes(examination: Examination, unit: str | None) -> Listed:
    groups = list(dict.fromkeys(name for file in examination.files for name in file.groups))
    classes = [
        name for name in dict.fromkeys(name for file in examination.files for name in file.classes) if name != "all"
    ]
    rows = []
    for file in examination.files:
        counts = [*(file.groups.get(name, 0) for name in groups), *(file.classes.get(name, 0) for name in classes)]
        units = [] if unit is None else [file.units]
        absent = sum(sum(cells.values()) for cells in file.absent.values())
        faults = len(file.faults) + file.more + absent + len(file.doubts) + (file.broken is not None)
        sizes = [file.rows, *units, *counts, sum(file.missing.values()), faults]
        rows.append([file.name, *(f"{size:,}" for size in sizes)])
    counted = ["all"] if unit is None else ["rows", unit]
    return Listed.of("Sizes", ("records of", *counted, *groups, *classes, "missing cells", "faults"), rows)


def _faults_of(file: Examined, columns: Columns) -> Iterator[str]:
    yield from file.doubts
    for name, counts in file.absent.items():
        feature = next((candidate for candidate in columns.features if name in candidate.columns), None)
        cells = " and ".join(f"{count:,} {_CELLS[count != 1]} {value}" for value, count in counts.items())
        yield f"{file.file}: column {name!r}: {cells}; {_remedy(feature, counts)}"
    alike: dict[tuple[str, str], list[CellFault]] = {}
    for fault in file.faults:
        alike.setdefault((fault.column, fault.declared), []).append(fault)
    for (column, declared), faults in alike.items():
        if len(faults) > _SINGLY:
            yield f"{file.file}: column {column!r}: {declared}; {_rows_by_value(faults)} ({file.counted})"
            continue
        for fault in faults:
            yield f"{file.file}: row {fault.row} ({file.counted}), {fault.words}"
    for column, remedy in dict.fromkeys((fault.column, fault.remedy) for fault in file.faults if fault.remedy):
        yield f"{file.file}: column {column!r}: if they are right, {remedy}"
    if file.more:
        yield f"{file.file}: and {file.more} more faults in these columns"
    if file.broken is not None:
        yield f"{file.broken} (the rest of it was not read)"


def _rows_by_value(faults: Sequence[CellFault]) -> str:
    """Every row of some faults, those of one value together."""
    rows: dict[str, list[int]] = {}
    for fault in faults:
        rows.setdefault(fault.value, []).append(fault.row)
    return "; ".join(
        f"rows {', '.join(map(str, places))} are {value}" if len(places) > 1 else f"row {places[0]} is {value}"
        for value, places in rows.items()
    )


_CELLS = ("cell is", "cells are")
_SINGLY = 5
"""Most faults of one kind that have a line each."""


def _remedy(feature: Feature | None, counts: Mapping[str, int]) -> str:
    """Say what to write into the declaration for cells that seem to be missing."""
    if feature is None:
        return "a group, a target or a unit cannot be missing: mend these rows or leave them out"
    if feature.count is not None:
        return "declare columns that may be missing singly"
    written = [value for value in MISSING if shown(value) in counts]
    both = tuple(dict.fromkeys((*feature.missing, *written)))
    setting = f"missing = {json.dumps(both, ensure_ascii=False)}"
    if feature.categories:
        empty = f', or empty = "{feature.categories[0]}" if an empty cell is a value, as of a checkbox'
        return f"if they stand for missing values, declare {setting} for it" + empty * ("empty" in counts)
    if (middle := feature.reader.fill(feature)) is None or feature.since is not None:
        return f"if they stand for missing values, declare {setting} for it, and fill, the public value in their place"
    fill = number(middle, 6)
    return (
        f"if they stand for missing values, declare {setting}, fill = {fill} for it (fill is the public value that "
        "takes their place; this is the middle of the bounds)"
    )
