"""What an autoencoder makes of images, and of points of its prior: what several measures of one run share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.learning.tasks.generated_samples import uniform_ball
from fedsw.mathematics.transport.sliced import project
from simulations.papers.finished import Finished

_PART = 2000


def encoded(run: Finished, images: Tensor) -> Tensor:
    """Codes (n, d) of images (n, p), not projected."""
    model: Any = run.model
    return in_parts(model.encoder, images)


def decoded(run: Finished, codes: Tensor) -> Tensor:
    """Images (n, p) in [0, 1] of codes (n, d)."""
    model: Any = run.model
    return in_parts(lambda part: torch.sigmoid(model.decoder(part)), codes.float())


def inside(run: Finished, codes: Tensor) -> Tensor:
    """Codes (n, d) in the ball of radius M on which training compares them; as they are where nothing is clipped."""
    clip = run.experiment.clip
    return codes if clip.open else project(codes.double(), clip.output).to(codes.dtype)


def prior(run: Finished, count: int, what: str) -> Tensor:
    """Points (count, d) of the prior, the same for every run, others for every `what`."""
    return uniform_ball(
        count, run.problem.dimension, run.experiment.objective.prior_radius, Stream.seeded(0, "prior of a figure", what)
    )


def in_parts(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """A function of rows (n, ...), some thousands at a time, without gradients."""
    with torch.no_grad():
        return torch.cat([function(part) for part in torch.split(rows, _PART)])


def first_of_each(labels: Tensor) -> Tensor:
    """Positions (classes,) of the earliest record of every label among labels (n,), in the order of the labels."""
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels)
    return order[(counts.cumsum(0) - counts)[counts > 0]]
