"""A model, a task and records for tests of training on one machine."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedsw.data import Records
from fedsw.learning.tasks.task import Task

CLASSES, GROUPS = 2, 2


class TwoHeads(nn.Module):
    """A score, and codes of two numbers."""

    def __init__(self, width: int = 5, features: int = 3) -> None:
        super().__init__()
        self.body = nn.Linear(features, width)
        self.score, self.codes = nn.Linear(width, 1), nn.Linear(width, 2)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return {"score": self.score(hidden), "codes": self.codes(hidden)}


class Scores:
    """Classification by the first head."""

    def outputs(self, raw, batch):
        return torch.sigmoid(raw["score"])

    def loss(self, raw, batch):
        return binary_cross_entropy_with_logits(raw["score"][:, 0], batch.target.to(raw["score"]), reduction="none")


class ScoreTask(Task):
    """The same, for a run."""

    def dimension(self, shape, model):
        return 1

    def outputs(self, raw, batch):
        return Scores().outputs(raw, batch)

    def loss(self, raw, batch):
        return Scores().loss(raw, batch)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return TwoHeads().double()


def records(n: int = 48, seed: int = 0) -> Records:
    """n records, as many of every class and group."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.arange(n)
    return Records(
        torch.randn((n, 3), generator=generator),
        index % GROUPS,
        (index // GROUPS) % CLASSES,
        torch.arange(n),
    )
