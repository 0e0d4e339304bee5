"""What one round released, whatever the trust model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """What a round released.

    Attributes:
        vector: what the optimizer moves against (r,), float64, a noised gradient or a function of noised features.
        sigma: standard deviation of the noise in each of its coordinates; None where the vector is not a noised
            gradient but post-processing of noised features.
        spent: epsilon of everything released so far, of the worst client where each has its own guarantee.
        attempt: the attempt that succeeded.
        clients: how many it came from.
        training_loss: un-noised, only where `unsafe_metrics` asks for it.
    """

    vector: Tensor
    sigma: float | None
    spent: float
    attempt: int
    clients: int
    training_loss: float | None = None
