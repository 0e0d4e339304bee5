"""Whose privacy counts: units of one record or more, of which a batch holds one row each, drawn anew every time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw.data.formats import BadRecords
from fedsw.data.records import Records
from fedsw.randomness import Stream


@dataclass(frozen=True, eq=False)
class Units:
    """The units of some records, numbered in the order of their first rows; each record is one where none is declared.

    How many units there are is public. How many rows a unit has is not: nothing but its own row of a batch, and the
    screen of whoever holds the records, may depend on it.

    Attributes:
        declared: whether a unit was declared, so that it may have several rows.
        rows: rows of the records, unit after unit, (n,).
        starts: where each unit's begin among them, and the end, (units + 1,).
        ids: the id of each unit's first record, (units,): the number of the unit in the whole federation.
    """

    declared: bool
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    ids: NDArray[np.int64]

    @classmethod
    def of(cls, records: Records) -> Units:
        """The units of some records."""
        ids, count = records.ids.numpy(), len(records)
        if records.unit is None:
            return cls(False, np.arange(count), np.arange(count + 1), ids)
        _, first, number = np.unique(records.unit.numpy(), return_index=True, return_inverse=True)
        by_first_row = np.argsort(np.argsort(first))[number]
        rows = np.argsort(by_first_row, kind="stable")
        starts = np.append(0, np.cumsum(np.bincount(by_first_row, minlength=len(first))))
        return cls(True, rows, starts, ids[rows[starts[:-1]]])

    def __len__(self) -> int:
        """Number of units."""
        return len(self.starts) - 1

    @property
    def firsts(self) -> NDArray[np.int64]:
        """The first row of each unit, (units,): it stands for the unit where all of its rows are alike."""
        rows: NDArray[np.int64] = self.rows[self.starts[:-1]]
        return rows

    def all_rows(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every row of these units (k,)."""
        chosen = np.zeros(len(self), dtype=bool)
        chosen[units] = True
        rows: NDArray[np.int64] = self.rows[np.repeat(chosen, np.diff(self.starts))]
        return rows

    def one_row_each(self, units: NDArray[np.int64], stream: Stream, *, seeded: bool) -> NDArray[np.int64]:
        """A row (k,) of each of these units (k,), uniformly among its own and independently of all others.

        Guarantee: a mechanism on one row of each unit has, for the replacement of all rows of a unit, the profile that
        it has for the replacement of one record (docs/guarantees.md, "Units").

        Args:
            stream: of this purpose alone; secret, unless the run is seeded.
            seeded: whether the draw goes by the units' ids, so that it is the same wherever they are held.
        """
        if not self.declared:
            return units
        words = stream.words(int(self.ids.max()) + 1)[self.ids[units]] if seeded else stream.words(len(units))
        held = self.starts[units + 1] - self.starts[units]
        place = ((words >> np.uint64(11)).astype(np.float64) * 2.0**-53 * held).astype(np.int64)
        rows: NDArray[np.int64] = self.rows[self.starts[units] + np.minimum(place, held - 1)]
        return rows

    def require_alike(self, values: Tensor, what: str, name: str) -> None:
        """Refuse units whose rows differ in what is public of them, the stratum that they are drawn in.

        Args:
            values: of every record, (n,).
            what: it is called in the message.
            name: whose records they are; opens the message.

        Raises:
            BadRecords: naming two rows of the first such unit, counted from 0.
        """
        found = torch.as_tensor(values).cpu().numpy()
        first = np.repeat(self.firsts, np.diff(self.starts))
        if len(wrong := np.flatnonzero(found[self.rows] != found[first])):
            one, other = int(first[wrong[0]]), int(self.rows[wrong[0]])
            raise BadRecords(
                f"{name}: rows {one} and {other} (the first record is row 0) are of one unit and differ in {what}; all "
                "rows of a unit are drawn in one stratum. Give them one value, or choose a column that does not change"
            )


def unit_number(name: str) -> int:
    """The number of a unit by its name: the same in every file; two names share one with probability below 2^-62."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def units_in_common(records: Records, others: Iterable[Records]) -> int:
    """How many units of some records other records have, too; 0 where no unit is declared."""
    if records.unit is None:
        return 0
    units = torch.unique(records.unit)
    held = [other.unit for other in others if other.unit is not None]
    return int(torch.isin(units, torch.cat(held)).sum()) if held else 0
