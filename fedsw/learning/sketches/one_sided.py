"""Parts with vectors that never point in opposite directions, whatever a map makes of a record: codes and moments."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsw._tools.randomness import Stream
from fedsw.learning.sketches.maps import FeatureMap, Raw, Seen, looked
from fedsw.learning.sketches.parts import Columns, DrawnPart


@dataclass(frozen=True)
class Features:
    """A map's output for a record, made non-negative and put in a ball of norm 1: activations, moduli, means.

    The map may be any network with any weights, also one that a server sends. Whatever it returns, NaN and infinity
    included, is made finite, cut at 0 and shortened where the record is; so the inner product of two records is never
    negative, and no map moves a sum by more than sqrt(2).

    A code is divided by the ``radius`` where it is shorter, else by its own norm; if ``signed`` negative numbers are a
    second half of the code, as positive ones, and not 0. ValueError if the radius is not positive and finite.
    """

    map: FeatureMap = field(default_factory=Raw)
    radius: float = 1.0
    signed: bool = False
    columns: Columns = None
    weight: float = 1.0
    least_product = 0.0  # no number of a code is negative

    def __post_init__(self) -> None:
        _require_radius(self.radius)

    def built(self, features: int, stream: Stream) -> DrawnPart:
        """The codes of features (n, p)."""
        width = self.map.width(features) * (2 if self.signed else 1)
        return _Features(self.map.built(features, stream.child("map")), width, self.radius, self.signed)


@dataclass(frozen=True)
class MomentFeatures:
    """Means and second moments of what a map makes, z: the triangle of a a', times sqrt(2) off its diagonal.

    a = (radius, z) / (sqrt(2) radius), with a z longer than the radius shortened to it, has norm at most 1. The inner
    product of two records' vectors is <a, a'>^2, which is never negative, whatever the map is.

    If any, so many ``projected`` numbers are made of z by public random orthonormal directions before. ValueError if
    the radius is not positive and finite, or more numbers are to be made than there are.
    """

    map: FeatureMap = field(default_factory=Raw)
    radius: float = 1.0
    projected: int = 0
    columns: Columns = None
    weight: float = 1.0
    least_product = 0.0  # a square

    def __post_init__(self) -> None:
        _require_radius(self.radius)

    def built(self, features: int, stream: Stream) -> DrawnPart:
        """The moments of features (n, p); directions come from the stream."""
        width = self.map.width(features)
        if not 0 <= self.projected <= width:
            raise ValueError(f"projected = {self.projected} of {width} numbers; it is 0 for all of them, or fewer")
        directions = None
        if self.projected:
            normals = stream.child("projections").normals(width * self.projected)
            directions, _ = torch.linalg.qr(torch.from_numpy(normals).reshape(width, self.projected))
        return _Moments(self.map.built(features, stream.child("map")), width, self.radius, directions)


def finite_rows(rows: Tensor) -> Tensor:
    """Rows (n, q) in float64, zeros in place of each that holds a number that is not finite; differentiable."""
    exact = rows.to(torch.float64)
    finite = torch.isfinite(exact).all(dim=1, keepdim=True)
    return torch.where(finite, exact, 0.0)


def shortened(rows: Tensor, radius: float) -> Tensor:
    """Finite float64 rows (n, q) of norm at most `radius`; differentiable.

    Rows are divided by their largest number before their norm is taken, so that no square overflows.
    """
    largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=radius)
    scaled = rows / largest
    length = torch.linalg.vector_norm(scaled, dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    return scaled * torch.minimum(largest, radius / length)


class _Features(DrawnPart):
    def __init__(self, looked_at: nn.Module, width: int, radius: float, signed: bool) -> None:
        super().__init__()
        self.looked_at, self.coordinates, self.radius, self.signed = looked_at, width, radius, signed

    def forward(self, rows: Tensor) -> Tensor:
        """Codes (n, coordinates) of rows (n, p), of norm at most 1, without a negative number."""
        return self._codes(self.looked_at(rows)).to(rows.dtype)

    def summed(self, rows: Tensor, members: Tensor, seen: Seen | None = None) -> tuple[Tensor, Tensor]:
        codes = self._codes(looked(self.looked_at, rows, seen)).to(rows.dtype)
        return members @ codes, members @ codes.square().sum(dim=1)

    def _codes(self, made: Tensor) -> Tensor:
        seen = finite_rows(made)
        code = torch.cat([seen.clamp(min=0), (-seen).clamp(min=0)], dim=1) if self.signed else seen.clamp(min=0)
        return shortened(code, self.radius) / self.radius


class _Moments(DrawnPart):
    def __init__(self, looked_at: nn.Module, width: int, radius: float, directions: Tensor | None) -> None:
        super().__init__()
        self.looked_at, self.radius, self.projected = looked_at, radius, directions is not None
        self.directions: Tensor
        self.register_buffer("directions", torch.zeros(0) if directions is None else directions)
        size = 1 + (width if directions is None else directions.shape[1])
        first, second = torch.triu_indices(size, size)
        self.first: Tensor
        self.second: Tensor
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.coordinates = len(first)

    def forward(self, rows: Tensor) -> Tensor:
        """Products (n, coordinates) of rows (n, p), of norm at most 1."""
        whole = self._lengthened(self.looked_at(rows))
        return (whole[:, self.first] * whole[:, self.second] * self._times()).to(rows.dtype)

    def summed(self, rows: Tensor, members: Tensor, seen: Seen | None = None) -> tuple[Tensor, Tensor]:
        """As `DrawnPart.summed`: products of matrices, without the vectors (n, coordinates)."""
        whole = self._lengthened(looked(self.looked_at, rows, seen))
        among = members.to(whole)
        products = (among.unsqueeze(2) * whole).transpose(1, 2) @ whole
        sums = products[:, self.first, self.second] * self._times()
        return sums.to(rows.dtype), (among @ whole.square().sum(dim=1).square()).to(rows.dtype)

    def _times(self) -> Tensor:
        return (2 - (self.first == self.second).to(torch.float64)).sqrt()

    def _lengthened(self, made: Tensor) -> Tensor:
        """a of every row (n, 1 + q), from what the map made of it."""
        seen = finite_rows(made)
        if self.projected:
            seen = finite_rows(seen @ self.directions.to(torch.float64))
        inside = shortened(seen, self.radius) / (math.sqrt(2) * self.radius)
        return torch.cat([torch.full_like(inside[:, :1], 1 / math.sqrt(2)), inside], dim=1)


def _require_radius(radius: float) -> None:
    if not 0 < radius < math.inf:
        raise ValueError(f"radius = {radius}; it must be positive and finite")
