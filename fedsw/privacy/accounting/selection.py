"""Private selection: the best of a random number of runs, and what its release costs.

Source: docs/guarantees/selection.md; Papernot and Steinke 2022, Theorem 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from fedsw.privacy.accounting._arrays import log_sum, quiet
from fedsw.privacy.accounting.pld import dominating_masses
from fedsw.privacy.accounting.profiles import Step, curves, step_profile
from fedsw.privacy.accounting.stated import Renyi

_MOST = 10**7


@dataclass(frozen=True)
class Repetitions:
    """The truncated negative binomial law of a number K >= 1 of runs, drawn before the first and kept secret.

    P(K = k) is in proportion to (1 - gamma)^k times the product of (l + eta) / (l + 1) for l = 0 .. k-1 (for eta = 0:
    to (1 - gamma)^k / k). eta = 1 is the geometric law, eta = 0 the logarithmic one: its selection costs less and
    its K is more spread.

    ``eta`` is above -1, ``gamma`` in (0, 1).
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not self.eta > -1.0 or not math.isfinite(self.eta):
            raise ValueError(f"eta is {self.eta}; it must be above -1 and finite")
        if not 0.0 < self.gamma < 1.0:
            raise ValueError(f"gamma is {self.gamma}; it lies strictly between 0 and 1")

    @property
    def mean(self) -> float:
        """Mean of the number K of runs."""
        odds = (1 - self.gamma) / self.gamma
        if self.eta == 0.0:
            return odds / -math.log(self.gamma)
        return self.eta * odds / -math.expm1(self.eta * math.log(self.gamma))

    def masses(self) -> Iterator[float]:
        """P(K = 1), P(K = 2), ..."""
        log = math.log(self.gamma)
        first = 1 / -log if self.eta == 0.0 else self.eta / math.expm1(-self.eta * log)
        mass = first * (1 - self.gamma)
        for k in range(1, _MOST):
            yield mass
            mass *= (1 - self.gamma) * (k + self.eta) / (k + 1)

    def draw(self, uniform: float) -> int:
        """K by inversion of a uniform number in [0, 1): secret, and independent of everything else."""
        left = uniform
        for k, mass in enumerate(self.masses(), start=1):
            left -= mass
            if left < 0.0 or (k > 10 and mass < 1e-18):
                return k
        return _MOST


def with_mean(mean: float, eta: float = 0.0) -> Repetitions:
    """Find the law of a given mean E K, above 1 and at most a million, by bisection over gamma."""
    if not 1.0 < mean <= 1e6:
        raise ValueError(f"the expected number of runs is {mean:g}; it must be above 1, and at most a million")
    low, high = 1e-12, 1 - 1e-12
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if Repetitions(eta, middle).mean > mean else (low, middle)
    return Repetitions(eta, high)


def worst_curve(curves: Iterable[Renyi]) -> Renyi:
    """Largest Renyi divergences of several runs: those of a run with settings drawn without seeing records."""
    divergences = [dict(zip(curve.orders, curve.divergences, strict=True)) for curve in curves]
    orders = sorted(set.intersection(*(set(by_order) for by_order in divergences)))
    return Renyi(tuple(orders), tuple(max(by_order[order] for by_order in divergences) for order in orders))


def selected(run: Renyi, law: Repetitions) -> Renyi:
    """Renyi divergences of the best of K runs; nothing else of them is released, not even K.

    Guarantee: let each run release its score with everything else that is released of it, and have these divergences,
    in both orders of the neighbours. Then what is released of the run with the best score has the divergences that are
    returned: at order a, with b ranging over the orders of the run,

        D(a) + (1 + eta) min_b ((1 - 1/b) D(b) + ln(1/gamma) / b) + ln E K / (a - 1).
    """
    orders, divergences = np.array(run.orders), np.array(run.divergences)
    inside = float(((1 - 1 / orders) * divergences - math.log(law.gamma) / orders).min())
    bound = divergences + (1 + law.eta) * inside + math.log(law.mean) / (orders - 1)
    return Renyi(run.orders, tuple(bound.tolist()))


@dataclass(frozen=True)
class Selection:
    """A private selection that a run came out of, as the best of a random number of runs. All of it is public.

    It is in the run's configuration, its ledger and its summary, so that no file of the run states less. ``plans`` is
    what a candidate's run takes at most, one step so often, once for each candidate with another plan; ``settings``
    are those of this run, ``among`` those of all candidates, as on the command line; ``metric`` is the score.
    """

    law: Repetitions
    plans: tuple[tuple[Step, int], ...]
    epsilon: float
    delta: float
    settings: tuple[str, ...] = ()
    among: tuple[tuple[str, ...], ...] = ()
    metric: str = ""

    @property
    def words(self) -> str:
        """The selection in words, as the guarantee names it beside the run's releases."""
        return (
            f"the best of a random number of runs ({self.law.mean:.3g} on average, {max(1, len(self.among))} settings),"
            " of which nothing else is released, not even how many they were"
        )

    def covers(self, counts: Mapping[Step, int]) -> bool:
        """Say whether one of the candidates' plans covers these steps of a group."""
        taken = [(step.reduced, times) for step, times in counts.items() if times and not step.costless]
        if any(step.sampling != "without-replacement" or step.slicing or step.stated for step, _ in taken):
            return False
        times = sum(count for _, count in taken)
        rate = max((step.sampling_rate for step, _ in taken), default=0.0)
        mu = max((step.mu for step, _ in taken), default=0.0)
        return any(times <= most and rate <= step.sampling_rate and mu <= step.mu for step, most in self.plans)

    def epsilon_of(self, counts: Mapping[Step, int]) -> float:
        """Epsilon at `delta` of a group that took these steps: the selection's; inf beyond what was planned."""
        if all(step.costless or not times for step, times in counts.items()):
            return 0.0
        return self.epsilon if self.covers(counts) else math.inf

    def as_dict(self) -> dict[str, Any]:
        """Numbers and texts for a file, from which `of` makes it again."""
        return {
            "eta": self.law.eta,
            "gamma": self.law.gamma,
            "expected_runs": self.law.mean,
            "plans": [{"rate": s.sampling_rate, "mu": s.mu, "times": times} for s, times in self.plans],
            "epsilon": self.epsilon,
            "delta": self.delta,
            "settings": list(self.settings),
            "among": [list(candidate) for candidate in self.among],
            "metric": self.metric,
        }

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Selection:
        """The selection that `as_dict` wrote; ValueError, LookupError or TypeError for anything else."""
        plans = ((Step(float(p["rate"]), float(p["mu"])), int(p["times"])) for p in stored["plans"])
        return cls(
            Repetitions(float(stored["eta"]), float(stored["gamma"])),
            tuple(plans),
            float(stored["epsilon"]),
            float(stored["delta"]),
            tuple(stored["settings"]),
            tuple(tuple(candidate) for candidate in stored["among"]),
            str(stored["metric"]),
        )


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

    ValueError for Poisson or sliced steps, and for steps without noise.
    """
    steps = [(step, times) for step, times in counts if times and not step.costless]
    curve = []
    for order in ORDERS:
        divergences = [times * renyi_divergence(step, order) for step, times in steps]
        if all(math.isfinite(divergence) for divergence in divergences):
            curve.append((order, sum(divergences)))
    if not curve:
        raise ValueError("these steps have no finite Renyi divergence: there is next to no noise; add some.")
    return Renyi(tuple(order for order, _ in curve), tuple(divergence for _, divergence in curve))


def renyi_of_best(law: Repetitions, plans: Iterable[tuple[Step, int]]) -> Renyi:
    """Renyi divergences of the best of K runs, each of a candidate drawn at random: bounded by the worst plan."""
    return selected(worst_curve(renyi_of([plan]) for plan in plans), law)


def renyi_divergence(step: Step, order: float) -> float:
    """Renyi divergence of an order > 1 of one step's dominating pair, from above; inf where it cannot be computed.

    The moment E_Q (P/Q)^order is an integral of the profile with positive weights. Up to an end the profile is replaced
    by its chords in e^epsilon, which lie above it; beyond, the sampled profile is at most that of the normal laws.

    ValueError for a Poisson or a sliced step, and for one without noise.
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
    up = np.linspace(0.0, end, _NODES + 1)[1:]
    below, centre, above = dominating_masses(*curves(step, "symmetric"), up, up)
    losses, mass = np.concatenate([-up, [0.0], up]), np.concatenate([below, [centre], above])
    with quiet():
        inside = float(log_sum(r * losses + np.log(mass)))
    last = float(step_profile(step, up[-1]))
    gaussian = r * order * mu * mu / 2
    outside = [
        math.log(p * p) + gaussian + float(scipy.special.log_ndtr(-_TAIL)),  # the tail of the moment beyond the end
        math.log(max(last, 1e-300)) + math.log(2 * order) + r * end + math.log1p(math.exp(-r * end)),
    ]
    return (float(scipy.special.logsumexp([inside, *outside])) + _ROUNDING) / r
