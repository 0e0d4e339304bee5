"""DP-SWD: the sliced Wasserstein distance to records of which only noisy slices are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedsw.randomness import Stream
from fedsw.transport.sliced import DEFAULT_MEMORY_LIMIT, slot_means
from fedsw.transport.slices import Slices

Order = Literal[1, 2]

# 8-byte arrays of one direction alive at the same time in W1, per sample of either side.
_BYTES_PER_SAMPLE = 8 * 12


@dataclass(frozen=True)
class Match:
    """A loss and its gradient with respect to the generated features.

    Attributes:
        value: float64 scalar: the mean over directions of W_q^q (its root is not taken).
        cotangents: (m, p) float64, for `generated.backward(match.cotangents)`.
    """

    value: Tensor
    cotangents: Tensor


def noised_swd(
    generated: Tensor, releases: Sequence[Slices], *, order: Order = 2, dummy: bool = True, stream: Stream
) -> Match:
    """Sliced W_q^q between generated features and the records behind noised slices, with its gradient.

    In each direction the generated projections, with dummy noise of the release's own sigma, are matched by rank with
    the noisy private projections; sizes may differ. Dummy noise makes it the distance between two distributions that
    were smoothed alike, which is least where the unsmoothed ones agree; without it the generated side learns the noise.

    Releases on the same directions with the same sigma are pooled. The others enter as the mean of their own losses,
    weighted by their numbers of records. That is the pooled loss when clients are exchangeable, and an upper bound on
    it otherwise (W_q^q is convex): clients with different records then pull towards a mean of their gradients.

    Guarantee: post-processing of the releases; the value and the cotangents may be published. The gradient flows
    through the generated side only, and no private feature takes part.

    Args:
        generated: (m, p) features of public or generated points; detached here.
        releases: at least one, all of dimension p.
        order: q, 1 or 2.
        dummy: whether the generated side gets noise of equal sigma.
        stream: public randomness of the dummy noise.

    Raises:
        ValueError: if there is no release, no generated point, a dimension differs, or the order is unknown.

    Source: RR (DP-SWD); GYWX (dummy noise); docs/guarantees.md, "Noised slices".
    """
    if order not in (1, 2):
        raise ValueError(f"order q = {order} is unknown; the distance has order 1 or 2")
    if not releases:
        raise ValueError("no release of slices to compare with; at least one client must send one")
    points = generated.detach().to(torch.float64)
    for slices in releases:
        if points.ndim != 2 or points.shape[0] == 0 or points.shape[1] != slices.directions.shape[0]:
            raise ValueError(
                f"generated features have shape {tuple(points.shape)}; slices of dimension "
                f"{slices.directions.shape[0]} take (m, {slices.directions.shape[0]}) with m >= 1"
            )
    total = sum(len(slices) for slices in releases)
    value, cotangents = points.new_zeros(()), torch.zeros_like(points)
    for pool in _pools(releases):
        theta = pool.directions.to(points)
        own = points @ theta
        if dummy:
            normals = stream.normals(own.numel())
            own = own + pool.sigma * torch.from_numpy(normals).reshape(own.shape).to(own)
        losses, slopes = (_w1 if order == 1 else _w2_squared)(own, pool.projections.to(points))
        weight = len(pool) / total / pool.count
        value = value + weight * losses.sum()
        cotangents += weight * slopes @ theta.T
    return Match(value, cotangents)


def _pools(releases: Sequence[Slices]) -> list[Slices]:
    """Releases with equal directions and sigma joined, in order of first appearance."""
    pools: list[list[Slices]] = []
    for slices in releases:
        for pool in pools:
            if pool[0].sigma == slices.sigma and torch.equal(pool[0].directions, slices.directions):
                pool.append(slices)
                break
        else:
            pools.append([slices])
    return [
        pool[0]
        if len(pool) == 1
        else type(pool[0])(pool[0].directions, torch.cat([slices.projections for slices in pool]), pool[0].sigma)
        for pool in pools
    ]


def _w2_squared(own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """W2^2 of every column, (k,), and its derivative in the own values (m, k); other is (n, k)."""
    means = slot_means(own, other)
    gaps = own - means
    within = (other.square().mean(dim=0) - means.square().mean(dim=0)).clamp(min=0)
    return gaps.square().mean(dim=0) + within, gaps * (2 / own.shape[0])


def _w1(own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """W1 of every column, (k,), and its derivative in the own values (m, k); other is (n, k)."""
    size = max(1, DEFAULT_MEMORY_LIMIT // (_BYTES_PER_SAMPLE * (own.shape[0] + other.shape[0])))
    parts = [
        _w1_of_rows(own[:, start : start + size].T.contiguous(), other[:, start : start + size].T.contiguous())
        for start in range(0, own.shape[1], size)
    ]
    return torch.cat([values for values, _ in parts]), torch.cat([slopes for _, slopes in parts]).T


def _w1_of_rows(own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The same for rows (k, m) and (k, n), exact for any sizes.

    The value is the integral of |F - G| over the merged sample. The derivative in the value of rank i is the part of
    its slot [i/m, (i+1)/m] where the other quantile function lies below it, less the part where it lies above; the
    ends of these parts are multiples of 1/m and 1/n, compared as integers.
    """
    m, n = own.shape[1], other.shape[1]
    u, order = torch.sort(own, dim=-1, stable=True)
    v = torch.sort(other, dim=-1).values
    merged = torch.sort(torch.cat([u, v], dim=-1), dim=-1).values
    gaps = (torch.searchsorted(u, merged, right=True) * n - torch.searchsorted(v, merged, right=True) * m).abs()
    values = (gaps[:, :-1].to(torch.float64) * merged.diff(dim=-1)).sum(dim=-1) / (m * n)
    rank = torch.arange(m, device=own.device)
    below = (torch.searchsorted(v, u) * m - rank * n).clamp(0, n)
    above = ((rank + 1) * n - torch.searchsorted(v, u, right=True) * m).clamp(0, n)
    slopes = (below - above).to(torch.float64) / (m * n)
    return values, torch.empty_like(slopes).scatter_(-1, order, slopes)
