"""Where clients' own files are in a folder: one table for all of them, or a folder 0, 1, ... for each client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsw.data import find_table, read_table, tables_in
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sources import declared_columns


@dataclass(frozen=True)
class Place:
    """One file of records and whose it is: a client's number, or None for the file of all clients."""

    client: int | None
    table: Path

    @property
    def name(self) -> str:
        """Whose records they are, for a table."""
        return "all clients" if self.client is None else f"client {self.client}"


def places(folder: Path) -> list[Place]:
    """The files of records in a folder: its own, for all clients, or that of each of its folders 0, 1, ...

    Raises:
        FileNotFoundError: if there is no such folder, or nothing in it; BadRecords: for a folder with several files.
        ExperimentError: if the folders' numbers are not 0, 1, 2, ...
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; clients' files are looked for in it")
    if tables_in(folder):
        return [Place(None, find_table(folder))]
    numbers = sorted(int(child.name) for child in folder.iterdir() if child.is_dir() and child.name.isdecimal())
    if not numbers:
        others = sorted(child.name for child in folder.iterdir() if child.is_file())[:5]
        seen = f"; it has {', '.join(others)}: name the records train.csv" if others else ""
        raise FileNotFoundError(
            f"there is no train.csv, train.parquet or train.npz in {folder}, and no folder 0, 1, ... with one{seen}"
        )
    if numbers != list(range(len(numbers))):
        gap = next(place for place, number in enumerate(numbers) if place != number)
        raise ExperimentError(
            f"{folder} has a folder {numbers[gap]} and none called {gap}; clients are 0, 1, 2, ... without gaps"
        )
    return [Place(number, find_table(folder / str(number))) for number in numbers]


def require_runnable(experiment: Experiment, *, named: str, elsewhere: bool) -> None:
    """Refuse a run on clients' own files that are not there, or are not those of as many clients as it asks for.

    Args:
        named: the experiment as it was named on the command line, for the message.
        elsewhere: whether other processes of this machine will read the files, which would say what is wrong with them
            to a log of theirs: they are then read here once, first.

    Raises:
        ExperimentError, FileNotFoundError, BadRecords: with what to write instead.
    """
    if experiment.data.source != "files":
        return
    if experiment.data.data_dir is None:
        raise ExperimentError(
            f"{named} learns from clients' own files, and nothing says where they are: add --data-dir DIR, a folder "
            "with a folder 0, 1, ... for each client, each with its train.csv (or with one train.csv, which is split "
            "among the clients)"
        )
    folder, asked = Path(experiment.data.data_dir).expanduser(), experiment.federation.clients
    found = places(folder)
    if found[0].client is not None and len(found) != asked:
        fits = f"--clients {len(found)}, or federation.clients = {len(found)}"
        raise ExperimentError(
            f"the experiment has {asked} clients, and {folder} has folders for {len(found)} "
            f"(0 to {len(found) - 1}): write {fits}"
        )
    if elsewhere:
        for place in found:
            read_table(place.table, declared_columns(experiment))
