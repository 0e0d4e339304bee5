"""The second lower pair of fixed-size batches: two mixtures whose three centres form an equilateral triangle."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST_MU = 10.0
"""Beyond it the pair is left out of the bracket: its quadrature would take too many nodes."""

_ENDS = 9.5  # the normal law has less than 1e-20 beyond
_CELLS = 2**21  # of one piece of the quadrature
_CONDITIONAL = math.sqrt(0.75)  # deviation of one coordinate given the other, at correlation 1/2


def exceedances(losses: Tensor, p: float, mu: float) -> tuple[Tensor, Tensor]:
    """P(L > l) and Q(L > l), l >= 0, of the loss L of P = (1-p)R + pA against Q = (1-p)R + pB; float64, elementwise.

    R, A and B are normal laws of unit covariance in the plane, at distance mu from each other. With s and t the
    coordinates along A and B from R, L = g(s) - g(t), g(s) = ln(1 - p + p e^(mu s - mu^2/2)): it exceeds l where
    s > s(t), mu s(t) - mu^2/2 = ln(e^l e^z + (e^l - 1)(1-p)/p), z = mu t - mu^2/2. Given t, s is normal, so that each
    of the three laws has that region's mass as one integral over t of a positive function that is analytic in a strip
    of half-width pi/mu and falls like a normal density: sums over even nodes err by less than e^-38, and by a few 2^-53
    of what they sum.

    Args:
        losses: (n,) at least 0.
        p: sampling rate in (0, 1].
        mu: sensitivity / sigma in (0, `LARGEST_MU`].

    Source: docs/guarantees.md, "The bracket".
    """
    step = min(0.4, 0.5 / mu)
    t = torch.arange(-_ENDS, _ENDS + mu + step, step, dtype=torch.float64, device=losses.device)
    parts = [_piece(piece, t, p, mu) for piece in torch.split(losses, max(1, _CELLS // len(t)))]
    above, below = (step * torch.cat(column) for column in zip(*parts, strict=True))
    return above, below


def triangle_masses(nodes: Tensor, p: float, mu: float) -> tuple[Tensor, Tensor, Tensor]:
    """P-masses of the loss rounded to the nearest node, at minus the nodes, at 0 and at the nodes.

    The pair turned round is its mirror image: P has at -l what Q has at l. Rounding to the nearest of even nodes keeps
    the mean and adds a twelfth of the squared spacing to the variance: like the discretisation from above, half of it.

    Args:
        nodes: (n,) increasing positive losses; what exceeds the last by more than half a cell is left out.
        p: sampling rate in (0, 1].
        mu: sensitivity / sigma in (0, `LARGEST_MU`].
    """
    every = torch.cat([nodes.new_zeros(1), nodes, nodes[-1:] + nodes.diff(prepend=nodes.new_zeros(1))[-1:]])
    above, below = exceedances((every[1:] + every[:-1]) / 2, p, mu)
    centre = (1.0 - above[0] - below[0]).clamp(min=0.0)
    return (-below.diff()).clamp(min=0.0), centre, (-above.diff()).clamp(min=0.0)


def _piece(losses: Tensor, t: Tensor, p: float, mu: float) -> tuple[Tensor, Tensor]:
    lift = math.log1p(-p) - math.log(p) if p < 1.0 else -math.inf
    raised = torch.log(torch.expm1(losses)) + lift
    reached = torch.logaddexp(losses[:, None] + (mu * t - mu * mu / 2), raised[:, None].expand(-1, len(t)))
    s = (reached + mu * mu / 2) / mu
    beyond = torch.special.ndtr((t / 2 - s) / _CONDITIONAL)
    moved = torch.special.ndtr((t / 2 + 0.75 * mu - s) / _CONDITIONAL)
    rest, one, other = beyond @ _density(t), moved @ _density(t - mu / 2), beyond @ _density(t - mu)
    return (1 - p) * rest + p * one, (1 - p) * rest + p * other


def _density(x: Tensor) -> Tensor:
    return torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
