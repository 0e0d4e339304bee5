"""Epsilon of steps by each accountant, shipped or a user's own (`accountant`), and whether it is a guarantee.

Their names and what is known of each without a computation are in `fedsw.privacy.accountants`.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from fedsw._tools.later import torch
from fedsw._tools.registry import Word
from fedsw.privacy.accountants import ACCOUNTANTS, GAUSSIAN, Accountant, Covers, accountant_named
from fedsw.privacy.accounting.composition import (
    DeltaTooSmall,
    StepCounts,
    check_delta,
    counts_of,
    epsilon,
    lower_epsilon,
)
from fedsw.privacy.accounting.profiles import Step, gaussian_profile
from fedsw.privacy.accounting.slicing import bernstein_share, central_limit_share
from fedsw.privacy.relations import REPLACE_ONE

_LEAST_MU = 1e-7
"""Below it dp_accounting's formulas leave floating point; a million such steps add less than 1e-5 up to order 1024."""

Counts = Sequence[tuple[Step, int]]
"""Steps, and how often each is taken."""

Own = Callable[[Counts, float], float]
"""(steps, delta) to epsilon."""

_TRIED = (((Step(1.0, 0.5), 1),), ((Step(0.01, 1.0), 100), (Step(0.3, 0.2), 20)), ((Step(0.05, 2.0), 10),))
"""Steps with a known lower bound on epsilon, to compare a stated upper bound with."""


def accountant(
    name: str,
    *,
    note: str,
    upper_bound: bool = False,
    covers: Covers = "plain",
    takes: Sequence[str] = (GAUSSIAN,),
) -> Callable[[Own], Own]:
    """Give this process an accountant of one's own: `@accountant("mine", note=...)` over (steps, delta) to epsilon.

    The function is not asked about steps that cost nothing, that have no noise, or that `covers` leaves out. Nothing
    proves that its epsilon is an upper bound: the record of a run says who asserts it, a client with a limit on
    epsilon refuses it, and an audit recomputes nothing for it.

    Its name is that of `privacy.accountant`, and in ledgers, which open only where it is registered; for ``note``,
    ``covers`` and ``takes`` see `fedsw.privacy.accountants.Accountant`. A stated
    ``upper_bound`` on epsilon is compared with known lower bounds: ValueError if it is smaller.
    """

    def registered(function: Own) -> Own:
        if name in ACCOUNTANTS:
            raise ValueError(f"there is an accountant {name!r}; give yours another name")
        noises: dict[str, Word] = dict.fromkeys(takes, "stated" if upper_bound else "none")
        made = Accountant(name, False, note, covers, noises, stated=upper_bound, epsilon=function)
        if upper_bound and covers != "sliced" and GAUSSIAN in takes:
            _require_above(name, function)
        ACCOUNTANTS.register(name, made)
        return function

    return registered


def _require_above(name: str, function: Own) -> None:
    for steps in _TRIED:
        stated, least = function(steps, 1e-5), lower_epsilon(steps, 1e-5)
        if not stated >= least * (1 - 1e-6):
            raise ValueError(
                f"accountant {name!r} says epsilon = {stated} at delta = 1e-5 for {list(steps)}, and none is below "
                f"{least:.6g}: it is no upper bound"
            )


def epsilon_by(accountant: str, steps: StepCounts, delta: float, *, device: torch.device | str = "cpu") -> float:
    """Epsilon of the steps at delta, by the named accountant; "pld" composes on the device.

    Guarantee: only if ``ACCOUNTANTS.get(accountant).guarantee``; "rdp-wor" and the accountants that use it only bound
    sampling without replacement.

    DeltaTooSmall for "pld", if the round-off of so many steps uses delta up; ValueError for an unknown accountant, a
    delta outside [1e-10, 1), or steps that it does not cover; ModuleNotFoundError for "rdp-wor" and what uses it,
    without dp_accounting.
    """
    check_delta(delta)
    chosen, counts = accountant_named(accountant), _reduced(steps)
    if reason := _not_covered(chosen, counts):
        raise ValueError(f"accountant {accountant} is {reason}; choose pld.")
    if chosen.renyi and any(step.relation != REPLACE_ONE for step, _ in counts):
        raise ValueError(f"{accountant} bounds sampling without replacement; a Poisson step has no epsilon there.")
    counts = [(step, times) for step, times in counts if times and not step.costless]
    if len(relations := sorted({step.relation for step, _ in counts})) > 1:
        raise ValueError(f"steps for {' and '.join(relations)} neighbours: the two relations bound different things.")
    if not counts:
        return 0.0
    if any(math.isinf(step.mu) for step, _ in counts):
        return math.inf
    assert chosen.epsilon is not None
    stated = float(chosen.epsilon(counts, delta, **({"device": device} if chosen.numeric else {})))
    if not stated >= 0.0:
        raise ValueError(f"accountant {accountant} says epsilon = {stated}; an epsilon is at least 0, or infinite.")
    return stated


def compare(steps: StepCounts, delta: float) -> list[dict[str, object]]:
    """Compare all accountants made for such steps: rows of name, epsilon (None if it has none), guarantee, note."""
    counts = _reduced(steps)
    other = "plain" if any(step.slicing for step, _ in counts) else "sliced"
    rows: list[dict[str, object]] = []
    for name, candidate in ACCOUNTANTS.items():
        if candidate.covers == other or GAUSSIAN not in candidate.takes:
            continue
        value, note = None, candidate.note
        if candidate.renyi and any(step.relation != REPLACE_ONE for step, _ in counts):
            note = "not for Poisson sampling"
        elif reason := _not_covered(candidate, counts):
            note = reason
        elif candidate.renyi and importlib.util.find_spec("dp_accounting") is None:
            note = "dp_accounting is not installed (pip install '.[compare]' in fedsw's checkout); " + note
        else:
            try:
                value = epsilon_by(name, counts, delta)
            except DeltaTooSmall as reason:
                note = str(reason)
        rows.append({"name": name, "epsilon": value, "guarantee": candidate.guarantee, "note": note})
    return rows


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of mu-GDP at delta, rounded up: the root of Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) = delta."""
    if math.isinf(mu):
        return math.inf

    def exceeds(value: float) -> bool:
        return float(gaussian_profile(np.array(value), mu)) > delta

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
    return [(step.reduced, times) for step, times in counts_of(steps)]


def _not_covered(accountant: Accountant, counts: Counts) -> str:
    """Reason why the accountant has no epsilon for these steps; empty if it has one."""
    schemes = {step.slicing.scheme for step, _ in counts if step.slicing}
    if accountant.covers == "plain" and schemes:
        return "not for random slices"
    if accountant.covers == "sliced" and "orthogonal" in schemes:
        return "only for slices through independent directions"
    return ""


def _sliced_epsilon(counts: Counts, delta: float, share: Callable[[int, int, float], float], failure: float) -> float:
    """Slices as normal laws at mu sqrt(share(d, k, failure)), the other half of delta set aside for larger shares."""
    if not any(step.slicing for step, _ in counts):
        return _rdp_epsilon(counts, delta)

    def bounded(step: Step) -> Step:
        if step.slicing is None:
            return step
        return replace(step, mu=step.mu * math.sqrt(share(step.slicing.d, step.slicing.k, failure)), slicing=None)

    return _rdp_epsilon([(bounded(step), times) for step, times in counts], delta / 2)


def _clt_mu(counts: Counts, variance: Callable[[float], float]) -> float:
    """The limit of many small steps is mu-GDP; squares add over steps."""
    try:
        return math.sqrt(sum(times * step.sampling_rate**2 * variance(step.mu) for step, times in counts))
    except OverflowError:
        return math.inf


def _normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def _rdp_epsilon(counts: Counts, delta: float) -> float:
    from dp_accounting import rdp

    orders = rdp.RdpAccountant().orders
    spent = [0.0] * len(orders)
    for step, times in counts:
        of_step = _renyi_divergences(step.sampling_rate, step.mu)
        spent = [sofar + times * divergence for sofar, divergence in zip(spent, of_step, strict=True)]
    return float(rdp.compute_epsilon(orders, spent, delta)[0])


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


_SHIPPED: Mapping[str, Callable[..., float]] = {
    "pld": epsilon,
    "gdp-clt-uniform": lambda counts, delta: gaussian_epsilon(
        _clt_mu(counts, lambda mu: 2 * (math.exp(mu * mu) * _normal_cdf(1.5 * mu) + 3 * _normal_cdf(-0.5 * mu) - 2)),
        delta,
    ),
    "gdp-clt-poisson": lambda counts, delta: gaussian_epsilon(_clt_mu(counts, lambda mu: math.expm1(mu * mu)), delta),
    "rdp-wor": _rdp_epsilon,
    # the half of delta set aside for larger shares is divided over the slices that a record is expected in
    "bernstein": lambda counts, delta: _sliced_epsilon(
        counts,
        delta,
        bernstein_share,
        delta / 2 / max(1.0, sum(times * step.sampling_rate for step, times in counts if step.slicing)),
    ),
    "bernstein-published": lambda counts, delta: _sliced_epsilon(counts, delta, bernstein_share, delta / 2),
    "clt": lambda counts, delta: _sliced_epsilon(counts, delta, central_limit_share, delta / 2),
    "laplace": lambda counts, delta: sum(times * step.mu for step, times in counts),
}
for _name, _computed in _SHIPPED.items():
    ACCOUNTANTS.amend(_name, replace(ACCOUNTANTS.get(_name), epsilon=_computed))
