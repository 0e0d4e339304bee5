"""Epsilon of steps by any accountant, and the noise that a budget needs."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache

import numpy as np

from fedsw._tools.later import torch
from fedsw._tools.registry import Word
from fedsw._tools.settings import whole
from fedsw.privacy.accountants import ACCOUNTANTS, GAUSSIAN, Accountant, Covers, accountant_named, require_noise
from fedsw.privacy.accounting import composition
from fedsw.privacy.accounting.composition import (
    DeltaTooSmall,
    StepCounts,
    check_delta,
    counts_of,
    epsilon,
    lower_epsilon,
)
from fedsw.privacy.accounting.profiles import Step, gaussian_profile
from fedsw.privacy.accounting.slicing import Slicing, bernstein_share, central_limit_share
from fedsw.privacy.relations import REPLACE_ONE, Sampling

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

    DeltaTooSmall for "pld", if the round-off of these steps uses delta up; ValueError for an unknown accountant, a
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


MOST_STEPS = 10**7
"""Calibration counts no further."""

_CONVENTION = {
    "without-replacement": (
        "noise multiplier = sigma / Delta, Delta the full sensitivity under the replacement of one record "
        "(twice the clip for a clipped sum)"
    ),
    "poisson": (
        "noise multiplier = sigma / Delta, Delta the sensitivity under the addition or removal of one record "
        "(the clip for a clipped sum)"
    ),
}

_SLICED_CONVENTION = (
    "noise multiplier = sigma / s, s the diameter of the features: the most that the replacement of one record moves "
    "them before slicing (2 for rows of norm at most 1)"
)

_LEAST_MULTIPLIER = 0.01
_MOST_MULTIPLIER = 2.0**27


def noise_multiplier(
    epsilon: float,
    delta: float,
    *,
    sampling_rate: float,
    steps: int,
    sampling: Sampling = "without-replacement",
    accountant: str = "pld",
    mechanism: str = GAUSSIAN,
    slicing: Slicing | None = None,
    beside: StepCounts = (),
    device: torch.device | str = "cpu",
) -> float:
    """Smallest noise multiplier sigma / sensitivity, to about 1e-5 relative, that meets epsilon.

    Guarantee: epsilon of ``steps`` steps at the returned multiplier, composed with those ``beside`` them (of settled
    noise, on the same records), as computed by the accountant, is at most ``epsilon``, with a relative margin of 1e-6
    in the multiplier for the rounding of sigma / sensitivity. A ledger on the same ``device`` reads no more. ValueError
    if epsilon is not positive and finite, or out of reach, if steps < 1, the sampling rate is not in (0, 1], delta not
    in [1e-10, 1), or used up by the round-off of these steps (DeltaTooSmall), or the accountant does not take the
    mechanism's noise.
    """
    _check(epsilon, sampling_rate, accountant, mechanism)
    steps = whole(steps, "steps", least=1)
    settled = counts_of(beside)

    def found(multiplier: float) -> float:
        rounds = (Step(sampling_rate, 1 / multiplier, sampling, slicing), steps)
        return epsilon_by(accountant, [rounds, *settled], delta, device=device)

    def excess(multiplier: float) -> float:
        """Logarithm of the epsilon reached over the target epsilon; at most 0 if the target is met."""
        try:
            read = found(multiplier)
        except DeltaTooSmall:  # of less noise the round-off is larger
            return math.inf
        far = math.log(read) - math.log(epsilon) if 0.0 < read < math.inf else read - epsilon
        return min(far, 0.0) if read <= epsilon else max(far, 1e-16)  # rounding decides nothing

    if found(_MOST_MULTIPLIER) > epsilon:
        raise ValueError(
            f"no noise multiplier meets epsilon {epsilon} at delta {delta} in {steps} steps: that is beyond "
            "floating point. Raise epsilon or delta, or lower the number of steps."
        )
    high = _least_that_meets(excess, 1 + 5e-6)
    return _round_up(high * (1 + 1e-6))


def steps(
    epsilon: float,
    delta: float,
    *,
    sampling_rate: float,
    noise_multiplier: float,
    sampling: Sampling = "without-replacement",
    accountant: str = "pld",
    mechanism: str = GAUSSIAN,
    slicing: Slicing | None = None,
    device: torch.device | str = "cpu",
) -> int:
    """Largest number of steps within epsilon; 0 if one is too many, at most ``MOST_STEPS``.

    Guarantee: epsilon of the returned number of steps, as computed by the accountant, is at most ``epsilon``. Steps
    that use delta up by their round-off (about a million at 1e-10) are too many. Raises as :func:`noise_multiplier`.
    """
    _check(epsilon, sampling_rate, accountant, mechanism)
    if not noise_multiplier > 0.0:
        raise ValueError(f"noise_multiplier is {noise_multiplier}; it must be > 0.")
    step = Step(sampling_rate, 1 / noise_multiplier, sampling, slicing)

    def fits(count: int) -> bool:
        try:
            return epsilon_by(accountant, {step: count}, delta, device=device) <= epsilon
        except DeltaTooSmall:
            return False

    # doubled, then bisected: more steps cost no less, so that what fits only turns false
    low, high = 0, 1
    while high < MOST_STEPS and fits(high):
        low, high = high, min(2 * high, MOST_STEPS)
    if high == MOST_STEPS and fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _least_that_meets(excess: Callable[[float], float], ratio: float) -> float:
    """A multiplier with an excess <= 0, where less by the ratio has a positive one: false position with bisections."""
    (low, above), (high, below) = _bracket(excess)
    left, right, least = math.log(low), math.log(high), math.log(ratio)
    tried, stays = 0, 0
    while right - left > least:
        tried += 1
        slope = above - below
        share = above / slope if math.isfinite(slope) and slope > 0.0 and tried % 4 else 0.5
        middle = min(max(left + share * (right - left), left + 0.45 * least), right - 0.45 * least)
        reached = excess(math.exp(middle))
        if reached <= 0.0:
            right, below, above = middle, reached, above / 2 if stays == 1 else above
            stays = 1
        else:
            left, above, below = middle, reached, below / 2 if stays == -1 else below
            stays = -1
    return math.exp(right)


def _bracket(excess: Callable[[float], float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Two multipliers a factor 2 apart with their excesses; only the larger meets the budget (or the least, twice)."""
    high = 1.0
    below, above = excess(high), math.inf
    if below > 0.0:
        while below > 0.0:
            high, above, below = 2 * high, below, excess(2 * high)
        return (high / 2, above), (high, below)
    while high > _LEAST_MULTIPLIER:
        above = excess(high / 2)
        if above > 0.0:
            return (high / 2, above), (high, below)
        high, below = high / 2, above
    return (high, below), (high, below)


def _round_up(value: float) -> float:
    """Round up to six significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 5)
    return max(value, float(f"{math.ceil(value / unit) * unit:.6g}"))


calibrated, affordable = noise_multiplier, steps
"""What `budget_report` calls them, as its parameters have their names."""


def _check(epsilon: float, sampling_rate: float, accountant: str, mechanism: str) -> None:
    require_noise(accountant, mechanism)
    if not 0.0 < epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon}; it must be positive and finite (inf would mean no noise).")
    if not 0.0 < sampling_rate <= 1.0:
        raise ValueError(f"sampling_rate is {sampling_rate}; it must lie in (0, 1].")


def budget_report(
    *,
    sampling_rate: float | Sequence[float],
    delta: float,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    steps: int | None = None,
    sampling: Sampling = "without-replacement",
    slicing: Slicing | None = None,
    diameter: float | None = None,
) -> dict[str, object]:
    """Solve for the one of noise multiplier, epsilon and steps that is missing, and compare accountants.

    Of the sampling rates of groups the largest decides, as all have the same noise multiplier here. The diameter is
    that of sliced features, in the units of sigma: only to say what sigma is, and what the same sigma would give if
    this bounded the norm of a row and not the distance of two.

    It is JSON-ready: the three numbers, what was ``solved``, the ``bracket`` of epsilon, rows of ``accountants``
    (:func:`compare`) and the ``convention``; with ``diameter`` one more row, "pld-norm". ValueError unless exactly two
    of the three are given, in range, and at least one step fits the epsilon; for Poisson batches of slices, or a
    diameter without slices.

    Source: docs/guarantees/accounting.md.
    """
    numbers = {"noise_multiplier": noise_multiplier, "epsilon": epsilon, "steps": steps}
    missing = [name for name, value in numbers.items() if value is None]
    if len(missing) != 1:
        raise ValueError(
            f"give exactly two of noise_multiplier, epsilon and steps; {3 - len(missing)} were given, "
            f"{', '.join(missing) or 'none'} missing."
        )
    if slicing is not None and sampling == "poisson":
        raise ValueError(
            "sampling is 'poisson' for random slices: a batch of rows shows its size. Sample without replacement."
        )
    if diameter is not None and slicing is None:
        raise ValueError(f"diameter is {diameter}, but no slicing is given; the diameter is that of sliced features.")
    if diameter is not None and not 0.0 < diameter < math.inf:
        raise ValueError(f"diameter is {diameter}; it must be positive and finite.")
    rates = [sampling_rate] if isinstance(sampling_rate, int | float) else list(sampling_rate)
    if not rates or not all(0.0 < rate <= 1.0 for rate in rates):
        raise ValueError(f"sampling_rate is {sampling_rate}; every group's rate must lie in (0, 1].")
    rate = float(max(rates))
    if noise_multiplier is None:
        assert epsilon is not None and steps is not None
        noise_multiplier = calibrated(
            epsilon, delta, sampling_rate=rate, steps=steps, sampling=sampling, slicing=slicing
        )
    elif steps is None:
        assert epsilon is not None
        steps = affordable(
            epsilon, delta, sampling_rate=rate, noise_multiplier=noise_multiplier, sampling=sampling, slicing=slicing
        )
    if not noise_multiplier > 0.0:
        raise ValueError(f"noise_multiplier is {noise_multiplier}; it must be > 0.")
    if steps < 1:
        raise ValueError(
            f"epsilon {epsilon} does not allow a single step at noise multiplier {noise_multiplier}, "
            f"sampling rate {rate}. Raise the noise multiplier or epsilon, or lower the sampling rate."
            if missing == ["steps"]
            else f"steps is {steps}; at least 1 is needed."
        )
    step = Step(rate, 1 / noise_multiplier, sampling, slicing)
    counts = {step: steps}
    lower, upper = composition.epsilon_bracket(counts, delta)
    rows = compare(counts, delta)
    report: dict[str, object] = {
        "solved": missing[0],
        "sampling": sampling,
        "relation": step.relation,
        "sampling_rate": rate,
        "delta": delta,
        "noise_multiplier": noise_multiplier,
        "steps": steps,
        "epsilon": upper,
        "bracket": {"lower": lower, "upper": upper},
        "accountants": rows,
        "convention": _CONVENTION[sampling] if slicing is None else _SLICED_CONVENTION,
    }
    if slicing is not None:
        report["slicing"] = asdict(slicing)
    if diameter is not None:
        assert slicing is not None
        report["slicing"] = {**asdict(slicing), "diameter": diameter, "sigma": noise_multiplier * diameter}
        doubled = composition.epsilon({replace(step, mu=2 * step.mu): steps}, delta)
        note = f"pld at the same sigma if {diameter:g} bounds the norm of a row: the diameter is then twice that"
        rows.insert(1, {"name": "pld-norm", "epsilon": doubled, "guarantee": True, "note": note})
    return report
