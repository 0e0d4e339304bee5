"""The least noise, or the largest number of steps, that a privacy budget allows, and a report of it.

`budget_report` answers which of noise, epsilon and steps is missing, and says what other accountants would say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from fedsw._tools.later import torch
from fedsw._tools.settings import whole
from fedsw.privacy.accountants import GAUSSIAN, require_noise
from fedsw.privacy.accounting import composition
from fedsw.privacy.accounting.composition import DeltaTooSmall, StepCounts, counts_of
from fedsw.privacy.accounting.epsilons import compare, epsilon_by
from fedsw.privacy.accounting.profiles import Step
from fedsw.privacy.accounting.slicing import Slicing
from fedsw.privacy.relations import Sampling

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
    in [1e-10, 1), or used up by the round-off of so many steps (DeltaTooSmall), or the accountant does not take the
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
