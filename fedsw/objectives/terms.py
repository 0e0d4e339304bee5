"""What a batch's clipped sum is made of: a term for every penalty, each with its own clip, and one of the task loss."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedsw.clipping import Term
from fedsw.clipping.clip import Mode


def terms_of(
    pulled: Iterable[tuple[Tensor, Tensor, float]], losses: Tensor | None, weight: float, limit: float, mode: Mode
) -> list[Term]:
    """The terms of one batch, or of a part of it; the same on one machine and at a client.

    Args:
        pulled: for every penalty its outputs (n, d), their cotangents (n, d) and the norm L of the Jacobian's clip.
        losses: of every record, (n,); None if the task loss has no weight.
        weight: of every record's loss gradient.
        limit: the norm C of its clip.
        mode: how Jacobians are clipped.
    """
    terms = [Term(outputs, q.to(outputs.device), jacobian, mode) for outputs, q, jacobian in pulled]
    if losses is not None and weight > 0:
        weights = torch.full((len(losses),), weight, dtype=torch.float64, device=losses.device)
        terms.append(Term(losses, weights, limit, "spectral"))
    return terms
