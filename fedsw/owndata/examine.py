"""Every fault of clients' files at once, with their sizes; for the eyes of whoever holds the files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsw.columns import Columns
from fedsw.data import BadRecords
from fedsw.data.checking import Checked, checked
from fedsw.data.faults import Fault
from fedsw.data.formats import Chunk, format_of, require_file
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sources import declared_columns, load_held_out
from fedsw.owndata.folders import Place, places
from fedsw.owndata.identifiers import repeated_identifiers


@dataclass(frozen=True)
class Examined:
    """What was found in one file.

    Attributes:
        name: whose file it is.
        counted: how its rows are counted.
        groups, classes: units by group and records by class, of those that fit; a record is a unit if none is declared.
        broken: why it could not be read to its end; None if it could.
        units: how many units its records are of.
        warnings: what is no fault, and may be a mistake.
    """

    name: str
    file: Path
    counted: str
    rows: int
    groups: Mapping[str, int]
    classes: Mapping[str, int]
    missing: Mapping[str, int]
    faults: tuple[Fault, ...]
    more: int
    broken: str | None = None
    units: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every cell does."""
        return not self.faults and self.broken is None


@dataclass(frozen=True)
class Examination:
    """What was found in all files, and what is wrong with them together.

    Attributes:
        shared: how many units have rows in several files, by their names.
    """

    files: tuple[Examined, ...]
    together: tuple[str, ...]
    alone: bool
    shared: int = 0

    @property
    def fits(self) -> bool:
        """Whether a run can start on them."""
        return not self.together and all(file.fits for file in self.files)


def examine(experiment: Experiment, folder: Path, client: int | None = None) -> Examination:
    """Read every file and collect all faults: of each cell, and of the files together.

    Args:
        folder: a folder with a folder for each client or with one file for all; with `client`, that client's own folder
            works too.
        client: look at this client's records only, as it would itself; what concerns all clients is then left out.

    Raises:
        FileNotFoundError, ExperimentError: if there are no files to read.
    """
    if experiment.data.source != "files":
        raise ExperimentError(
            f"the experiment {experiment.name!r} learns from {experiment.data.label!r}, not from clients' own files; "
            "check looks at experiments with data.source = 'files'"
        )
    columns, found = declared_columns(experiment), places(folder)
    alone = client is not None
    if client is not None and found[0].client is None:
        found = [Place(client, found[0].table)]
    elif client is not None:
        if client >= len(found):
            raise ExperimentError(f"--client is {client}, and {folder} has folders 0 to {len(found) - 1}")
        found = [found[client]]
    odds = experiment.objective.penalty == "equality-of-odds"
    units = Counter[int]()
    files = tuple(_examined(place, columns, units, public_classes=odds) for place in found)
    together = () if alone else tuple(_together(experiment, columns, files, folder))
    return Examination(files, together, alone, sum(count > 1 for count in units.values()))


def _examined(place: Place, columns: Columns, units: Counter[int], *, public_classes: bool) -> Examined:
    said: list[str] = []
    counted = ""
    try:
        require_file(place.table)
        kind = format_of(place.table)
        counted = kind.counted
        found = checked(_until_fault(kind.read(place.table, columns), said), columns, public_classes=public_classes)
    except (BadRecords, FileNotFoundError) as fault:
        return Examined(place.name, place.table, counted, 0, {}, {}, {}, (), 0, str(fault))
    if not found.rows and not said:
        said.append(f"{place.table} holds no records; a client takes part with at least one")
    units.update(found.names)
    return _of(place, counted, found, columns, said[0] if said else None)


def _until_fault(chunks: Iterator[Chunk], said: list[str]) -> Iterator[Chunk]:
    """Chunks up to where a file can no longer be read; why goes to `said`."""
    try:
        yield from chunks
    except (BadRecords, OSError) as fault:
        said.append(str(fault))


def _of(place: Place, counted: str, found: Checked, columns: Columns, broken: str | None) -> Examined:
    groups = dict(zip(columns.groups, found.groups.tolist(), strict=True))
    classes = dict(zip(columns.classes, found.classes.tolist(), strict=True))
    faults = tuple(sorted(found.faults, key=lambda fault: fault.row))
    warnings = tuple(repeated_identifiers(place.table, columns))
    return Examined(
        place.name,
        place.table,
        counted,
        found.rows,
        groups,
        classes,
        found.missing,
        faults,
        found.more,
        broken,
        found.units,
        warnings,
    )


def _together(experiment: Experiment, columns: Columns, files: Sequence[Examined], folder: Path) -> Iterator[str]:
    """What is wrong with the files together: clients, groups without records, and the server's own file."""
    asked = experiment.federation.clients
    if len(files) > 1 and len(files) != asked:
        yield f"federation.clients is {asked}, and {folder} has folders for {len(files)}: set it to {len(files)}"
    for what, names in (("groups", columns.groups), ("classes", columns.classes)):
        for name in names:
            if files and sum(getattr(file, what).get(name, 0) for file in files) == 0:
                yield f"no client holds a record of {name!r}, one of the {what} that are declared"
    if experiment.data.held_out is None:
        return
    try:
        load_held_out(experiment)
    except (ExperimentError, BadRecords, FileNotFoundError) as fault:
        yield str(fault)
