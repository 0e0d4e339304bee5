"""Charges of a release, one a group: as given, as a row on disk and as a step; and the cost of all releases."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import index
from typing import Any
from weakref import WeakValueDictionary

from fedsw._tools.later import torch
from fedsw._tools.text import installed_version
from fedsw.privacy.accountants import GAUSSIAN, LAPLACE, accountant_named
from fedsw.privacy.accounting.composition import Composition
from fedsw.privacy.accounting.epsilons import epsilon_by
from fedsw.privacy.accounting.journal import LedgerDamaged
from fedsw.privacy.accounting.profiles import Step, stated_step
from fedsw.privacy.accounting.selection import Selection
from fedsw.privacy.accounting.slicing import Slicing
from fedsw.privacy.accounting.stated import Pure
from fedsw.privacy.relations import REPLACE_ONE, Sampling


@dataclass(frozen=True)
class Charge:
    """Charge of one release to one group: the sampling rate of its records, and how far one of them moves the sum.

    The rate p is in [0, 1], 0 if no record of the group was sampled. The sensitivity is the full Delta >= 0 of the
    released sum, in the units of sigma; for slices the diameter of the features, before slicing. See `Step`.
    """

    group: str
    sampling_rate: float
    sensitivity: float
    sampling: Sampling = "without-replacement"
    slicing: Slicing | None = None


@dataclass(frozen=True)
class Entry:
    """One group's part of one release, as it stands in the ledger.

    It is ``lost`` if ``Ledger.charge_lost`` charged it, ``counted`` if the account of the data set agreed to it.
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
    counted: bool = False


ADDED: dict[str, Any] = {"lost": False, "counted": False}
"""Columns that rows have had since a later version than the first, and what a row without one says: it opens."""

_FIRST = frozenset({"round", "attempt", "sigma", "charges"})


def whole(row: Mapping[str, Any]) -> dict[str, Any]:
    """Add the columns that a row of an older version lacks; LedgerDamaged for unknown ones, which may be costs."""
    if unknown := sorted(row.keys() - _FIRST - ADDED.keys()):
        raise LedgerDamaged(
            f"a row of the ledger has the column {unknown[0]!r}, which fedsw {installed_version()} does not know; open "
            "it with the version that wrote it, or a later one"
        )
    return {**ADDED, **row}


def as_steps(charges: Sequence[Charge], sigma: float, groups: Sequence[str]) -> dict[str, Step]:
    """The step every group takes; ValueError unless every group is charged once, with numbers in range."""
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
        charge.group: Step(
            float(charge.sampling_rate), mu_of(charge.sensitivity, sigma), charge.sampling, charge.slicing
        )
        for charge in charges
    }


def as_row(round_: int, attempt: int, charges: Sequence[Charge], sigma: float) -> dict[str, Any]:
    """Row of one release for a ledger's file; ValueError if the round or the attempt is negative."""
    if index(round_) < 0 or index(attempt) < 0:
        raise ValueError(f"round is {round_} and attempt {attempt}; both must be >= 0.")
    return {
        "round": index(round_),
        "attempt": index(attempt),
        "sigma": float(sigma),
        "charges": [
            asdict(charge) | {"sampling_rate": float(charge.sampling_rate), "sensitivity": float(charge.sensitivity)}
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


def mu_of(sensitivity: float, sigma: float) -> float:
    """Sensitivity / sigma: 0 if nothing moves, infinite if something does and there is no noise."""
    if sensitivity == 0.0:
        return 0.0
    return float(sensitivity) / float(sigma) if sigma > 0.0 else math.inf


_Steps = tuple[tuple[str, Step], ...]


class _History:
    """A sequence of releases and its epsilon by delta, computed once for all ledgers of this process."""

    __slots__ = ("__weakref__", "_next", "epsilons")

    def __init__(self) -> None:
        self.epsilons: dict[float, float] = {}
        self._next: WeakValueDictionary[_Steps, _History] = WeakValueDictionary()

    def after(self, steps: _Steps) -> _History:
        """The history that follows this one after one more release."""
        following = self._next.get(steps)
        if following is None:
            following = self._next[steps] = _History()
        return following


_beginnings: WeakValueDictionary[tuple[tuple[str, ...], str, str], _History] = WeakValueDictionary()


def _pure(step: Step) -> Step:
    """A release with Laplace noise as a mechanism of pure epsilon, for a replacement."""
    replaced = step.mu if step.relation == REPLACE_ONE else 2 * step.mu
    return stated_step(Pure(replaced)) if replaced else step


def _exact(step: Step) -> Step:
    """A release with a noise without a proven bound, counted as one without noise."""
    return replace(step, mu=math.inf) if step.mu else step


_COUNTED_AS: Mapping[str, Callable[[Step], Step]] = {GAUSSIAN: lambda step: step, LAPLACE: _pure}


def counted_as(mechanism: str) -> Callable[[Step], Step]:
    """Conversion of a mechanism's steps before they are composed with others; a user's own noise counts as none.

    An account of a data set relies on proofs only, so that a release with such a noise costs it an infinite epsilon.
    """
    return _COUNTED_AS.get(mechanism, _exact)


class Account:
    """The attempts that were charged, and the cost of each group's steps by the ledger's accountant."""

    def __init__(
        self, groups: Iterable[str], accountant: str, mechanism: str, device: torch.device | str = "cpu"
    ) -> None:
        self.spent: set[tuple[int, int]] = set()
        self._accountant, self._device = accountant, device
        self._numeric = accountant_named(accountant).numeric
        self._counted_as = counted_as(mechanism)
        self._counts = {group: Counter[Step]() for group in groups}
        self._compositions = {group: Composition(device=device) for group in self._counts}
        self._worst = next(iter(self._counts))  # at the last reading
        self._waiting: list[Mapping[str, Step]] = []  # releases that the compositions have not taken yet
        beginning = (tuple(self._counts), accountant, str(device))
        self._history = _beginnings.setdefault(beginning, _History())

    def add(self, round_: int, attempt: int, steps: Mapping[str, Step]) -> None:
        """Add one release: the step that every group takes in it."""
        self.spent.add((round_, attempt))
        for group, step in steps.items():
            self._counts[group][step] += 1
        if self._numeric:
            self._waiting.append(steps)
        self._history = self._history.after(tuple(steps.items()))

    def steps_by_group(self) -> dict[str, dict[Step, int]]:
        """Number of times that each group took each step, converted by `counted_as` for the ledger's noise."""
        steps = {group: Counter[Step]() for group in self._counts}
        for group, counts in self._counts.items():
            for step, times in counts.items():
                steps[group][self._counted_as(step)] += times
        return {group: dict(counts) for group, counts in steps.items()}

    def by_group(self, delta: float) -> dict[str, float]:
        """Epsilon of each group at delta."""
        if self._numeric:
            return {group: composition.epsilon(delta) for group, composition in self._composed().items()}
        return {
            group: epsilon_by(self._accountant, counts, delta, device=self._device)
            for group, counts in self._counts.items()
        }

    def epsilon(self, delta: float) -> float:
        """Epsilon of the worst group at delta; that of the last reading is read first, which is cheaper."""
        if delta not in self._history.epsilons:
            self._history.epsilons[delta] = self._worst_epsilon(delta)
        return self._history.epsilons[delta]

    def _worst_epsilon(self, delta: float) -> float:
        if not self._numeric:
            return max(self.by_group(delta).values())
        compositions = self._composed()
        most = compositions[self._worst].epsilon(delta)
        for group, composition in compositions.items():
            if group == self._worst or composition.within(most, delta):
                continue
            if (epsilon := composition.epsilon(delta)) > most:
                most, self._worst = epsilon, group
        return most

    def _composed(self) -> Mapping[str, Composition]:
        """The compositions of the groups, with all releases in them."""
        for steps in self._waiting:
            for group, step in steps.items():
                self._compositions[group].add(step)
        self._waiting.clear()
        return self._compositions


class SelectedAccount(Account):
    """The account of a run that is the best of several: its epsilon and only delta are the selection's."""

    def __init__(self, groups: Iterable[str], accountant: str, mechanism: str, selection: Selection) -> None:
        super().__init__(groups, accountant, mechanism)
        self._selection = selection

    def by_group(self, delta: float) -> dict[str, float]:
        """The selection's epsilon for each group that took a step; inf where it took more than was planned."""
        return {group: self._selection.epsilon_of(counts) for group, counts in self._counts.items()}

    def epsilon(self, delta: float) -> float:
        """Epsilon of the worst group at delta."""
        return max(self.by_group(delta).values())
