"""Many steps on one list of nodes: their characteristic functions are one product of matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw.accounting.discretise import TRUNCATION, second_differences
from fedsw.accounting.profiles import Orientation, Step, gaussian_profile, reach, sampled_curves

_DENSE = 64
_ESTIMATE = 128
_STEEPEST = 20.0
_RATES = 12


@dataclass(frozen=True)
class Steps:
    """One Gaussian step a row: rates and mus (m, 1), and which pair of neighbours.

    Attributes:
        p: sampling rates, float64.
        mu: sensitivity / sigma.
        above, below: how far the loss reaches up and down from 0 (`fedsw.accounting.profiles.reach`).
        orientation: the pair, the same for all.
    """

    p: Tensor
    mu: Tensor
    above: Tensor
    below: Tensor
    orientation: Orientation

    @classmethod
    def of(cls, steps: list[Step], orientation: Orientation, device: torch.device) -> Steps:
        """The steps, none of them through random slices."""
        ends = [reach(step, orientation, TRUNCATION) for step in steps]
        rows = [(step.sampling_rate, step.mu, *end) for step, end in zip(steps, ends, strict=True)]
        columns = torch.tensor(rows, dtype=torch.float64, device=device)
        p, mu, above, below = torch.split(columns, 1, dim=1)
        return cls(p, mu, above, below, orientation)

    @property
    def longest(self) -> Tensor:
        """(m,) how far the loss reaches in either direction."""
        return torch.maximum(self.above, self.below)[:, 0]

    def rows(self, index: Tensor) -> Steps:
        """Those at some places (i,)."""
        return Steps(self.p[index], self.mu[index], self.above[index], self.below[index], self.orientation)

    def masses(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """P-masses (m, n) at minus the losses and at the losses (m, n), connecting the dots; the rest is at 0.

        Guarantee: with what the profile leaves at the last node, which counts in full as delta, they dominate every
        row's step (see `fedsw.accounting.discretise.dominating_masses`).
        """
        above, below = sampled_curves(self.p, self._full, self.orientation)
        nodes = torch.cat([losses.new_zeros(len(losses), 1), losses], dim=1)
        upper = second_differences(above(nodes), nodes)[0]
        lower = upper if below is above else second_differences(below(nodes), nodes)[0]
        return torch.exp(-losses) * lower, upper

    def _full(self, epsilon: Tensor) -> Tensor:
        return gaussian_profile(epsilon, self.mu)


@dataclass(frozen=True)
class Estimates:
    """About a composition; these only choose a grid, and nothing that is found on it rests on them.

    Attributes:
        variance: (m,) of its loss.
        width: (m,) of a window with all of it but ``tail`` on either side.
        epsilon: (m,) where a mass of delta is above.
        slope: (m,) by how much log delta falls there for every unit of epsilon.
    """

    variance: Tensor
    width: Tensor
    epsilon: Tensor
    slope: Tensor


def estimates(steps: Steps, counts: Tensor, deltas: Tensor, tail: float) -> Estimates:
    """Of the composition of ``counts`` of each step, by Chernoff bounds on a ladder of losses; all (m,)."""
    longest = steps.longest
    ladder = torch.logspace(-6, 0, _ESTIMATE, dtype=torch.float64, device=longest.device)
    losses = longest[:, None] * ladder
    down, up = steps.masses(losses)
    mean = ((up - down) * losses).sum(1)
    variance = counts * (((up + down) * losses * losses).sum(1) - mean * mean).clamp(min=1e-300)
    rates = torch.logspace(-1.5, math.log10(_STEEPEST), _RATES, dtype=torch.float64, device=longest.device)
    rates = rates / variance.sqrt()[:, None]
    upward = counts[:, None] * _log_moments(up, down, losses, rates)
    downward = counts[:, None] * _log_moments(down, up, losses, rates)
    highest, lowest = (((moments - math.log(tail)) / rates).amin(1) for moments in (upward, downward))
    epsilon, steepest = ((upward - deltas.log()[:, None]) / rates).min(1)
    slope = rates.gather(1, steepest[:, None])[:, 0]
    return Estimates(variance, highest + lowest, epsilon, slope)


def _log_moments(rising: Tensor, falling: Tensor, losses: Tensor, rates: Tensor) -> Tensor:
    """(m, r) log E exp(r L) of masses at the losses and at minus the losses, about."""
    grown = [
        (rising * torch.expm1((rate * losses).clamp(max=600.0)) + falling * torch.expm1(-rate * losses)).sum(1)
        for rate in rates.T[..., None]
    ]
    return torch.log1p(torch.stack(grown, dim=1).clamp(min=-0.5))


def nodes_up_to(last: int, device: torch.device) -> Tensor:
    """Whole numbers (n,) from 1 to ``last``: the first 64, then one in every 64th of itself."""
    octaves = max(0.0, math.log(last / _DENSE))
    count = math.ceil(octaves / math.log1p(1 / _DENSE)) + 1
    far = _DENSE * torch.logspace(0, octaves, count, base=math.e, dtype=torch.float64, device=device)
    near = torch.arange(1, min(last, _DENSE) + 1, dtype=torch.float64, device=device)
    nodes: Tensor = torch.unique(torch.cat([near, far.round().clamp(max=last)]))
    return nodes
