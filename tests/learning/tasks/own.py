"""Tasks and models of somebody's own, right ones and wrong ones, as a user's module would hold them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from fedsw._tools.settings import ExperimentError
from fedsw.experiment.task_kinds import Facts
from fedsw.learning.tasks import Regression
from fedsw.learning.tasks.task import Task

MODULE = "tests.learning.tasks.own"


class Copy(Regression):
    """The shipped regression under another name."""


class Steep(Regression):
    """A loss whose gradients are far above any clip."""

    def loss(self, raw, batch):
        return 1e6 * super().loss(raw, batch) ** 2


class Quoting(Regression):
    """A loss that says which record it does not like; neither made-up ones, which are fewer, nor measured ones."""

    def loss(self, raw, batch):
        if len(raw) > 10 and raw.requires_grad:
            raise self.kind(f"odd record {batch.features[0].tolist()}")
        return super().loss(raw, batch)

    kind: type[Exception] = ValueError


class QuotingSettings(Quoting):
    """The same in an error that fedsw has for settings."""

    kind = ExperimentError


class Mixing(Regression):
    """Outputs about the batch's mean."""

    def outputs(self, raw, batch):
        outputs = super().outputs(raw, batch)
        return outputs - outputs.mean(dim=0)


class MixingLoss(Regression):
    def loss(self, raw, batch):
        return super().loss(raw, batch) / super().loss(raw, batch).detach().max()


class MeanLoss(Regression):
    def loss(self, raw, batch):
        return super().loss(raw, batch).mean()


class Shifting(Regression):
    """Takes the middle of the targets away, in the records themselves."""

    def loss(self, raw, batch):
        return super().loss(raw, replace(batch, target=batch.target.sub_(0.5)))


class Narrow(Regression):
    def outputs(self, raw, batch):
        return super().outputs(raw, batch)[:, :1]


class Overflowing(Regression):
    def loss(self, raw, batch):
        return super().loss(raw, batch) / 0


class Detached(Regression):
    def loss(self, raw, batch):
        return super().loss(raw, batch).detach()


class Random(Regression):
    def loss(self, raw, batch):
        return super().loss(raw, batch) * torch.rand(())


class Broken(Regression):
    def outputs(self, raw, batch):
        raise RuntimeError("no such head")


class Flat(Regression):
    def dimension(self, shape, model):
        return 0


class Separate(Task):
    """One head is compared between groups, another is trained: named outputs."""

    facts = Facts(target="class")

    def dimension(self, shape, model):
        return 3

    def outputs(self, raw, batch):
        return torch.tanh(raw["code"])

    def loss(self, raw, batch):
        return nn.functional.cross_entropy(raw["logits"], batch.target, reduction="none")


class NoTask:
    pass


class TwoHeads(nn.Module):
    """A body with two named heads."""

    def __init__(self, features, classes, *, code=3):
        super().__init__()
        self.body = nn.Linear(features, 6)
        self.code, self.logits = nn.Linear(6, code), nn.Linear(6, classes)

    def forward(self, features):
        body = torch.relu(self.body(features))
        return {"code": self.code(body), "logits": self.logits(body)}


class Backbone(nn.Module):
    """Frozen features with BatchNorm in evaluation mode, and a head that is trained."""

    def __init__(self, features, outputs):
        super().__init__()
        self.frozen = nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU()).requires_grad_(False).eval()
        self.head = nn.Linear(8, outputs)

    def forward(self, features):
        return self.head(self.frozen(features))


def small_mlp(features, outputs, *, width=4):
    return nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, outputs))


def wide(features, outputs):
    return nn.Linear(features, outputs + 1)


def recurrent(features, outputs):
    return nn.Sequential(nn.Linear(features, 4), nn.Bilinear(4, 4, outputs))


def batch_norm(features, outputs):
    return nn.Sequential(nn.Linear(features, 4), nn.BatchNorm1d(4), nn.Linear(4, outputs))


def fickle(features, outputs):
    """Its frozen weights come from numpy, another draw each time."""
    model = small_mlp(features, outputs)
    model[0].requires_grad_(False)
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=model[0].weight.shape)))
    return model


def in_place(features, outputs):
    return nn.Sequential(nn.Hardtanh(-0.1, 0.1, inplace=True), nn.Linear(features, outputs))


def mean_of_batch(features, outputs):
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(features, outputs)

        def forward(self, x):
            return self.layer(x - x.mean(dim=0))

    return Centred()


def nothing(features):
    return features


made = small_mlp(16, 2)
number = 3
