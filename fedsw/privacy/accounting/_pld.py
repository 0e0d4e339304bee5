"""Privacy loss distributions on a grid, composed by Fourier transforms on a device with float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from fedsw._tools.later import torch
from fedsw.privacy.accounting._discretise import TRUNCATION, Harmonics, grid_masses, rates, step_moments
from fedsw.privacy.accounting._slicing import lost
from fedsw.privacy.accounting.profiles import Orientation, Step

if TYPE_CHECKING:
    from torch import Tensor


ROUND_OFF = 3
"""How many times the round-off that the processor sets aside is set aside elsewhere.

Its own transforms and profiles may err by as much; and twice more, so that epsilon is nowhere below the processor's.
"""

_FLOAT64 = ("cpu", "cuda")


def accounting_device(wanted: torch.device | str) -> torch.device:
    """The device; the processor where it has no float64 (mps); ValueError for one that torch or the machine lacks."""
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ValueError(f"accounting device is {str(wanted)!r}; choose one of {', '.join(_FLOAT64)}.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"accounting device is {str(wanted)!r}, but this machine offers none to torch; use 'cpu'.")
    return device if device.type in _FLOAT64 else torch.device("cpu")


def round_off_factor(device: torch.device) -> int:
    """By how much the round-off set aside on the processor is multiplied on the device."""
    return 1 if device.type == "cpu" else ROUND_OFF


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
    mass: Tensor
    excess: float

    @property
    def end(self) -> float:
        """A loss beyond which there is no mass but the excess."""
        return (self.grid.first + self.grid.size) * self.grid.spacing

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta(epsilon), for epsilon >= 0."""
        share = -torch.expm1((epsilon - self._losses()).clamp(max=0.0))
        return min(1.0, float((self.mass * share).sum()) + self.excess)

    def deltas(self, epsilons: Tensor) -> Tensor:
        """Upper bounds on delta (n,), for many epsilon >= 0, (n,)."""
        p_above, log_q_above = (torch.cat([part, part.new_full((1,), end)]) for part, end in self._above())
        node = (epsilons / self.grid.spacing).ceil().long().sub(self.grid.first).clamp(0, self.grid.size)
        deltas = p_above[node] - torch.exp(epsilons + log_q_above[node])
        return (deltas.clamp(min=0.0) + self.excess).clamp(max=1.0)

    def _above(self) -> tuple[tuple[Tensor, float], tuple[Tensor, float]]:
        """P(L >= node) and ln Q(L >= node) for every node, each with what it is beyond the last."""
        p_above = self.mass.flip(0).cumsum(0).flip(0)
        log_q_above = torch.logcumsumexp((self.mass.log() - self._losses()).flip(0), 0).flip(0)
        return (p_above, 0.0), (log_q_above, -math.inf)

    def epsilon(self, delta: float, *, near: float = 0.0) -> float:
        """Smallest epsilon >= 0 with delta(epsilon) <= delta; inf when there is none."""
        if self.excess >= delta:
            return math.inf
        losses = self._losses()
        (p_above, _), (log_q_above, _) = self._above()
        too_much = p_above - torch.exp(losses + log_q_above) > delta - self.excess
        node = int(too_much.nonzero().max()) + 1 if bool(too_much.any()) else 0
        # Between the node before and this one, delta(eps) = P(L >= node) - e^eps Q(L >= node) + excess.
        surplus = float(p_above[node]) + self.excess - delta
        if surplus <= 0.0:
            return 0.0
        return max(0.0, min(math.log(surplus) - float(log_q_above[node]), float(losses[node])))

    def _losses(self) -> Tensor:
        index = torch.arange(self.grid.size, dtype=torch.float64, device=self.mass.device)
        return (index + self.grid.first) * self.grid.spacing


class Spectrum:
    """Running sum of the log-spectra of discretised steps, all on circular grids of one spacing and size.

    Guarantee: delta(epsilon) of :meth:`distribution`, on a window of :class:`Spread`, is at least that of the steps
    added: each is replaced by a dominating one, losses beyond a step's reach or above the window count in full as
    delta, what wraps round from below the window only adds mass, and :func:`round_off` covers floating point.

    Source: docs/guarantees/accounting.md.
    """

    def __init__(self, spacing: float, size: int, orientation: Orientation, device: torch.device) -> None:
        self._spacing, self._size = spacing, size
        self._modulus = torch.zeros(size // 2 + 1, dtype=torch.float64, device=device)
        self._argument = torch.zeros_like(self._modulus)
        self._steps = _Running(lambda step: _transform(step, orientation, spacing, size, device))

    def extend(self, counts: Mapping[Step, int]) -> None:
        """Add what ``counts`` holds more than was added so far; counts never shrink."""
        added = list(self._steps.extend(counts))
        for transform, more in added:
            self._modulus.add_(transform.modulus[: len(self._modulus)], alpha=more)
        if added and len(self._modulus) > _FEW_HARMONICS and self._kept(_NEGLIGIBLE - 1.0) <= _FEW_HARMONICS:
            self._drop_negligible()  # before arguments are computed
        for transform, more in added:
            self._argument.add_(transform.argument(len(self._argument)), alpha=more)

    def distribution(self, first: int) -> Distribution | Harmonics:
        """The composed loss on the window that begins at ``first * spacing``."""
        excess = round_off(self._steps.counts, self._modulus.device)
        window = self._kept(_NEGLIGIBLE)
        if window <= min(_FEW_HARMONICS, self._size // 2):
            self._drop_negligible()
            coefficients = torch.polar(self._modulus[:window].exp(), self._argument[:window])
            return Harmonics(self._spacing, first, self._size, coefficients.cpu().numpy(), excess)
        spectrum = torch.polar(self._modulus.exp(), self._argument)
        mass = torch.fft.irfft(spectrum, n=self._size).roll(-first).clamp(min=0.0)
        return Distribution(LossGrid(self._spacing, first, self._size), mass, excess)

    def _kept(self, modulus: float) -> int:
        """How many frequencies there are up to the last one above a log modulus."""
        return int((self._modulus > modulus).nonzero().max()) + 1

    def _drop_negligible(self) -> None:
        """Drop the frequencies that never count again: a step's masses sum to at most 1, so none of them grows."""
        window = self._kept(_NEGLIGIBLE - 1.0)
        if window < len(self._modulus):
            self._modulus, self._argument = self._modulus[:window].clone(), self._argument[:window].clone()


class Spread:
    """Running moments of a composition on a grid (0: of any losses), and the window that nearly all its mass is in."""

    def __init__(self, spacing: float, orientation: Orientation, device: torch.device) -> None:
        self._rates = rates(device)
        self._tails = torch.zeros((2, len(self._rates)), dtype=torch.float64, device=device)
        self.longest = self._furthest = 0.0
        self._spacing = spacing
        self._steps = _Running(lambda step: step_moments(step, orientation, spacing, device))
        self.variance = 0.0

    def extend(self, counts: Mapping[Step, int]) -> None:
        """Add what ``counts`` holds more than was added so far; counts never shrink."""
        for moments, more in self._steps.extend(counts):
            self.variance += more * moments.variance
            self.longest = max(self.longest, moments.longest)
            self._furthest += more * moments.longest
            if self._spacing:
                self._tails.add_(moments.tails, alpha=more)

    def window(self) -> LossGrid | None:
        """The smallest window with all the mass but ``TAIL`` on either side; None past ``LARGEST_GRID``."""
        ends = ((self._tails - math.log(TAIL)) / self._rates).amin(1).tolist()
        highest, lowest = (min(end, self._furthest) for end in ends)
        first = -math.ceil(lowest / self._spacing) - 1
        needed = math.ceil(highest / self._spacing) + 2 - first
        if max(needed, self.longest / self._spacing) > LARGEST_GRID:
            return None
        return LossGrid(self._spacing, first, max(2 ** math.ceil(math.log2(needed)), 64))


def round_off(counts: Mapping[Step, int], device: torch.device | None = None) -> float:
    """Delta set aside for truncated tails, and the round-off of the FFT and of steps' profiles (see `ROUND_OFF`).

    On the processor, if no device is named.
    """
    rounding = sum(times * (TRUNCATION + 2.0**-53 + _profile_error(step)) for step, times in counts.items())
    rounding += sum(times * step.stated.left_out for step, times in counts.items() if step.stated)
    left_out = sum(times * step.sampling_rate * lost(step.slicing) for step, times in counts.items() if step.slicing)
    factor = 1 if device is None else round_off_factor(device)
    return factor * (1e-12 + TAIL + rounding + left_out)


def _profile_error(step: Step) -> float:
    """Error of a step's profile; with little noise it grows with the rounding of losses, which are near mu^2 / 2."""
    return step.sampling_rate * max(1.0, step.typical_mu / 64) * 2.0**-49


class _Running(Generic[_T]):
    """Summands of a running sum over steps, computed once for each of the last few different steps."""

    def __init__(self, of_step: Callable[[Step], _T]) -> None:
        self._of_step = of_step
        self.counts: dict[Step, int] = {}
        self._recent: dict[Step, _T] = {}

    def extend(self, counts: Mapping[Step, int]) -> Iterator[tuple[_T, int]]:
        for step, times in counts.items():
            more = times - self.counts.get(step, 0)
            if more:
                self.counts[step] = times
                yield self._recall(step), more

    def _recall(self, step: Step) -> _T:
        if step not in self._recent:
            if len(self._recent) == _REMEMBERED:
                del self._recent[next(iter(self._recent))]
            self._recent[step] = self._of_step(step)
        return self._recent[step]


class _Transform:
    """Log modulus and argument of one step's frequencies; arguments are computed for as many as are asked for."""

    def __init__(self, spectrum: Tensor) -> None:
        self.modulus = spectrum.abs().log().clamp(min=-1e6)
        self._spectrum, self._argument = spectrum, spectrum.real[:0]

    def argument(self, count: int) -> Tensor:
        """Arguments of the first ``count`` frequencies."""
        if len(self._argument) < count:
            self._argument = self._spectrum[:count].angle()
        return self._argument[:count]


def _transform(step: Step, orientation: Orientation, spacing: float, size: int, device: torch.device) -> _Transform:
    """The transform of one step's masses, wrapped on a circle."""
    below, centre, above = grid_masses(step, orientation, spacing, device)
    circle = above.new_zeros(size)
    for piece in torch.split(above, size):
        circle[: len(piece)] += piece
    circle = circle.roll(1)  # index 0 of the pieces is a loss of one spacing
    for piece in torch.split(below, size):
        circle[size - len(piece) :] += piece.flip(0)
    circle[0] += centre
    return _Transform(torch.fft.rfft(circle))
