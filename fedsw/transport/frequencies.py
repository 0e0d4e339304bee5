"""Frequencies that make the characteristic function a distance: drawn publicly, apart from any record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw.randomness import Stream
from fedsw.transport.sliced import Scheme, direction_shape, directions

LARGEST_FREQUENCY = 2.0**40
"""Above it angles in single precision have no digits left."""


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Vectors w_j and weights of a norm sum_j weight_j |E exp(i <w_j, X>) - E exp(i <w_j, Y>)|^2.

    Attributes:
        vectors: (q, D), float64.
        weights: (D,), positive, with sum 1: a record's weighted cosines and sines have norm 1.

    Raises:
        ValueError: if shapes do not fit, a number is not finite, or the weights have not sum 1.
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
    fractions: Sequence[float] = (),
    scheme: Scheme = "orthogonal",
) -> Frequencies:
    """Random frequencies of the kernel sum_b fraction_b exp(-|x - y|^2 / (2 b^2)).

    A frequency of bandwidth b is z / b, z standard normal: the mean over draws of cos<w, x - y> is the kernel exactly.
    In orthogonal blocks the directions of up to q frequencies of one bandwidth are orthonormal and their lengths are
    independent, with the law of |z|: each keeps its normal law, and the kernel is met with less variance.

    Args:
        width: q, of the features.
        pairs: D, divided over the bandwidths as evenly as possible.
        bandwidths: positive, in the units of the features.
        stream: public randomness, apart from the data.
        fractions: of the kernels, positive; none for equal ones. They are divided by their sum.
        scheme: "orthogonal" or "iid".

    Returns:
        Frequencies with vectors (q, D).

    Raises:
        ValueError: if a number is out of range.

    Sources: Rahimi and Recht 2007; Yu, Suresh, Choromanski, Holtmann-Rice, Kumar 2016 (orthogonal blocks); Harder,
        Adamczewski, Park 2021 (sketches of private records).
    """
    if not bandwidths or not all(0 < value < math.inf for value in bandwidths):
        raise ValueError(f"bandwidths are {tuple(bandwidths)}; give at least one, each positive and finite")
    if pairs < len(bandwidths):
        raise ValueError(f"{pairs} pairs for {len(bandwidths)} bandwidths; each needs at least one")
    parts = [float(value) for value in fractions] or [1.0] * len(bandwidths)
    if len(parts) != len(bandwidths) or not all(0 < value < math.inf for value in parts):
        raise ValueError(f"fractions are {tuple(fractions)}; give a positive number for each of the bandwidths")
    vectors, weights = [], []
    for index, (bandwidth, part) in enumerate(zip(bandwidths, parts, strict=True)):
        count = pairs // len(bandwidths) + (index < pairs % len(bandwidths))
        vectors.append(_normals(width, count, stream, scheme) / bandwidth)
        weights.append(torch.full((count,), part / sum(parts) / count, dtype=torch.float64))
    return Frequencies(torch.cat(vectors, dim=1), torch.cat(weights))


def cramer_frequencies(
    width: int, count: int, harmonics: int, period: float, *, stream: Stream, scheme: Scheme = "orthogonal"
) -> Frequencies:
    """Frequencies of the sliced Cramer distance: pi k / period along each direction, k = 1, 3, 5, ..., weights 1/k^2.

    With F and G the distribution functions of two laws along a direction, both on one interval of length `period`, the
    integral of (F - G)^2 is `cramer_scale(harmonics, period)` times the weighted norm as the harmonics grow
    (docs/guarantees.md, "Sketches"); what is left out is below 2 period / (pi^2 harmonics).

    Args:
        width: q, of the features.
        count: directions.
        harmonics: odd multiples of pi / period along each.
        period: length that holds all projections, the diameter of the features' ball for instance.
        stream, scheme: as in `gaussian_frequencies`.

    Returns:
        Frequencies with vectors (q, count harmonics), direction by direction.

    Raises:
        ValueError: if a number is out of range.
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


def cramer_scale(harmonics: int, period: float) -> float:
    """What the weighted norm of `cramer_frequencies` is multiplied by to be the sliced Cramer distance."""
    return 2 * period / math.pi**2 * float(_odd(harmonics).pow(-2).sum())


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
