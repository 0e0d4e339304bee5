"""The running cost of a ledger's releases, group by group, in memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from weakref import WeakValueDictionary

import torch

from fedsw.accounting.accountants import epsilon_by
from fedsw.accounting.composition import Composition, DeltaTooSmall
from fedsw.accounting.profiles import Step, stated_step
from fedsw.accounting.selection import Selection
from fedsw.accounting.stated import Pure

_Steps = tuple[tuple[str, Step], ...]


class _History:
    """Releases one after the other, and what they cost: one object for all accounts of this process that took the same.

    Clients with the same settings spend the same, round after round: the first that asks computes it for all.
    """

    __slots__ = ("__weakref__", "_next", "epsilons")

    def __init__(self) -> None:
        self.epsilons: dict[float, float] = {}
        self._next: WeakValueDictionary[_Steps, _History] = WeakValueDictionary()

    def after(self, steps: _Steps) -> _History:
        """The history that one more release makes of this one."""
        found = self._next.get(steps)
        if found is None:
            found = self._next[steps] = _History()
        return found


_beginnings: WeakValueDictionary[tuple[tuple[str, ...], str, str], _History] = WeakValueDictionary()


class Account:
    """Which attempts were charged, and what each group's steps cost by the ledger's accountant."""

    def __init__(self, groups: Iterable[str], accountant: str, device: torch.device | str = "cpu") -> None:
        self.spent: set[tuple[int, int]] = set()
        self._accountant, self._device = accountant, device
        self._counts = {group: Counter[Step]() for group in groups}
        self._compositions = {group: Composition(device=device) for group in self._counts}
        self._worst = next(iter(self._counts))  # at the last reading
        self._waiting: list[Mapping[str, Step]] = []  # releases that the compositions have not taken yet
        beginning = (tuple(self._counts), accountant, str(device))
        self._history = _beginnings.setdefault(beginning, _History())

    def add(self, round_: int, attempt: int, steps: Mapping[str, Step]) -> None:
        """One release: the step that every group takes in it."""
        self.spent.add((round_, attempt))
        for group, step in steps.items():
            self._counts[group][step] += 1
        if self._accountant == "pld":
            self._waiting.append(steps)
        self._history = self._history.after(tuple(steps.items()))

    def steps_by_group(self) -> dict[str, dict[Step, int]]:
        """How often each group took which step; those of Laplace noise as what they are, pure."""
        pure = self._accountant == "laplace"
        return {
            group: {stated_step(Pure(step.mu)) if pure and step.mu else step: times for step, times in counts.items()}
            for group, counts in self._counts.items()
        }

    def by_group(self, delta: float) -> dict[str, float]:
        """Epsilon of each group at delta."""
        if self._accountant == "pld":
            return {group: composition.epsilon(delta) for group, composition in self._composed().items()}
        return {
            group: epsilon_by(self._accountant, counts, delta, device=self._device)
            for group, counts in self._counts.items()
        }

    def epsilon(self, delta: float) -> float:
        """Epsilon of the worst group at delta.

        Asked after every release, so the group that was worst before is read first: whether the others stay below it
        is cheaper to find than where they are. An account of the same releases that asked before has the answer.
        """
        if delta not in self._history.epsilons:
            self._history.epsilons[delta] = self._worst_epsilon(delta)
        return self._history.epsilons[delta]

    def _worst_epsilon(self, delta: float) -> float:
        if self._accountant != "pld":
            return max(self.by_group(delta).values())
        compositions = self._composed()
        most = compositions[self._worst].epsilon(delta)
        for group, composition in compositions.items():
            if group == self._worst or composition.within(most, delta):
                continue
            if (own := composition.epsilon(delta)) > most:
                most, self._worst = own, group
        return most

    def epsilon_after(self, more: int, steps: Mapping[str, Step], delta: float) -> float:
        """Epsilon of the worst group if it takes its step ``more`` times again; inf where round-off uses delta up."""
        planned = [self._counts[group] + Counter({step: more}) for group, step in steps.items()]
        try:
            return max(epsilon_by(self._accountant, counts, delta, device=self._device) for counts in planned)
        except DeltaTooSmall:
            return math.inf

    def _composed(self) -> Mapping[str, Composition]:
        """The compositions of the groups, with all releases in them."""
        for steps in self._waiting:
            for group, step in steps.items():
                self._compositions[group].add(step)
        self._waiting.clear()
        return self._compositions


class SelectedAccount(Account):
    """The account of a run that is the best of several: its epsilon is the selection's, whose delta is the only one."""

    def __init__(self, groups: Iterable[str], accountant: str, selection: Selection) -> None:
        super().__init__(groups, accountant)
        self._selection = selection

    def by_group(self, delta: float) -> dict[str, float]:
        """The selection's epsilon for each group that took a step; inf where it took more than was planned."""
        return {group: self._selection.epsilon_of(counts) for group, counts in self._counts.items()}

    def epsilon(self, delta: float) -> float:
        """That of the worst group."""
        return max(self.by_group(delta).values())

    def epsilon_after(self, more: int, steps: Mapping[str, Step], delta: float) -> float:
        """That of the worst group if it takes its step ``more`` times again."""
        return max(self._selection.epsilon_of(self._counts[g] + Counter({step: more})) for g, step in steps.items())
