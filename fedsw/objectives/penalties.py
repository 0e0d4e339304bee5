"""Penalties that a user composes: between groups, within classes, to a prior or a public sample, by weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedsw.objectives.groups import Clip, Objective
from fedsw.objectives.matching import Matching

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
