"""Values as the text that they have in a file and in a declaration."""

from __future__ import annotations

from typing import Any

TRUE, FALSE = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")
"""What a column of truth values may hold, in any case; see `fedsw.columns.Feature`."""


def as_text(value: int | str) -> str:
    """How a whole number, a truth value or a text is compared with declared values."""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def as_texts(values: Any) -> Any:
    """Whole numbers and truth values of a list as the text they have in a file; anything else as it is."""
    if not isinstance(values, list | tuple):
        return values
    return tuple(as_text(value) if isinstance(value, int) else value for value in values)


def number_text(value: float) -> str:
    """A number as it is written, every one differently: 30, 0.1, 1e+30."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def require_distinct(name: str, what: str, values: tuple[str, ...]) -> None:
    """Refuse declared values that are fewer than two, not all different, empty, or with spaces around them.

    Raises:
        ValueError: naming the column and the values.
    """
    untidy = any(not value or value != value.strip() for value in values)
    if len(values) < 2 or len(set(values)) < len(values) or untidy:
        raise ValueError(
            f"column {name!r} has {what} {list(values)}; at least two different ones, not empty and without "
            "spaces around them, are needed"
        )
