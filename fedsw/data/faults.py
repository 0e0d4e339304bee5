"""A cell that does not fit what is declared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A cell that does not fit: its row as its file counts, its column, the cell for a message, and what is declared.

    `value` may quote a record: it is for whoever holds the records.
    """

    row: int
    column: str
    value: str
    declared: str

    @property
    def words(self) -> str:
        """Column, value and limit."""
        return f"column {self.column!r} is {self.value}; {self.declared}"
