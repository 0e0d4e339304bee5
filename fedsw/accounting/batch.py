"""Epsilon, or the noise multiplier, of many settings in one call: for plans and tables of what-ifs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw.accounting.batch_reading import Readings, epsilons_on_grid
from fedsw.accounting.batch_steps import Steps, estimates
from fedsw.accounting.batch_transform import NEGLIGIBLE, Circle, Masses
from fedsw.accounting.calibration import noise_multiplier
from fedsw.accounting.composition import check_delta
from fedsw.accounting.composition import epsilon as composed_epsilon
from fedsw.accounting.devices import accounting_device
from fedsw.accounting.pld import LARGEST_GRID, TAIL, round_off
from fedsw.accounting.profiles import Orientation, Sampling, Step, orientations

_Array = NDArray[np.float64]
_Excess = Callable[[NDArray[np.int64], _Array], _Array]

_ACCURACY = 1e-4
_ROWS = 128
_POINTS = 2**16  # of all rows whose masses are transformed at once
_LARGEST_CIRCLE = 2**17  # of rows that need all frequencies
_FEWEST_POINTS = 2**10
_RATES = (1e-7, 1.0)
_MUS = (1e-4, 10.0)
_HIGHEST_LOSS = 600.0  # of a window read without logarithms
_LEAST = 0.1  # noise multiplier of a wish
_MOST_TRIES = 60


class Setting(NamedTuple):
    """A row of a table of epsilons.

    Attributes:
        sampling_rate: p in [0, 1].
        noise_multiplier: sigma / Delta > 0, Delta the full sensitivity (see :class:`fedsw.accounting.Step`).
        steps: number of noisy releases, >= 0.
        delta: of the guarantee, in [1e-10, 1).
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    delta: float


class Wish(NamedTuple):
    """A row of a table of noise multipliers.

    Attributes:
        sampling_rate: p in (0, 1].
        epsilon: of the guarantee, positive and finite.
        steps: number of noisy releases, >= 1.
        delta: of the guarantee, in [1e-10, 1).
    """

    sampling_rate: float
    epsilon: float
    steps: int
    delta: float


def epsilons(
    settings: Iterable[Setting | tuple[float, float, int, float]],
    *,
    sampling: Sampling = "without-replacement",
    device: torch.device | str = "cpu",
) -> list[float]:
    """Epsilon of every setting (sampling_rate, noise_multiplier, steps, delta), from above, in one call.

    Guarantee: every epsilon is an upper bound, as that of :func:`fedsw.accounting.epsilon`; they differ by
    less than a thousandth (or 1e-6), either way, as both discretise from above, on other grids. Where a budget is
    enforced or reported, ask the other: ledgers and plans do.

    Settings share nodes, tables of their transforms and matrix products. What these cannot do (noise multipliers below
    0.1, extreme rates) is composed one by one.

    Raises:
        ValueError: naming the first setting that is out of range.
        DeltaTooSmall: if round-off uses a setting's delta up.

    Source: docs/guarantees.md, "Many settings at once".
    """
    where = accounting_device(device)
    rows = [_checked(number, Setting(*setting)) for number, setting in enumerate(settings)]
    steps = [Step(row.sampling_rate, 1 / row.noise_multiplier, sampling) for row in rows]
    aside = np.array([2 * round_off({step: row.steps}, where) for step, row in zip(steps, rows, strict=True)])
    deltas = np.array([row.delta for row in rows])
    found = np.full(len(rows), math.nan)
    together = np.array([_is_usual(step, row.steps) for step, row in zip(steps, rows, strict=True)], dtype=bool)
    together &= 2 * aside < deltas
    shared = np.nonzero(together)[0]
    if len(shared):
        counts = np.array([rows[number].steps for number in shared], dtype=np.float64)
        table = _Table([steps[number] for number in shared], counts, deltas[shared], aside[shared])
        found[shared] = table.epsilons(orientations(steps[0]), where)
    for number in np.nonzero(np.isnan(found))[0]:
        found[number] = composed_epsilon({steps[number]: rows[number].steps}, rows[number].delta, device=where)
    return [float(value) for value in found]


def noise_multipliers(
    wishes: Iterable[Wish | tuple[float, float, int, float]],
    *,
    sampling: Sampling = "without-replacement",
    device: torch.device | str = "cpu",
) -> list[float]:
    """A noise multiplier that meets every wish (sampling_rate, epsilon, steps, delta), in a few calls of `epsilons`.

    Guarantee: epsilon of ``steps`` steps at the returned multiplier, by :func:`epsilons`, is at most the wish's, and at
    hardly less. A plan's multiplier comes from :func:`fedsw.accounting.noise_multiplier`, which is finer.

    Raises:
        ValueError: naming the first wish that is out of range or out of reach; DeltaTooSmall: as :func:`epsilons`.
    """
    rows = [_checked_wish(number, Wish(*wish)) for number, wish in enumerate(wishes)]
    wanted = np.log(np.array([row.epsilon for row in rows]))

    def excess(open_: NDArray[np.int64], multipliers: _Array) -> _Array:
        """Log of epsilon / the wish's, of some rows."""
        asked = [
            Setting(rows[number].sampling_rate, float(multiplier), rows[number].steps, rows[number].delta)
            for number, multiplier in zip(open_, multipliers, strict=True)
        ]
        read = np.array(epsilons(asked, sampling=sampling, device=device))
        value: _Array = np.log(np.maximum(read, 1e-300)) - wanted[open_]
        return value

    found = _solved(excess, len(rows))
    for number in np.nonzero(np.isnan(found))[0]:
        row = rows[number]
        found[number] = noise_multiplier(
            row.epsilon, row.delta, sampling_rate=row.sampling_rate, steps=row.steps, sampling=sampling, device=device
        )
    return [float(value) for value in found]


class _Table:
    """Rows of steps, how often each is taken, delta, and what of it is set aside."""

    def __init__(self, steps: list[Step], counts: _Array, deltas: _Array, aside: _Array) -> None:
        self._steps, self._targets = steps, deltas - aside
        self._counts, self._deltas = counts, deltas

    def epsilons(self, sides: tuple[Orientation, ...], device: torch.device) -> _Array:
        """Epsilon of every row by the worst side; nan for a row that has to be composed alone."""
        counts, targets, deltas = (
            torch.from_numpy(column).to(device) for column in (self._counts, self._targets, self._deltas)
        )
        worst = torch.zeros_like(counts)
        for side in sides:
            rows = _Rows(Steps.of(self._steps, side, device), counts, targets, deltas)
            worst = torch.maximum(worst, rows.epsilons(worst.nan_to_num(0.0)))  # nan if either is
        found: _Array = worst.cpu().numpy()
        return found


class _Rows:
    """One side of a table; columns are (m,)."""

    def __init__(self, steps: Steps, counts: Tensor, targets: Tensor, deltas: Tensor) -> None:
        self._steps, self._counts, self._targets = steps, counts, targets
        parts = [
            estimates(steps.rows(rows), counts[rows], deltas[rows], TAIL)
            for rows in torch.split(torch.arange(len(counts), device=counts.device), _ROWS)
        ]
        self._epsilon, self._slope, self._width = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("epsilon", "slope", "width")
        )

    def epsilons(self, known: Tensor) -> Tensor:
        """Epsilon of every row, as accurate as that of a side with ``known`` needs; nan where no circle holds it."""
        scale = torch.maximum(self._epsilon, known)
        every = torch.arange(len(scale), device=scale.device)
        found = self._on_grids(every, scale, self._width)
        # Where the circle was too small for the group that it was in, or estimates were far too high.
        missed = found.isnan()
        again = (missed | ((found > 0.0) & (torch.maximum(found, known) < 0.35 * scale))).nonzero()[:, 0]
        if len(again):
            lower = torch.maximum(torch.where(missed, self._epsilon, found), known)
            wider = torch.where(missed, 2 * self._width, self._width)
            found[again] = self._on_grids(again, lower[again], wider[again])
        return found

    def _on_grids(self, rows: Tensor, scale: Tensor, width: Tensor) -> Tensor:
        """Epsilon of some rows on grids that connecting dots moves by about 1e-4 of the scale.

        It adds a variance of a sixth of the squared spacing to every step, which moves epsilon by half of that, and by
        half of it times the slope of log delta.
        """
        inflation = 12 * _ACCURACY * scale.clamp(min=1e-6) / (self._counts[rows] * (1 + self._slope[rows]))
        spacings = torch.exp2(torch.floor(torch.log2(inflation) / 2))
        sizes = torch.exp2(torch.ceil(torch.log2(1.05 * width / spacings + 4))).clamp(min=_FEWEST_POINTS)
        found = torch.full_like(scale, math.nan)
        for size in torch.unique(sizes).tolist():
            if size > LARGEST_GRID:
                continue
            of_size = (sizes == size).nonzero()[:, 0]
            last = math.ceil(float((self._steps.longest[rows[of_size]] / spacings[of_size]).max()))
            circle = Circle(int(size), last, scale.device)
            for part in torch.split(of_size, _ROWS):
                at = rows[part]
                found[part] = _on_circle(
                    circle, self._steps.rows(at), spacings[part], self._counts[at], self._targets[at]
                )
        return found


def _on_circle(circle: Circle, steps: Steps, spacings: Tensor, counts: Tensor, targets: Tensor) -> Tensor:
    """Epsilon (m,) of the rows, nan where the circle does not hold them."""
    masses = Masses(*steps.masses(circle.nodes * spacings[:, None]), counts)
    first, fits = circle.window(masses)
    moduli, arguments, few = circle.frequencies(masses)
    found = torch.full_like(counts, math.nan)
    read = (fits & few).nonzero()[:, 0]
    if len(read):
        coefficients = _kept(moduli[read].cpu().numpy(), arguments[read].cpu().numpy())
        spaced, begin, left = (part[read].cpu().numpy() for part in (spacings, first, targets))
        found[read] = torch.from_numpy(Readings(coefficients, spaced, begin, circle.size).epsilon(left)).to(found)
    whole = (fits & ~few & ((first + circle.size) * spacings < _HIGHEST_LOSS)).nonzero()[:, 0]
    if len(whole) and circle.size <= _LARGEST_CIRCLE:
        for rows in torch.split(whole, max(1, _POINTS // circle.size)):
            grid = circle.grid(masses.rows(rows), first[rows])
            found[rows] = epsilons_on_grid(grid, first[rows] + circle.size - 1, spacings[rows], targets[rows])
    return found


def _kept(moduli: _Array, arguments: _Array) -> NDArray[np.complex128]:
    """Coefficients (m, k) up to the last that counts in any row, without those that count in none."""
    counting = moduli > NEGLIGIBLE
    kept = int(np.nonzero(counting.any(axis=0))[0].max()) + 1
    coefficients: NDArray[np.complex128] = np.where(counting, np.exp(moduli), 0.0) * np.exp(1j * arguments)
    return coefficients[:, : max(kept, 2)]


def _is_usual(step: Step, count: int) -> bool:
    return count >= 1 and _RATES[0] <= step.sampling_rate <= _RATES[1] and _MUS[0] <= step.mu <= _MUS[1]


def _solved(excess: _Excess, rows: int) -> _Array:
    """Multipliers whose excess, a falling function's, is between -2e-4 and 0, or the least found below 0.

    nan for a row whose multiplier is below the least that a table holds.
    """
    low, high = np.full(rows, math.nan), np.full(rows, math.nan)  # logarithms: not enough, enough
    at_low, at_high = low.copy(), high.copy()
    at = np.zeros(rows)
    open_ = np.arange(rows)
    for turn in range(_MOST_TRIES):
        value = excess(open_, np.exp(at[open_]))
        enough = value <= 0.0
        for ends, values, chosen in ((high, at_high, enough), (low, at_low, ~enough)):
            ends[open_[chosen]], values[open_[chosen]] = at[open_[chosen]], value[chosen]
        done = (enough & (value >= -2 * _ACCURACY)) | (high[open_] - low[open_] <= 1e-7)
        open_ = open_[~done & ((at[open_] > math.log(_LEAST)) | ~enough)]
        if not len(open_):
            break
        at[open_] = _next(low[open_], high[open_], at_low[open_], at_high[open_], halve=turn % 3 == 2)
    return np.where(high <= math.log(_LEAST), math.nan, np.exp(high))


def _next(low: _Array, high: _Array, at_low: _Array, at_high: _Array, *, halve: bool) -> _Array:
    """Where to look next: twice or half the multiplier until it is bracketed, then between, where the line says."""
    share = (at_low + _ACCURACY) / (at_low - at_high)
    inside = 0.5 if halve else np.clip(share, 0.02, 0.98)
    between = low + inside * (high - low)
    stepped = np.where(np.isnan(high), low + math.log(2.0), np.maximum(high - math.log(2.0), math.log(_LEAST)))
    return np.where(np.isnan(low) | np.isnan(high), stepped, between)


def _checked(number: int, row: Setting) -> Setting:
    if not 0.0 <= row.sampling_rate <= 1.0:
        raise ValueError(f"setting {number}: sampling_rate is {row.sampling_rate}; it must lie in [0, 1].")
    if not row.noise_multiplier > 0.0:
        raise ValueError(f"setting {number}: noise_multiplier is {row.noise_multiplier}; it must be > 0.")
    _check_count(f"setting {number}", row.steps, 0)
    _check_delta(f"setting {number}", row.delta)
    return row


def _checked_wish(number: int, row: Wish) -> Wish:
    if not 0.0 < row.sampling_rate <= 1.0:
        raise ValueError(f"wish {number}: sampling_rate is {row.sampling_rate}; it must lie in (0, 1].")
    if not 0.0 < row.epsilon < math.inf:
        raise ValueError(f"wish {number}: epsilon is {row.epsilon}; it must be positive and finite.")
    _check_count(f"wish {number}", row.steps, 1)
    _check_delta(f"wish {number}", row.delta)
    return row


def _check_count(where: str, count: int, least: int) -> None:
    if int(count) != count or count < least:
        raise ValueError(f"{where}: steps is {count}; it must be a whole number, at least {least}.")


def _check_delta(where: str, delta: float) -> None:
    try:
        check_delta(delta)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
