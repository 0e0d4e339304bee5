"""SPF's picture of particle flows in the plane, under growing noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.data._synthetic import gaussians, mode_centres
from fedsw.mathematics.transport.flow import Slices, UnprotectedSlices, flow_step
from fedsw.mathematics.transport.sliced import public_directions, sliced_w2
from simulations.papers.store import Measured

_FRESH = 20_000
_JUDGING = 100


def panels(
    *,
    sigmas: Sequence[float],
    shown: Sequence[int],
    records: int,
    particles: int,
    directions: int,
    step: float,
    diffusion: float,
    modes: int,
    circle: float,
    std: float,
    seed: int = 0,
) -> Measured:
    """Particles that follow noised slices of a mixture of Gaussians: where they are after some steps (SPF, Figure 1).

    The records are drawn from a law and belong to nobody; the noise is a shape, no protection. Arrays: `target` (n, 2),
    `particles` (sigmas, shown, m, 2). Values: `swd_<sigma>`, SW2 to fresh samples of the law after the last step, and
    `modes_<sigma>`, how many have half of their share of the particles within three deviations.
    """
    data = gaussians(records, _FRESH, modes=modes, radius=circle, std=std, seed=seed)
    own, fresh = data.train.features.double(), data.test.features.double()
    values: dict[str, float] = {}
    found = np.zeros((len(sigmas), len(shown), particles, 2), dtype=np.float32)
    for place, sigma in enumerate(sigmas):
        stream = Stream.seeded(seed, "flow panels", place)
        points = torch.from_numpy(stream.normals(2 * particles)).reshape(particles, 2)
        for number in range(1, max(shown) + 1):
            slices = _slices(own, sigma, public_directions(2, directions, "iid", seed, "panels", number), stream)
            points = flow_step(points, [slices], step=step, diffusion=diffusion, dummy=sigma > 0, stream=stream)
            if number in shown:
                found[place, list(shown).index(number)] = points.numpy()
        theta = public_directions(2, _JUDGING, "orthogonal", seed, "judging")
        values[f"swd_{sigma:g}"] = math.sqrt(float(sliced_w2(points, fresh, theta)))
        near = torch.cdist(points, mode_centres(modes, radius=circle)) < 3 * std
        values[f"modes_{sigma:g}"] = float((near.double().mean(dim=0) >= 0.5 / modes).sum())
    arrays = {"particles": found, "target": own[:particles].float().numpy(), "sigmas": np.array(sigmas)}
    return Measured(values, {**arrays, "shown": np.array(shown)})


def _slices(records: Tensor, sigma: float, theta: Tensor, stream: Stream) -> Slices:
    projections = records @ theta
    if sigma == 0:
        return UnprotectedSlices(theta, projections, 0.0)
    noise = torch.from_numpy(stream.normals(projections.numel())).reshape(projections.shape)
    return Slices(theta, projections + sigma * noise, sigma)
