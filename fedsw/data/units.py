"""Privacy units of one record or more (user-level DP): a batch holds one row of each, drawn anew every time."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.files import same_content
from fedsw._tools.later import torch
from fedsw._tools.randomness import Stream
from fedsw.data.columns.values import identifier_of
from fedsw.data.formats import BadRecords
from fedsw.data.records import Records

if TYPE_CHECKING:
    from torch import Tensor

_MOST_PAIRS = 5


@dataclass(frozen=True, eq=False)
class Units:
    """The units of some records, numbered in the order of their identifiers; undeclared, each record is one.

    How many units there are is public. Which rows a unit has is not: only its own row of a batch, and the screen
    of the holder of the records, may depend on it. So a unit's number follows from the ids present, and from no row.

    ``rows`` (n,) are those of the records, unit after unit, ``starts`` (units + 1,) where each unit's begin; ``names``
    (units,) is what `Records.unit` calls them, else the records' ids; a seeded run draws by ``ids`` (units,), the
    numbers in the whole federation.
    """

    declared: bool
    rows: NDArray[np.int64] = field(repr=False)
    starts: NDArray[np.int64] = field(repr=False)
    names: NDArray[np.int64] = field(repr=False)
    ids: NDArray[np.int64] = field(repr=False)

    @classmethod
    def of(cls, records: Records) -> Units:
        """The units of some records, those of a federation of one client."""
        ids, count = records.ids.numpy(), len(records)
        if records.unit is None:
            return cls(False, np.arange(count), np.arange(count + 1), ids, ids)
        names, number = np.unique(records.unit.numpy(), return_inverse=True)
        rows = np.argsort(number, kind="stable")
        starts = np.append(0, np.cumsum(np.bincount(number, minlength=len(names))))
        return cls(True, rows, starts, names, np.arange(len(names)))

    def of_clients(self, owner: NDArray[np.int64], clients: NDArray[np.int64], total: int) -> Units:
        """The same units with ids that interleave those of all ``clients`` (S,); ``owner`` (units,) is the position."""
        if not self.declared:
            return self
        order, held = np.argsort(owner, kind="stable"), np.bincount(owner, minlength=len(clients))
        # the unit of rank k at a client has the id client + total * k: no two share one, and a seeded draw by ids is
        # the same whichever clients a process holds
        rank = np.empty(len(self), dtype=np.int64)
        rank[order] = np.arange(len(self)) - np.repeat(np.cumsum(held) - held, held)
        return dataclasses.replace(self, ids=clients[owner] + total * rank)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def firsts(self) -> NDArray[np.int64]:
        """The first row of each unit, (units,): it stands for the unit where all of its rows are alike."""
        rows: NDArray[np.int64] = self.rows[self.starts[:-1]]
        return rows

    def of_rows(self, units: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Spread what holds of units (k,) to each of their rows (n,), in the order of the records."""
        rows: NDArray[np.bool_] = np.zeros(len(self.rows), dtype=bool)
        rows[self.rows] = np.repeat(units, np.diff(self.starts))
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
        it has for the replacement of one record (docs/guarantees/units.md).

        A seeded draw goes by the units' ids, so that it is the same wherever they are held.
        """
        if not self.declared:
            return units
        words = stream.words(int(self.ids.max()) + 1)[self.ids[units]] if seeded else stream.words(len(units))
        held = self.starts[units + 1] - self.starts[units]
        # 53 bits of a word times the number of rows: off uniform by 2^-53 at most, which no guarantee rests on. What it
        # rests on is one word a unit, whatever rows the others have. Rounding may give the number itself: the last row
        offset = ((words >> np.uint64(11)).astype(np.float64) * 2.0**-53 * held).astype(np.int64)
        rows: NDArray[np.int64] = self.rows[self.starts[units] + np.minimum(offset, held - 1)]
        return rows

    def require_alike(self, values: Tensor, what: str, name: str) -> None:
        """Refuse a unit with rows of different public strata (n,): it is drawn in one stratum."""
        facts = torch.as_tensor(values).cpu().numpy()
        first = np.repeat(self.firsts, np.diff(self.starts))
        if len(wrong := np.flatnonzero(facts[self.rows] != facts[first])):
            earliest = wrong[np.argmin(self.rows[wrong])]
            one, other = int(first[earliest]), int(self.rows[earliest])
            raise BadRecords(
                f"{name}: rows {one} and {other} (the first record is row 0) are of one unit and differ in {what}; all "
                "rows of a unit are drawn in one stratum. Give them one value, or choose a column that does not change"
            )


def unit_numbers(names: Sequence[str]) -> NDArray[np.int64]:
    """The numbers (n,) of units by their names, the same in every file; two share one with probability below 2^-62.

    Every name is hashed by itself (docs/guarantees/units.md): give each once.
    """
    empty, digests = hashlib.blake2b(digest_size=8), []  # copying an empty hash is quicker than making one
    for name in map(str.encode, names):
        copied = empty.copy()
        copied.update(name)
        digests.append(copied.digest())
    return (np.frombuffer(b"".join(digests), dtype="<u8") >> np.uint64(1)).astype(np.int64)


def numbers_by_value(records: Records) -> NDArray[np.int64]:
    """A number (n,) of each record by what it says: features, group and target. Equal records have one number."""
    digests = [hashlib.blake2b(row, digest_size=8).digest() for row in _rows(records)]
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def numbers_of(cells: Sequence[Any]) -> NDArray[np.int64]:
    """The number (n,) of the unit that each cell names; -1 for one that names none."""
    plain = set(map(type, cells)) <= {str} and all(map(str.isascii, cells))
    names = _plain_names(cells) if plain else [identifier_of(cell) for cell in cells]
    numbers = unit_numbers([name or "" for name in names])
    if not all(names):
        numbers[[not name for name in names]] = -1
    return numbers


def _plain_names(cells: Sequence[str]) -> Sequence[str | None]:
    """`identifier_of` of texts in ASCII; asked only of digits and of texts with a point, which have other spellings."""
    texts = [*map(str.strip, cells)]
    if "." not in "".join(texts) and not any(map(str.isdigit, texts)):
        return texts
    return [identifier_of(text) if text.isdigit() or "." in text else text for text in texts]


def require_one_client_each(units: Sequence[Tensor | None], clients: Sequence[object], unit: str) -> None:
    """Refuse units that have rows at several clients: each would be protected at each client by itself.

    Units are those of the records of each client (n_c,), None if each record is one. The message names no unit.
    """
    numbers = [None if part is None else part.numpy() for part in units]
    if refusal := shared_units(numbers, clients, unit):
        raise BadRecords(refusal)


def shared_units(units: Sequence[NDArray[np.int64] | None], clients: Sequence[object], unit: str) -> str:
    """Return the sentence by which `require_one_client_each` refuses units (n_c,), or ""."""
    numbers = [np.empty(0, dtype=np.int64) if part is None else grouped(part)[0] for part in units]
    if not sum(map(len, numbers)):
        return ""
    owner = np.repeat(np.arange(len(numbers)), [len(part) for part in numbers])
    _, first, number = grouped(np.concatenate(numbers))
    again = np.flatnonzero(owner != owner[first][number])
    if not len(again):
        return ""
    pairs = Counter(zip(owner[first][number[again]].tolist(), owner[again].tolist(), strict=True))
    listed = [f"{count} at clients {clients[one]} and {clients[other]}" for (one, other), count in pairs.items()]
    more = f", and at {len(listed) - _MOST_PAIRS} more pairs of clients" if len(listed) > _MOST_PAIRS else ""
    return (
        f"{len(np.unique(number[again]))} values of {unit!r} have rows at several clients: "
        f"{', '.join(listed[:_MOST_PAIRS])}{more}. Epsilon would be for their rows at one client, and all rows of one "
        f"{unit!r} are to be protected together: give them to one client, or leave them out at the others; if these "
        f"are different ones with the same value, put the client's name before it"
    )


def grouped(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Group equal numbers (n,): the different ones (k,), ascending; each one's first place (k,); which each is (n,)."""
    # numpy.unique finds the same by a stable sort, which takes several times as long
    order = np.argsort(numbers)
    ordered, begins = numbers[order], np.ones(len(numbers), dtype=bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    starts, which = np.flatnonzero(begins), np.empty(len(numbers), dtype=np.int64)
    which[order] = np.cumsum(begins) - 1
    return ordered[starts], np.minimum.reduceat(order, starts) if len(starts) else order, which


def units_in_common(records: Records, others: Iterable[Records]) -> int:
    """How many units of some records other records have, too; 0 if no unit is declared."""
    if records.unit is None:
        return 0
    units = torch.unique(records.unit)
    held = [other.unit for other in others if other.unit is not None]
    return int(torch.isin(units, torch.cat(held)).sum()) if held else 0


_ROWS = 2**14
"""Rows that are compared at a time."""
_ODD = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: multiples modulo 2^64 of an odd number are different, and lie far apart."""


def one_file_twice(tables: Mapping[Any, Path]) -> str | None:
    """A sentence about the first two clients that bring one file, by a link or as a copy; None if no two do."""
    by_size: dict[int, list[Any]] = {}
    for client, table in tables.items():
        if not table.is_file():
            continue
        alike = by_size.setdefault(table.stat().st_size, [])
        for other in alike:
            if same_content(table, tables[other]):
                return (
                    f"clients {other} and {client} bring one file, {tables[other]} and {table}: its people would be "
                    "counted and protected as if they were two; give each client its own records"
                )
        alike.append(client)
    return None


def rows_in_common(records: Records, others: Iterable[Records]) -> int:
    """How many of the records equal some of the others in features, group and target, whatever their ids."""
    marks = _marks(records)
    wanted, alike, sieve = np.unique(marks), set[bytes](), np.zeros(2**16, dtype=bool)
    sieve[wanted >> np.uint64(48)] = True  # by the first 16 bits of a mark: most rows of a large table go no further
    for part in others:
        for start in range(0, len(part) if len(wanted) else 0, _ROWS):
            piece = part.part(start, min(start + _ROWS, len(part)))
            piece_marks = _marks(piece)
            left = np.flatnonzero(sieve[piece_marks >> np.uint64(48)])
            near = wanted[np.minimum(np.searchsorted(wanted, piece_marks[left]), len(wanted) - 1)]
            alike.update(_rows(piece.take(left[near == piece_marks[left]])))
    return sum(row in alike for row in _rows(records)) if alike else 0


def share_of_repeated_rows(parts: Iterable[Records]) -> float:
    """The share of all records that equal another one in features, group and target, whatever their ids."""
    counts: Counter[bytes] = Counter()
    for part in parts:
        counts.update(_rows(part))
    total = counts.total()
    return sum(count for count in counts.values() if count > 1) / total if total else 0.0


def equal_by_chance(records: Records, private: Sequence[Records]) -> float:
    """Expected share of some records that equal a private one if all are of different people, rather too small.

    It is the lesser of two estimates. One is the share of private records that equal another private one: too large if
    a person has several equal rows. The other is the mean of 1 - (1 - p)^n over these records, for n private ones and
    the frequency p of a row in the population: too large if the records are few. It takes p from the other records, and
    of a row that occurs once from the estimate of Good and Turing, 2 n2 / (n1 n) for n1 rows that occur once and n2
    pairs.
    """
    _, which, counts = np.unique(_marks(records), return_inverse=True, return_counts=True)
    rows, once, twice = len(which), int((counts == 1).sum()), int((counts == 2).sum())
    if rows < 2:
        return 0.0
    others = (counts[which] - 1) / (rows - 1)
    chance = np.where(counts[which] > 1, others, min(1.0, 2 * twice / (once * rows)) if once else 0.0)
    among_these = float(np.mean(1 - (1 - np.minimum(chance, 1.0)) ** sum(map(len, private))))
    return min(among_these, share_of_repeated_rows(private))


def repeats_of_records(records: Records) -> str | None:
    """Report how many records without a declared unit equal another one, and what that means; None if few do."""
    if records.unit is not None or not len(records):
        return None
    columns = records.features.numpy()[:, :_LOOKED_AT].T
    return repeats_said(_marks(records), most_values=max((len(np.unique(column)) for column in columns), default=0))


def repeats_said(marks: NDArray[Any], *, most_values: int) -> str | None:
    """The same of rows by their marks (n,), equal for equal rows; ``most_values`` is how many the finest column has.

    If no column has many values, rows of different people are equal by chance, and only half of all rows are reported.
    """
    _, counts = np.unique(marks, return_counts=True)
    alike, rows = int(counts[counts > 1].sum()), len(marks)
    few = _FEW_FINE if most_values > len(counts) / 4 else _FEW_COARSE
    if alike < max(_LEAST_ALIKE, few * rows):
        return None
    most = int(counts.max())
    return (
        f"{alike:,} of {rows:,} rows equal another one exactly, one of them {most:,} times: epsilon is for one row. If "
        f"equal rows are of one person, it is up to {most:,} times as large for that person"
    )


_LOOKED_AT = 64
"""Columns that are searched for the finest one."""
_LEAST_ALIKE, _FEW_FINE, _FEW_COARSE = 4, 0.01, 0.5
"""Equal rows that are reported: their least number, and their least share in fine and in coarse tables."""


def _marks(records: Records) -> NDArray[np.uint64]:
    """A number of every record (n,), the same for equal ones; different ones seldom share it."""
    target = records.target.numpy()
    columns = [*(records.features.numpy() + np.float32(0)).view(np.uint32).T, records.sensitive.numpy()]
    columns += [target] if target.ndim == 1 else [*(target + np.float32(0)).view(np.uint32).T]
    marks, factor = np.zeros(len(records), dtype=np.uint64), _ODD
    for column in columns:
        marks += column.astype(np.uint64) * np.uint64(factor)
        factor = factor * _ODD % 2**64
    return marks


def _rows(records: Records) -> Iterator[bytes]:
    """Every record's values as bytes; 0 and -0 are one value."""
    columns = [records.features.numpy() + np.float32(0), records.sensitive.numpy()[:, None]]
    target = records.target.numpy()
    columns.append(target[:, None] if target.ndim == 1 else target + np.float32(0))
    parts = [np.ascontiguousarray(column).view(np.uint8) for column in columns]
    return map(bytes, np.concatenate(parts, axis=1))
