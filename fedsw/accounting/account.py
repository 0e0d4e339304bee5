"""The running cost of a ledger's releases, group by group, in memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import torch

from fedsw.accounting.comparison import epsilon_by
from fedsw.accounting.composition import Composition, DeltaTooSmall
from fedsw.accounting.profiles import Step


class Account:
    """Which attempts were charged, and what each group's steps cost by the ledger's accountant."""

    def __init__(self, groups: Iterable[str], accountant: str, device: torch.device | str = "cpu") -> None:
        self.spent: set[tuple[int, int]] = set()
        self._accountant, self._device = accountant, device
        self._counts = {group: Counter[Step]() for group in groups}
        self._compositions = {group: Composition(device=device) for group in self._counts}
        self._worst = next(iter(self._counts))  # at the last reading

    def add(self, round_: int, attempt: int, steps: Mapping[str, Step]) -> None:
        """One release: the step that every group takes in it."""
        self.spent.add((round_, attempt))
        for group, step in steps.items():
            self._counts[group][step] += 1
            self._compositions[group].add(step)

    def by_group(self, delta: float) -> dict[str, float]:
        """Epsilon of each group at delta."""
        if self._accountant == "pld":
            return {group: composition.epsilon(delta) for group, composition in self._compositions.items()}
        return {
            group: epsilon_by(self._accountant, counts, delta, device=self._device)
            for group, counts in self._counts.items()
        }

    def epsilon(self, delta: float) -> float:
        """Epsilon of the worst group at delta.

        Asked after every release, so the group that was worst before is read first: whether the others stay below it
        is cheaper to find than where they are.
        """
        if self._accountant != "pld":
            return max(self.by_group(delta).values())
        most = self._compositions[self._worst].epsilon(delta)
        for group, composition in self._compositions.items():
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
