"""Rigorous enclosures of a composed delta(epsilon) by Darboux sums: no grid of losses, no FFT, no dominating pair."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr, ndtr

from fedsw.privacy.accounting import Step


def bracket_of_delta(steps: Sequence[Step], epsilon: float, cells: int = 600) -> tuple[float, float]:
    """Lower and upper bound on delta(epsilon) of up to three without-replacement steps, dominating pairs composed.

    delta_{A x B}(eps) = E_{l ~ P_A} delta_B(eps - l), and delta_B decreases: replacing l by the ends of its cell
    encloses the integral.
    """
    first, *rest = steps
    if not rest:
        value = float(_delta(first, np.array([epsilon]))[0])
        return value, value
    losses, below = _cells(first, cells)
    ends = np.stack([losses[:-1], losses[1:]])
    if len(rest) == 1:
        low, high = _delta(rest[0], epsilon - ends)
    else:
        inner = [_pair_bounds(rest, epsilon - end, cells) for end in ends]
        low, high = inner[0][0], inner[1][1]
    mass = np.diff(below)
    # Beyond the cells: below them delta_B >= 0 counts for nothing (or all), above them it counts in full.
    outside = 1 - below[-1]
    return float((mass * low).sum()), float((mass * high).sum() + outside + below[0])


def _pair_bounds(pair: Sequence[Step], epsilons: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
    losses, below = _cells(pair[0], cells)
    mass = np.diff(below)
    low = _delta(pair[1], epsilons[:, None] - losses[None, :-1]) @ mass
    high = _delta(pair[1], epsilons[:, None] - losses[None, 1:]) @ mass + (1 - below[-1]) + below[0]
    return low, high


def _cells(step: Step, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends of cells of (mostly) equal mass, the atom at 0 alone in one, and P(L <= end)."""
    reach = math.log1p(step.sampling_rate * math.expm1(step.mu**2 / 2 + 7 * step.mu))
    fine = reach * np.linspace(0, 1, 20 * cells) ** 3
    upper = 1 - _p_above(step, fine)
    weights = np.interp(np.linspace(upper[0], upper[-1], cells // 2), upper, fine)
    positive = np.unique(np.concatenate([np.linspace(0, reach, cells // 2)[1:], weights[weights > 0]]))
    losses = np.concatenate([-positive[::-1], [-1e-300, 0.0], positive])
    return losses, _p_at_most(step, losses)


def _p_at_most(step: Step, losses: np.ndarray) -> np.ndarray:
    """P(L <= l); by symmetry P(L <= -x) = Q(L >= x), and L is continuous but at 0."""
    return np.where(losses >= 0, 1 - _p_above(step, np.maximum(losses, 0)), _q_above(step, np.maximum(-losses, 0)))


def _p_above(step: Step, epsilons: np.ndarray) -> np.ndarray:
    return _delta(step, epsilons) + np.exp(epsilons) * _q_above(step, epsilons)


def _q_above(step: Step, epsilons: np.ndarray) -> np.ndarray:
    """Q(L > eps) = -delta'(eps) e^-eps = Phi(-x/mu - mu/2), eps >= 0."""
    return ndtr(-_unmixed(step, epsilons) / step.mu - step.mu / 2)


def _delta(step: Step, epsilons: np.ndarray) -> np.ndarray:
    size = np.abs(epsilons)
    x = _unmixed(step, size)
    gaussian = np.exp(log_ndtr(step.mu / 2 - x / step.mu)) - np.exp(x + log_ndtr(-step.mu / 2 - x / step.mu))
    positive = step.sampling_rate * np.maximum(gaussian, 0)
    return np.where(epsilons >= 0, positive, -np.expm1(-size) + np.exp(-size) * positive)


def _unmixed(step: Step, epsilons: np.ndarray) -> np.ndarray:
    return np.log1p(np.expm1(epsilons) / step.sampling_rate)
