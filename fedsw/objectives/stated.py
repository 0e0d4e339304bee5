"""A penalty of a user's own, with a bound that they state: the guarantee then says whose bound it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw.objectives.groups import Clip, Objective
from fedsw.objectives.penalties import Penalty
from fedsw.privacy.sensitivity import STATED, Bound, Sensitivity, loss_sensitivity
from fedsw.transport.sliced import DEFAULT_MEMORY_LIMIT, Ties

Pull = Callable[[Sequence[Tensor], Tensor], Sequence[Tensor]]
Bounding = Callable[[Sequence[int], Clip], float]


@dataclass(frozen=True)
class StatedPart:
    """The penalty alone, with its weight; the same functions as `fedsw.objectives.Objective`."""

    groups: int
    alpha: float
    pull: Pull
    bounding: Bounding
    penalty: str = "statistical-parity"

    @property
    def cells(self) -> tuple[str, ...]:
        """Names of the groups."""
        return tuple(f"A={group}" for group in range(self.groups))

    def cell_of(self, sensitive: Tensor, target: Tensor) -> Tensor:
        """The group of every record (n,), int64."""
        return Objective("statistical-parity", self.groups, 1, 0.0).cell_of(sensitive, target)

    def cotangents(
        self,
        outputs: Sequence[Tensor],
        directions: Tensor,
        *,
        ties: Ties = "shared",
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> list[Tensor]:
        """The user's cotangents times the weight, group by group (n_j, d), float64.

        Raises:
            ValueError: if their shapes are not those of the outputs.
        """
        found = [self.alpha * each.to(torch.float64) for each in self.pull(outputs, directions)]
        if [each.shape for each in found] != [each.shape for each in outputs]:
            raise ValueError(
                f"the penalty's pull gave shapes {[tuple(each.shape) for each in found]} for outputs "
                f"{[tuple(each.shape) for each in outputs]}; it gives a derivative of each group's outputs"
            )
        return found

    def penalty_sensitivities(
        self,
        sizes: Sequence[int],
        clip: Clip,
        *,
        d: int,
        spread: float | None = None,
        bound: Bound = "auto",
    ) -> tuple[Sensitivity, ...]:
        """What the user states, times the weight, the same for every group.

        Raises:
            ValueError: if that is no bound.
        """
        stated = float(self.bounding(sizes, clip))
        if not (math.isfinite(stated) and stated > 0):
            raise ValueError(f"the penalty's stated bound is {stated} for sizes {list(sizes)}; it is finite, above 0")
        return (self.alpha * Sensitivity(stated, STATED),) * self.groups

    def sensitivities(
        self,
        sizes: Sequence[int],
        clip: Clip,
        *,
        d: int,
        spread: float | None = None,
        bound: Bound = "auto",
    ) -> tuple[Sensitivity, ...]:
        """With the task loss."""
        task = (1 - self.alpha) * loss_sensitivity(clip.loss, sum(sizes))
        return tuple(task + each for each in self.penalty_sensitivities(sizes, clip, d=d))


def _nothing(*given: object) -> float:
    raise TypeError("a Stated penalty needs pull= and bound=: the derivative and how far one record moves it")


@dataclass(frozen=True)
class Stated(Penalty):
    """A penalty between groups by a user's own derivative, with a bound of their own.

    Guarantee: that of the other penalties *if the statement is true*; nothing here checks it, and the guarantee in
    words names it.

    Attributes:
        pull: from the outputs of every group, each (n_j, d) in the ball of M, and the directions (d, k), to the
            derivative in each of them. It must not depend on records beyond these outputs.
        bound: from the groups' batch sizes and the clip to the most, in l2 norm, that replacing one record moves the
            sum of clipped Jacobians (transposed) applied to the derivative.
        groups: how many there are.
    """

    pull: Pull = _nothing  # type: ignore[assignment]
    bound: Bounding = _nothing
    groups: int = 2

    def between(self) -> StatedPart:
        """The penalty alone, with its weight."""
        return StatedPart(self.groups, self.weight, self.pull, self.bound)
