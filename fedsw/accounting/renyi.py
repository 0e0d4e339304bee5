"""Renyi divergences of steps, from above: for theorems that speak of these."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from scipy import special

from fedsw.accounting.discretise import dominating_masses
from fedsw.accounting.profiles import Step, curves, step_profile
from fedsw.accounting.stated import Renyi

ORDERS = tuple(1 + part for part in (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8)) + tuple(
    round(2 * 1.12**power, 3) for power in range(44)
)
"""Orders that are looked at, from 1.05 to about 260."""

_NODES = 3000
_TAIL = 12.0
_FURTHEST = 24.0
_ROUNDING = 1e-14


def renyi_of(counts: Iterable[tuple[Step, int]]) -> Renyi:
    """The Renyi divergences of steps that are taken so often, for replacement neighbours in both orders.

    Guarantee: upper bounds for any mechanisms with these sampling rates and sensitivities, against an observer of all
    releases. Orders at which a step's moments leave double precision are left out.

    Raises:
        ValueError: for Poisson or sliced steps, and for steps without noise.
    """
    steps = [(step, times) for step, times in counts if times and not step.costless]
    found = []
    for order in ORDERS:
        divergences = [times * renyi_divergence(step, order) for step, times in steps]
        if all(math.isfinite(divergence) for divergence in divergences):
            found.append((order, sum(divergences)))
    if not found:
        raise ValueError("these steps have no finite Renyi divergence: there is next to no noise; add some.")
    return Renyi(tuple(order for order, _ in found), tuple(divergence for _, divergence in found))


def renyi_divergence(step: Step, order: float) -> float:
    """Renyi divergence of an order > 1 of one step's dominating pair, from above; inf where it cannot be computed.

    The moment E_Q (P/Q)^order is an integral of the profile with positive weights. Up to an end the profile is replaced
    by its chords in e^epsilon, which lie above it; beyond, the sampled profile is at most that of the normal laws.

    Raises:
        ValueError: for a Poisson or a sliced step, and for one without noise.

    Source: docs/guarantees.md, "Private selection".
    """
    step = step.reduced
    if step.sampling != "without-replacement" or step.slicing is not None or step.stated is not None:
        raise ValueError("Renyi divergences are computed for Gaussian sums, without replacement and without slices.")
    if step.costless:
        return 0.0
    if math.isinf(step.mu):
        raise ValueError("a step without noise has no Renyi divergence; add noise.")
    p, mu, r = step.sampling_rate, step.mu, order - 1
    if p == 1.0:
        return order * mu * mu / 2 * (1 + _ROUNDING)
    if r * mu > _FURTHEST:
        return math.inf
    end = mu * mu / 2 + r * mu * mu + _TAIL * mu
    up = torch.linspace(0.0, end, _NODES + 1, dtype=torch.float64)[1:]
    below, centre, above = dominating_masses(*curves(step, "symmetric"), up, up)
    losses, mass = torch.cat([-up, up.new_zeros(1), up]), torch.cat([below, centre.reshape(1), above])
    inside = float(torch.logsumexp(r * losses + mass.log(), 0))
    last = float(step_profile(step, up[-1]))
    gaussian = r * order * mu * mu / 2
    outside = [
        math.log(p * p) + gaussian + float(special.log_ndtr(-_TAIL)),  # the tail of the moment beyond the end
        math.log(max(last, 1e-300)) + math.log(2 * order) + r * end + math.log1p(math.exp(-r * end)),
    ]
    return (float(special.logsumexp([inside, *outside])) + _ROUNDING) / r
