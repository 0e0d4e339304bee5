"""Parts of a sketch: waves at drawn frequencies, kernels, indicators, each with the norm that its bound rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedsw._tools.randomness import Stream
from fedsw.learning.sketches.maps import FeatureMap, Raw, Seen, looked
from fedsw.mathematics.transport.sliced import Scheme, direction_shape, directions

LARGEST_FREQUENCY = 2.0**40
"""Above it angles in single precision have no digits left."""


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Vectors w_j and weights of a norm sum_j weight_j |E exp(i <w_j, X>) - E exp(i <w_j, Y>)|^2.

    Vectors (q, D) are float64; weights (D,) are positive, with sum 1: a record's weighted cosines and sines have norm
    1. ValueError if shapes do not fit, a number is not finite, or the weights have not sum 1.
    """

    vectors: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or self.weights.shape != self.vectors.shape[1:] or 0 in self.vectors.shape:
            raise ValueError(
                f"frequencies have shape {tuple(self.vectors.shape)} and weights {tuple(self.weights.shape)}; "
                "expected (q, D) and (D,), none of them 0"
            )
        if not float(self.vectors.abs().max()) <= LARGEST_FREQUENCY:
            raise ValueError(f"a frequency is not finite or above {LARGEST_FREQUENCY:g}: take larger bandwidths")
        if not (bool((self.weights > 0).all()) and abs(float(self.weights.sum()) - 1) <= 1e-9):
            raise ValueError("weights of frequencies are positive and have sum 1: divide them by their sum")


def gaussian_frequencies(
    width: int,
    pairs: int,
    bandwidths: Sequence[float],
    *,
    stream: Stream,
    scheme: Scheme = "orthogonal",
) -> Frequencies:
    """Random frequencies (q, D) of the kernel mean over b of exp(-|x - y|^2 / (2 b^2)).

    A frequency of bandwidth b is z / b, z standard normal: the mean over draws of cos<w, x - y> is the kernel exactly.
    In orthogonal blocks the directions of up to q frequencies of one bandwidth are orthonormal and their lengths are
    independent, with the law of |z|: each keeps its normal law, and the kernel is met with less variance.

    The ``width`` q is that of the features; bandwidths have their units; D ``pairs`` are divided over the bandwidths
    as evenly as possible. The stream is public randomness, apart from the data. ValueError if a number is out of range.

    Sources: Rahimi and Recht 2007; Yu, Suresh, Choromanski, Holtmann-Rice, Kumar 2016 (orthogonal blocks); Harder,
        Adamczewski, Park 2021 (sketches of private records).
    """
    if not bandwidths or not all(0 < value < math.inf for value in bandwidths):
        raise ValueError(f"bandwidths are {tuple(bandwidths)}; give at least one, each positive and finite")
    if pairs < len(bandwidths):
        raise ValueError(f"{pairs} pairs for {len(bandwidths)} bandwidths; each needs at least one")
    vectors, weights = [], []
    for index, bandwidth in enumerate(bandwidths):
        count = pairs // len(bandwidths) + (index < pairs % len(bandwidths))
        vectors.append(_normals(width, count, stream, scheme) / bandwidth)
        weights.append(torch.full((count,), 1.0 / len(bandwidths) / count, dtype=torch.float64))
    return Frequencies(torch.cat(vectors, dim=1), torch.cat(weights))


def cramer_frequencies(
    width: int, count: int, harmonics: int, period: float, *, stream: Stream, scheme: Scheme = "orthogonal"
) -> Frequencies:
    """Frequencies of the sliced Cramer distance: pi k / period along each direction, k = 1, 3, 5, ..., weights 1/k^2.

    With F and G the distribution functions of two laws along a direction, both on one interval of length `period`, the
    integral of (F - G)^2 is `SlicedCramer.scale` times the weighted norm as the harmonics grow
    (docs/guarantees/sketches.md); what is left out is below 2 period / (pi^2 harmonics).

    The period holds all projections: the diameter of the features' ball for instance. Vectors are (q, count harmonics),
    direction by direction; all else is as in `gaussian_frequencies`.
    """
    if harmonics < 1 or not 0 < period < math.inf:
        raise ValueError(f"harmonics = {harmonics}, period = {period}; at least 1, and positive and finite")
    shape = direction_shape(width, count, scheme)
    normals = torch.from_numpy(stream.normals(shape[0] * shape[1])).reshape(shape)
    theta = directions(width, count, normals=normals, scheme=scheme)
    odd = _odd(harmonics)
    vectors = (theta.unsqueeze(-1) * (math.pi / period * odd)).reshape(width, -1)
    weights = odd.pow(-2).repeat(count)
    return Frequencies(vectors, weights / weights.sum())


def _odd(count: int) -> Tensor:
    return 2 * torch.arange(count, dtype=torch.float64) + 1


def _normals(width: int, count: int, stream: Stream, scheme: Scheme) -> Tensor:
    """(q, count) standard normal columns, orthogonal in blocks or independent."""
    shape = direction_shape(width, count, scheme)
    normals = torch.from_numpy(stream.normals(shape[0] * shape[1])).reshape(shape)
    if scheme == "iid" or width == 1:
        return normals
    lengths = torch.from_numpy(stream.normals(width * count)).reshape(width, count).square().sum(dim=0).sqrt()
    return directions(width, count, normals=normals, scheme=scheme) * lengths


Columns = tuple[int, ...] | None


class PartOfSketch(Protocol):
    """One block of a record's vector."""

    @property
    def columns(self) -> Columns:
        """Which features it reads; None for all."""

    @property
    def weight(self) -> float:
        """Its part of the squared norm, before the weights of a law's parts are divided by their sum."""

    @property
    def least_product(self) -> float:
        """Least inner product of two records' vectors: -1 in a ball of norm 1, 0 if none is negative."""

    def built(self, features: int, stream: Stream) -> DrawnPart:
        """A module (n, p) -> (n, coordinates) with rows of norm at most 1; differentiable."""


def diameter(part: PartOfSketch) -> float:
    """Largest distance of two records' vectors, of norm at most 1: sqrt(2 + 2 c), -c their least inner product."""
    return math.sqrt(2 - 2 * part.least_product)


class DrawnPart(nn.Module):
    """A part with its public numbers drawn; ``coordinates`` are the numbers of a record's vector."""

    coordinates: int

    @property
    def measured(self) -> int:
        """Number of those that are not always 0."""
        return self.coordinates

    def some(self, fraction: float, generator: torch.Generator) -> tuple[DrawnPart, Tensor, float]:
        """A random subset: its squared norms have the mean of the whole's, for cheap steps of training.

        With the module come its places (m,) among the coordinates, and what coordinates of the whole are multiplied by.
        """
        return self, torch.arange(self.coordinates), 1.0

    def summed(self, rows: Tensor, members: Tensor, seen: Seen | None = None) -> tuple[Tensor, Tensor]:
        """The sums (cells, coordinates) of the vectors of rows (n, p) by cell, and (cells,) of their squared norms.

        Differentiable. ``members`` (cells, n) are 1 where a row is in a cell, else 0; ``seen`` is what shared maps made
        of these rows (`fedsw.learning.sketches.maps.looked`), and new ones are added.
        """
        vectors = self(rows)
        return members @ vectors, members @ vectors.square().sum(dim=1)


@dataclass(frozen=True)
class GaussianKernel:
    """Cosines and sines at random frequencies: inner products estimate a Gaussian kernel.

    The ``map`` is what the frequencies (`gaussian_frequencies`) look at; for columns and weight see `PartOfSketch`.
    """

    bandwidths: tuple[float, ...]
    pairs: int
    scheme: Scheme = "orthogonal"
    map: FeatureMap = field(default_factory=Raw)
    columns: Columns = None
    weight: float = 1.0
    least_product = -1.0  # finitely many cosines have a kernel that is negative somewhere

    def built(self, features: int, stream: Stream) -> DrawnPart:
        """The waves of features (n, p)."""
        drawn = gaussian_frequencies(
            self.map.width(features),
            self.pairs,
            self.bandwidths,
            stream=stream.child("gaussian"),
            scheme=self.scheme,
        )
        return Waves(drawn, self.map.built(features, stream.child("map")))


@dataclass(frozen=True)
class SlicedCramer:
    """Cosines and sines along random directions: squared distances are sliced Cramer distances over `scale`.

    The ``map`` is what the directions (`cramer_frequencies`) look at; for columns and weight see `PartOfSketch`.
    """

    directions: int
    harmonics: int
    period: float
    scheme: Scheme = "orthogonal"
    map: FeatureMap = field(default_factory=Raw)
    columns: Columns = None
    weight: float = 1.0
    least_product = -1.0  # a move by `period` along a direction turns every one of its waves round

    @property
    def scale(self) -> float:
        """Sliced Cramer distance over the squared distance of two means of this part."""
        return 2 * self.period / math.pi**2 * float(_odd(self.harmonics).pow(-2).sum())

    def built(self, features: int, stream: Stream) -> DrawnPart:
        """The waves of features (n, p)."""
        drawn = cramer_frequencies(
            self.map.width(features),
            self.directions,
            self.harmonics,
            self.period,
            stream=stream.child("cramer"),
            scheme=self.scheme,
        )
        return Waves(drawn, self.map.built(features, stream.child("map")))


@dataclass(frozen=True)
class Indicators:
    """The columns of a one-hot code as they are: negative numbers count as 0, a longer row is shortened to norm 1.

    Inner products of two records are not negative, whatever they hold, so they are at most sqrt(2) apart.
    """

    columns: tuple[int, ...]
    weight: float = 1.0
    least_product = 0.0  # no number of a code is negative

    def built(self, features: int, stream: Stream) -> DrawnPart:
        """The code of features (n, p); nothing is drawn."""
        return Codes(features)


class Waves(DrawnPart):
    """sqrt(weight_j) (cos<w_j, x>, sin<w_j, x>) of every row, as the feature map looks at it: norm 1.

    Angles are reduced to [-pi, pi] first, so that cosines take the same time and are as accurate for every record.
    """

    def __init__(self, frequencies: Frequencies, looked_at: nn.Module) -> None:
        super().__init__()
        self.looked_at = looked_at
        self.turns: Tensor
        self.amplitudes: Tensor
        self.register_buffer("turns", frequencies.vectors / (2 * math.pi))
        self.register_buffer("amplitudes", frequencies.weights.sqrt())
        self.coordinates = 2 * len(frequencies.weights)

    def forward(self, rows: Tensor) -> Tensor:
        """The vectors (n, 2 D) of rows (n, p): cosines, then sines."""
        turned = self.looked_at(rows) @ self.turns
        angles = (turned - turned.detach().round()) * (2 * math.pi)
        return torch.cat([angles.cos() * self.amplitudes, angles.sin() * self.amplitudes], dim=1)

    def summed(self, rows: Tensor, members: Tensor, seen: Seen | None = None) -> tuple[Tensor, Tensor]:
        """As `DrawnPart.summed`, (cells, 2 D) and (cells,), without the vectors (n, 2 D), given known norms."""
        turned = looked(self.looked_at, rows, seen) @ self.turns
        cosines, sines = _SummedWaves.apply(turned, members)  # type: ignore[no-untyped-call]
        norm = self.amplitudes.square().sum()
        return torch.cat([cosines * self.amplitudes, sines * self.amplitudes], dim=1), members.sum(dim=1) * norm

    def some(self, fraction: float, generator: torch.Generator) -> tuple[DrawnPart, Tensor, float]:
        """Uniformly drawn frequencies, with the places (m,) of their cosines, then of their sines."""
        count = self.coordinates // 2
        taken = max(1, round(fraction * count))
        if taken == count:
            return super().some(fraction, generator)
        chosen = torch.randperm(count, generator=generator)[:taken]
        return _Chosen(self, chosen), torch.cat([chosen, count + chosen]), math.sqrt(count / taken)


class _SummedWaves(torch.autograd.Function):
    """Sums by cell of the cosines and sines of turns (n, D); its derivative needs no cosine or sine of its own."""

    @staticmethod
    def forward(ctx: Any, turned: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
        angles = (turned - turned.round()).mul_(2 * math.pi)
        cosines, sines = angles.cos(), angles.sin_()
        ctx.save_for_backward(cosines, sines, members)
        return members @ cosines, members @ sines

    @staticmethod
    def backward(ctx: Any, by_cosines: Tensor, by_sines: Tensor) -> tuple[Tensor, None]:
        cosines, sines, members = ctx.saved_tensors
        gradient = (members.T @ by_sines).mul_(cosines)
        return gradient.addcmul_(members.T @ by_cosines, sines, value=-1).mul_(2 * math.pi), None


class _Chosen(Waves):
    """Some of the frequencies, so much longer that squared norms keep their mean."""

    def __init__(self, whole: Waves, chosen: Tensor) -> None:
        DrawnPart.__init__(self)
        places = chosen.to(whole.turns.device)
        self.looked_at, self.turns = whole.looked_at, whole.turns[:, places]
        self.amplitudes = whole.amplitudes[places] * math.sqrt(len(whole.amplitudes) / len(chosen))
        self.coordinates = 2 * len(chosen)


class Codes(DrawnPart):
    """Rows with negative numbers cut off, in the ball of norm 1."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.coordinates = columns

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (n, p) as rows (n, p) of norm at most 1, without a negative number."""
        positive = rows.clamp(min=0)
        length = torch.linalg.vector_norm(positive, dim=1, keepdim=True)
        inside: Tensor = positive / length.clamp(min=1)
        return inside


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

    If ``projected`` is not 0, z is projected on as many public random orthonormal directions before. ValueError if
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
