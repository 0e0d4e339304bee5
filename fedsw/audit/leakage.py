"""What a run's own privacy curve makes of right guesses: the family of its steps with more or less noise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy import special

from fedsw.accounting import Composition, Step
from fedsw.audit.guesses import Least, curve_p_value, excludes, largest

_POINTS = 100  # of a composed curve, on each side of 0
_TAIL = 1e-9  # of the profile, where the curve is cut off
_FAR = 300.0  # the most epsilon of a tangent: e^300 is a number
_MOST_DOUBLINGS = 10  # of mu, up and down from the run's own
_HALVINGS = 8  # of the last doubling: mu to a quarter of a percent
_MOST_MU = 64.0  # of one step, beyond which a curve says "everything" in any case


class Leakage:
    """The curves of a run whose steps are C_p(G_{s mu}), indexed by the scale s; s = 1 is the run's own.

    A mechanism that leaks more than its guarantee (too little noise, a sensitivity that is exceeded) has a curve
    further along; an attack that excludes the curve at s = 1 has refuted the guarantee. The epsilon of the last
    excluded curve is a lower bound on the epsilon of every mechanism *of the family*; for other mechanisms it refutes
    or does not, and says no number.

    Args:
        step: sampling rate p and mu = Delta / sigma of one step, neighbours by replacement.
        times: number of steps.
        delta: at which epsilon is read.

    Raises:
        ValueError: for a step under another relation.
    """

    def __init__(self, step: Step, times: int, delta: float) -> None:
        if step.sampling != "without-replacement" or step.costless:
            raise ValueError(f"{step} has no curve under replacement that guesses could be held against")
        self._step, self._times, self._delta = step, times, delta
        self._known: dict[float, Least] = {}

    def epsilon(self, scale: float = 1.0) -> float:
        """Epsilon of the curve at a scale, by the numerical accountant."""
        return self._composed(scale).epsilon(self._delta)

    def least(self, scale: float = 1.0) -> Least:
        """The curve itself, from below: exact for p = 1, else connected through tangents of its profile."""
        if scale not in self._known:
            self._known[scale] = self._least(scale)
        return self._known[scale]

    def shown(self, correct: int, guesses: int, canaries: int, *, error: float) -> float:
        """Epsilon of the last curve that the guesses exclude, wrong with probability at most `error`; 0 for none.

        The search ends at a thousandth and a thousand times the run's mu, or where a single step says everything.
        """

        def excluded(doublings: float) -> bool:
            return excludes(correct, guesses, canaries, self.least(2.0**doublings), error=error)

        most = max(0.0, min(_MOST_DOUBLINGS, math.floor(math.log2(_MOST_MU / self._step.mu))))
        low = 0.0
        if excluded(low):
            while low < most and excluded(low + 1):
                low += 1
            if low == most:
                return self.epsilon(2.0**low)
        else:
            while not excluded(low - 1):
                low -= 1
                if low == -_MOST_DOUBLINGS:
                    return 0.0
            low -= 1
        return self.epsilon(2.0 ** largest(excluded, low, low + 1, steps=_HALVINGS))

    def refuted(self, correct: int, guesses: int, canaries: int, *, error: float) -> bool:
        """Whether the guesses exclude the run's own curve, wrong with probability at most `error`."""
        return excludes(correct, guesses, canaries, self.least(), error=error)

    def p_value(self, correct: int, guesses: int, canaries: int) -> float:
        """Most probability of so many right guesses under the run's own guarantee."""
        return curve_p_value(correct, guesses, canaries, self.least())

    def _least(self, scale: float) -> Least:
        if self._step.sampling_rate == 1.0:
            mu = scale * self._step.mu * math.sqrt(self._times)
            return lambda probability: float(special.ndtr(special.ndtri(min(probability, 1.0)) - mu))
        composed = self._composed(scale)
        far = min(max(composed.epsilon(_TAIL), 1e-6), _FAR)
        above = far * np.linspace(0.0, 1.0, _POINTS) ** 1.5  # closer together near 0
        profile = np.array([composed.delta(float(epsilon)) for epsilon in above])
        losses = np.concatenate([above, -above[1:]])
        deltas = np.concatenate([profile, -np.expm1(-above[1:]) + np.exp(-above[1:]) * profile[1:]])
        factors = np.exp(-losses)
        return lambda probability: max(0.0, float((factors * (probability - deltas)).max()))

    def _composed(self, scale: float) -> Composition:
        return Composition({replace(self._step, mu=scale * self._step.mu): self._times})
