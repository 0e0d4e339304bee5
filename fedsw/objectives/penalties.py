"""Penalties that a user composes: between groups, within classes, to a prior or a public sample, by weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedsw.objectives.groups import Clip, Objective
from fedsw.objectives.matching import Matching
from fedsw.privacy.sensitivity import STATED, Bound, Sensitivity, loss_sensitivity
from fedsw.transport.sliced import DEFAULT_MEMORY_LIMIT, Ties

Outputs = Callable[[Any, Any], Tensor]
"""From a model's raw outputs and a batch to the compared outputs (n, d)."""


@dataclass(frozen=True)
class Penalty:
    """What all penalties have.

    Attributes:
        weight: of the penalty; the weights of an objective add up to at most 1, the task loss has the rest.
        outputs: which outputs are compared: None for the task's own, the name of one of the model's outputs where it
            returns a dict, or a function of (raw outputs, batch) that gives (n, d).
        dimension: d of these outputs; None for the task's own.
        clip: other norms M and L than the objective's, for these outputs.
        centre: public constant that is subtracted from the outputs before they are bounded.
    """

    weight: float = 0.5
    outputs: str | Outputs | None = None
    dimension: int | None = None
    clip: Clip | None = None
    centre: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(f"a penalty's weight is {self.weight}; it lies between 0 and 1")
        if self.outputs is not None and self.dimension is None:
            raise ValueError("a penalty on outputs of its own needs their dimension: Parity(..., dimension=3)")

    def selected(self, raw: Any, batch: Any, own: Callable[[Any, Any], Tensor]) -> Tensor:
        """The compared outputs (n, d), centred and unprojected.

        Args:
            own: the task's outputs.
        """
        if self.outputs is None:
            found = own(raw, batch)
        elif isinstance(self.outputs, str):
            if not isinstance(raw, dict) or self.outputs not in raw:
                known = ", ".join(raw) if isinstance(raw, dict) else f"one {type(raw).__name__}"
                raise ValueError(f"the penalty compares the output {self.outputs!r}; the model returns {known}")
            found = raw[self.outputs]
        else:
            found = self.outputs(raw, batch)
        return found - self.centre


@dataclass(frozen=True)
class Parity(Penalty):
    """Sliced W2^2 between the outputs of every two groups (statistical parity). Source: RLL, Section 5."""

    groups: int = 2

    def between(self) -> Objective:
        """The penalty alone, with its weight."""
        return Objective("statistical-parity", self.groups, 1, self.weight)


@dataclass(frozen=True)
class EqualizedOdds(Penalty):
    """Sliced W2^2 between the outputs of every two groups within every class. Source: RLL, Section 5."""

    groups: int = 2
    classes: int = 2

    def between(self) -> Objective:
        """The penalty alone, with its weight."""
        return Objective("equality-of-odds", self.groups, self.classes, self.weight)


@dataclass(frozen=True)
class ToSample(Penalty):
    """Sliced W2^2 between the outputs of all private records and a public sample.

    Attributes:
        sample: points (m, d), public and fixed in advance; drawn from the uniform law on a ball of `radius` for every
            attempt where it is None (the prior of an autoencoder, RLL Section 6).
        radius: A, of the ball about the centre that the points are in.
    """

    sample: Tensor | None = field(default=None, compare=False)
    radius: float = 1.0

    def __post_init__(self) -> None:
        Penalty.__post_init__(self)
        if self.sample is None:
            return
        if self.sample.ndim != 2 or 0 in self.sample.shape or not bool(torch.isfinite(self.sample).all()):
            raise ValueError(f"the public sample has shape {tuple(self.sample.shape)}; give finite points (m, d)")
        longest = float(torch.linalg.vector_norm(self.sample.double() - self.centre, dim=1).max())
        if longest > self.radius * (1 + 1e-9):
            raise ValueError(
                f"a point of the public sample is {longest:.6g} from the centre, beyond its radius {self.radius:g}; "
                "give the radius of a ball that holds all of them"
            )

    def between(self) -> Matching:
        """The penalty alone, with its weight."""
        return Matching("prior", self.weight, self.radius)


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
