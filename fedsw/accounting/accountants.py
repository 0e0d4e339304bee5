"""Other people's accountants, for comparison: what they say of the same steps, and whether it is a guarantee."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch

from fedsw.accounting.composition import DeltaTooSmall, StepCounts, check_delta, epsilon
from fedsw.accounting.profiles import Step, gaussian_profile
from fedsw.accounting.slicing import bernstein_share, central_limit_share

_LEAST_MU = 1e-7
"""Below it dp_accounting's formulas leave floating point; a million such steps add less than 1e-5 up to order 1024."""


@dataclass(frozen=True)
class Accountant:
    """A way to turn steps into epsilon.

    Attributes:
        name: as in experiments and on the command line.
        guarantee: whether its epsilon is an upper bound for the sampling it is used with.
        note: where it comes from and what it takes as noise multiplier.
        covers: ``"plain"``, steps without random slicing; ``"sliced"``, made for random slices through independent
            directions, and "rdp-wor" for other steps among them; ``"both"``; or ``"laplace"``, where a step's mu is
            the l1 sensitivity / scale of Laplace noise, which no other accountant means.
    """

    name: str
    guarantee: bool
    note: str
    covers: Literal["plain", "sliced", "both", "laplace"] = "plain"


ACCOUNTANTS = {
    accountant.name: accountant
    for accountant in (
        Accountant(
            "pld",
            True,
            "privacy loss distribution of the steps' own dominating pairs, discretised from above; "
            "noise multiplier = sigma / full sensitivity",
            "both",
        ),
        Accountant(
            "gdp-clt-uniform",
            False,
            "central limit of Gaussian DP for sampling without replacement, as in Opacus (compute_mu_uniform): an "
            "approximation that may fall below the truth; given sigma / full sensitivity",
        ),
        Accountant(
            "gdp-clt-poisson",
            False,
            "central limit of Gaussian DP for Poisson sampling, as in Opacus (compute_mu_poisson): an approximation, "
            "and of another sampling scheme when batches have a fixed size; given sigma / full sensitivity",
        ),
        Accountant(
            "rdp-wor",
            True,
            "Renyi bound of Wang, Balle, Kasiviswanathan 2019 for replacement and sampling without replacement, by "
            "dp_accounting; given sigma / full sensitivity, which its RDP class expects (its PLD class would take "
            "sigma / C and double C for replacement)",
        ),
        Accountant(
            "bernstein",
            True,
            "Bernstein bound of Rakotomamonjy and Ralaivola 2021 on the slices' sensitivity, its failures (delta/2 in "
            "all) shared by the releases; then rdp-wor at delta/2; given sigma / diameter",
            "sliced",
        ),
        Accountant(
            "bernstein-published",
            False,
            "the same as published: every release fails with probability delta/2, which is counted once; a guarantee "
            "for one release only",
            "sliced",
        ),
        Accountant(
            "clt",
            False,
            "central limit of the slices' sensitivity (Rakotomamonjy and Ralaivola 2021) in the place of the bound, "
            "delta/2 counted once; then rdp-wor at delta/2: an approximation; given sigma / diameter",
            "sliced",
        ),
        Accountant(
            "laplace",
            True,
            "pure epsilon of Laplace noise: l1 sensitivity / scale of every release, added up, without amplification",
            covers="laplace",
        ),
    )
}


def epsilon_by(accountant: str, steps: StepCounts, delta: float, *, device: torch.device | str = "cpu") -> float:
    """Epsilon of the steps at delta, by the named accountant; "pld" composes on the device.

    Guarantee: only if ``ACCOUNTANTS[accountant].guarantee``; "rdp-wor" and the accountants that use it only bound
    sampling without replacement.

    Raises:
        DeltaTooSmall: for "pld", if the round-off of so many steps uses delta up.
        ValueError: for an unknown accountant, a delta outside [1e-10, 1), Poisson steps with "rdp-wor" or what uses
            it, or random slices that the accountant does not cover.
        ModuleNotFoundError: for "rdp-wor" and what uses it, without dp_accounting.
    """
    check_delta(delta)
    counts = _reduced(steps)
    if accountant in ACCOUNTANTS and (reason := _not_covered(ACCOUNTANTS[accountant], counts)):
        raise ValueError(f"accountant {accountant} is {reason}; choose pld.")
    if accountant == "pld":
        return epsilon(counts, delta, device=device)
    if accountant == "gdp-clt-uniform":
        return gaussian_epsilon(_clt_mu(counts, _uniform_variance), delta)
    if accountant == "gdp-clt-poisson":
        return gaussian_epsilon(_clt_mu(counts, _poisson_variance), delta)
    if accountant == "rdp-wor":
        return _rdp_epsilon(counts, delta)
    if accountant == "bernstein":
        sampled = sum(times * step.sampling_rate for step, times in counts if step.slicing)
        return _sliced_epsilon(counts, delta, lambda d, k: bernstein_share(d, k, delta / 2 / max(1.0, sampled)))
    if accountant == "bernstein-published":
        return _sliced_epsilon(counts, delta, lambda d, k: bernstein_share(d, k, delta / 2))
    if accountant == "clt":
        return _sliced_epsilon(counts, delta, lambda d, k: central_limit_share(d, k, delta / 2))
    if accountant == "laplace":
        return sum(times * step.mu for step, times in counts)
    raise ValueError(f"accountant is {accountant!r}; choose one of {', '.join(ACCOUNTANTS)}.")


def compare(steps: StepCounts, delta: float) -> list[dict[str, object]]:
    """What every accountant made for such steps says of them: name, epsilon (None if it has none), guarantee, note."""
    counts = _reduced(steps)
    other = "plain" if any(step.slicing for step, _ in counts) else "sliced"
    rows: list[dict[str, object]] = []
    for name, accountant in ACCOUNTANTS.items():
        if accountant.covers in (other, "laplace"):
            continue
        value, note = None, accountant.note
        by_rdp = name == "rdp-wor" or accountant.covers == "sliced"
        if by_rdp and any(step.sampling == "poisson" for step, _ in counts):
            note = "not for Poisson sampling"
        elif reason := _not_covered(accountant, counts):
            note = reason
        elif by_rdp and importlib.util.find_spec("dp_accounting") is None:
            note = "dp_accounting is not installed (pip install 'fedsw[compare]'); " + note
        else:
            try:
                value = epsilon_by(name, counts, delta)
            except DeltaTooSmall as reason:
                note = str(reason)
        rows.append({"name": name, "epsilon": value, "guarantee": accountant.guarantee, "note": note})
    return rows


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Exact epsilon of mu-GDP at delta: the root of Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) = delta.

    Rounded up by bisection, to 1e-13 relative; inf for mu = inf.
    """
    if math.isinf(mu):
        return math.inf

    def exceeds(value: float) -> bool:
        return float(gaussian_profile(torch.tensor(value, dtype=torch.float64), mu)) > delta

    if mu == 0.0 or not exceeds(0.0):
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


def _reduced(steps: StepCounts) -> list[tuple[Step, int]]:
    return [(step.reduced, times) for step, times in (steps.items() if isinstance(steps, Mapping) else steps)]


def _not_covered(accountant: Accountant, counts: Iterable[tuple[Step, int]]) -> str:
    """Why the accountant cannot tell what these steps cost; empty if it can."""
    schemes = {step.slicing.scheme for step, _ in counts if step.slicing}
    if accountant.covers == "plain" and schemes:
        return "not for random slices"
    if accountant.covers == "sliced" and "orthogonal" in schemes:
        return "only for slices through independent directions"
    return ""


def _sliced_epsilon(counts: Sequence[tuple[Step, int]], delta: float, share: Callable[[int, int], float]) -> float:
    """Slices as normal laws at mu sqrt(share(d, k)), the other half of delta set aside for larger shares."""
    if not any(step.slicing for step, _ in counts):
        return _rdp_epsilon(counts, delta)

    def bounded(step: Step) -> Step:
        if step.slicing is None:
            return step
        return replace(step, mu=step.mu * math.sqrt(share(step.slicing.d, step.slicing.k)), slicing=None)

    return _rdp_epsilon([(bounded(step), times) for step, times in counts], delta / 2)


def _clt_mu(counts: Iterable[tuple[Step, int]], variance: Callable[[float], float]) -> float:
    """The limit of many small steps is mu-GDP; squares add over steps."""
    try:
        return math.sqrt(sum(times * step.sampling_rate**2 * variance(step.mu) for step, times in counts))
    except OverflowError:
        return math.inf


def _uniform_variance(mu: float) -> float:
    if math.isinf(mu):
        return math.inf
    return 2 * (math.exp(mu * mu) * _normal_cdf(1.5 * mu) + 3 * _normal_cdf(-0.5 * mu) - 2)


def _poisson_variance(mu: float) -> float:
    return math.inf if math.isinf(mu) else math.expm1(mu * mu)


def _normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def _rdp_epsilon(counts: Sequence[tuple[Step, int]], delta: float) -> float:
    if any(step.sampling == "poisson" for step, _ in counts):
        raise ValueError("rdp-wor bounds sampling without replacement; a Poisson step has no epsilon there.")
    counts = [(step, times) for step, times in counts if times and not step.costless]
    if any(math.isinf(step.mu) for step, _ in counts):
        return math.inf
    if not counts:
        return 0.0
    from dp_accounting import rdp

    orders = rdp.RdpAccountant().orders
    spent = [sum(times * divergence for divergence, times in column) for column in _by_order(counts)]
    return float(rdp.compute_epsilon(orders, spent, delta)[0])


def _by_order(counts: Sequence[tuple[Step, int]]) -> Iterator[list[tuple[float, int]]]:
    divergences = [_renyi_divergences(step.sampling_rate, step.mu) for step, _ in counts]
    for column in zip(*divergences, strict=True):
        yield [(divergence, times) for divergence, (_, times) in zip(column, counts, strict=True)]


@lru_cache(maxsize=4096)
def _renyi_divergences(sampling_rate: float, mu: float) -> tuple[float, ...]:
    """One step's Renyi divergences at dp_accounting's default orders; never too small."""
    from dp_accounting import dp_event, privacy_accountant, rdp

    size = 10**12
    release = dp_event.GaussianDpEvent(1 / max(mu, _LEAST_MU))
    event = dp_event.SampledWithoutReplacementDpEvent(size, math.ceil(sampling_rate * size), release)
    accountant = rdp.RdpAccountant(neighboring_relation=privacy_accountant.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event)
    return tuple(float(divergence) for divergence in accountant.rdp)
