"""Privacy loss distributions on a grid, composed by Fourier transforms on a device with float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.later import torch
from fedsw.privacy.accounting._arrays import (
    Device,
    Floats,
    Values,
    copied,
    extended,
    last_true,
    library,
    like,
    log_sum,
    log_sums_above,
    on_processor,
    polar,
    put,
    quiet,
    spectrum_of,
)
from fedsw.privacy.accounting.profiles import Curve, Orientation, Step, curves, lowest_mu, reach, triangle_masses
from fedsw.privacy.accounting.slicing import lost

TRUNCATION = 1e-20
"""Mass of one step beyond its grid, which counts in full as delta."""

RATES: Floats = np.logspace(-3, 8, 111)
"""(m,) rates r at which moments E exp(r L) are kept, ten a decade."""

_LADDER = 400
_LOW_NOISE_MU = 10.0


@dataclass(frozen=True)
class LossMoments:
    """Moments of the privacy loss of one discretised step, from its nodes and their mass; ``longest`` either way."""

    variance: float
    longest: float
    losses: Floats
    mass: Floats

    @functools.cached_property
    def tails(self) -> Floats:
        """(2, m) log E exp(r L), from above, and log E exp(-r L), for the rates r of `RATES`."""
        exponents = RATES[:, None] * self.losses
        with quiet():
            logs = np.log(self.mass)
        return np.stack([log_sum(sign * exponents + logs) for sign in (1, -1)])


@functools.lru_cache(maxsize=512)  # clients of one run, and their server, charge the same steps on the same grids
def step_moments(step: Step, orientation: Orientation, spacing: float) -> LossMoments:
    """Moments of one step, on an uneven grid of multiples of the spacing (0: any losses).

    That grid dominates the even one of the same spacing and reach, being coarser, and E exp(r L), r > 0, is an
    f-divergence: the first of ``tails`` bounds that of :func:`grid_masses` from above. The second only places the
    lower end of the window, where an error costs accuracy and never privacy.
    """
    up, down = (_ladder(step, end, spacing) for end in reach(step, orientation, TRUNCATION))
    below, centre, above = dominating_masses(*curves(step, orientation), up, down)
    losses, mass = np.concatenate([-down, [0.0], up]), np.concatenate([below, [centre], above])
    mean = (mass * losses).sum()
    variance = float((mass * (losses - mean) ** 2).sum())
    return LossMoments(variance, max(float(up[-1]), float(down[-1])), losses, mass)


def grid_masses(step: Step, orientation: Orientation, spacing: float, device: Device) -> tuple[Any, Any, Any]:
    """Dominating masses of one step at -1 ... -m, at 0 and at 1 ... n times the spacing: (m,), a scalar, (n,), float64.

    Those of the lower pair "triangle" dominate nothing: they are rounded to the nearest node. A mixture of many
    profiles (random slices) is only evaluated at some of the nodes, and has no mass elsewhere.
    """
    ends = reach(step, orientation, TRUNCATION)
    if step.slicing is None:
        up, down = (put(spacing * np.arange(1.0, math.ceil(end / spacing) + 1), device) for end in ends)
        if orientation == "triangle":
            below, centre, above = triangle_masses(up, step.sampling_rate, step.mu)
            return below[: len(down)], centre, above
        return dominating_masses(*curves(step, orientation), up, down)
    up, down = (_sparse(step, end, spacing) for end in ends)
    below, centre, above = dominating_masses(*curves(step, orientation), put(up, device), put(down, device))
    return _dense(below, down, spacing), centre, _dense(above, up, spacing)


def dominating_masses(above: Curve, below: Curve, up: Values, down: Values) -> tuple[Values, Values, Values]:
    """Connect the dots: the discrete privacy loss with the profile that interpolates the pair's at the nodes.

    Guarantee: its profile, piecewise linear in e^epsilon, is nowhere below that of the pair, which is
    convex in e^epsilon; a coarser set of nodes gives a profile nowhere below that of a finer one.

    ``above`` and ``below`` are the profiles of (P, Q) and (Q, P) for epsilon >= 0, ``up`` (n,) increasing positive
    losses, ``down`` (m,) increasing sizes of negative ones. The P-mass is at -down, at 0, and at up; the rest,
    ``above(up[-1])``, sits at +inf.

    Source: docs/guarantees/accounting.md; Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022.
    """
    upper, upper_share, start = second_differences(above, up)
    same = below is above and len(up) == len(down) and bool((up == down).all())
    lower, lower_share = (upper, upper_share) if same else second_differences(below, down)[:2]
    centre = (1.0 - start - upper_share - lower_share).clip(min=0.0)
    return library(down).exp(-down) * lower, centre, upper


def second_differences(curve: Curve, losses: Values) -> tuple[Values, Values, Values]:
    """Masses (n,) at the losses (n,), the part of the first cell that falls to 0, and the curve at 0: scalars."""
    of = library(losses)
    nodes = of.concatenate([of.zeros_like(losses[:1]), losses])
    values = curve(nodes)
    falls = (values[:-1] - values[1:]).clip(min=0.0)
    with quiet():
        shares = falls / of.expm1(nodes[1:] - nodes[:-1])
    # Differences first: they are exact, and a rounded share then moves mass by one cell instead of making some.
    surplus = copied(shares)
    surplus[:-1] -= shares[1:]
    return (falls + surplus).clip(min=0.0), shares[0], values[0]


def _sparse(step: Step, longest: float, spacing: float) -> Floats:
    """The ladder's nodes, all others below 256, then one in about every 256th of the loss: adds < 1e-5 of variance."""
    last = math.ceil(longest / spacing)
    octaves = max(0.0, math.log(last / 256))
    far = np.logspace(0, octaves, int(256 * octaves) + 1, base=math.e) * 256
    near = np.arange(1.0, min(last, 256) + 1)
    chosen = np.concatenate([near, far.round().clip(max=last), _ladder(step, longest, spacing) / spacing])
    return np.unique(chosen) * spacing


def _dense(mass: Values, nodes: Floats, spacing: float) -> Values:
    index = (nodes / spacing).round() - 1
    dense: Values = like(np.zeros(int(index[-1]) + 1), mass)
    dense[like(index.astype(np.int64), mass)] = mass
    return dense


def _ladder(step: Step, longest: float, spacing: float) -> Floats:
    shortest = 1e-2 * step.sampling_rate * min(step.typical_mu, 1.0)
    low = math.log10(min(max(shortest, spacing), longest) / 10)
    ladder: Floats = np.logspace(low, math.log10(longest), _LADDER)
    if step.typical_mu > _LOW_NOISE_MU:
        ladder = np.unique(np.concatenate([_bulk(step, longest), ladder]))
    if spacing == 0.0:
        return ladder
    last = math.ceil(longest / spacing)
    multiples: Floats = np.unique(np.ceil(ladder / spacing).clip(max=last))
    multiples[-1] = last
    return multiples * spacing


def _bulk(step: Step, longest: float) -> Floats:
    """Even nodes where a low-noise step's loss is, near mu^2 / 2 give or take mu: a ladder may have one node there."""
    mu = lowest_mu(step)
    start = max(mu * mu / 2 - 10 * mu, longest / _LADDER)
    nodes = np.linspace(start, longest, _LADDER)
    return nodes[:-1] if start < longest else nodes[:0]


_Complex = NDArray[np.complex128]


@dataclass(frozen=True)
class Harmonics:
    """A privacy loss known by the low frequencies of its mass on a grid; the others are negligible.

    After a few dozen steps a composition is smooth: some tens of frequencies out of 10^5 hold all of it
    above 1e-19. By Parseval, delta(epsilon) = (1/N) sum_k F_k S_k(epsilon), where S_k, the transform of the
    hockey stick on the grid, is a difference of two geometric sums: a reading costs O(frequencies).

    ``coefficients`` (k,) are F_0 ... F_{k-1}, k <= N / 2, of a grid of ``size`` N with the lowest loss ``first`` times
    the ``spacing``; ``excess`` is mass that counts in full as delta.

    Source: docs/guarantees/accounting.md.
    """

    spacing: float
    first: int
    size: int
    coefficients: _Complex
    excess: float

    @property
    def end(self) -> float:
        """A loss beyond which there is no mass but the excess."""
        return (self.first + self.size) * self.spacing

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta(epsilon), for epsilon >= 0."""
        above, weighted = self._tails(epsilon)
        return min(1.0, max(0.0, above - weighted) + self.excess)

    def deltas(self, epsilons: Floats) -> Floats:
        """Upper bounds on delta (n,), for many epsilon >= 0, (n,)."""
        return np.array([self.delta(epsilon) for epsilon in epsilons.tolist()])

    def epsilon(self, delta: float, *, near: float = 0.0) -> float:
        """Smallest epsilon >= 0 with delta(epsilon) <= delta, to 1e-11 relative from above; inf without one."""
        if self.excess >= delta:
            return math.inf
        target = delta - self.excess
        lowest, highest = 0.0, self.end
        guess = near if lowest < near < highest else lowest
        while True:
            above, weighted = self._tails(guess)
            value = above - weighted
            if value <= target:
                highest = guess
            else:
                lowest = guess
            # Newton on log delta, whose slope is -weighted / value; it is concave, so the end comes from above.
            move = math.log(value / target) * value / weighted if min(value, weighted) > 0 else math.inf
            close = 1e-11 * highest + 1e-16
            if highest - lowest <= close or (value <= target and abs(move) <= close):
                return highest
            guess += move
            if not lowest < guess < highest:
                guess = (lowest + highest) / 2

    def _tails(self, epsilon: float) -> tuple[float, float]:
        """P(L > epsilon) and e^epsilon Q(L > epsilon) within the window."""
        stop = self.first + self.size
        start = max(math.floor(epsilon / self.spacing) + 1, self.first)
        if start >= stop:
            return 0.0, 0.0
        plain, damped, plain_end, damped_end = self._geometric
        begin = self._phase(start)[1:]
        mean = self.coefficients[0].real / self.size  # the constant's sums, which lose all digits as differences
        above = mean * (stop - start) + np.vdot(plain, begin).real - plain_end
        weighted = math.exp(epsilon - start * self.spacing) * (
            mean * math.expm1((start - stop) * self.spacing) / math.expm1(-self.spacing) + np.vdot(damped, begin).real
        )
        return float(above), float(weighted - math.exp(epsilon - stop * self.spacing) * damped_end)

    @functools.cached_property
    def _geometric(self) -> tuple[_Complex, _Complex, float, float]:
        """For k > 0, conjugates of 2 F / (N (1 - z)) and 2 F / (N (1 - z e^-spacing)); their sums at the end."""
        doubled = self.coefficients[1:] * (2.0 / self.size)
        angle = 2 * math.pi / self.size * np.arange(1, len(self.coefficients))
        chord = 2 * np.sin(angle / 2) ** 2 - 1j * np.sin(angle)  # 1 - z, accurate for small angles
        plain = np.conj(doubled / chord)
        damped = np.conj(doubled / (-math.expm1(-self.spacing) + math.exp(-self.spacing) * chord))
        end = self._phase(self.first + self.size)[1:]
        return plain, damped, float(np.vdot(plain, end).real), float(np.vdot(damped, end).real)

    def _phase(self, index: int) -> _Complex:
        """z^index for z = exp(2 pi i k / N), the exponent reduced modulo N exactly."""
        turns = self._numbers * (index % self.size) % self.size
        phase: _Complex = np.exp(2j * math.pi / self.size * turns)
        return phase

    @functools.cached_property
    def _numbers(self) -> NDArray[np.int64]:
        return np.arange(len(self.coefficients))


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
        transform = _kept_transform if size <= 2**14 and isinstance(device, str) else _transform
        self._steps = _Running(lambda step: transform(step, orientation, spacing, size, device))

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
        if len(argument := self._argument) < count:  # another thread may put a shorter one in its place
            argument = self._argument = library(self._spectrum).angle(self._spectrum[:count])
        return argument[:count]


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


# Runs of the same settings, and the search for their noise, ask for the same small transforms: 16 MB at most.
_kept_transform = functools.lru_cache(maxsize=64)(_transform)
