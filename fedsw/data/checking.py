"""Every fault of a file's cells, and its sizes, for whoever holds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsw.columns import Columns
from fedsw.data.encoding import Encoder
from fedsw.data.faults import Fault
from fedsw.data.formats import Chunk
from fedsw.data.owned import Owned


@dataclass
class Checked:
    """What a file's cells come to when every one is looked at.

    Attributes:
        rows: number of records.
        units: how many units they are of; their number where no unit is declared.
        groups: how many units are in each group, (groups,); of those that fit.
        classes: how many are of each class, (classes,); likewise, and empty for a regression.
        faults: the cells that do not fit, in the order of rows, then of columns: at most `MOST_FAULTS` a column.
        more: how many faults there are beyond those.
        missing: missing cells by column, where the declaration allows some.
        names: the numbers of the units, which are the same in every file; none where no unit is declared.
    """

    rows: int
    groups: NDArray[np.int64]
    classes: NDArray[np.int64]
    faults: list[Fault]
    more: int
    missing: dict[str, int]
    units: int = 0
    names: frozenset[int] = frozenset()


MOST_FAULTS = 50
"""Faults of one column that are kept; of the others there is the number."""


def checked(chunks: Iterable[Chunk], columns: Columns, *, public_classes: bool = False) -> Checked:
    """Every fault of chunks of cells, and how many records there are; nothing is kept of the others.

    It is a look at private records by whoever holds them: nothing of it is for anybody else.

    Args:
        public_classes: whether the class of a unit is public as its group is, and then one as well.
    """
    found = Checked(0, np.zeros(len(columns.groups), np.int64), np.zeros(len(columns.classes), np.int64), [], 0, {})
    kept: dict[str, int] = {}
    owned, labelled = Owned(), Owned()
    for chunk in chunks:
        encoder = Encoder(chunk, columns.decimal, every=True)
        units = encoder.unit(columns.unit)
        encoder.features(columns.features)
        groups, bad = encoder.group(columns.sensitive), {fault.row for fault in encoder.faults}
        labels = encoder.numbers(columns.targets) if columns.targets else encoder.label(columns.target)
        bad |= {fault.row for fault in encoder.faults}
        fine = np.array([chunk.first_row + place not in bad for place in range(encoder.rows)], dtype=bool)
        found.rows += encoder.rows
        owned.add(units[fine], groups[fine], encoder.numbered[fine])
        if columns.classes:
            classes = labels[fine].astype(np.int64)
            found.classes += np.bincount(classes, minlength=len(found.classes))
            labelled.add(units[fine], classes, encoder.numbered[fine])
        for name, count in encoder.missing.items():
            found.missing[name] = found.missing.get(name, 0) + count
        once = {(fault.row, fault.column): fault for fault in encoder.faults}  # a group may be an input, too
        for fault in sorted(once.values(), key=lambda fault: fault.row):
            kept[fault.column] = kept.get(fault.column, 0) + 1
            if kept[fault.column] <= MOST_FAULTS:
                found.faults.append(fault)
            else:
                found.more += 1
    if columns.sensitive is not None:
        found.faults += owned.changing(columns.unit, columns.sensitive.name, columns.groups, most=MOST_FAULTS)
    if public_classes and columns.target is not None:
        found.faults += labelled.changing(columns.unit, columns.target.name, columns.classes, most=MOST_FAULTS)
    names, first = np.unique(owned.units, return_index=True)
    if columns.unit is None:
        first = np.arange(len(owned.units))
    else:
        found.names = frozenset(names.tolist())
    found.units, found.groups = len(first), np.bincount(owned.values[first], minlength=len(found.groups))
    return found
