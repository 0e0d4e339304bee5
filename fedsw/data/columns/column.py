"""A column as its kind sees it: `DeclaredColumn`, `ListedColumn`, and the `Spelling` of its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from fedsw.data.columns.values import AS_DECLARED, Spelt


@dataclass(frozen=True)
class Spelling:
    """How numbers are written in text: what parts their decimals, and what parts their thousands ("" if nothing)."""

    decimal: str = "."
    thousands: str = ""


PLAIN = Spelling()
"""Decimal points, and nothing between thousands."""


class DeclaredColumn(Protocol):
    """The declaration of a column, as far as a kind asks for it; see `fedsw.data.columns.declared_kinds`."""

    @property
    def name(self) -> str:
        """The column's name in a table."""

    @property
    def low(self) -> float | None:
        """The public lower bound."""

    @property
    def high(self) -> float | None:
        """The public upper bound."""

    @property
    def scale(self) -> str:
        """Where bounds are mapped to: "unit" or "signed"."""

    @property
    def format(self) -> str | None:
        """How dates are written."""

    @property
    def since(self) -> Any:
        """The date from which days are counted."""

    @property
    def edges(self) -> tuple[float, ...]:
        """Public cuts of the numbers."""

    @property
    def listed(self) -> tuple[str, ...]:
        """The declared values of a column that lists them; empty for numbers."""

    @property
    def spelt(self) -> Spelt:
        """Other ways in which its values are written."""


@dataclass(frozen=True)
class ListedColumn:
    """A column of listed values: the groups, or the classes."""

    name: str
    listed: tuple[str, ...]
    low: float | None = None
    high: float | None = None
    scale: str = "unit"
    format: str | None = None
    since: Any = None
    edges: tuple[float, ...] = ()
    spelt: Spelt = AS_DECLARED
