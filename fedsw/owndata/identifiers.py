"""Columns that look as if they said whose a row is; what is found in cells is for whoever holds the records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fedsw.columns import Columns
from fedsw.data import BadRecords
from fedsw.owndata.forms import MISSING, form_of, read_cells, read_header

_NAMES = frozenset({"id", "index", "name", "patient", "person", "subject", "customer", "user", "mrn"})
_ENDS = re.compile(r".*([_ -][iI][dD]|[a-z]I[dD])")
_LEAST_ROWS, _MOST_EACH = 20, 10


def named_as_identifier(column: str) -> bool:
    """Whether a column's name says that it identifies somebody: "id", "patient", "patient_id", "customerID"."""
    return column.lower() in _NAMES or _ENDS.fullmatch(column) is not None


def repeated_identifiers(table: Path, columns: Columns) -> Iterator[str]:
    """What is said of each column of a CSV file that looks like an identifier and has values in several rows.

    A column does by its name, or because it holds text, is not declared, and has ten rows for each value at most. Where
    a unit is declared, nothing is said.
    """
    if columns.unit is not None or table.suffix.lower() != ".csv":
        return
    try:
        cells = read_cells(table, read_header(table)[1])
    except (BadRecords, OSError, UnicodeDecodeError):
        return
    labels = {label.name for label in (columns.sensitive, columns.target) if label is not None}
    for column, found in cells.items():
        given = [cell for cell in found if cell not in MISSING]
        values = len(set(given))
        if column in labels or values == len(given):
            continue
        named = named_as_identifier(column)
        unnamed = column not in columns.names and len(given) >= _LEAST_ROWS and values * _MOST_EACH >= len(given)
        if named or (unnamed and form_of(given).kind == "text"):
            yield (
                f"{table}: column {column!r} looks like an identifier, and its {values} values are in {len(given)} "
                f"rows. If rows with one value are of one person, each of them is protected alone, and the person less "
                f"than epsilon says: set unit = {column!r} in [data]"
            )
