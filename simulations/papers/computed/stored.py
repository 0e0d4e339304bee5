"""RLL's baseline on the ring: slices of sampled records, noised once, and then as many free steps as one likes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.data._synthetic import ring
from fedsw.learning.models import mlp
from fedsw.mathematics.transport.flow import Slices, noised_swd
from fedsw.mathematics.transport.sliced import public_directions, sliced_w2
from fedsw.privacy.accounting import Slicing, noise_multiplier
from simulations.papers.store import Measured

_FRESH, _JUDGING, _SHOWN = 10_000, 100, 1500


def distance_at(epsilon: float) -> str:
    """The name of the measured distance at an epsilon."""
    return f"sw2_{epsilon:g}"


def ring_once(
    *, epsilons: Sequence[float], records: int, sampled: int, directions: int, steps: int, batch: int, rate: float,
    radius: float, seed: int = 0,
) -> Measured:  # fmt: skip
    """A generator that learns a ring from `directions` slices of `sampled` records, noised once (RLL, Figure 23).

    Noise and sample are seeded: nominal. The noise is the least at each epsilon for one release, by the exact law of
    random slices and amplified by the sample, delta = 0.1 / records. Arrays: `points` (epsilons, m, 2), `target`
    (m, 2), `epsilons`. Values: `sw2_<epsilon>`, to fresh records, and `sigma_<epsilon>`.
    """
    data = ring(records, _FRESH, radius=radius, seed=seed)
    own, fresh = data.train.features.double(), data.test.features.double()
    theta = public_directions(2, directions, "iid", seed, "stored slices")
    judging = public_directions(2, _JUDGING, "orthogonal", seed, "judging")
    values: dict[str, float] = {}
    points = np.zeros((len(epsilons), _SHOWN, 2), dtype=np.float32)
    for place, epsilon in enumerate(epsilons):
        multiplier = noise_multiplier(
            epsilon, 0.1 / records, sampling_rate=sampled / records, steps=1, slicing=Slicing(2, directions)
        )
        stream = Stream.seeded(seed, "stored slices", place)
        slices = _noised(own[:sampled], theta, multiplier * 2 * radius, stream)
        found = _learnt(slices, steps=steps, batch=batch, rate=rate, stream=stream, seed=seed)
        values[distance_at(epsilon)] = math.sqrt(float(sliced_w2(found, fresh, judging)))
        values[f"sigma_{epsilon:g}"] = slices.sigma
        points[place] = found[:_SHOWN].float().numpy()
    return Measured(
        values, {"points": points, "target": fresh[:_SHOWN].float().numpy(), "epsilons": np.array(epsilons)}
    )


def _noised(records: Tensor, theta: Tensor, sigma: float, stream: Stream) -> Slices:
    projections = records @ theta
    noise = torch.from_numpy(stream.normals(projections.numel())).reshape(projections.shape)
    return Slices(theta, projections + sigma * noise, sigma)


def _learnt(slices: Slices, *, steps: int, batch: int, rate: float, stream: Stream, seed: int) -> Tensor:
    """Samples of the generator after all steps, each on a part of the stored slices with dummy noise."""
    network = mlp(2, (128, 64, 64), 2, activation="relu", seed=seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    chosen = np.random.default_rng([seed, 1])
    for _ in range(steps):
        rows = torch.from_numpy(chosen.integers(0, len(slices.projections), batch))
        part = Slices(slices.directions, slices.projections[rows], slices.sigma)
        latents = torch.from_numpy(stream.normals(2 * batch)).reshape(batch, 2).float()
        made = network(latents)
        match = noised_swd(made.detach().double(), [part], order=2, dummy=True, stream=stream)
        optimiser.zero_grad()
        made.backward(match.cotangents.to(made.dtype))
        optimiser.step()
    with torch.no_grad():
        found: Tensor = network(torch.from_numpy(stream.normals(2 * _FRESH)).reshape(_FRESH, 2).float())
    return found.double()
