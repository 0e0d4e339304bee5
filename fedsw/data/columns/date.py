"""Dates: in ISO 8601 or as a format writes them, read as days since a public date."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fedsw.data.columns.column import DeclaredColumn, Spelling
from fedsw.data.columns.distinct_cells import Cells, mapped
from fedsw.data.columns.kind import Bins, Form, Numbers, Stored
from fedsw.data.columns.number import IntegerKind

EPOCH = datetime.date(1970, 1, 1)
_DATED, _LISTED = ("low", "high", "fill"), ("knots", "edges")
FORMATS = (None, "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y%m%d") + (
    "%d-%b-%Y", "%d%b%Y", "%d %b %Y",
)  # fmt: skip
_YEARS = (1900, 2100)
"""Years in which eight digits, as 20240531, are a date; others are numbers."""
_LIKE_A_DAY = re.compile(
    r"\d{1,4}[-./ ]+(\d{1,2}|[^\W\d_]{3,12}\.?)[-./, ]+\d{2,4}\.?( .*)?|"
    r"[^\W\d_]{3,12}\.? \d{1,2},? \d{2,4}|\d{4}[年년].*"
)
_TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp][Mm])?")


class DateKind(IntegerKind):
    """Dates as days since the public date `since`; a time of day behind a date in ISO 8601 is left out."""

    name = "date"
    stored: ClassVar[Stored] = "days"
    ratios = False
    formatted = True

    def prepared(self, declared: Mapping[str, Any]) -> Mapping[str, Any]:
        """Bounds, fill, knots and edges as days since `since`."""
        since = as_iso(declared.get("since") if declared.get("since") is not None else EPOCH)
        dated = {key: _days_between(declared[key], since) for key in _DATED if declared.get(key) is not None}
        lists = {key: declared[key] for key in _LISTED if isinstance(declared.get(key), list | tuple)}
        listed = {key: [_days_between(value, since) for value in values] for key, values in lists.items()}
        return {**declared, **dated, **listed, "since": since}

    def require(self, column: DeclaredColumn) -> None:
        """A format that can write every date of the bounds, so that what is written can be read."""
        if column.listed:
            raise ValueError(f"column {column.name!r} has categories and kind 'date'; leave one of them out")
        limits = self.bounds(column)
        if limits is not None:
            try:
                self.values(np.array(limits), column)
            except OverflowError:
                raise ValueError(
                    f"column {column.name!r} has bounds from {limits[0]:g} to {limits[1]:g} days after {column.since}, "
                    "which are no days of the calendar; write them as dates"
                ) from None
        if column.format is None:
            return
        if limits is None:
            sample = [datetime.date(2023, 11, 28), datetime.date(1999, 2, 3)]
            odd = next((date for date in sample if _rewritten(date, column.format) != date), None)
        else:
            odd = self._unwritable(column, limits)
        if odd is not None:
            written = _strftime(odd, column.format)
            back = date_in(written, column.format)
            what = f"which reads as {back}" if back is not None else "which it does not read again"
            raise ValueError(
                f"column {column.name!r} has format {column.format!r}, which writes {odd} as {written!r}, {what}; "
                "name a format with a year of four digits, a month and a day, or bounds of which it can write every day"
            )

    def _unwritable(self, column: DeclaredColumn, limits: tuple[float, float]) -> datetime.date | None:
        """The first date within the bounds that the format does not write so that it reads it again."""
        first, last = self.values(np.array([np.ceil(limits[0]), np.floor(limits[1])]), column)
        looked = {first, last, min(first + datetime.timedelta(days=1), last)}
        for year in range(first.year, last.year + 1):  # a year of two digits, a month without its day
            for month, day in ((1, 1), (2, 2), (12, 31)):
                date = datetime.date(year, month, day)
                looked |= {date} if first <= date <= last else set()
        return next((date for date in sorted(looked) if _rewritten(date, str(column.format)) != date), None)

    def read(self, cells: Cells, column: DeclaredColumn, spelling: Spelling) -> Numbers:
        """Days since `since`."""
        since = column.since.toordinal()
        if isinstance(cells, np.ndarray) and cells.dtype.kind == "M":
            days = cells.astype("datetime64[D]").astype(np.int64) + (EPOCH.toordinal() - since)
            return np.where(np.isnat(cells), np.nan, days)

        def days_of(cell: Any) -> float:
            if isinstance(cell, datetime.date):
                return np.nan if cell != cell else float(cell.toordinal() - since)
            date = date_in(cell.strip(), column.format) if isinstance(cell, str) else None
            return np.nan if date is None else float(date.toordinal() - since)

        return mapped(cells, days_of, np.float64)

    def write(self, values: Numbers, column: DeclaredColumn, spelling: Spelling) -> list[str]:
        """Dates in the format."""
        dates = self.values(np.floor(values), column)
        return [date.isoformat() if column.format is None else _strftime(date, column.format) for date in dates]

    def expect(self, column: DeclaredColumn, spelling: Spelling) -> str:
        """How a date is written, and its bounds."""
        written = "as 2024-05-31" if column.format is None else f"written {column.format!r}"
        limits = self.bounds(column)
        if limits is None:
            return f"a date {written} is declared"
        low, high = self.values(np.array(limits), column)
        return f"a date {written}, from {low} to {high}, is declared"

    def describe(self, column: DeclaredColumn, bins: int) -> Bins:
        """Parts of days, named by their dates."""
        parts = super().describe(column, bins)
        first = self.values(np.array(parts.edges[:-1]), column)
        last = self.values(np.array(parts.edges[1:]) - 1, column)
        return Bins(parts.edges, tuple(f"{a}" if a == b else f"{a} to {b}" for a, b in zip(first, last, strict=True)))

    def words(self, column: DeclaredColumn) -> str:
        """The bounds as dates."""
        limits = self.bounds(column)
        if limits is None:
            return self.name
        low, high = self.values(np.array(limits), column)
        return f"date from {low} to {high}"

    def values(self, numbers: Numbers, column: DeclaredColumn) -> list[Any]:
        """Python's dates."""
        return [column.since + datetime.timedelta(days=int(day)) for day in np.rint(numbers).tolist()]

    def forms(self, cells: Collection[str]) -> Sequence[Form]:
        """Every usual format in which all cells are dates; digits alone only where they are days of 1900 to 2100."""
        return tuple(
            Form(self.name, written) for written in FORMATS if cells and all(is_date(cell, written) for cell in cells)
        )

    def bound_of(self, text: str) -> float | None:
        """Days from 1970-01-01 to a date in ISO 8601."""
        date = date_in(text, None) if "-" in text else None
        return None if date is None else float(date.toordinal() - EPOCH.toordinal())

    def worded(self, value: float, column: DeclaredColumn) -> str:
        """The nearest date."""
        return str(self.values(np.array([value]), column)[0])

    def bound_text(self, value: float) -> str:
        """A date in TOML."""
        return (EPOCH + datetime.timedelta(days=int(value))).isoformat()


def as_iso(value: Any) -> Any:
    """A date, or the text of one in ISO 8601; anything else as it is, for the field to refuse."""
    if isinstance(value, str):
        try:
            return datetime.date.fromisoformat(value)
        except ValueError:
            return value
    return value


def date_in(text: str, written: str | None) -> datetime.date | None:
    """The date behind a text, in ISO 8601 and without its time of day where no format is given; None if it is none."""
    try:
        if written is not None:
            return datetime.datetime.strptime(text, written).date()
        return datetime.date.fromisoformat(text) if len(text) <= 10 else datetime.datetime.fromisoformat(text).date()
    except ValueError:
        return None


def is_time(text: str) -> bool:
    """Say whether a text is a time of day without a date, as 13:45."""
    return _TIME.fullmatch(text.strip()) is not None


def seems_dated(text: str) -> bool:
    """Say whether a text looks like a day in whatever way, as 3/5/68, 5. März 2020 or March 5, 2020."""
    return _LIKE_A_DAY.fullmatch(text.strip()) is not None


def is_date(text: str, written: str | None) -> bool:
    """Say whether a text is a date in this format, and no number of digits only."""
    if written is None and "-" not in text:
        return False
    date = date_in(text, written)
    if written == "%Y%m%d":
        return date is not None and len(text) == 8 and _YEARS[0] <= date.year <= _YEARS[1]
    return date is not None


def _strftime(date: datetime.date, written: str) -> str:
    """A date in a format; years before 1000 with four digits, as they are read."""
    return date.strftime(written.replace("%Y", f"{date.year:04d}"))


def _rewritten(date: datetime.date, written: str) -> datetime.date | None:
    return date_in(_strftime(date, written), written)


def _days_between(value: Any, since: Any) -> Any:
    """Days from a date to another; anything else as it is."""
    date = as_iso(value)
    if isinstance(date, datetime.datetime):
        date = date.date()
    if isinstance(date, datetime.date) and isinstance(since, datetime.date):
        return float(date.toordinal() - since.toordinal())
    return value
