"""Cost of recorded rows, as steps; and the profile of a step, written again from theory and not from fedsw's code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from fedsw.audit.record._folder import Book, Row

Array = NDArray[np.float64]

_CELLS = 400
_FINEST = 50
_MOST_CELLS = 2**22


@dataclass(frozen=True)
class RandomDirections:
    """Random directions: dimension, number, and "iid" or "orthogonal"."""

    d: int
    k: int
    scheme: str

    @property
    def fixed(self) -> bool:
        """True if whole orthonormal blocks leave the share k/d of a move for certain."""
        return self.d == 1 or (self.scheme == "orthogonal" and self.k % self.d == 0)


@dataclass(frozen=True)
class Recorded:
    """One group's part of a row: rate p, mu = sensitivity / sigma (inf without noise), and how it was made."""

    rate: float
    mu: float
    sampling: str
    slices: RandomDirections | None = None


Steps = Counter[Recorded]


def steps_of(book: Book, group: str, rows: Iterable[Row] | None = None) -> Steps:
    """The steps of a group by the rows of a ledger, all of them unless some are given."""
    counts: Steps = Counter()
    for row in book.rows if rows is None else rows:
        for charge in row.charges:
            if charge["group"] == group and charge["sampling_rate"] > 0 and charge["sensitivity"] > 0:
                mu = charge["sensitivity"] / row.sigma if row.sigma > 0 else math.inf
                reported = charge.get("slicing")
                slices = reported and RandomDirections(reported["d"], reported["k"], reported["scheme"])
                counts[Recorded(charge["sampling_rate"], mu, charge["sampling"], slices)] += 1
    return counts


def mixture(step: Recorded) -> tuple[Array, Array]:
    """Means and weights of normal laws whose mixed profile is the step's before sampling.

    For slices: the law of B = ||z^T Theta||^2, on a lattice that keeps its mean (theory, section 5.2): a sum of k
    independent Beta(1/2, (d-1)/2), or k // d whole blocks and Beta(r/2, (d-r)/2); a quadrature, not a bound.
    """
    if step.slices is None:
        return np.array([step.mu]), np.ones(1)
    if step.slices.fixed:
        return np.array([step.mu * math.sqrt(step.slices.k / step.slices.d)]), np.ones(1)
    values, weights = _share(step.slices)
    return step.mu * np.sqrt(values), weights


def profile(step: Recorded, epsilon: Array) -> Array:
    """delta(epsilon) of C_p of the step's profile, any sign of epsilon (theory, section 5.1).

    For epsilon >= 0 it is p delta_1(ln(1 + (e^epsilon - 1) / p)), delta_1 the profile without sampling, and
    1 - e^-x + e^-x delta(x) at -x.
    """
    size = np.abs(epsilon)
    inner = np.log1p(np.expm1(size) / step.rate)
    means, weights = mixture(step)
    above = np.zeros_like(size)
    for mean, weight in zip(means, weights, strict=True):
        above += weight * _gaussian(inner, float(mean))
    above *= step.rate
    delta: Array = np.where(epsilon >= 0, above, -np.expm1(-size) + np.exp(-size) * above)
    return delta


def _gaussian(epsilon: Array, mu: float) -> Array:
    """Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2), the second factor taken in logarithms."""
    if mu == 0.0:
        return np.zeros_like(epsilon)
    first = special.ndtr(-epsilon / mu + mu / 2)
    second = np.exp(epsilon + special.log_ndtr(-epsilon / mu - mu / 2))
    delta: Array = np.maximum(0.0, first - second)
    return delta


@lru_cache(maxsize=8)
def _share(slices: RandomDirections) -> tuple[Array, Array]:
    d, k = slices.d, slices.k
    if slices.scheme == "orthogonal":
        left = k % d
        values, mass = _lattice(stats.beta(left / 2, (d - left) / 2), 1 / (_FINEST * 40), 1)
        return _fewer(k // d + values, mass)
    width = 1 / (_FINEST * d)
    while (k / width) > _MOST_CELLS:
        width *= 2
    return _fewer(*_lattice(stats.beta(0.5, (d - 1) / 2), width, k))


def _lattice(law: stats.rv_continuous, width: float, copies: int) -> tuple[Array, Array]:
    """The sum of copies of a law on [0, 1], each cell's mass split between its ends so that the mean stays."""
    cells = math.ceil(1 / width)
    ends = np.linspace(0.0, 1.0, cells + 1)
    below = law.cdf(ends)
    # The mean of the law over a cell, from the integral of its distribution function by Simpson's rule.
    middles = law.cdf((ends[:-1] + ends[1:]) / 2)
    area = (below[:-1] + 4 * middles + below[1:]) / 6
    up = np.clip(below[1:] - area, 0.0, None)  # mass that goes to the upper end
    down = np.diff(below) - up
    mass = np.zeros(cells + 1)
    mass[:-1] += down
    mass[1:] += up
    if copies == 1:
        return ends, mass
    length = 2 ** math.ceil(math.log2(cells * copies + 1))
    total = np.fft.irfft(np.fft.rfft(mass, length) ** copies, length)[: cells * copies + 1]
    return np.arange(cells * copies + 1) / cells, np.clip(total, 0.0, None)


def _fewer(values: Array, mass: Array) -> tuple[Array, Array]:
    """A few values of the same mean, evenly spaced in the square root, over where the mass is more than round-off."""
    heavy = mass > 1e-17
    roots, mass = np.sqrt(values[heavy]), mass[heavy]
    nodes = np.linspace(roots[0], roots[-1], _CELLS + 1) ** 2
    squares = roots**2
    cell = np.clip(np.searchsorted(nodes, squares, side="right") - 1, 0, _CELLS - 1)
    up = (squares - nodes[cell]) / (nodes[cell + 1] - nodes[cell])
    weights = np.zeros(_CELLS + 1)
    np.add.at(weights, cell, mass * (1 - up))
    np.add.at(weights, cell + 1, mass * up)
    return nodes[weights > 0], weights[weights > 0] / weights.sum()


_NODES = 2**20
_MOST_DIFFERENT = 24
_ROUNDED = 1e-5


@dataclass(frozen=True)
class Recomputed:
    """Epsilon of the steps, how it was computed, and what its grid may have added to it."""

    epsilon: float
    error: float
    how: str


def recomputed(steps: Steps, delta: float, accountant: str = "pld") -> Recomputed:
    """Epsilon of the steps at delta.

    For "pld" it is an upper bound but for the quadrature of random slices (relative 1e-3), at most `error` above
    what an infinitely fine grid would give. For the accountants of other papers it is what their library says; for a
    user's own it is a lower bound.

    ModuleNotFoundError without dp_accounting, or Opacus for its central limits.
    """
    if not steps:
        return Recomputed(0.0, 0.0, "nothing was released")
    if any(math.isinf(step.mu) for step in steps):
        return Recomputed(math.inf, 0.0, "no noise")
    if accountant == "laplace":
        return Recomputed(sum(times * step.mu for step, times in steps.items()), 0.0, "sum of Laplace steps")
    if accountant in ("gdp-clt-uniform", "gdp-clt-poisson"):
        return _central_limit(steps, delta, accountant)
    if accountant in ("rdp-wor", "bernstein", "bernstein-published", "clt"):
        return _renyi(steps, delta, accountant)
    if accountant != "pld":
        return Recomputed(lower_bound(steps, delta), 0.0, f"what no account can be below: {accountant} is a user's own")
    if {step.sampling for step in steps} == {"poisson"}:
        return _poisson(steps, delta)
    if all(step.rate == 1.0 and len(mixture(step)[0]) == 1 for step in steps):
        return _whole_batches(steps, delta)
    return _profiles(steps, delta)


def lower_bound(steps: Steps, delta: float) -> float:
    """An epsilon that no account of (p, mu) alone can go below: that of a pair that real neighbours meet.

    The pair ((1-p) N(0,1) + p N(mu,1), N(0,1)), composed by dp_accounting with optimistic rounding; 0 for slices.

    Source: docs/guarantees/accounting.md, Theorem A6.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    plain = {step: times for step, times in few(steps, up=False).items() if step.slices is None and step.mu < math.inf}
    if not plain or any(step.slices for step in steps):
        return 0.0
    width = _width(few(steps), delta)
    total: Any = None
    for step, times in plain.items():
        one = pld.from_gaussian_mechanism(
            1 / step.mu, pessimistic_estimate=False, value_discretization_interval=width, sampling_prob=step.rate,
            use_connect_dots=False,
        )  # fmt: skip
        many = one.self_compose(times) if times > 1 else one
        total = many if total is None else total.compose(many)
    return float(total.get_epsilon_for_delta(delta))


def few(steps: Steps, *, up: bool = True) -> Steps:
    """The steps with rates and mu rounded, up or down by 1e-5 of themselves at most, where very many differ."""
    if len(steps) <= _MOST_DIFFERENT:
        return steps
    fewer: Steps = Steps()
    for step, times in steps.items():
        mu, rate = _rounded(step.mu, up), min(1.0, _rounded(step.rate, up))
        fewer[replace(step, mu=mu, rate=rate)] += times
    return fewer


def _rounded(value: float, up: bool) -> float:
    exponent = math.log(value) / _ROUNDED
    return math.exp(_ROUNDED * (math.ceil(exponent) if up else math.floor(exponent)))


def _profiles(steps: Steps, delta: float) -> Recomputed:
    width = _width(few(steps), delta)
    coarse, fine = (_composed(few(steps), delta, grid) for grid in (2 * width, width))
    how = f"dp_accounting's connect-the-dots and composition of {sum(steps.values())} profiles, grid {width:.2g}"
    return Recomputed(fine, max(0.0, coarse - fine), how)


def _composed(steps: Steps, delta: float, width: float) -> float:
    from dp_accounting.pld import pld_pmf

    total: Any = None
    for step, times in steps.items():
        highest = math.ceil(_reach(step, 1e-6 * delta / sum(steps.values())) / width)
        grid = np.arange(-highest, highest + 1, dtype=np.float64) * width
        one = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(width, -highest, highest, profile(step, grid))
        many = one.to_dense_pmf().self_compose(times, 1e-15) if times > 1 else one.to_dense_pmf()
        total = many if total is None else total.compose(many, 1e-15)
    return float(total.get_epsilon_for_delta(delta))


def _width(steps: Steps, delta: float) -> float:
    """A grid on which the spread of all losses grows by some 1e-4: each step adds width^2 / 6 to the variance."""
    count = sum(steps.values())
    variance = sum(times * _variance(step) for step, times in steps.items())
    wanted = math.sqrt(6 * 1e-4 * min(variance, math.sqrt(variance), 1.0) / count)
    widest = max(_reach(step, 1e-6 * delta / count) for step in steps)
    # Neither the longest step nor the composition (some 2 x 8 deviations and its mean) may need too many nodes.
    return max(wanted, 2 * widest / _NODES, (16 * math.sqrt(variance) + variance) / _NODES)


def _variance(step: Recorded) -> float:
    """About that of the privacy loss: p^2 (e^(mu^2) - 1), a normal law's mu^2 at p = 1 at the most."""
    means, weights = mixture(step)
    variances = np.minimum(step.rate**2 * np.expm1(np.minimum(means**2, 50.0)), means**2)
    return max(float(weights @ variances), 1e-12)


def _reach(step: Recorded, least: float) -> float:
    """A loss at which the profile is at most `least` (never below what double precision can tell)."""
    low, high, least = 0.0, 1.0, max(least, 1e-16)
    while high < 1e4 and _at(step, high) > least:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _at(step, middle) > least else (low, middle)
    return high


def _at(step: Recorded, loss: float) -> float:
    return float(profile(step, np.array([loss], dtype=np.float64))[0])


def _whole_batches(steps: Steps, delta: float) -> Recomputed:
    """Without sampling the steps are one Gaussian mechanism: squares of mu add up."""
    from dp_accounting import dp_event

    mu = math.sqrt(sum(times * float(mixture(step)[0][0]) ** 2 for step, times in steps.items()))
    return _of_events([(dp_event.GaussianDpEvent(1 / mu), 1)], delta, 1e-4 * min(1.0, mu), "Gaussian")


def _poisson(steps: Steps, delta: float) -> Recomputed:
    from dp_accounting import dp_event

    events = [
        (dp_event.PoissonSampledDpEvent(step.rate, dp_event.GaussianDpEvent(1 / step.mu)), times)
        for step, times in few(steps).items()
    ]
    return _of_events(events, delta, 1e-4, "Poisson")


def _of_events(events: Sequence[tuple[Any, int]], delta: float, width: float, kind: str) -> Recomputed:
    """By the library's own accountant, on a grid of that width; its error by one twice as wide."""
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

    coarse, fine = (PLDAccountant(value_discretization_interval=grid) for grid in (2 * width, width))
    for event, times in events:
        coarse.compose(event, times)
        fine.compose(event, times)
    epsilon = float(fine.get_epsilon(delta))
    error = abs(float(coarse.get_epsilon(delta)) - epsilon)
    return Recomputed(epsilon, error, f"dp_accounting's PLD accountant of the {kind} event")


def _central_limit(steps: Steps, delta: float, accountant: str) -> Recomputed:
    from opacus.accountants.analysis import gdp

    by_sampling = {"gdp-clt-uniform": gdp.compute_mu_uniform, "gdp-clt-poisson": gdp.compute_mu_poisson}
    compute = by_sampling[accountant]
    squares = [
        compute(steps=times, noise_multiplier=1 / step.mu, sample_rate=step.rate) ** 2 for step, times in steps.items()
    ]
    value = float(gdp.eps_from_mu(mu=math.sqrt(sum(squares)), delta=delta))
    return Recomputed(value, 0.0, f"Opacus' {compute.__name__}, which is no guarantee")


def _renyi(steps: Steps, delta: float, accountant: str) -> Recomputed:
    """dp_accounting's Renyi bound of batches without replacement; slices as normal laws of a share rarely exceeded."""
    from dp_accounting import NeighboringRelation, dp_event, rdp

    ledger = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    sampled = sum(times * step.rate for step, times in steps.items())
    left = delta / 2 if any(step.slices for step in steps) else delta
    for step, times in few(steps).items():
        mu = step.mu
        if step.slices is not None:
            failure = delta / 2 / (max(1.0, sampled) if accountant == "bernstein" else 1.0)
            mu *= math.sqrt(_large_share(step.slices.d, step.slices.k, failure, accountant))
        size = 10**9
        release = dp_event.GaussianDpEvent(1 / mu)
        ledger.compose(dp_event.SampledWithoutReplacementDpEvent(size, math.ceil(step.rate * size), release), times)
    return Recomputed(float(ledger.get_epsilon(left)), 0.0, "dp_accounting's RDP accountant of the same event")


def _large_share(d: int, k: int, failure: float, accountant: str) -> float:
    """Rakotomamonjy and Ralaivola 2021: Bernstein's bound on the share, or a normal law in its place."""
    if accountant == "clt":
        return k / d + NormalDist().inv_cdf(1 - failure) / d * math.sqrt(2 * k * (d - 1) / (d + 2))
    log = -math.log(failure)
    return k / d + 2 * log / 3 + 2 / d * math.sqrt(k * (d - 1) / (d + 2) * log)
