"""Particle flows that follow noised slices: SPF's two algorithms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedsw.randomness import Stream, smallest_keys
from fedsw.transport.slices import Slices
from fedsw.transport.smoothed import noised_swd


def flow_step(
    particles: Tensor, slices: Sequence[Slices], *, step: float, diffusion: float, dummy: bool, stream: Stream
) -> Tensor:
    """One Euler step X + h v + sqrt(2 lambda h) Z of the gradient flow of SW2^2 / 2 + lambda (negative entropy).

    v(x) = (1/k) sum_l (Q_l(F_l(<theta_l, x>)) - <theta_l, x>) theta_l, with F_l the distribution of the particles'
    projections and Q_l the noisy quantile function, averaged over a particle's slot where numbers differ. So v is
    -m/2 times the cotangent of `noised_swd`, with the mean over directions and no factor of the dimension p:
    with directions that cover R^p evenly, a translation is undone at the rate h/p, and steps are stable below 2p.

    With fresh slices at every step this is SPF's Algorithm 1, with `draw_stored` their Algorithm 2.

    Guarantee: post-processing of the releases; the particles may be published.

    Args:
        particles: (m, p).
        slices: releases of one or more clients; several are joined as in `noised_swd`.
        step: h, above 0.
        diffusion: lambda, 0 or more.
        dummy: whether the particles' projections get noise of equal sigma before they are ranked (GYWX). Without it
            the particles end at the records *with* noise, sigma^2 wider along every direction.
        stream: public randomness of the dummy noise and of Z.

    Returns:
        The moved particles (m, p), float64.

    Raises:
        ValueError: if the step or the diffusion is out of range, or as in `noised_swd`.

    Source: SPF, Algorithms 1 and 2; Liutkus et al. 2019 (the flow).
    """
    if not 0 < step < math.inf:
        raise ValueError(f"step h = {step}; it must be finite and above 0 (below twice the dimension to be stable)")
    if not 0 <= diffusion < math.inf:
        raise ValueError(f"diffusion lambda = {diffusion}; it must be finite and at least 0")
    points = particles.detach().to(torch.float64)
    pull = noised_swd(points, slices, order=2, dummy=dummy, stream=stream).cotangents
    moved = points - step * points.shape[0] / 2 * pull
    if diffusion > 0:
        normals = torch.from_numpy(stream.normals(points.numel())).reshape(points.shape).to(points)
        moved = moved + math.sqrt(2 * diffusion * step) * normals
    return moved


def draw_stored(releases: Sequence[Slices], count: int, *, stream: Stream) -> list[Slices]:
    """A random part of stored releases, for one step of SPF's Algorithm 2: the noise was drawn once and stays as it is.

    The same positions are taken in every release, so that those on common directions can still be pooled.

    Guarantee: post-processing; nothing is spent, however many steps read the store.

    Args:
        releases: stored slices, all with the same number N of directions.
        count: directions to take, between 1 and N, uniformly without replacement.
        stream: public randomness.

    Raises:
        ValueError: if the releases differ in N or are none, or the count is out of range.
    """
    sizes = {slices.count for slices in releases}
    if len(sizes) != 1:
        raise ValueError(f"stored releases have {sorted(sizes)} directions; give at least one, all of one number")
    (stored,) = sizes
    if not 1 <= count <= stored:
        raise ValueError(f"{count} directions asked from {stored} stored ones; take between 1 and {stored}")
    positions = smallest_keys(stream.words(stored), count).tolist()
    return [slices.columns(positions) for slices in releases]
