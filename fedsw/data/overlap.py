"""Whether records are private ones: files that are one, and rows that both hold."""

from __future__ import annotations

import filecmp
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from fedsw.data.records import Records


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, by whatever links; False where either cannot be looked at."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def same_content(one: Path, other: Path) -> bool:
    """Whether two files are one, or a copy of the other."""
    return same_file(one, other) or filecmp.cmp(one, other, shallow=False)


def rows_in_common(records: Records, others: Iterable[Records]) -> int:
    """How many of the records equal some of the others in features, group and target, whatever their ids."""
    wanted = Counter(_rows(records))
    found = {row for part in others for row in _rows(part) if row in wanted}
    return sum(wanted[row] for row in found)


def _rows(records: Records) -> Iterator[bytes]:
    """Every record's values as bytes; 0 and -0 are one value."""
    columns = [records.features.numpy() + np.float32(0), records.sensitive.numpy()[:, None]]
    target = records.target.numpy()
    columns.append(target[:, None] if target.ndim == 1 else target + np.float32(0))
    parts = [np.ascontiguousarray(column).view(np.uint8) for column in columns]
    return map(bytes, np.concatenate(parts, axis=1))
