"""What an examination found, for its operator's screen and as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedsw.experiment import Experiment
from fedsw.experiment.sources import declared_columns
from fedsw.owndata.cost import Cost
from fedsw.owndata.examine import Examination, Examined
from fedsw.text import number


def examination_view(experiment: Experiment, found: Examination, cost: Cost | None) -> RenderableType:
    """Sizes, every fault, what is public, and what a run takes."""
    unit = declared_columns(experiment).unit
    parts: list[RenderableType] = [_sizes(found, unit)]
    parts += [Text(line, style="yellow") for line in _warnings(found, unit)]
    parts += [Text(line, style="red") for line in _faults(found)]
    parts.append(Text("public: " + "; ".join(public_words(experiment))))
    if cost is not None:
        parts.append(Text(f"a run takes about {number(cost.seconds, 2)} s and {cost.bytes / 1e9:.2g} GB ({cost.how})"))
    verdict = "a run can start" if found.fits else "a run cannot start: mend what is red"
    if found.alone and found.fits:
        verdict = "these records fit what the experiment declares"
    parts.append(Text(verdict, style="bold" if found.fits else "bold red"))
    return Group(*parts)


def as_plain(experiment: Experiment, found: Examination, cost: Cost | None) -> dict[str, Any]:
    """The same as plain values."""
    files = [{**asdict(file), "file": str(file.file), "fits": file.fits} for file in found.files]
    return {
        "fits": found.fits,
        "files": files,
        "together": list(found.together),
        "warnings": list(_warnings(found, declared_columns(experiment).unit)),
        "public": list(public_words(experiment)),
        "cost": None if cost is None else asdict(cost),
    }


def public_words(experiment: Experiment) -> Iterator[str]:
    """What everybody learns of the data, whatever the noise."""
    columns = declared_columns(experiment)
    more = ", ..." if len(columns.names) > 8 else ""
    yield f"the names of {len(columns.names)} columns ({', '.join(columns.names[:8])}{more})"
    yield "their bounds, categories, fills, groups and classes, as the experiment declares them"
    counted = "records" if columns.unit is None else f"different {columns.unit!r}"
    yield f"the number of {counted} of each group at each client"
    yield "every setting of the experiment"
    if experiment.data.held_out is not None:
        yield f"metrics of the records in {experiment.data.held_out}, without noise"


def _warnings(found: Examination, unit: str | None) -> Iterator[str]:
    for file in found.files:
        yield from file.warnings
    if found.shared:
        yield (
            f"{found.shared} values of the unit {unit!r} are in several clients' files. If these are the same persons, "
            "epsilon is for the rows of one client, and what the others spend adds up: a person's rows belong to one "
            "client"
        )


def _sizes(found: Examination, unit: str | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    groups = list(dict.fromkeys(name for file in found.files for name in file.groups))
    classes = [name for name in dict.fromkeys(name for file in found.files for name in file.classes) if name != "all"]
    table.add_column("records of")
    for column in [*(["all"] if unit is None else ["rows", unit]), *groups, *classes, "missing cells", "faults"]:
        table.add_column(column, justify="right")
    for file in found.files:
        by_group = [file.groups.get(name, 0) for name in groups]
        sizes = [
            file.rows,
            *([] if unit is None else [file.units]),
            *by_group,
            *(file.classes.get(name, 0) for name in classes),
        ]
        cells = [*sizes, sum(file.missing.values()), len(file.faults) + file.more + (file.broken is not None)]
        table.add_row(file.name, *(f"{cell:,}" for cell in cells))
    return table


def _faults(found: Examination) -> Iterator[str]:
    for file in found.files:
        yield from _faults_of(file)
    yield from found.together


def _faults_of(file: Examined) -> Iterator[str]:
    for fault in file.faults:
        yield f"{file.file}: row {fault.row} ({file.counted}), {fault.words}"
    if file.more:
        yield f"{file.file}: and {file.more} more faults in these columns"
    if file.broken is not None:
        yield f"{file.broken} (what follows was not read)"
