"""
A private barycentre of several clients
=======================================

Three clients hold ellipses of different shapes and places. Each releases noisy slices, once; particles then follow the
flow to the distribution that is nearest to all three in sliced Wasserstein distance, where every client counts alike.
It has the clients' common shape at their mean place; pooled records would be three ellipses.
"""

import matplotlib.pyplot as plt
import torch

from fedsw.mathematics.transport.flow import Slices, flow_step
from fedsw.mathematics.transport.sliced import directions
from fedsw.privacy import Stream

torch.manual_seed(1)
angle = 2 * torch.pi * torch.rand(3, 2000, dtype=torch.float64)
ring = torch.stack([angle.cos(), angle.sin()], dim=2)
widths = torch.tensor([[1.0, 0.3], [0.3, 1.0], [0.7, 0.7]], dtype=torch.float64)
places = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 2.5]], dtype=torch.float64)
clients = widths[:, None] * ring + places[:, None]

sigma = 0.15
theta = directions(2, 40, normals=torch.randn(2, 40, dtype=torch.float64))
released = [Slices(theta, each @ theta + sigma * torch.randn(2000, 40, dtype=torch.float64), sigma) for each in clients]

ends = {}
for towards in ("mixture", "barycentre"):
    particles, chance = torch.randn(1500, 2, dtype=torch.float64), Stream.seeded(1)
    for _ in range(40):
        particles = flow_step(particles, released, step=0.3, diffusion=0.0, towards=towards, dummy=True, stream=chance)
    ends[towards] = particles

figure, panels = plt.subplots(1, 3, figsize=(9, 3), sharex=True, sharey=True, layout="constrained")
for panel, (name, points) in zip(panels, {"records": clients.flatten(0, 1), **ends}.items(), strict=True):
    panel.scatter(*points.T, s=1, alpha=0.5)
    panel.set(title=name, aspect="equal")
plt.show()
