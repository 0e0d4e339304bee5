"""What a model's raw outputs mean in each task: the outputs that a penalty compares, and a loss per record.

Heads are parameter-free functions of what the model returns, so that clipping sees every parameter.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

Raw = Tensor | tuple[Tensor, ...]


def outputs(task: str, raw: Raw, *, classes: int) -> Tensor:
    """Outputs (n, d): latent codes, features, samples, points in the unit cube, or class probabilities."""
    if isinstance(raw, tuple):
        return raw[0]
    if task == "generation":
        return raw
    if task == "regression" or classes == 2:
        return torch.sigmoid(raw)
    return torch.softmax(raw, dim=-1)


def losses(task: str, raw: Raw, *, features: Tensor, target: Tensor, classes: int) -> Tensor:
    """Task loss of every record (n,).

    Cross-entropy of a classifier (and of an adaptor's classifier head), squared error of a regression, squared
    reconstruction error of a representation, and for an image autoencoder, whose second output are logits of
    pixels, the mean binary cross-entropy over the pixels (RLL Section 6).
    """
    if isinstance(raw, tuple):
        second = raw[1]
        if task == "adaptation":
            return F.cross_entropy(second, target, reduction="none")
        if task == "autoencoder":
            return F.binary_cross_entropy_with_logits(second, features, reduction="none").mean(dim=-1)
        return (second - features).square().sum(dim=-1)
    if task == "regression":
        return (torch.sigmoid(raw) - target.to(raw.dtype)).square().sum(dim=-1)
    if classes == 2:
        return F.binary_cross_entropy_with_logits(raw.reshape(-1), target.to(raw.dtype), reduction="none")
    return F.cross_entropy(raw, target, reduction="none")
