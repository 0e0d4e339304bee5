"""Made-up inputs and cells of the declared form, by the kinds of the columns only: for rehearsals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsw.data.columns.column import PLAIN
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature, Number
from fedsw.data.columns.registered import KINDS

_ABSENT = 0.1
"""The share of cells that are missing where that is declared."""


def made_up_inputs(columns: Columns, count: int, *, seed: int) -> NDArray[np.float32]:
    """Inputs of the model (count, inputs) as cells of the declared form would be read."""
    chance = np.random.default_rng(seed)
    inputs = np.zeros((count, columns.inputs), dtype=np.float32)
    start = 0
    for feature in columns.features:
        part = inputs[:, start : start + feature.inputs]
        absent = chance.random(count) < (_ABSENT if feature.missing else 0.0)
        width = feature.inputs - bool(feature.missing)
        drawn = [feature.reader.drawn(feature, count, chance) for _ in feature.columns]
        part[:, :width] = np.concatenate([feature.reader.inputs(numbers, feature) for numbers in drawn], axis=1)
        part[absent, :width] = _filled(feature, width)
        if feature.missing:
            part[:, -1] = absent
        start += feature.inputs
    return inputs


def made_up_targets(columns: Columns, count: int, *, seed: int) -> NDArray[np.float32]:
    """Targets of a regression (count, t), mapped by their bounds."""
    chance = np.random.default_rng([seed, 1])
    parts = [number.reader.inputs(number.reader.drawn(number, count, chance), number) for number in columns.targets]
    return np.concatenate(parts, axis=1).astype(np.float32)


def made_up_cells(columns: Columns, count: int, *, seed: int) -> dict[str, list[str]]:
    """A table (count rows) of made-up cells by column, as text, of which every one is as declared."""
    chance = np.random.default_rng(seed)
    cells: dict[str, list[str]] = {}
    for number in (*columns.features, *columns.targets):
        for name in number.columns if isinstance(number, Feature) else (number.name,):
            cells[name] = number.reader.make_up(number, count, chance, columns.spelling_of(number))
            if isinstance(number, Feature) and number.missing:
                absent = (chance.random(count) < _ABSENT).tolist()
                cells[name] = [
                    number.missing[0] if gone else cell for cell, gone in zip(cells[name], absent, strict=True)
                ]
    group = columns.sensitive
    for label in (*((group,) if group is None or not group.of else group.of), columns.target):
        if label is None or label.name in cells:
            continue
        if isinstance(column := label.column, Number):
            cells[label.name] = column.reader.make_up(column, count, chance, columns.spelling)
        else:
            cells[label.name] = KINDS.get(label.kind).make_up(column, count, chance, PLAIN)
    if columns.unit is not None:
        cells[columns.unit] = [f"made-up-{row}" for row in range(count)]
    return {name: cells[name] for name in columns.names}


def _filled(feature: Feature, width: int) -> NDArray[np.float32]:
    """The inputs (width,) of a missing cell, but for the one that marks it."""
    if isinstance(feature.fill, int | float) and not feature.reader.listing:
        return np.asarray(feature.reader.inputs(np.array([float(feature.fill)]), feature)[0], dtype=np.float32)
    row = np.zeros(width, dtype=np.float32)
    if (category := feature.filled_category) is not None:
        row[category] = 1.0
    return row
