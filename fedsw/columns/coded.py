"""Columns as codes: every declared column written as one of a few public values, for sketches of tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsw.columns.declaration import Columns
from fedsw.columns.group import Group
from fedsw.columns.kinds import Feature, Number
from fedsw.columns.texts import number_text
from fedsw.settings import ExperimentError

MOST_CODES = 2_000
"""Codes of all columns together: a sketch of pairs measures about half their square."""

_FINE = (5, 7, 10)
"""Numbers are cut at their low end too, after 2^-5, 2^-7 and 2^-10 of their range: many columns are mostly there."""


@dataclass(frozen=True)
class Coded:
    """One column of a table, as codes 0 .. size - 1.

    Attributes:
        name: of the column.
        role: "feature", "group" or "target": where it stands in records.
        place: the position of its first input among the features of records, or of it among the targets; 0 for a group.
        values: names of categories or groups, a code each; empty for numbers.
        edges: of numbers, increasing, in the column's own units: code k holds edges[k] <= x < edges[k + 1], the last
            one its upper edge as well.
        number: the declaration of a column of numbers; None for one of values.
        missing: the text of a missing cell, which has the last code; None if none may be missing.
    """

    name: str
    role: str
    place: int
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    number: Number | None = None
    missing: str | None = None

    @property
    def size(self) -> int:
        """How many codes there are."""
        return (len(self.values) or len(self.edges) - 1) + (self.missing is not None)

    @property
    def whole(self) -> bool:
        """Whether its numbers are whole: integers, days, truth values."""
        return self.number is not None and self.number.kind != "number"


def coded_columns(columns: Columns, *, bins: int, group_in_cell: bool) -> tuple[Coded, ...]:
    """How every declared column is written as codes, by public numbers alone.

    Categories and groups are codes as they are. Numbers are cut in `bins` equal parts of their declared range and finer
    ones at its low end; its lowest value has a code of its own. Whole numbers of at most 2 `bins` values are a code
    each. A missing cell has one more. The column of the classes is none of them: it is the block that a record is in.

    Args:
        columns: the declaration.
        bins: equal parts of a range of numbers.
        group_in_cell: whether the groups are kept apart by blocks, as the classes are; then they are no codes.

    Raises:
        ExperimentError: for a column of numbers without bounds, for groups in blocks that are cut from an input, and
            for more than MOST_CODES codes, naming the column.
    """
    found, place, group = [], 0, columns.sensitive
    for feature in columns.features:
        own = group is not None and group.name in feature.columns
        if own and group_in_cell and (group is None or group.edges):
            raise ExperimentError(
                f"column {feature.name!r} is an input, and its numbers cut at edges are the groups: blocks of groups "
                "take a column of values. Declare values, or leave the column out of the features"
            )
        if not (own and group_in_cell):
            edges = group.edges if own and group is not None else ()
            found += _of_feature(feature, place, bins, edges)
        place += feature.inputs
    if group is not None and not group_in_cell and all(group.name not in each.columns for each in columns.features):
        found.append(_of_group(group))
    found += [_of_number(number, "target", at, bins) for at, number in enumerate(columns.targets)]
    if not found:
        raise ExperimentError("every declared column tells blocks apart, and none is left to measure: declare features")
    if (total := sum(each.size for each in found)) > MOST_CODES:
        widest = max(found, key=lambda each: each.size)
        raise ExperimentError(
            f"the columns are {total} codes, column {widest.name!r} {widest.size} of them; pairs of at most "
            f"{MOST_CODES} are measured: leave out columns, join categories or lower sketch.bins"
        )
    return tuple(found)


def ranges(coded: tuple[Coded, ...]) -> tuple[tuple[int, int], ...]:
    """The codes (first, end) of every column, one column after the other."""
    ends = [0]
    for each in coded:
        ends.append(ends[-1] + each.size)
    return tuple(zip(ends[:-1], ends[1:], strict=True))


def _of_feature(feature: Feature, place: int, bins: int, edges: tuple[float, ...]) -> list[Coded]:
    missing = feature.missing[0] if feature.missing else None
    if feature.categories:
        return [Coded(feature.name, "feature", place, values=feature.categories, missing=missing)]
    named = (Number.model_validate({**_number(feature), "name": name}) for name in feature.columns)
    return [_of_number(each, "feature", place + at, bins, edges, missing) for at, each in enumerate(named)]


def _number(feature: Feature) -> dict[str, object]:
    return {name: getattr(feature, name) for name in Number.model_fields}


def _of_number(
    number: Number, role: str, place: int, bins: int, cuts: tuple[float, ...] = (), missing: str | None = None
) -> Coded:
    low, high = (0.0, 1.0) if number.kind == "boolean" else (number.low, number.high)
    if low is None or high is None:
        raise ExperimentError(
            f"column {number.name!r} has no bounds, and a sketch of tables cuts its range into codes: declare low and "
            "high, public ones"
        )
    edges = _edges(low, high, bins, cuts, whole=number.kind != "number")
    return Coded(number.name, role, place, edges=edges, number=number, missing=missing)


def _of_group(group: Group) -> Coded:
    if group.values:
        return Coded(group.name, "group", 0, values=group.values)
    if group.low is None or group.high is None:
        raise ExperimentError(
            f"column {group.name!r} has edges {[number_text(edge) for edge in group.edges]} and no bounds; numbers of "
            "the outer groups are to be made up: declare low and high of sensitive, public ones"
        )
    number = Number(name=group.name, low=group.low, high=group.high)
    return Coded(group.name, "group", 0, edges=(group.low, *group.edges, group.high), number=number)


def _edges(low: float, high: float, bins: int, cuts: tuple[float, ...], *, whole: bool) -> tuple[float, ...]:
    end = math.floor(high) + 1.0 if whole else high
    start = float(math.ceil(low)) if whole else low
    if whole and end - start <= 2 * bins:
        return tuple(start + step for step in range(int(end - start) + 1))
    span = end - start
    inner = [start + span * part / bins for part in range(1, bins)] + [start + span * 2.0**-fine for fine in _FINE]
    inner += [start + 1 if whole else math.nextafter(low, math.inf), *cuts]
    rounded = {float(math.ceil(edge)) if whole else edge for edge in inner}
    return (start, *sorted(edge for edge in rounded if start < edge < end), end)
