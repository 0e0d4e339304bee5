"""A report of a privacy budget: whichever of noise, epsilon and steps is missing, and what other accountants say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace

from fedsw.privacy.accounting import _calibration as calibration
from fedsw.privacy.accounting import composition
from fedsw.privacy.accounting.epsilons import compare
from fedsw.privacy.accounting.profiles import Step
from fedsw.privacy.accounting.slicing import Slicing
from fedsw.privacy.relations import Sampling

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
    _check_slices(sampling, slicing, diameter)
    rates = [sampling_rate] if isinstance(sampling_rate, int | float) else list(sampling_rate)
    if not rates or not all(0.0 < rate <= 1.0 for rate in rates):
        raise ValueError(f"sampling_rate is {sampling_rate}; every group's rate must lie in (0, 1].")
    rate = float(max(rates))
    if noise_multiplier is None:
        assert epsilon is not None and steps is not None
        noise_multiplier = calibration.noise_multiplier(
            epsilon, delta, sampling_rate=rate, steps=steps, sampling=sampling, slicing=slicing
        )
    elif steps is None:
        assert epsilon is not None
        steps = calibration.steps(
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


def _check_slices(sampling: Sampling, slicing: Slicing | None, diameter: float | None) -> None:
    if slicing is not None and sampling == "poisson":
        raise ValueError(
            "sampling is 'poisson' for random slices: a batch of rows shows its size. Sample without replacement."
        )
    if diameter is None:
        return
    if slicing is None:
        raise ValueError(f"diameter is {diameter}, but no slicing is given; the diameter is that of sliced features.")
    if not 0.0 < diameter < math.inf:
        raise ValueError(f"diameter is {diameter}; it must be positive and finite.")
