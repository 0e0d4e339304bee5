"""Assign the tables of a folder to clients: one for all clients, or one in a folder of each."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsw._tools.settings import ExperimentError
from fedsw.data.blocks import TABLES
from fedsw.data.formats import BadRecords
from fedsw.data.tables import find_table, tables_in, what_is_in
from fedsw.data.units import one_file_twice


@dataclass(frozen=True)
class Place:
    """One file of records and its owner: a client's number, or None for the file of all clients."""

    client: int | None
    table: Path

    @property
    def name(self) -> str:
        """Owner of the records, as tables name it."""
        return "all clients" if self.client is None else f"client {self.client}"


def places(folder: Path) -> list[Place]:
    """The files of records in a folder: its own, for all clients, or that of each of its folders 0, 1, ...

    FileNotFoundError if there is nothing, BadRecords for a folder with several files, ExperimentError if the folders
    have names, or their numbers are not 0, 1, 2, ...
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; clients' files are looked for in it")
    if broken := next((entry for entry in sorted(folder.iterdir()) if entry.is_symlink() and not entry.exists()), None):
        raise FileNotFoundError(f"{broken} is a link to {broken.readlink()}, which is not there; mend or remove it")
    _require_numbered(folder)
    numbers = sorted(int(child.name) for child in folder.iterdir() if child.is_dir() and child.name.isdecimal())
    if tables_in(folder):
        # a table of all clients beside tables of each: one or the other would be silently ignored
        if (held := next((number for number in numbers if tables_in(folder / str(number))), None)) is not None:
            raise BadRecords(
                f"{folder} has {find_table(folder).name}, for all clients together, and "
                f"{find_table(folder / str(held))} of client {held}: keep the one or the other"
            )
        return [Place(None, find_table(folder))]
    if not numbers:
        raise FileNotFoundError(
            f"there is no table ({TABLES}) in {folder}, and no folder 0, 1, ... with one{what_is_in(folder)}"
        )
    if numbers != list(range(len(numbers))):
        gap = next(expected for expected, number in enumerate(numbers) if expected != number)
        raise ExperimentError(
            f"{folder} has a folder {numbers[gap]} and none called {gap}; clients are 0, 1, 2, ... without gaps"
        )
    return [Place(number, find_table(folder / str(number))) for number in numbers]


def _require_numbered(folder: Path) -> None:
    """Refuse named folders of clients: a table beside several (not called train) would be taken for all clients'."""
    folders = sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    named = [child for child in folders if tables_in(child)]
    if not named or any(child.name.isdecimal() for child in folders):
        return
    if (beside := tables_in(folder)) and (len(named) == 1 or beside[0].stem == "train"):
        return
    moves = " && ".join(f"mv {shlex.quote(child.name)} {number}" for number, child in enumerate(named))
    raise ExperimentError(
        f"{folder} has clients' tables in {', '.join(child.name for child in named)}, and clients' folders are called "
        f"0, 1, ...: cd {shlex.quote(str(folder))} && {moves}"
    )


def require_places(files: Sequence[Place], folder: Path, clients: int) -> None:
    """Refuse tables of a folder that are not those of so many clients, or of which two are one.

    A client without a folder would have no records; a folder without a client would be silently
    ignored.
    """
    if files[0].client is not None and len(files) != clients:
        fits = f"--clients {len(files)}, or federation.clients = {len(files)}"
        raise ExperimentError(
            f"the experiment has {clients} client{'s' * (clients != 1)}, and {folder} has folders for {len(files)} "
            f"(0 to {len(files) - 1}): write {fits}"
        )
    if (refusal := one_file_twice({file.client: file.table for file in files})) is not None:
        raise BadRecords(refusal)
