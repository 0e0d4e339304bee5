"""Records as codes of their columns, and codes as the cells of a made-up table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.later import torch
from fedsw._tools.randomness import Stream
from fedsw.data.cells import missing_among
from fedsw.data.columns.declaration import Coded, Columns, ranges
from fedsw.data.encoding import encoded
from fedsw.data.formats import Chunk
from fedsw.data.records import Records

if TYPE_CHECKING:
    from torch import Tensor

_ROWS = 2**13
"""Records that are coded at a time, which a processor's cache holds."""
_FEW_EDGES = 64
"""Edges up to which all are compared with every number, in place of a binary search."""
_MARGIN = 0.002
"""Part of a bin at both ends that no made-up number is in: rounding leaves every number in its bin."""


def codes_of(records: Records, coded: tuple[Coded, ...]) -> Tensor:
    """The code (n, columns) int64 of every record in every column; of numbers outside their edges the nearest."""
    codes = torch.empty((len(coded), len(records)), dtype=torch.int64, device=records.features.device)
    for start in range(0, len(records), _ROWS):
        rows = records.part(start, min(start + _ROWS, len(records)))
        for at, column in enumerate(coded):
            codes[at, start : start + len(rows)] = _codes(rows, column)
    return codes.T  # a column's codes lie side by side


def one_hot(codes: Tensor, coded: tuple[Coded, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Codes (n, columns) as one-hot rows (n, sum of sizes), one column's after the other's."""
    parts = [torch.nn.functional.one_hot(codes[:, at], column.size) for at, column in enumerate(coded)]
    return torch.cat(parts, dim=1).to(torch.float32 if dtype is None else dtype)


def drawn_codes(chances: Tensor, coded: tuple[Coded, ...], *, seed: int) -> Tensor:
    """One code (m, columns) int64 of every column, drawn independently with the chances (m, sum of sizes) of each."""
    uniform = torch.from_numpy(Stream.seeded(seed, "codes of a table").uniforms(len(chances) * len(coded)))
    draws, known = uniform.reshape(len(chances), len(coded)), chances.detach().cpu().double()
    codes = []
    for at, (first, end) in enumerate(ranges(coded)):
        below = known[:, first:end].cumsum(dim=1)
        wanted = draws[:, at : at + 1] * below[:, -1:]
        codes.append((below <= wanted).sum(dim=1).clamp(max=end - first - 1))
    return torch.stack(codes, dim=1)


def cells_of_table(
    codes: Tensor, classes: Tensor, groups: Tensor, columns: Columns, coded: tuple[Coded, ...], *, seed: int
) -> dict[str, list[str]]:
    """The cells of a table of the declared columns, as text, by column in their declared order.

    Numbers are drawn uniformly from what their code holds, short of its ends, and none is a code for missing cells
    where another one can be; whole ones are whole, dates are written in their format, decimals with the declared
    sign. With a declared unit every row is a fictitious unit of its own.

    Codes are (m, columns) int64; classes and groups (m,) int64 are read where they are declared and are not codes.
    """
    stream = Stream.seeded(seed, "numbers of a table")
    made = {column.name: _texts(codes[:, at].numpy(), column, columns, stream) for at, column in enumerate(coded)}
    for label, chosen in ((columns.target, classes), (columns.sensitive, groups)):
        if label is not None and label.name not in made:
            made[label.name] = [label.values[number] for number in chosen.tolist()]
    if columns.sensitive is not None and columns.sensitive.of:  # a group of several columns says a value of each
        parts = {value: columns.sensitive.parts_of(at) for at, value in enumerate(columns.sensitive.values)}
        for at, name in enumerate(columns.sensitive.columns):
            made[name] = [parts[cell][at] for cell in made[columns.sensitive.name]]
    if columns.unit is not None:  # every row is somebody made up, another one in every table
        made[columns.unit] = [f"made-up-{seed}-{row}" for row in range(len(codes))]
    return {name: made[name] for name in columns.names}


def records_of_table(cells: dict[str, list[str]], columns: Columns) -> Records:
    """The records of a made-up table, read as a client's would be."""
    return encoded([Chunk(1, cells)], columns, where="the synthetic table", counted="the first row is 1")


def _codes(records: Records, column: Coded) -> Tensor:
    if column.role == "group":
        return records.sensitive.to(torch.int64)
    if column.role == "class":
        return records.target.to(torch.int64)
    inputs = records.features if column.role == "feature" else records.target
    first, values = column.first, len(column.values)
    if column.values:
        codes, after = inputs[:, first : first + values].argmax(dim=1), first + values
    else:
        codes, after = _bins(inputs[:, first], column), first + 1
    if column.missing is None:
        return codes
    return torch.where(inputs[:, after] > 0.5, column.size - 1, codes)


def _bins(scaled: Tensor, column: Coded) -> Tensor:
    """Which bin (n,) the numbers (n,) are in, from what they were scaled to."""
    number, edges = column.number, column.edges
    assert number is not None
    values = scaled.to(torch.float64)
    if number.low is not None and number.high is not None:
        unit = values if number.scale == "unit" else (values + 1) / 2
        values = number.low + unit * (number.high - number.low)
    if column.whole:
        values = values.round()
    if len(edges) > _FEW_EDGES:
        reached = torch.searchsorted(torch.tensor(edges, dtype=torch.float64), values, right=True)
    else:  # counting edges takes no branches; those of a binary search are mispredicted for every other number
        numbers, below = values.cpu().numpy(), np.zeros(len(values), dtype=np.uint8)
        for edge in edges:
            below += (numbers < edge).view(np.uint8)
        reached = len(edges) - torch.from_numpy(below).to(values.device, torch.int64)
    return (reached - 1).clamp(0, len(edges) - 2)


def _texts(codes: NDArray[np.int64], column: Coded, columns: Columns, stream: Stream) -> list[str]:
    if column.values:
        known = [*column.values, *([] if column.missing is None else [column.missing])]
        return [known[code] for code in codes.tolist()]
    number, edges, last = column.number, np.array(column.edges), len(column.edges) - 2
    assert number is not None
    bins = np.minimum(codes, last)
    low, high = edges[bins], edges[bins + 1]
    within = _MARGIN + (1 - 2 * _MARGIN) * stream.uniforms(len(codes))
    values, spelling = low + within * (high - low), columns.spelling_of(number)
    values = np.floor(values) if column.whole else values
    texts = number.reader.write(values, number, spelling)
    if column.missing is None:
        return texts
    absent = next(feature.missing for feature in columns.features if feature.name == column.name)
    step = np.where(column.whole, 1.0, (high - low) / 3)
    # A number that is written as a missing cell would be read as one: another of its bin takes its place. Each round
    # moves it by a step around the bin, onto another marker at worst, so that as many rounds as there are markers do
    for _ in absent:
        wrong = missing_among(texts, absent)
        values = np.where(wrong, low + (values - low + step) % (high - low), values)
        texts = number.reader.write(values, number, spelling) if wrong.any() else texts
    return [column.missing if code > last else text for code, text in zip(codes.tolist(), texts, strict=True)]
