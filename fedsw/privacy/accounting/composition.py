"""Epsilon and delta of any composition of steps, from above.

Source: docs/guarantees/accounting.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import get_args

from fedsw._tools.later import torch
from fedsw._tools.settings import whole
from fedsw._tools.text import upward
from fedsw.privacy.accounting._arrays import Device
from fedsw.privacy.accounting.pld import (
    LARGEST_GRID,
    Distribution,
    Harmonics,
    Spectrum,
    Spread,
    accounting_device,
    round_off,
)
from fedsw.privacy.accounting.profiles import LARGEST_MU, Orientation, Step, orientations

SMALLEST_DELTA = 1e-10
"""Below it, floating point would decide: delta is refused."""

_SMALL_DELTA = 1e-8
_LARGEST_MU = 1e4
_SMALLEST_MU = 1e-9
_SMALLEST_RATE = 1e-15


class DeltaTooSmall(ValueError):
    """A delta that the round-off of the steps uses up: no epsilon is certain at it."""


StepCounts = Mapping[Step, int] | Iterable[tuple[Step, int]]


def counts_of(steps: StepCounts) -> list[tuple[Step, int]]:
    """Steps, and how often each is taken; ValueError if that is not a whole number of 0 or more."""
    counts = steps.items() if isinstance(steps, Mapping) else steps
    return [(step, whole(times, "times a step is taken", least=0)) for step, times in counts]


class Composition:
    """Steps taken so far, in any order, and what they cost together.

    Guarantee: epsilon(delta) and delta(epsilon) are upper bounds for the composition of the steps' dominating
    pairs, so for any mechanisms with these sampling rates and sensitivities, under the steps' relation, against
    an observer of all releases. Parameters of the steps may not depend on the data. Accuracy: epsilon exceeds the
    exact value for the pairs by less than 1e-3, and by less than 1e-3 of the loss's standard deviation. Low-noise steps
    (mu > 100), too large for a grid that fine, cost about a millionth of their longest loss for every step of
    the composition, at most; low-noise slices half a percent.

    Losses are put on grids and composed on the ``device``, in float64: on the processor instead of a device that has
    none (mps). Elsewhere than on the processor more is set aside for round-off, so that epsilon is not below the
    processor's (`accounting.pld`). Windows and spacings are chosen on the processor. ``sides`` are pairs to
    compose instead of the steps' dominating ones; what is then found is about these only.
    """

    def __init__(
        self,
        steps: StepCounts = (),
        *,
        device: torch.device | str = "cpu",
        sides: tuple[Orientation, ...] | None = None,
    ) -> None:
        self._wanted = device
        if device != "cpu":
            accounting_device(device)  # one that is not there is refused at once
        if unknown := set(sides or ()) - set(get_args(Orientation)):
            raise ValueError(f"sides are {', '.join(map(repr, unknown))}; there are {', '.join(get_args(Orientation))}")
        self._pairs = sides
        self._counts: dict[Step, int] = {}
        self._noiseless = False
        self._relation: str | None = None
        self._spreads: dict[tuple[Orientation, float], Spread] = {}
        self._spectra: dict[tuple[Orientation, float, int], Spectrum] = {}
        self._last: dict[Orientation, float] = {}  # epsilon at the last reading: where the next search begins
        for step, times in counts_of(steps):
            self.add(step, times)

    @cached_property
    def _device(self) -> Device:
        """The accounting device, looked up when something is first composed: reading a ledger needs none."""
        return accounting_device(self._wanted)

    def add(self, step: Step, times: int = 1) -> None:
        """Take a step ``times`` more; ValueError if they are for another neighbouring relation, or no whole number."""
        times = whole(times, "times a step is taken", least=0)
        if self._relation not in (None, step.relation):
            raise ValueError(
                f"a {step.sampling} step ({step.relation}) cannot be composed with steps for {self._relation} "
                "neighbours: the two relations bound different things. Account for them separately."
            )
        if times == 0:
            return
        self._relation = step.relation
        if step.costless:
            return
        if step.mu > _LARGEST_MU:
            self._noiseless = True
            return
        step = step.reduced
        if step.stated is None:
            step = replace(step, sampling_rate=max(step.sampling_rate, _SMALLEST_RATE), mu=max(step.mu, _SMALLEST_MU))
        self._counts[step] = self._counts.get(step, 0) + times

    def epsilon(self, delta: float) -> float:
        """Epsilon such that the composition is (epsilon, delta)-DP; 0 for no steps, inf without noise, or `beyond`."""
        check_delta(delta)
        if self._noiseless:
            return math.inf
        return max((self._refine(side, delta)[0] for side in self._sides), default=0.0)

    def beyond(self, delta: float) -> str | None:
        """Reason why no epsilon can be vouched for at delta although there is noise; None if one can."""
        aside, count = round_off(self._counts, self._device), sum(self._counts.values())
        if self._noiseless or not count or aside < delta:
            return None
        return (
            f"delta is {upward(delta, 6)}, and {aside:.2g} of it is set aside for the floating-point round-off of "
            f"{count} steps ({aside / count:.1g} a step), so that no epsilon can be vouched for. Use a delta of "
            f"{upward(2 * aside, 2)} or more, or fewer steps."
        )

    def lower_epsilon(self, delta: float) -> float:
        """Epsilon of the dominating pairs themselves, from below: their value less the discretisation error.

        Not a guarantee: no smaller epsilon is true where real neighbours meet the pair. The error is an estimate.
        """
        check_delta(delta)
        if self._noiseless:
            return math.inf
        lenient = delta + 2 * round_off(self._counts, self._device)
        lower = []
        for side in self._sides:
            fine, spacing = self._refine(side, lenient)
            coarse = self._on_grid(side, 2 * spacing).epsilon(lenient, near=fine)
            lower.append(2 * fine - coarse if coarse < math.inf else 0.0)
        return max(lower, default=0.0)

    def delta(self, epsilon: float) -> float:
        """Delta at an epsilon >= 0, such that the composition is (epsilon, delta)-DP; 0 for no steps, else >= 1e-12."""
        if not epsilon >= 0.0:
            raise ValueError(f"epsilon is {epsilon}; it must be >= 0.")
        if self._noiseless:
            return 1.0
        if math.isinf(epsilon):
            return round_off(self._counts, self._device)
        return max((self._finest_delta(side, epsilon) for side in self._sides), default=0.0)

    def within(self, epsilon: float, delta: float) -> bool:
        """True if one reading shows (epsilon, delta)-DP, so that :meth:`epsilon` is no more; False leaves it open."""
        check_delta(delta)
        if math.isinf(epsilon) or self._noiseless:
            return math.isinf(epsilon)
        grids = (self._on_grid(side, self._first_spacing(side, _quantile(delta))) for side in self._sides)
        return all(grid.delta(epsilon) <= delta for grid in grids)

    def reading(self) -> Distribution | Harmonics:
        """One grid that bounds delta(epsilon) from above at every epsilon, fine enough for all that are not tiny.

        ValueError for no steps, steps without noise, and those of which two pairs are to be compared.
        """
        if self._noiseless or len(self._sides) != 1:
            raise ValueError("there is no one grid for these steps")
        (side,) = self._sides
        return self._on_grid(side, self._refine(side, _SMALL_DELTA)[1])

    @property
    def _sides(self) -> tuple[Orientation, ...]:
        if not self._counts:
            return ()
        return orientations(next(iter(self._counts))) if self._pairs is None else self._pairs

    def _refine(self, side: Orientation, delta: float) -> tuple[float, float]:
        """Epsilon on a grid that is fine enough, and its spacing: with twice that, epsilon would hardly be larger."""
        deviation = math.sqrt(self._spread(side, 0.0).variance)
        spacing = self._first_spacing(side, _quantile(delta))
        fine = self._on_grid(side, spacing).epsilon(delta, near=self._last.get(side, 0.0))
        while fine < math.inf:
            hardly_larger = fine + 1e-3 * min(1.0, max(deviation, fine))
            if self._on_grid(side, 2 * spacing).delta(hardly_larger) <= delta:
                break
            spacing /= 2
            fine = min(fine, self._on_grid(side, spacing).epsilon(delta, near=fine))
        self._last[side] = fine
        return fine, spacing

    def _finest_delta(self, side: Orientation, epsilon: float) -> float:
        spacing = self._first_spacing(side, 6.0)
        coarse, fine = (self._on_grid(side, width).delta(epsilon) for width in (2 * spacing, spacing))
        while coarse > 1.01 * fine:
            spacing /= 2
            coarse, fine = fine, self._on_grid(side, spacing).delta(epsilon)
        return min(coarse, fine)

    def _first_spacing(self, side: Orientation, quantile: float) -> float:
        """Power of two that inflates the variance little enough to move epsilon by about 3e-4 deviations."""
        # A loss between two nodes gains a sixth of the squared spacing; epsilon is near variance/2 + quantile*std.
        spread = self._spread(side, 0.0)
        deviation = max(math.sqrt(spread.variance), 1e-100)
        slope = 0.5 + quantile / (2 * deviation)
        count = sum(self._counts.values())
        widest = math.sqrt(6 * 3e-4 * min(1.0, deviation) / (count * slope))
        return float(2.0 ** math.floor(math.log2(max(widest, spread.longest / LARGEST_GRID))))

    def _on_grid(self, side: Orientation, spacing: float) -> Distribution | Harmonics:
        """The composition on a grid of that spacing, or of the next wider one that fits in memory."""
        grid = self._spread(side, spacing).window()
        if grid is None:
            return self._on_grid(side, 2 * spacing)
        key = (side, grid.spacing, grid.size)
        if key not in self._spectra:
            self._spectra[key] = Spectrum(grid.spacing, grid.size, side, self._device)
            # The last few of a side stay: as steps accumulate, windows grow and spacings shrink.
            for old in [kept for kept in self._spectra if kept[0] == side][:-3]:
                del self._spectra[old]
        self._spectra[key].extend(self._counts)
        return self._spectra[key].distribution(grid.first)

    def _spread(self, side: Orientation, spacing: float) -> Spread:
        key = (side, spacing)
        if key not in self._spreads:
            self._spreads[key] = Spread(spacing, side)
        self._spreads[key].extend(self._counts)
        return self._spreads[key]


def epsilon(steps: StepCounts, delta: float, *, device: torch.device | str = "cpu") -> float:
    """Epsilon of a composition at delta, from above. See :class:`Composition`.

    DeltaTooSmall if round-off uses delta up, naming how much of it; ValueError if delta is not in [1e-10, 1).
    """
    composition = Composition(steps, device=device)
    value = composition.epsilon(delta)
    if math.isinf(value) and (reason := composition.beyond(delta)):
        raise DeltaTooSmall(reason)
    return value


def epsilon_bracket(steps: StepCounts, delta: float) -> tuple[float, float]:
    """Bound what the steps cost at least and at most, knowing only their sampling rates and noise multipliers.

    It is (lower, upper). Upper is the guarantee. Lower is the larger epsilon of two pairs that mechanisms of these
    sampling rates and sensitivities show to real neighbours, so that no epsilon derived from (p, mu) alone can be
    smaller: (1 - p) N(0, 1) + p N(mu, 1) against N(0, 1), the worse direction (all contributions zero but the
    replaced one), and (1-p)R + pA against (1-p)R + pB with R, A and B at distance mu from each other in the plane
    (`accounting.profiles`; left out for mu above 10, for slices that may leave any share of mu, and without
    sampling, where it is the first).
    For Poisson steps the first pair is the dominating one, and the bracket closes up to the discretisation.
    """
    counts = counts_of(steps)
    upper, lower = epsilon(counts, delta), lower_epsilon(counts, delta)
    plain = [step.reduced for step, _ in counts]
    # the pair in the plane is of plain normal noise, and beyond this mu its quadrature would take too many nodes
    triangles = all(
        step.sampling == "without-replacement" and not (step.slicing or step.stated) and step.mu <= LARGEST_MU
        for step in plain
    )
    if triangles and any(step.sampling_rate < 1.0 for step, _ in counts):
        lower = max(lower, Composition(counts, sides=("triangle",)).lower_epsilon(delta))
    return min(upper, lower), upper


def lower_epsilon(steps: StepCounts, delta: float) -> float:
    """Compute epsilon of (1 - p) N(0, 1) + p N(mu, 1) against N(0, 1) at every step, the worse direction, from below.

    That is the leak when replacing a record moves a sum to which all others add a constant; it grows with every
    p and mu.
    The discretisation error is estimated, see :meth:`Composition.lower_epsilon`.
    """
    met = [(replace(step, sampling="poisson"), times) for step, times in counts_of(steps)]
    return Composition(met).lower_epsilon(delta)


def _quantile(delta: float) -> float:
    """Approximate number of standard deviations above its mean that the loss exceeds with probability delta."""
    return math.sqrt(2 * math.log(1 / delta))


def check_delta(delta: float) -> None:
    """Refuse a delta outside [1e-10, 1), which floating point cannot vouch for."""
    if not SMALLEST_DELTA <= delta < 1.0:
        raise ValueError(
            f"delta is {delta}; it must be at least {SMALLEST_DELTA} (below, floating-point round-off decides) "
            "and less than 1. 0.1 / (number of records) is a common choice."
        )
