"""From what an attacker got right to a lower bound on epsilon: scores of two neighbours, or guesses of one run's coins.

Two neighbours: rates by Clopper and Pearson, then the mechanism's curve. One run: a mechanism sees m independent fair
coins, each of which decides one record; an attacker who sees its output makes exactly r guesses about coins of its
choice, and v of them are right. Flipping one coin replaces one record, so that a guarantee under replacement bounds
how far it moves the law of the output. Nothing else is assumed: neither that guesses are independent of each other,
nor how the attacker chooses among the coins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from fedsw._tools.settings import whole
from fedsw.privacy.accounting import Composition, Step, lower_epsilon
from fedsw.privacy.accounting.epsilons import gaussian_epsilon

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Attack:
    """A test between two neighbours: "the first" if the score is above the threshold, "the second" if not.

    ``misses`` of the ``trials`` of the first are not above it, ``alarms`` of the ``other_trials`` of the second are.
    """

    threshold: float
    misses: int
    trials: int
    alarms: int
    other_trials: int

    def rates(self, confidence: float) -> tuple[float, float]:
        """Upper bounds (false positive rate, false negative rate) that hold together at that confidence."""
        level = 1 - (1 - confidence) / 2
        return rate_at_most(self.alarms, self.other_trials, level), rate_at_most(self.misses, self.trials, level)


def judged(scores: Scores, others: Scores, threshold: float) -> Attack:
    """Count the errors of a threshold test on scores (n,) of the first neighbour, which tend to be higher, and (m,).

    The threshold is fixed before the trials are drawn. ValueError without a trial of each, or for a score that is NaN:
    it is on neither side of the threshold.
    """
    if min(len(scores), len(others)) < 1:
        raise ValueError(f"{len(scores)} and {len(others)} trials; at least one of each neighbour is needed")
    if np.isnan([threshold, *scores, *others]).any():
        raise ValueError(
            "a score or the threshold is NaN, which is neither above nor below; such a trial shows nothing"
        )
    misses, alarms = int((scores <= threshold).sum()), int((others > threshold).sum())
    return Attack(threshold, misses, len(scores), alarms, len(others))


def rate_at_most(events: int, trials: int, confidence: float) -> float:
    """The largest rate at which so few ``events`` in ``trials`` are not too rare; exact (Clopper and Pearson 1934)."""
    _require(events, trials, confidence)
    return float(stats.beta.isf(1 - confidence, events + 1, trials - events)) if events < trials else 1.0


def rate_at_least(events: int, trials: int, confidence: float) -> float:
    """The smallest rate at which that many ``events`` in ``trials`` are not too rare; see `rate_at_most`."""
    _require(events, trials, confidence)
    return float(stats.beta.ppf(1 - confidence, events, trials - events + 1)) if events > 0 else 0.0


def gaussian_mu(false_positive: float, false_negative: float) -> float:
    """The mu of the Gaussian trade-off curve through a point: every smaller mu is contradicted; 0 if none is.

    A test has Phi^-1(1 - alpha) + Phi^-1(1 - beta) <= mu. Source: Dong, Roth, Su 2022, Equation (6).
    """
    _require_rates(false_positive, false_negative)
    if false_positive + false_negative >= 1.0:
        return 0.0
    return float(stats.norm.isf(false_positive) + stats.norm.isf(false_negative))


def expected_mu(mu: float, trials: int, confidence: float, *, noise: float = 1.0) -> float:
    """The mu that an attack on releases, mu apart, is to show where the noise is a multiple of what it is to be.

    Scores are N(0, noise^2) and N(mu, noise^2) beside a threshold at mu / 2, in ``trials`` of each; both rates of
    errors are bounded as `Attack.rates` does. It is an attack's power before any release is made.
    """
    events = round(trials * float(stats.norm.sf(mu / 2 / noise)))
    rate = rate_at_most(events, trials, 1 - (1 - confidence) / 2)
    return gaussian_mu(rate, rate)


def shown_epsilon(mu: float, rate: float, steps: int, delta: float) -> float:
    """Empirical epsilon(delta) of steps that include the record at a rate and then move by mu, the worse direction.

    One step is (1 - p) N(0, 1) + p N(mu, 1) against N(0, 1); more mu, or a higher rate, costs more: the pair of less is
    made from it by added noise, or by exchanging a share of its outcomes for noise about 0. So lower bounds on mu and
    on the rate, which hold together at some confidence, give one on epsilon at that confidence.

    Source: docs/audits.md, Theorem A10.
    """
    _require_delta(delta)
    _require_rates(rate)
    steps = whole(steps, "steps", least=0)
    if math.isnan(mu):
        raise ValueError("mu is NaN, which bounds nothing")
    if mu <= 0.0 or rate <= 0.0 or steps < 1:
        return 0.0
    if rate == 1.0:
        return gaussian_epsilon(math.sqrt(steps) * mu, delta)
    return lower_epsilon({Step(rate, mu): steps}, delta)


def epsilon_of_rates(false_positive: float, false_negative: float, delta: float) -> float:
    """The largest epsilon that a point contradicts at delta, whatever the mechanism's curve is.

    (epsilon, delta)-DP means 1 - beta <= e^epsilon alpha + delta, either way round (Kairouz, Oh, Viswanath 2015).
    """
    _require_rates(false_positive, false_negative)
    _require_delta(delta)
    largest = 0.0
    for alpha, beta in ((false_positive, false_negative), (false_negative, false_positive)):
        if 1 - delta - beta > alpha:
            largest = max(largest, math.log((1 - delta - beta) / alpha) if alpha > 0 else math.inf)
    return largest


def _require_rates(*rates: float) -> None:
    for rate in rates:
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"a rate is {rate}; it lies between 0 and 1")


def _require_delta(delta: float) -> None:
    if not 0.0 <= delta < 1.0:
        raise ValueError(f"delta is {delta}; it lies between 0 and 1, and is not 1")


def _require(events: int, trials: int, confidence: float) -> None:
    if not 0 <= events <= trials or trials < 1:
        raise ValueError(f"{events} events in {trials} trials; there is at least one trial, and no more events")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is {confidence}; it must lie between 0 and 1")


Least = Callable[[float], float]
"""The least probability under Q of an event that has the given probability under P, for the pair of a trade-off curve.

With f its trade-off function, the inverse of x -> 1 - f(x): non-decreasing, convex, at most the identity.
"""

_MOST_EPSILON = 60.0  # where a search for the largest one that is excluded ends
_LEAST_ERROR = 1e-300  # and one for the least error
_ROUND_OFF = 1e-9  # relative, of sums of as many terms as there are guesses


def p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Most probability that an (epsilon, delta)-private mechanism gives to ``correct`` right guesses, or more.

    With W binomial of `guesses` trials that succeed with probability e^epsilon / (1 + e^epsilon), which is exact for
    randomised response: P(W >= v) + 2 m delta max over i of P(v - i <= W < v) / i.

    Source: Steinke, Nasr, Jagielski 2023, Theorem 5.2 and Appendix D. The proof uses only that flipping a coin leaves
    the output's law (epsilon, delta)-close, so it is that of replacement as well.
    """
    _check(correct, guesses, canaries)
    _require_delta(delta)
    if not epsilon >= 0.0:
        raise ValueError(f"epsilon is {epsilon}; it is at least 0")
    law = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    tail = float(law.sf(correct - 1))
    below = np.cumsum(law.pmf(np.arange(correct - 1, -1, -1)))
    slope = float((below / np.arange(1, correct + 1)).max(initial=0.0))
    return min(1.0, tail + 2 * canaries * delta * slope)


def epsilon_of_guesses(correct: int, guesses: int, canaries: int, delta: float, *, error: float) -> float:
    """A lower bound on epsilon, at most 60, wrong with probability at most `error`, for a mechanism of that delta."""
    _check(correct, guesses, canaries, error)
    _require_delta(delta)

    def excluded(epsilon: float) -> bool:
        return p_value(correct, guesses, canaries, epsilon, delta) <= error

    return largest(excluded, 0.0, _MOST_EPSILON)


def excludes(correct: int, guesses: int, canaries: int, least: Least, *, error: float) -> bool:
    """True if ``correct`` right guesses, or more, have probability below `error` under every mechanism of a curve.

    Let p_t be the probability of t right guesses, and f the trade-off function. Take a coin, the event E that it is
    guessed right and at least t + 1 guesses are right, and flip the coin: in the other world E is a wrong guess, with
    at least t right ones. Averaged over coins and positions (1 - f is concave)

        R_{t+1} <= (1 - f)(H_t),      R_t = sum_{s >= t} s p_s / m,      H_t = sum_{s >= t} (r - s) p_s / m,

    so H_t is at least `least(R_{t+1})`. If P(v or more) were `error`, the least masses below v that this allows,
    taken one after the other from v - 1 down, are the smallest in total, and R_0 + H_0 must be r/m, no more.
    ``least`` is of a curve that is the same for both orders of the neighbours.

    Source: Mahloujifar, Melis, Chaudhuri 2025, "Auditing f-differential privacy in one run", Theorem 9 and
    Algorithm 3, for two alternatives. The greedy choice is least because more mass above t asks for no less below:
    a unit at s > t adds s to R, r - s to H, and s / (r - s) exceeds t / (r - t).
    """
    _check(correct, guesses, canaries, error)
    right, wrong = error * correct / canaries, error * (guesses - correct) / canaries
    whole = guesses / canaries * (1 + _ROUND_OFF)
    for count in range(correct - 1, -1, -1):
        more = max(0.0, least(right) - wrong)
        wrong += more
        right += more * count / (guesses - count)
        if right + wrong > whole:
            return True
    return right + wrong > whole


def curve_p_value(correct: int, guesses: int, canaries: int, least: Least) -> float:
    """Most probability that a mechanism of the curve gives to ``correct`` right guesses, or more; from above."""

    def excluded(exponent: float) -> bool:
        return excludes(correct, guesses, canaries, least, error=math.exp(-exponent))

    if correct == 0:
        return 1.0
    # The excluded probabilities are those above the answer, that is, the exponents below one.
    return math.exp(-largest(excluded, 1e-12, -math.log(_LEAST_ERROR)))


def largest(holds: Callable[[float], bool], low: float, high: float, *, steps: int = 20) -> float:
    """The largest value of two at which a predicate that only turns false was seen to hold, by halvings; 0 for none."""
    if not holds(low):
        return 0.0
    if holds(high):
        return high
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _check(correct: int, guesses: int, canaries: int, error: float = 0.5) -> None:
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(
            f"{correct} right of {guesses} guesses about {canaries} coins: right guesses are at most the guesses, and "
            "those at most the coins"
        )
    if not 0 < error < 1:
        raise ValueError(f"error = {error}; the probability of being wrong lies between 0 and 1")


_POINTS = 100  # of a composed curve, on each side of 0
_TAIL = 1e-9  # of the profile, where the curve is cut off
_FAR = 300.0  # the most epsilon of a tangent: e^300 is a number
_MOST_DOUBLINGS = 10  # of mu, up and down from the run's own
_HALVINGS = 8  # of the last doubling: mu to a quarter of a percent
_MOST_MU = 64.0  # of one step, beyond which a curve says "everything" in any case


class Leakage:
    """The curves of a run with steps C_p(G_{s mu}), indexed by the scale s; s = 1 is the run's own.

    A mechanism that leaks more than its guarantee (too little noise, a sensitivity that is exceeded) has a curve
    further along; an attack that excludes the curve at s = 1 has refuted the guarantee. The epsilon of the last
    excluded curve is a lower bound on the epsilon of every mechanism *of the family*; for other mechanisms it refutes
    or does not, and says no number.

    A step is of rate p and mu = Delta / sigma, for replacement neighbours; epsilon is read at ``delta``.
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
        """Epsilon of the last curve, up to a thousand times the run's mu, that the guesses exclude; 0 for none."""

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
