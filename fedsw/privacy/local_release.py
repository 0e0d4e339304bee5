"""One-shot local release (local DP): a record is projected onto a ball, noised once, and sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedsw._tools.registry import Registry
from fedsw._tools.text import upward
from fedsw.mathematics.transport import sliced
from fedsw.mathematics.transport.denoise import cosine_matrix, image_side
from fedsw.privacy.accountants import GAUSSIAN, LAPLACE
from fedsw.privacy.mechanisms import Calibration, gaussian_sigma, laplace_scale
from fedsw.privacy.release import Bounded, Part
from fedsw.privacy.sensitivity import Norm, Sensitivity

Diameter = Literal["replacement", "paper"]


@dataclass(frozen=True)
class _Law:
    """A noise for records: the norms of balls that it fits, and the order p of the transport loss that undoes it.

    ``scale`` is of a release, ``deviation`` that of one coordinate in units of the scale, ``pure`` whether delta is 0.
    """

    norms: tuple[Norm, ...]
    order: Literal[1, 2]
    scale: Callable[[RecordRelease], float]
    deviation: float
    pure: bool


_LAWS: Registry[_Law] = Registry("mechanism", _Law)
"""The noises that records may be released with."""

_LAWS.register(
    GAUSSIAN,
    _Law(
        ("l2", "l1"),
        2,
        lambda release: gaussian_sigma(release.epsilon, release.delta, release.sensitivity, release.calibration),
        1.0,
        pure=False,
    ),
)
_LAWS.register(
    LAPLACE,
    _Law(("l1",), 1, lambda release: laplace_scale(release.epsilon, release.sensitivity), math.sqrt(2), pure=True),
)


@dataclass(frozen=True)
class RecordRelease:
    """Settings and noise of a client's single release of its records.

    The features x of a record become `projection(x) + noise`; with `dct` the same in the space of the orthonormal
    two-dimensional cosine coefficients, which is then the released space (`encode`, `decode`). All fields are public
    and chosen without looking at private records.

    Guarantee: with diameter "replacement", what is released of a record is (epsilon, delta)-locally differentially
    private: for any two values of the record, with noise for a distance of 2 rho, against all who see it, the
    server included. delta is 0 for Laplace noise. It is for one release of one record: a record that is released
    twice pays twice. "paper" takes the noise for a distance of rho, as RCO's corollaries do (sup ||x||): half of what
    a replacement can move, so it is not a guarantee. Proofs: docs/guarantees/slices.md.

    Attributes:
        epsilon: budget of a record, positive.
        delta: failure probability of Gaussian noise, in [1e-100, 1); Laplace noise does not use it.
        radius: rho of the ball, in the units of the features.
        norm: the ball's norm. Laplace noise needs "l1".
        calibration: of Gaussian noise, see `gaussian_sigma`.
        diameter: "replacement" (2 rho) or "paper" (rho, not a guarantee).
        dct: release cosine coefficients; the features are then square images, row by row.
        keep: the part of a record's coordinates, those of largest magnitude, that is released; the others count as 0
            before noise is added to all. A map of each record by itself: nothing of the guarantee changes.

    ValueError if a field is outside its range or two do not fit. Source: RCO, Section 3 and equation (4).
    """

    epsilon: float
    delta: float
    radius: float
    norm: Norm = "l2"
    mechanism: str = GAUSSIAN
    calibration: Calibration = "analytic"
    diameter: Diameter = "replacement"
    dct: bool = False
    keep: float = 1.0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("norm", self.norm, get_args(Norm)),
            ("mechanism", self.mechanism, _LAWS.names()),
            ("diameter", self.diameter, get_args(Diameter)),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; choose one of {', '.join(allowed)}.")
        if not 0.0 < self.radius < math.inf:
            raise ValueError(f"radius is {self.radius}; the ball of a release has a positive, finite radius.")
        if not 0.0 < self.keep <= 1.0:
            raise ValueError(f"keep is {self.keep}; the part of the coordinates that is released lies in (0, 1].")
        if self.norm not in self._law.norms:
            raise ValueError(
                "Laplace noise needs the l1 norm, and norm is 'l2'. Over an l2 ball of radius rho in R^p it would need "
                "scale 2 rho sqrt(p) / epsilon; norm 'l1' with radius rho sqrt(p) has the same noise and a larger ball."
            )
        _ = self.scale  # raises what the mechanism refuses

    @property
    def sensitivity(self) -> float:
        """Distance that the noise hides: the diameter of the ball (l2 for Gaussian, l1 for Laplace), or its radius."""
        return 2 * self.radius if self.diameter == "replacement" else self.radius

    @property
    def scale(self) -> float:
        """sigma of Gaussian noise or b of Laplace noise, of every released coordinate."""
        return self._law.scale(self)

    @property
    def _law(self) -> _Law:
        return _LAWS.get(self.mechanism)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of every released coordinate."""
        return self._law.deviation * self.scale

    @property
    def order(self) -> Literal[1, 2]:
        """p of the loss W_{p, p sigma^p} that undoes this noise: 2 for Gaussian, 1 for Laplace (RCO, Theorem 1)."""
        return self._law.order

    @property
    def guarantee(self) -> str:
        """One sentence: who is protected from whom, and how much."""
        if self.diameter == "paper":
            return (
                f"not a guarantee: the noise is for a diameter of {self.radius:g} and a replaced record can move "
                f"{2 * self.radius:g} (RCO's corollaries; use diameter 'replacement')"
            )
        delta = 0.0 if self._law.pure else self.delta
        return (
            f"({upward(self.epsilon, 6)}, {upward(delta, 6)})-local differential privacy of each record against "
            "everybody, the server included, when the record is replaced by any other; one release"
        )

    def encode(self, features: Tensor) -> Tensor:
        """Features (n, p) in the released space: cosine coefficients with `dct`, else as they are. Differentiable."""
        return self._turned(features, inverse=False)

    def decode(self, released: Tensor) -> Tensor:
        """The inverse of `encode`: released rows (n, p) as features. Post-processing."""
        return self._turned(released, inverse=True)

    def _turned(self, rows: Tensor, *, inverse: bool) -> Tensor:
        if not self.dct:
            return rows
        side = image_side(rows.shape[1])
        cosines = cosine_matrix(side).to(rows)
        basis = cosines.T if inverse else cosines
        return (basis @ rows.reshape(-1, side, side) @ basis.T).reshape(rows.shape)

    def project(self, features: Tensor) -> Tensor:
        """Features (n, p) as they are noised: the `keep` largest coordinates of encode(x), in the ball; float64.

        A row that is not finite, or overflows, counts as 0. Nothing branches on the values.
        """
        rows = self.encode(features.detach().to(torch.float64))
        rows = torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, 0.0)
        return project_ball(largest(rows, self.keep), self.radius, self.norm)

    @property
    def part(self) -> Part:
        """The release: rows that a replaced record moves by at most the ball's diameter, with this noise."""
        return Part.of("records", self._diameter, self.scale, self.mechanism)

    @property
    def _diameter(self) -> Sensitivity:
        """Largest move of a replaced record's row, in the ball's norm; an l2 distance is at most the l1 distance."""
        return Sensitivity(2 * self.radius, "diameter", norm=self.norm)

    def bounded(self, features: Tensor) -> Bounded:
        """Rows (n, p) in the ball, to be released once; every row is protected on its own, even if all others are seen.

        The number of rows is public. ValueError if the features are not a matrix, or do not fit `dct`.
        """
        if features.dim() != 2:
            raise ValueError(
                f"features have shape {tuple(features.shape)}; a release takes a matrix, one record a row."
            )
        return Bounded(self.project(features), self._diameter)


def largest(rows: Tensor, keep: float) -> Tensor:
    """Rows (n, p) with all but the part `keep` of their coordinates, those of largest magnitude, set to 0.

    Every row by itself: at least one coordinate stays, and of equal ones it does not matter which.

    Source: RCO, Section 5.5 (keep = .2: what lies below the .8 quantile is cut).
    """
    if keep >= 1.0:
        return rows
    count = max(1, math.floor(keep * rows.shape[1]))
    places = rows.abs().topk(count, dim=1).indices
    return torch.zeros_like(rows).scatter(1, places, rows.gather(1, places))


def project_ball(rows: Tensor, radius: float, norm: Norm) -> Tensor:
    """Nearest points, in l2 distance, of rows (n, p) in the ball of a norm and radius; float64.

    The ball is taken smaller by a relative 8 (p + 8) 2^-53, so that the exact norm of every stored row is at most the
    radius: norms are computed to less than that. Rows hold finite numbers; `RecordRelease.project` sees to it.

    Source: Duchi, Shalev-Shwartz, Singer, Chandra 2008, Figure 1 (l1, by sorting), batched.
    """
    inner = radius * (1 - 8 * (rows.shape[1] + 8) * 2.0**-53)
    if norm == "l2":
        return sliced.project(rows, inner)
    if norm == "l1":
        return _project_l1(rows.to(torch.float64), inner)
    raise ValueError(f"norm is {norm!r}; choose one of {', '.join(get_args(Norm))}.")


def _project_l1(rows: Tensor, radius: float) -> Tensor:
    """Soft-threshold every row where its l1 norm exceeds the radius.

    With gaps d_i = max|x| - |x_i|, the projection keeps (t - d_i)+ where t = (radius + sum of the k smallest d) / k for
    the largest k that keeps its own smallest entry positive. Gaps, instead of Duchi's cumulated |x|, lose nothing to
    cancellation in rows far outside the ball; a gap of at least the radius is never kept, so it is cut there.
    """
    size = rows.abs()
    outside = size.sum(dim=1, keepdim=True) > radius
    largest = size.amax(dim=1, keepdim=True)
    gaps = (largest - size).clamp(max=radius)
    ordered = torch.sort(gaps, dim=1).values
    ranks = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64)
    heights = (radius + ordered.cumsum(dim=1)) / ranks
    count = (ordered < heights).sum(dim=1, keepdim=True).clamp(min=1)
    height = heights.gather(1, count - 1)
    projected = (height - gaps).clamp(min=0.0)
    projected = projected * (radius / projected.sum(dim=1, keepdim=True))  # what rounding moved, of the order p^2 2^-53
    return torch.where(outside, torch.sign(rows) * projected, rows)
