"""Privacy loss distributions on a grid, composed by Fourier transforms on a device with float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from fedsw._tools.later import torch
from fedsw.privacy.accounting._arrays import (
    Device,
    Floats,
    copied,
    extended,
    last_true,
    library,
    like,
    log_sums_above,
    on_processor,
    polar,
    put,
    quiet,
    spectrum_of,
)
from fedsw.privacy.accounting.discretise import RATES, TRUNCATION, Harmonics, grid_masses, step_moments
from fedsw.privacy.accounting.profiles import Orientation, Step
from fedsw.privacy.accounting.slicing import lost

ROUND_OFF = 3
"""How many times the round-off that the processor sets aside is set aside elsewhere.

Its own transforms and profiles may err by as much; and twice more, so that epsilon is nowhere below the processor's.
"""

_FLOAT64 = ("cpu", "cuda")


def accounting_device(wanted: torch.device | str) -> Device:
    """The device; the processor where it has no float64 (mps); ValueError for one that torch or the machine lacks."""
    if str(wanted) == "cpu":
        return "cpu" if extended() else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ValueError(f"accounting device is {str(wanted)!r}; choose one of {', '.join(_FLOAT64)}.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"accounting device is {str(wanted)!r}, but this machine offers none to torch; use 'cpu'.")
    return device if device.type == "cuda" else accounting_device("cpu")


def round_off_factor(device: Device) -> int:
    """By how much the round-off set aside on the processor is multiplied on the device."""
    return 1 if str(device) == "cpu" else ROUND_OFF


TAIL = 1e-13
"""Mass of a composition above its window, which counts in full as delta."""

LARGEST_GRID = 2**21
"""Points of the largest FFT; where more are needed the spacing widens, which stays pessimistic."""

_REMEMBERED = 8
_NEGLIGIBLE = -45.0
_FEW_HARMONICS = 4096

_T = TypeVar("_T")


@dataclass(frozen=True)
class LossGrid:
    """A window of privacy losses ``(first + i) * spacing`` for 0 <= i < size, size a power of two."""

    spacing: float
    first: int
    size: int


@dataclass(frozen=True)
class Distribution:
    """A composed privacy loss: its mass on a grid, and the excess that counts in full as delta."""

    grid: LossGrid
    mass: Any  # float64 of numpy, or of torch on a device
    excess: float

    @property
    def end(self) -> float:
        """A loss beyond which there is no mass but the excess."""
        return (self.grid.first + self.grid.size) * self.grid.spacing

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta(epsilon), for epsilon >= 0."""
        share = -library(self.mass).expm1((epsilon - self._losses()).clip(max=0.0))
        return min(1.0, float((self.mass * share).sum()) + self.excess)

    def deltas(self, epsilons: Floats) -> Floats:
        """Upper bounds on delta (n,), for many epsilon >= 0, (n,)."""
        ends = (0.0, -math.inf)  # beyond the last node
        p_above, log_q_above = (
            np.append(on_processor(part), end) for part, end in zip(self._above(), ends, strict=True)
        )
        node = (np.ceil(epsilons / self.grid.spacing).astype(np.int64) - self.grid.first).clip(0, self.grid.size)
        deltas: Floats = p_above[node] - np.exp(epsilons + log_q_above[node])
        return (deltas.clip(min=0.0) + self.excess).clip(max=1.0)

    def _above(self) -> tuple[Any, Any]:
        """P(L >= node) and ln Q(L >= node) for every node."""
        of = library(self.mass)
        p_above = of.flip(of.flip(self.mass, (0,)).cumsum(0), (0,))
        with quiet():
            return p_above, log_sums_above(of.log(self.mass) - self._losses())

    def epsilon(self, delta: float, *, near: float = 0.0) -> float:
        """Smallest epsilon >= 0 with delta(epsilon) <= delta; inf when there is none."""
        if self.excess >= delta:
            return math.inf
        losses = self._losses()
        p_above, log_q_above = self._above()
        with quiet():
            too_much = p_above - library(self.mass).exp(losses + log_q_above) > delta - self.excess
        node = last_true(too_much) + 1
        # Between the node before and this one, delta(eps) = P(L >= node) - e^eps Q(L >= node) + excess.
        surplus = float(p_above[node]) + self.excess - delta
        if surplus <= 0.0:
            return 0.0
        return max(0.0, min(math.log(surplus) - float(log_q_above[node]), float(losses[node])))

    def _losses(self) -> Any:
        index = like(np.arange(float(self.grid.size)), self.mass)
        return (index + self.grid.first) * self.grid.spacing


class Spectrum:
    """Running sum of the log-spectra of discretised steps, all on circular grids of one spacing and size.

    Guarantee: delta(epsilon) of :meth:`distribution`, on a window of :class:`Spread`, is at least that of the steps
    added: each is replaced by a dominating one, losses beyond a step's reach or above the window count in full as
    delta, what wraps round from below the window only adds mass, and :func:`round_off` covers floating point.

    Source: docs/guarantees/accounting.md.
    """

    def __init__(self, spacing: float, size: int, orientation: Orientation, device: Device) -> None:
        self._spacing, self._size = spacing, size
        self._device = device
        self._modulus, self._argument = (put(np.zeros(size // 2 + 1), device) for _ in range(2))
        self._steps = _Running(lambda step: _transform(step, orientation, spacing, size, device))

    def extend(self, counts: Mapping[Step, int]) -> None:
        """Add what ``counts`` holds more than was added so far; counts never shrink."""
        added = list(self._steps.extend(counts))
        for transform, more in added:
            self._modulus += more * transform.modulus[: len(self._modulus)]
        if added and len(self._modulus) > _FEW_HARMONICS and self._kept(_NEGLIGIBLE - 1.0) <= _FEW_HARMONICS:
            self._drop_negligible()  # before arguments are computed
        for transform, more in added:
            self._argument += more * transform.argument(len(self._argument))

    def distribution(self, first: int) -> Distribution | Harmonics:
        """The composed loss on the window that begins at ``first * spacing``."""
        excess, of = round_off(self._steps.counts, self._device), library(self._modulus)
        window = self._kept(_NEGLIGIBLE)
        if window <= min(_FEW_HARMONICS, self._size // 2):
            self._drop_negligible()
            coefficients = polar(of.exp(self._modulus[:window]), self._argument[:window])
            return Harmonics(self._spacing, first, self._size, on_processor(coefficients), excess)
        spectrum = polar(of.exp(self._modulus), self._argument)
        mass = of.roll(of.fft.irfft(spectrum, n=self._size), -first).clip(min=0.0)
        return Distribution(LossGrid(self._spacing, first, self._size), mass, excess)

    def _kept(self, modulus: float) -> int:
        """Number of frequencies up to the last one above a log modulus."""
        return last_true(self._modulus > modulus) + 1

    def _drop_negligible(self) -> None:
        """Drop the frequencies that never count again: a step's masses sum to at most 1, so none of them grows."""
        window = self._kept(_NEGLIGIBLE - 1.0)
        if window < len(self._modulus):
            self._modulus, self._argument = copied(self._modulus[:window]), copied(self._argument[:window])


class Spread:
    """Running moments of a composition on a grid (0: of any losses), and the window that nearly all its mass is in."""

    def __init__(self, spacing: float, orientation: Orientation) -> None:
        self._tails = np.zeros((2, len(RATES)))
        self.longest = self._furthest = 0.0
        self._spacing = spacing
        self._steps = _Running(lambda step: step_moments(step, orientation, spacing))
        self.variance = 0.0

    def extend(self, counts: Mapping[Step, int]) -> None:
        """Add what ``counts`` holds more than was added so far; counts never shrink."""
        for moments, more in self._steps.extend(counts):
            self.variance += more * moments.variance
            self.longest = max(self.longest, moments.longest)
            self._furthest += more * moments.longest
            if self._spacing:
                self._tails += more * moments.tails

    def window(self) -> LossGrid | None:
        """The smallest window with all the mass but ``TAIL`` on either side; None past ``LARGEST_GRID``."""
        ends = ((self._tails - math.log(TAIL)) / RATES).min(axis=1).tolist()
        highest, lowest = (min(end, self._furthest) for end in ends)
        first = -math.ceil(lowest / self._spacing) - 1
        needed = math.ceil(highest / self._spacing) + 2 - first
        if max(needed, self.longest / self._spacing) > LARGEST_GRID:
            return None
        return LossGrid(self._spacing, first, max(2 ** math.ceil(math.log2(needed)), 64))


def round_off(counts: Mapping[Step, int], device: Device = "cpu") -> float:
    """Delta set aside for truncated tails, and the round-off of the FFT and of steps' profiles (see `ROUND_OFF`)."""
    rounding = 0.0
    for step, times in counts.items():
        # with little noise a profile's error grows with the rounding of losses, which are near mu^2 / 2
        profile = step.sampling_rate * max(1.0, step.typical_mu / 64) * 2.0**-49
        rounding += times * (TRUNCATION + 2.0**-53 + profile)
    rounding += sum(times * step.stated.left_out for step, times in counts.items() if step.stated)
    left_out = sum(times * step.sampling_rate * lost(step.slicing) for step, times in counts.items() if step.slicing)
    return round_off_factor(device) * (1e-12 + TAIL + rounding + left_out)


class _Running(Generic[_T]):
    """Summands of a running sum over steps, computed once for each of the last few different steps."""

    def __init__(self, of_step: Callable[[Step], _T]) -> None:
        self._of_step = of_step
        self.counts: dict[Step, int] = {}
        self._recent: dict[Step, _T] = {}

    def extend(self, counts: Mapping[Step, int]) -> Iterator[tuple[_T, int]]:
        for step, times in counts.items():
            more = times - self.counts.get(step, 0)
            if not more:
                continue
            self.counts[step] = times
            if step not in self._recent:
                if len(self._recent) == _REMEMBERED:
                    del self._recent[next(iter(self._recent))]
                self._recent[step] = self._of_step(step)
            yield self._recent[step], more


class _Transform:
    """Log modulus and argument of one step's frequencies; arguments are computed for as many as are asked for."""

    def __init__(self, circle: Any) -> None:
        spectrum, modulus = spectrum_of(circle)
        self.modulus = modulus.clip(min=-1e6)
        self._spectrum, self._argument = spectrum, spectrum.real[:0]

    def argument(self, count: int) -> Any:
        """Arguments of the first ``count`` frequencies."""
        if len(self._argument) < count:
            self._argument = library(self._spectrum).angle(self._spectrum[:count])
        return self._argument[:count]


def _transform(step: Step, orientation: Orientation, spacing: float, size: int, device: Device) -> _Transform:
    """The transform of one step's masses, wrapped on a circle."""
    below, centre, above = grid_masses(step, orientation, spacing, device)
    circle, of = put(np.zeros(size), device), library(above)
    for start in range(0, len(above), size):
        piece = above[start : start + size]
        circle[: len(piece)] += piece
    circle = of.roll(circle, 1)  # index 0 of the pieces is a loss of one spacing
    for start in range(0, len(below), size):
        piece = of.flip(below[start : start + size], (0,))
        circle[size - len(piece) :] += piece
    circle[0] += centre
    return _Transform(circle)
