"""Shares of noise: what each site adds to its vector so that the sum has the noise of one server, on one grid.

A site with m clients adds N(0, sigma^2 m / H) to its vector and rounds to multiples of a step that all sites have in
common. Of any H honest clients the noise adds up to N(0, sigma^2). Rounding costs nothing: the sum of the rounded
vectors has, up to e^-250 in total variation, the law of one rounding of the noised sum (docs/guarantees/distributed.md,
Theorem M1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsw.privacy.masks import Whole
from fedsw.privacy.noise import spacing

LEAST_STEPS = 8.0
"""The least standard deviation of a site's noise, in steps of the grid: sums are then within e^-250 of their law."""

_DEVIATIONS = 40
"""More standard deviations than noise ever has: its uniforms have at most 256 bits, and its radius is below 19."""

_EXACT = 2.0**52
"""Whole numbers of a site stay below it: float64 has all of them."""

_MODULUS = 2.0**63


@dataclass(frozen=True)
class Share:
    """A site's part in the noise of a masked sum; public.

    Attributes:
        clients: how many of the sum's clients the site answers for; each has one share.
        honest: H, with how many shares the noise is complete.
        step: of the grid.
        most: no coordinate of the site's vector is larger.
    """

    clients: int
    honest: int
    step: float
    most: float

    def scale(self, sigma: float) -> float:
        """Standard deviation of the site's own noise where H clients have sigma together."""
        return sigma * math.sqrt(self.clients / self.honest)


def shared_step(sigma: float, honest: int, clients: Iterable[int]) -> float:
    """The step of the grid that all sites of a sum round to, from public numbers.

    Args:
        sigma: noise of H honest clients together.
        honest: H.
        clients: of every site in the sum.

    Raises:
        ValueError: if a client's share would be too few steps: one site has tens of thousands of clients, another one.
    """
    counts = list(clients)
    alone = sigma / math.sqrt(honest)
    step = spacing(alone * math.sqrt(max(counts)))
    if alone * math.sqrt(min(counts)) < LEAST_STEPS * step:
        raise ValueError(
            f"sites of {min(counts)} and of {max(counts)} clients cannot share a grid for their noise; let the large "
            "one be several sites"
        )
    return step


def require_no_wrap(sigma: float, shares: Sequence[Share]) -> None:
    """Check that no sum of whole numbers leaves (-2^63, 2^63), whatever the sites' vectors and noise are.

    Raises:
        ValueError: naming what the sum could come to.
    """
    parts = [(share.most + _DEVIATIONS * share.scale(sigma)) / share.step + 1 for share in shares]
    if not (max(parts) < _EXACT and sum(parts) < _MODULUS):
        raise ValueError(
            f"a masked sum could come to {sum(parts):.3g} steps of its grid, beyond 2^63, or a site's part to "
            f"{max(parts):.3g}, beyond 2^52: too little noise for such vectors. Use a smaller epsilon, or clip more"
        )


def whole_steps(values: Tensor, step: float) -> Whole:
    """Multiples of a step (any shape, float64) as whole numbers mod 2^64, flat."""
    return (values.reshape(-1) / step).numpy().astype(np.int64).view(np.uint64)


def summed(parts: Iterable[Whole], step: float) -> Tensor:
    """The sum of masked vectors (n,) as numbers, float64: masks have cancelled, and nothing has wrapped."""
    total: Whole | None = None
    for part in parts:
        total = part.copy() if total is None else total + part
    assert total is not None
    return torch.from_numpy(total.view(np.int64).astype(np.float64)) * step
