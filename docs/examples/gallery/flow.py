"""
A flow of particles
===================

Particles follow the gradient of a sliced Wasserstein distance to records of which only noisy slices were released:
projections onto a few random directions, with noise in every one. There is no network.
"""

import matplotlib.pyplot as plt
import torch

from fedsw.mathematics.transport.flow import Slices, flow_step
from fedsw.mathematics.transport.sliced import directions
from fedsw.privacy import Stream

torch.manual_seed(1)
centres = torch.tensor([[-1.0, -0.6], [1.0, -0.6], [0.0, 1.1]], dtype=torch.float64)
records = centres[torch.randint(3, (3000,))] + 0.12 * torch.randn(3000, 2, dtype=torch.float64)

sigma = 0.15
theta = directions(2, 40, normals=torch.randn(2, 40, dtype=torch.float64))
released = Slices(theta, records @ theta + sigma * torch.randn(3000, 40, dtype=torch.float64), sigma)

particles, seen, chance = torch.randn(1500, 2, dtype=torch.float64), {}, Stream.seeded(1)
for step in range(31):
    if step in (0, 5, 15, 30):
        seen[step] = particles
    particles = flow_step(particles, [released], step=0.3, diffusion=0.0, dummy=True, stream=chance)

figure, panels = plt.subplots(1, 4, figsize=(10, 2.8), sharex=True, sharey=True, layout="constrained")
for panel, (step, points) in zip(panels, seen.items(), strict=True):
    panel.scatter(*points.T, s=2, alpha=0.5)
    panel.set(title=f"step {step}", aspect="equal", xlim=(-2.5, 2.5), ylim=(-2.5, 2.5))
plt.show()
