"""Tables that are asserted to hold no private record: compared with the private files, or doubted in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsw._tools.files import same_content
from fedsw.data import Records, read_table
from fedsw.data.columns.declaration import Columns
from fedsw.data.places import places
from fedsw.data.sources import require_file_apart
from fedsw.experiment import ExperimentError


@dataclass(frozen=True)
class OtherTable:
    """A table beside the private records, and why its reader has no guarantee (``doubt``), empty if there is one.

    Functions of it are printed without noise: if it held a private record, epsilon would be infinite for its readers.
    The ``word`` is the user's assertion that equal rows are of other people.
    """

    records: Records
    doubt: str = ""
    word: str = ""


def other_table(path: Path, columns: Columns, private: Path | None, *, option: str, others: bool = False) -> OtherTable:
    """Read a table that un-noised functions of will be shown, and hold it against the clients' files in a folder.

    Without a folder (``private``) it is unknown whether it holds private records; the text reports that. With `others`,
    an assertion that equal rows are of other people, rows may be equal as often as private ones are
    (`fedsw.data.sources.require_file_apart`), and the answer has words that say so.

    Raises:
        ExperimentError: if it is a private file, or shares rows or persons with one; for a folder without tables.
        BadRecords, FileNotFoundError: for what cannot be read.
    """
    records = read_table(path.expanduser(), columns)
    if private is None and others:
        raise ExperimentError(
            f"--other-people is a word about rows of {option} that equal the clients', and --data-dir, their files, is "
            "not named: name both"
        )
    if private is None:
        return OtherTable(
            records,
            f"epsilon = infinity for readers of the comparison with {path.name}: that table was not compared with the "
            "private records, and what is shown of it has no noise. With --data-dir, the clients' files, it is",
        )
    tables = [source.table for source in places(private.expanduser())]
    require_file_apart(
        path.expanduser(),
        records,
        tables,
        columns,
        what=f"{option} {path}",
        where=f" in {private}",
        remedy=_OTHERS,
        others=others,
    )
    return OtherTable(records, word=_WORD.format(path.name) if others else "")


_OTHERS = ". If these are different people with equal rows, say so with --other-people"
_WORD = "that rows of {} which equal private ones are of other people is the word of whoever asked (--other-people)"


def require_no_client_s(path: Path, tables: Sequence[Path], *, option: str, remedy: str) -> None:
    """Refuse a table that is one of the clients' own, or a copy of one; the cells of neither are looked at."""
    for table in tables:
        if same_content(path, table):
            raise ExperimentError(
                f"{option} {path} is the client's table {table}, or a copy of it: what is read off it is a release of "
                f"private records without noise. {remedy}"
            )
