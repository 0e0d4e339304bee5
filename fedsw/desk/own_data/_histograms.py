"""Histograms of columns off a released sketch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from fedsw.data.columns.declaration import LOWEST, Coded, Columns, ranges
from fedsw.data.sources import load_shape
from fedsw.desk.own_data.described_column import Array, DescribedColumn, in_words
from fedsw.experiment import Experiment
from fedsw.learning.sketches.from_settings import law_of, table_of
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.table_counts import column_means, pairs_measured
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import stored_sketch


def columns_of(experiment: Experiment, directory: Path) -> tuple[tuple[DescribedColumn, ...], int] | None:
    """Return the columns, off the sketch that a run has released, and the number of records; None before it has."""
    coded, columns = table_of(experiment), experiment.data.columns
    assert coded is not None and columns is not None
    stored = stored_sketch(RunDirectory(directory), law_of(experiment, load_shape(experiment.record_source)))
    return None if stored is None else (_columns(columns, coded, stored.sketch), stored.sketch.records)


def _columns(columns: Columns, coded: tuple[Coded, ...], sketch: NoisedSketch) -> tuple[DescribedColumn, ...]:
    means, measured = column_means(sketch), pairs_measured(sketch)
    codes, classes = len(measured.column), len(columns.classes)
    products = _numbers(sketch.blocks[0, codes:].cpu())
    first_codes = measured.first.cpu().numpy()
    dated = [*columns.targets, *(feature for feature in columns.features if feature.count is None)]
    dates = {column.name: str(column.since) for column in dated if column.reader.stored == "days"}
    made = []
    for index, (column, (first, end), mean) in enumerate(zip(coded, ranges(coded), means, strict=True)):
        by_class, spread = np.zeros((0, column.size)), 0.0
        if classes and column.role != "class":  # the class is the last column: its code is each product's second
            weight = float(measured.pair[index, -1])
            within = (first_codes >= first) & (first_codes < end)  # by class, and within it by the column's code
            by_class = products[within].reshape(classes, column.size) / weight
            spread = float(sketch.deviation) / weight
        shares, missing = _numbers(mean.numbers.cpu()), column.missing is not None
        since = dates.get(column.name, "")
        names = _labels(column, since)
        made.append(
            DescribedColumn(
                column.name, column.role, names, column.edges, shares, mean.deviation, by_class, spread, missing, since
            )
        )
    return tuple(made)


def _labels(column: Coded, since: str) -> tuple[str, ...]:
    missing = ("missing",) if column.missing is not None else ()
    if column.values:
        return (*column.values, *missing)
    pairs = list(zip(column.edges[:-1], column.edges[1:], strict=True))
    names = [_between(low, high, since, whole=column.whole) for low, high in pairs]
    if not column.whole and len(pairs) > 1 and pairs[0][1] - pairs[0][0] <= 2 * LOWEST * (pairs[-1][1] - pairs[0][0]):
        names[:2] = [f"{pairs[0][0]:.6g}", f"above {pairs[0][0]:.6g}, to {pairs[1][1]:.6g}"]
    return (*names, *missing)


def _between(low: float, high: float, since: str, *, whole: bool) -> str:
    last = high - 1 if whole else high
    first = in_words(low, since)
    return first if whole and low == last else f"{first} to {in_words(last, since)}"


def _numbers(values: Tensor) -> Array:
    return np.asarray(values.double().numpy(), dtype=np.float64)
