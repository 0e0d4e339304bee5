"""What one release costs each group, as given, as a row on disk and as a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import index
from typing import Any

from fedsw.accounting.journal import LedgerDamaged
from fedsw.accounting.profiles import Sampling, Step
from fedsw.accounting.slicing import Slicing
from fedsw.version import installed_version


@dataclass(frozen=True)
class Charge:
    """What one release costs one group: the sampling rate of its records, and how far one of them moves the sum.

    Attributes:
        group: one of the ledger's groups.
        sampling_rate: p in [0, 1]; 0 where no record of the group was sampled.
        sensitivity: full sensitivity Delta >= 0 of the released sum, in the units of sigma; for slices the diameter
            of the features, before slicing.
        sampling: ``"without-replacement"`` (a record replaced) or ``"poisson"`` (added or removed).
        slicing: the random directions through which features were released; None for a sum.
    """

    group: str
    sampling_rate: float
    sensitivity: float
    sampling: Sampling = "without-replacement"
    slicing: Slicing | None = None


@dataclass(frozen=True)
class Entry:
    """One group's part of one release, as it stands in the ledger (see ``Charge`` and ``Ledger.spend``).

    ``lost`` marks what was charged afterwards, for a release whose own row is lost (``Ledger.charge_lost``).
    """

    sequence: int
    round: int
    attempt: int
    group: str
    sampling_rate: float
    sensitivity: float
    sampling: Sampling
    sigma: float
    slicing: Slicing | None = None
    lost: bool = False


ADDED: dict[str, Any] = {"lost": False}
"""Columns that rows have had since a later version than the first, and what a row without one says: it opens."""

_FIRST = frozenset({"round", "attempt", "sigma", "charges"})


def whole(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of any version with every column that this one knows.

    Raises:
        LedgerDamaged: for a column that this version does not know: it may be one that costs something.
    """
    if unknown := sorted(row.keys() - _FIRST - ADDED.keys()):
        raise LedgerDamaged(
            f"a row of the ledger has the column {unknown[0]!r}, which fedsw {installed_version()} does not know; open "
            "it with the version that wrote it, or a later one"
        )
    return {**ADDED, **row}


def as_steps(charges: Sequence[Charge], sigma: float, groups: Sequence[str]) -> dict[str, Step]:
    """The step every group takes.

    Raises:
        ValueError: unless every group is charged once, with numbers in range.
    """
    if not 0.0 <= sigma < math.inf:
        raise ValueError(f"sigma is {sigma}; it must be >= 0 and finite.")
    named = [charge.group for charge in charges]
    if sorted(named) != sorted(groups):
        raise ValueError(
            f"charges are for groups {named}; the ledger accounts for {list(groups)}. Charge each once, with "
            "sampling_rate 0 where no record was sampled."
        )
    for charge in charges:
        if not 0.0 <= charge.sensitivity < math.inf:
            raise ValueError(
                f"sensitivity of group {charge.group} is {charge.sensitivity}; it must be >= 0 and finite."
            )
    return {
        charge.group: Step(float(charge.sampling_rate), _mu(charge, sigma), charge.sampling, charge.slicing)
        for charge in charges
    }


def as_row(round_: int, attempt: int, charges: Sequence[Charge], sigma: float) -> dict[str, Any]:
    """What is kept of one release.

    Raises:
        ValueError: if the round or the attempt is negative.
    """
    if index(round_) < 0 or index(attempt) < 0:
        raise ValueError(f"round is {round_} and attempt {attempt}; both must be >= 0.")
    return {
        "round": index(round_),
        "attempt": index(attempt),
        "sigma": float(sigma),
        "charges": [
            {
                "group": charge.group,
                "sampling_rate": float(charge.sampling_rate),
                "sensitivity": float(charge.sensitivity),
                "sampling": charge.sampling,
                "slicing": None if charge.slicing is None else asdict(charge.slicing),
            }
            for charge in charges
        ],
    }


def entries_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[Entry]:
    """The charges of rows 1, 2, ... one by one."""
    for sequence, row in enumerate(rows, start=1):
        release = {name: whole(row)[name] for name in ("round", "attempt", "sigma", *ADDED)}
        for charge in charges_of(row):
            yield Entry(sequence=sequence, **release, **vars(charge))


def charges_of(row: Mapping[str, Any]) -> list[Charge]:
    """The charges of one row; rows from before slices could be charged have no ``slicing``."""
    return [
        Charge(**{**charge, "slicing": Slicing(**charge["slicing"]) if charge.get("slicing") else None})
        for charge in whole(row)["charges"]
    ]


def _mu(charge: Charge, sigma: float) -> float:
    if charge.sensitivity == 0.0:
        return 0.0
    return float(charge.sensitivity) / float(sigma) if sigma > 0.0 else math.inf
