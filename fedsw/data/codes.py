"""Records as codes of their columns, and back: from drawn codes to the cells of a table."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedsw.columns import Columns, Number, number_text
from fedsw.columns.coded import Coded, ranges
from fedsw.data.encoding import encoded
from fedsw.data.formats import Chunk
from fedsw.data.records import Records
from fedsw.randomness import Stream

_DIGITS = 7
"""Significant digits of the made-up numbers of a column, of its range."""

_MARGIN = 0.002
"""Part of a bin at both ends that no made-up number is in: rounding leaves every number in its bin."""


def codes_of(records: Records, coded: tuple[Coded, ...]) -> Tensor:
    """The code (n, columns) int64 of every record in every column.

    It looks at values and branches on none. Numbers outside their edges, which reading refuses, have the nearest code.
    """
    return torch.stack([_codes(records, each) for each in coded], dim=1)


def one_hot(codes: Tensor, coded: tuple[Coded, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Codes (n, columns) as one-hot rows (n, sum of sizes), one column's after the other's."""
    parts = [F.one_hot(codes[:, at], each.size) for at, each in enumerate(coded)]
    return torch.cat(parts, dim=1).to(dtype)


def drawn_codes(chances: Tensor, coded: tuple[Coded, ...], *, seed: int) -> Tensor:
    """One code (m, columns) int64 of every column, drawn with the chances (m, sum of sizes) of each.

    Columns of one row are drawn independently: the means of single codes and of pairs are those of the chances.
    """
    uniform = torch.from_numpy(Stream.seeded(seed, "codes of a table").uniforms(len(chances) * len(coded)))
    draws, known = uniform.reshape(len(chances), len(coded)), chances.detach().cpu().double()
    found = []
    for at, (first, end) in enumerate(ranges(coded)):
        below = known[:, first:end].cumsum(dim=1)
        wanted = draws[:, at : at + 1] * below[:, -1:]
        found.append((below <= wanted).sum(dim=1).clamp(max=end - first - 1))
    return torch.stack(found, dim=1)


def cells_of_table(
    codes: Tensor, classes: Tensor, groups: Tensor, columns: Columns, coded: tuple[Coded, ...], *, seed: int
) -> dict[str, list[str]]:
    """The cells of a table of the declared columns, as text, by column in their declared order.

    Numbers are drawn uniformly from what their code holds, short of its ends; whole ones are whole, dates are written
    in their format, decimals with the declared sign.

    Args:
        codes: (m, columns) int64.
        classes, groups: (m,) int64; read where the declaration has classes, and groups that are no codes.
        seed: of the numbers.
    """
    stream = Stream.seeded(seed, "numbers of a table")
    made = {each.name: _texts(codes[:, at].numpy(), each, columns, stream) for at, each in enumerate(coded)}
    for label, chosen in ((columns.target, classes), (columns.sensitive, groups)):
        if label is not None and label.name not in made:
            made[label.name] = [label.values[number] for number in chosen.tolist()]
    return {name: made[name] for name in columns.names}


def records_of_table(cells: dict[str, list[str]], columns: Columns) -> Records:
    """The records of a made-up table, read as a client's would be.

    Raises:
        BadRecords: if a cell is not as declared.
    """
    return encoded([Chunk(1, cells)], columns, where="the synthetic table", counted="the first row is 1")


def _codes(records: Records, column: Coded) -> Tensor:
    if column.role == "group":
        return records.sensitive.to(torch.int64)
    inputs = records.features if column.role == "feature" else records.target
    place, values = column.place, len(column.values)
    if column.values:
        found, after = inputs[:, place : place + values].argmax(dim=1), place + values
    else:
        found, after = _bins(inputs[:, place], column), place + 1
    if column.missing is None:
        return found
    return torch.where(inputs[:, after] > 0.5, column.size - 1, found)


def _bins(scaled: Tensor, column: Coded) -> Tensor:
    """Which bin (n,) the numbers (n,) are in, from what they were scaled to."""
    number, edges = column.number, torch.tensor(column.edges, dtype=torch.float64)
    assert number is not None
    values = scaled.to(torch.float64)
    if number.low is not None and number.high is not None:
        unit = values if number.scale == "unit" else (values + 1) / 2
        values = number.low + unit * (number.high - number.low)
    if column.whole:
        values = values.round()
    return (torch.searchsorted(edges, values, right=True) - 1).clamp(0, len(edges) - 2)


def _texts(codes: NDArray[np.int64], column: Coded, columns: Columns, stream: Stream) -> list[str]:
    if column.values:
        known = [*column.values, *([] if column.missing is None else [column.missing])]
        return [known[code] for code in codes.tolist()]
    number, edges, last = column.number, np.array(column.edges), len(column.edges) - 2
    assert number is not None
    bins = np.minimum(codes, last)
    low, high = edges[bins], edges[bins + 1]
    within = _MARGIN + (1 - 2 * _MARGIN) * stream.uniforms(len(codes))
    values = low + within * (high - low)
    texts = _written(np.floor(values) if column.whole else values, number, columns.decimal)
    if column.missing is None:
        return texts
    return [column.missing if code > last else text for code, text in zip(codes.tolist(), texts, strict=True)]


def _written(values: NDArray[np.float64], number: Number, decimal: str) -> list[str]:
    if number.kind == "boolean":
        return ["true" if value else "false" for value in values.tolist()]
    if number.kind == "date":
        return _dates(values.tolist(), number)
    if number.kind == "integer":
        return [number_text(value) for value in values.tolist()]
    assert number.low is not None and number.high is not None
    places = max(0, _DIGITS - 1 - int(np.floor(np.log10(number.high - number.low))))
    rounded = np.clip(np.round(values, places), number.low, number.high)
    texts = [number_text(value) for value in rounded.tolist()]
    return texts if decimal == "." else [text.replace(".", ",") for text in texts]


def _dates(days: Sequence[float], number: Number) -> list[str]:
    assert number.since is not None
    dates = (number.since + datetime.timedelta(days=day) for day in days)
    return [date.isoformat() if number.format is None else date.strftime(number.format) for date in dates]
