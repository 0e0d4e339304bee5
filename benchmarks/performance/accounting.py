"""Seconds of epsilon and of calibration, beside dp_accounting and Opacus on equal grids.

    python -m benchmarks.performance accounting [--quick]

The others bound Poisson sampling, one record added or removed: they have no composition of batches without replacement.
Their grids have the spacing that ours has at the end of its search; everybody computes on one thread, in turns.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import torch

from fedsw._tools.text import upward
from fedsw.privacy.accounting import Composition, Step, epsilon, noise_multiplier
from fedsw.privacy.accounting.pld import step_moments

RATE, MULTIPLIER, STEPS, DELTA = 0.01, 1.0, 5000, 1e-5
STEP = Step(RATE, 1 / MULTIPLIER)
LIMIT_EPSILON, LIMIT_CALIBRATION, LEAST_FASTER = 0.03, 0.5, 5.0


def measure(quick: bool) -> Iterator[dict[str, object]]:
    """Rows on one setting, and on its calibration."""
    torch.set_num_threads(1)
    turns = 3 if quick else 15
    spacing = _spacing()
    times = _in_turns(
        {"ours": composed, "dp": lambda: _dp_accounting(spacing), "opacus": lambda: _opacus(spacing)}, turns
    )
    what = (
        f"epsilon, {STEPS} steps without replacement, p = {RATE}, sigma / Delta = {MULTIPLIER}, delta = {upward(DELTA)}"
    )
    yield _limited(what, times["ours"], LIMIT_EPSILON)
    note = (
        "theirs is of Poisson sampling; half of ours are two Fourier transforms of 80 bits, which keep round-off small"
    )
    for name, other in (("dp_accounting's PLD", times["dp"]), ("Opacus' PRV", times["opacus"])):
        yield _compared(what, f"{name}, grid of {spacing:.3g}", times["ours"], other, LEAST_FASTER, note)
    asked = f"noise multiplier for epsilon 1 in {STEPS} steps, p = {RATE}"
    yield _limited(asked, _in_turns({"ours": calibrated}, max(3, turns // 3))["ours"], LIMIT_CALIBRATION)


def composed(device: str = "cpu") -> float:
    """Epsilon of the steps, as a process computes it that remembers nothing of them."""
    step_moments.cache_clear()
    return epsilon({STEP: STEPS}, DELTA, device=device)


def calibrated(device: str = "cpu") -> float:
    """The noise multiplier for epsilon 1, likewise."""
    step_moments.cache_clear()
    return noise_multiplier(1.0, DELTA, sampling_rate=RATE, steps=STEPS, device=device)


def _spacing() -> float:
    """Of the grid that our epsilon is read from."""
    return Composition({STEP: STEPS})._refine("symmetric", DELTA)[1]


def _dp_accounting(spacing: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_gaussian_mechanism(MULTIPLIER, value_discretization_interval=spacing, sampling_prob=RATE)
    return float(one.self_compose(STEPS).get_epsilon_for_delta(DELTA))


def _opacus(spacing: float) -> float:
    """Its own search for a grid, at the error for which the grid it finds has our spacing."""
    from opacus.accountants.prv import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(MULTIPLIER, RATE, STEPS)]
    delta_error = DELTA / 1000
    error = spacing * math.sqrt(STEPS * math.log(12 / delta_error) / 2)
    return float(accountant.get_epsilon(DELTA, eps_error=error, delta_error=delta_error))


def _in_turns(ways: Mapping[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Seconds of every way, turn by turn, after one that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if turn:
                taken[name].append(time.perf_counter() - began)
    return taken


def _limited(what: str, times: list[float], limit: float) -> dict[str, object]:
    ours = statistics.median(times)
    return {
        "what": what,
        "against": f"{limit:g} s",
        "ours": ours,
        "other": limit,
        "ratio": limit / ours,
        "goal": f"at most {limit:g} s",
        "met": ours <= limit,
        "spread": f"ours {_spread(times)}",
        "note": "" if ours <= limit else "transforms of the steps' masses, and moments for the window",
    }


def _compared(
    what: str, against: str, times: list[float], others: list[float], least: float, note: str
) -> dict[str, object]:
    ours, other = statistics.median(times), statistics.median(others)
    return {
        "what": what,
        "against": against,
        "ours": ours,
        "other": other,
        "ratio": other / ours,
        "goal": f"at least {least:g} times faster",
        "met": other >= least * ours,
        "spread": f"ours {_spread(times)}, other {_spread(others)}",
        "note": note,
    }


def _spread(times: list[float]) -> str:
    return f"{min(times):.3g} to {max(times):.3g} in {len(times)}"
