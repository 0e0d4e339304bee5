"""Released slices: directions and one-dimensional projections, checked when they are made or arrive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# How far from 1 the norm of a direction may be in a release that arrives (float32 on the way included).
_UNIT = 1e-6


@dataclass(frozen=True)
class Slices:
    """What a client released: directions, noisy projections, and the standard deviation of the noise.

    Whatever is computed from them is post-processing. The constructor also checks releases that arrive from elsewhere.

    Attributes:
        directions: (p, k), unit columns.
        projections: (n, k): record i's noisy coordinate along direction l.
        sigma: standard deviation of the Gaussian noise in every projection.

    Raises:
        ValueError: if shapes do not fit, a number is not finite, a direction has not norm 1, or sigma is not above 0.
    """

    directions: Tensor
    projections: Tensor
    sigma: float

    def __post_init__(self) -> None:
        self._check_sigma()
        theta, values = self.directions, self.projections
        shapes = (*theta.shape, *values.shape)
        if theta.ndim != 2 or values.ndim != 2 or theta.shape[1] != values.shape[1] or 0 in shapes:
            raise ValueError(
                f"directions have shape {tuple(theta.shape)} and projections {tuple(values.shape)}: "
                "expected (p, k) and (n, k), none of them 0"
            )
        object.__setattr__(self, "directions", theta.detach().to(torch.float64))
        object.__setattr__(self, "projections", values.detach().to(torch.float64))
        check_unit_columns(self.directions, _UNIT)
        if not bool(self.projections.isfinite().all()):
            raise ValueError("projections hold a number that is not finite; a release is finite, refuse its sender")

    def __len__(self) -> int:
        """Number of records n."""
        return int(self.projections.shape[0])

    @property
    def count(self) -> int:
        """Number of directions k."""
        return int(self.directions.shape[1])

    def columns(self, positions: Sequence[int]) -> Slices:
        """The same released numbers, at some of the directions only: post-processing, no new noise."""
        chosen = torch.as_tensor(positions, dtype=torch.int64, device=self.directions.device)
        return type(self)(self.directions[:, chosen], self.projections[:, chosen], self.sigma)

    def _check_sigma(self) -> None:
        require_positive(sigma=self.sigma)


class UnprotectedSlices(Slices):
    """Projections without noise: NO privacy. The non-private reference only; sigma is 0."""

    def _check_sigma(self) -> None:
        if self.sigma != 0:
            raise ValueError(f"unprotected slices have no noise, got sigma = {self.sigma}; noised ones are Slices")


def check_unit_columns(theta: Tensor, tolerance: float) -> None:
    """Raise a ValueError unless the norm of every column of (d, k) is within `tolerance` of 1."""
    worst = float((torch.linalg.vector_norm(theta, dim=0) - 1).abs().max())
    if not worst <= tolerance:
        raise ValueError(f"a direction's norm is {worst:.3g} from 1, above {tolerance:g}; directions are unit columns")


def require_positive(**values: float) -> None:
    """Raise a ValueError, with the name, for a number that is not finite and above 0."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(
                f"{name} is {value}; zero or negative {name} protects nobody, it must be finite and above 0"
                if name == "sigma"
                else f"{name} is {value}; it must be finite and above 0"
            )
