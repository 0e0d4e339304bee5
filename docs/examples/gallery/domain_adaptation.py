"""
Domain adaptation
=================

Public records have labels; the private ones have none, and were measured by another device. A private map carries them
over: its outputs are drawn to the public sample, and the public classifier then fits them.
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import torch
from torch import nn

import fedsw


class Carried(fedsw.Task):
    """What is compared with the public sample is what the map returns; there is no other loss."""

    def dimension(self, shape, model):
        """Numbers of an output."""
        return 2

    def outputs(self, raw, batch):
        """(n, 2): what is compared."""
        return raw

    def loss(self, raw, batch):
        """(n,): nothing."""
        return 0 * raw.sum(dim=1)


torch.manual_seed(1)
label = torch.randint(2, (3000,))
public = torch.stack([2.0 * label - 1, 0.4 * label], dim=1).double() + 0.3 * torch.randn(3000, 2, dtype=torch.float64)
turn = torch.tensor([[0.8, 0.6], [-0.6, 0.8]], dtype=torch.float64)
private = public[torch.randperm(3000)] @ turn + torch.tensor([0.3, 0.9], dtype=torch.float64)
public = public[public.norm(dim=1) < 2.5]

records = fedsw.as_records(private)

carry = nn.Linear(2, 2, dtype=torch.float64)
nn.init.eye_(carry.weight), nn.init.zeros_(carry.bias)
objective = fedsw.Objective(Carried(), [fedsw.ToSample(1.0, sample=public, radius=2.5)], classes=1)
clip = fedsw.Clip(output=2.5, jacobian=3.0, loss=1.0)
sizes = tuple(records.rows_by_group.values())
plan = fedsw.plan(objective, clip, sizes=sizes, batch_fraction=0.2, rounds=60, epsilon=3, delta=1e-5, seed=1)
fedsw.PrivateTrainer(
    carry, torch.optim.SGD(carry.parameters(), lr=0.3), objective, clip, plan, directory=Path(mkdtemp())
).fit(records)

with torch.no_grad():
    carried = carry(records.features.double())
figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharex=True, sharey=True, layout="constrained")
for panel, points, title in zip(panels, (private, carried), ("private records", "carried over, ε = 3"), strict=True):
    panel.scatter(*public.T, s=3, alpha=0.4, label="public")
    panel.scatter(*points.T, s=3, alpha=0.4, label="private")
    panel.set(title=title, aspect="equal")
panels[0].legend(markerscale=3)
plt.show()
