"""Distances and flows between noisy slices: smoothed sliced-Wasserstein, and particles that follow its drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedsw._tools.randomness import Stream, smallest_keys
from fedsw._tools.settings import real, whole
from fedsw.mathematics.transport.given import positive, sample, unit_columns
from fedsw.mathematics.transport.sliced import DEFAULT_MEMORY_LIMIT, w2_squared_of_columns


@dataclass(frozen=True)
class Slices:
    """Random slices that a client released: directions, noisy projections, standard deviation of the noise.

    Directions (p, k) are unit columns; projections (n, k) are each record's noisy coordinates along them. Whatever is
    computed from them is post-processing. The constructor also checks releases that arrive from elsewhere: ValueError.
    """

    directions: Tensor
    projections: Tensor
    sigma: float

    def __post_init__(self) -> None:
        self._check_sigma()
        theta, values = unit_columns(self.directions), sample(self.projections, "projections")
        if theta.shape[1] != values.shape[1]:
            raise ValueError(
                f"directions have shape {tuple(theta.shape)} and projections {tuple(values.shape)}: "
                "expected (p, k) and (n, k)"
            )
        object.__setattr__(self, "directions", theta)
        object.__setattr__(self, "projections", values.detach().to(torch.float64))

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
        object.__setattr__(self, "sigma", positive(self.sigma, "sigma"))


class UnprotectedSlices(Slices):
    """Projections without noise: NO privacy. The non-private reference only; sigma is 0."""

    def _check_sigma(self) -> None:
        if self.sigma != 0:
            raise ValueError(f"unprotected slices have no noise, got sigma = {self.sigma}; noised ones are Slices")


Order = Literal[1, 2]
Towards = Literal["mixture", "barycentre"]
"""What several clients' distributions become: one with all their records, or the one nearest to all of them."""

# 8-byte arrays of one direction alive at the same time in W1, per sample of either side.
_BYTES_PER_SAMPLE = 8 * 12


@dataclass(frozen=True)
class Match:
    """The mean over directions of W_q^q, a scalar, and its gradient (m, p) in the generated features; float64."""

    value: Tensor
    cotangents: Tensor


def noised_swd(
    generated: Tensor,
    releases: Sequence[Slices],
    *,
    order: Order = 2,
    towards: Towards = "mixture",
    dummy: bool = True,
    stream: Stream,
) -> Match:
    """Sliced W_q^q between generated features and the records behind noised slices, with its gradient.

    In each direction the generated projections, with dummy noise of the release's own sigma, are matched by rank with
    the noisy private projections; sizes may differ. Dummy noise makes it the distance between two distributions that
    were smoothed alike, which is least where the unsmoothed ones agree; without it the generated side learns the noise.

    Releases on the same directions with the same sigma are pooled. The others enter as the mean of their own losses,
    weighted by their numbers of records. That is the pooled loss when clients are exchangeable, and an upper bound on
    it otherwise (W_q^q is convex): clients with different records then pull towards a mean of their gradients.
    Towards a barycentre nothing is pooled, and every client counts alike: the mean over clients of their losses, which
    is least, for q = 2, at the sliced barycentre of their distributions, on the support of the generated features.

    Guarantee: post-processing of the releases; the value and the cotangents may be published. The gradient flows
    through the generated side only, and no private feature takes part.

    Generated features are (m, p), detached here, matched at order q, 1 or 2; ``stream`` is the public randomness of the
    dummy noise, of the release's own sigma.

    Source: RR (DP-SWD); GYWX (dummy noise); docs/guarantees/slices.md.
    """
    if order not in (1, 2):
        raise ValueError(f"order q = {order} is unknown; the distance has order 1 or 2")
    if towards not in ("mixture", "barycentre"):
        raise ValueError(f"towards {towards!r} is unknown: choose 'mixture' or 'barycentre'")
    if not releases:
        raise ValueError("no release of slices to compare with; at least one client must send one")
    points = sample(generated, "generated features").detach().to(torch.float64)
    for slices in releases:
        if points.shape[1] != slices.directions.shape[0]:
            raise ValueError(
                f"generated features have shape {tuple(points.shape)}; slices of dimension "
                f"{slices.directions.shape[0]} take (m, {slices.directions.shape[0]}) with m >= 1"
            )
    pools = _pools(releases) if towards == "mixture" else releases
    total = sum(len(slices) for slices in releases)
    value, cotangents = points.new_zeros(()), torch.zeros_like(points)
    for pool in pools:
        theta = pool.directions.to(points)
        projected = points @ theta
        if dummy:
            normals = stream.normals(projected.numel())
            projected = projected + pool.sigma * torch.from_numpy(normals).reshape(projected.shape).to(projected)
        losses, slopes = (_w1 if order == 1 else w2_squared_of_columns)(projected, pool.projections.to(points))
        weight = (len(pool) / total if towards == "mixture" else 1 / len(pools)) / pool.count
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


def _w1(sample: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """W1 of every column, (k,), and its derivative in the sample's values (m, k); the other sample is (n, k)."""
    size = max(1, DEFAULT_MEMORY_LIMIT // (_BYTES_PER_SAMPLE * (sample.shape[0] + other.shape[0])))
    parts = [
        _w1_of_rows(sample[:, start : start + size].T.contiguous(), other[:, start : start + size].T.contiguous())
        for start in range(0, sample.shape[1], size)
    ]
    return torch.cat([values for values, _ in parts]), torch.cat([slopes for _, slopes in parts]).T


def _w1_of_rows(sample: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """W1 of rows (k, m) and (k, n), and derivative, for any sizes: the integral of |F - G| over the merged sample."""
    # The derivative in rank i is the part of its slot where the other quantile function lies below, less that above.
    m, n = sample.shape[1], other.shape[1]
    u, order = torch.sort(sample, dim=-1, stable=True)
    v = torch.sort(other, dim=-1).values
    merged = torch.sort(torch.cat([u, v], dim=-1), dim=-1).values
    gaps = (torch.searchsorted(u, merged, right=True) * n - torch.searchsorted(v, merged, right=True) * m).abs()
    values = (gaps[:, :-1].to(torch.float64) * merged.diff(dim=-1)).sum(dim=-1) / (m * n)
    rank = torch.arange(m, device=sample.device)
    below = (torch.searchsorted(v, u) * m - rank * n).clamp(0, n)
    above = ((rank + 1) * n - torch.searchsorted(v, u, right=True) * m).clamp(0, n)
    slopes = (below - above).to(torch.float64) / (m * n)
    return values, torch.empty_like(slopes).scatter_(-1, order, slopes)


def flow_step(
    particles: Tensor,
    slices: Sequence[Slices],
    *,
    step: float,
    diffusion: float,
    towards: Towards = "mixture",
    dummy: bool,
    stream: Stream,
) -> Tensor:
    """One Euler step X + h v + sqrt(2 lambda h) Z of the gradient flow of SW2^2 / 2 + lambda (negative entropy).

    v(x) = (1/k) sum_l (Q_l(F_l(<theta_l, x>)) - <theta_l, x>) theta_l, with F_l the distribution of the particles'
    projections and Q_l the noisy quantile function, averaged over a particle's slot where numbers differ. So v is
    -m/2 times the cotangent of `noised_swd`, with the mean over directions and no factor of the dimension p:
    with directions that cover R^p evenly, a translation is undone at the rate h/p, and steps are stable below 2p.

    With fresh slices at every step this is SPF's Algorithm 1, with `draw_stored` their Algorithm 2.

    Guarantee: post-processing of the releases; the particles may be published.

    Particles are (m, p), before and after, float64; step h is above 0, diffusion lambda 0 or more. Several releases are
    joined as in `noised_swd`: towards a barycentre the flow is that of the mean of SW2^2 / 2 over clients. Without
    ``dummy`` noise of equal sigma on the projections that are ranked (GYWX) the particles end at the records *with*
    noise, sigma^2 wider along every direction.

    Source: SPF, Algorithms 1 and 2; Liutkus et al. 2019 (the flow).
    """
    step, diffusion = positive(step, "step h"), real(diffusion, "diffusion lambda")
    if not 0 <= diffusion < math.inf:
        raise ValueError(f"diffusion lambda = {diffusion}; it must be finite and at least 0")
    points = sample(particles, "particles").detach().to(torch.float64)
    pull = noised_swd(points, slices, order=2, towards=towards, dummy=dummy, stream=stream).cotangents
    moved = points - step * points.shape[0] / 2 * pull
    if diffusion > 0:
        normals = torch.from_numpy(stream.normals(points.numel())).reshape(points.shape).to(points)
        moved = moved + math.sqrt(2 * diffusion * step) * normals
    return moved


def draw_stored(releases: Sequence[Slices], count: int, *, stream: Stream) -> list[Slices]:
    """A random part of stored releases, for one step of SPF's Algorithm 2: the noise was drawn once and stays as it is.

    The same positions are taken in every release, so that those on common directions can still be pooled.

    Guarantee: post-processing; nothing is spent, however many steps read the store.
    """
    sizes = {slices.count for slices in releases}
    if len(sizes) != 1:
        raise ValueError(f"stored releases have {sorted(sizes)} directions; give at least one, all of one number")
    (stored,) = sizes
    count = whole(count, "count of directions", least=1, most=stored)
    positions = smallest_keys(stream.words(stored), count).tolist()
    return [slices.columns(positions) for slices in releases]
