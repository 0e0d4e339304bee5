"""What a canary audit proves: from error rates and draws to an epsilon, and what contradicts the claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsw.accounting import Step, epsilon_bracket
from fedsw.audit import Attack, epsilon_of_rates, gaussian_mu, rate_at_least, shown_epsilon
from fedsw.audit.finding import Finding
from fedsw.text import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 80


@dataclass(frozen=True)
class Claim:
    """What the experiment's plan says of the canary's cell: rate, sensitivity, sigma, rounds, epsilon at delta."""

    rate: float
    sensitivity: float
    sigma: float
    rounds: int
    epsilon: float
    delta: float

    @property
    def mu(self) -> float:
        """Sensitivity / sigma of one round."""
        return self.sensitivity / self.sigma


@dataclass(frozen=True)
class Measured:
    """What the attacker found.

    Attributes:
        shift: how far the canary moves the un-noised sum, in the round that showed least.
        rounds: real rounds of both neighbours.
        present: of them, with the canary in the batch.
        attack: the test of single releases with the canary in the batch, judged.
        drawn: (times, trials) that the canary was drawn; None where every record is.
        repeated: releases made one by one that are equal to an earlier one.
        scores: of either neighbour, in units of sigma, 0 and shift / sigma where the noise is.
    """

    shift: float
    rounds: int
    present: int
    attack: Attack
    drawn: tuple[int, int] | None
    repeated: int
    scores: tuple[NDArray[np.float64], NDArray[np.float64]]


def finding(subject: str, cell: str, why: str, claim: Claim, measured: Measured, confidence: float) -> Finding:
    """Bounds on mu and on the rate that hold together, the epsilon that they prove, and whether any contradicts.

    Args:
        subject: the experiment.
        cell: the canary's group.
        why: what is worst about the neighbours.
        confidence: of everything together.
    """
    # Half of what may go wrong to the draws, where there are any; the bounds then hold together.
    risk = (1 - confidence) / (1 if measured.drawn is None else 2)
    rates = measured.attack.rates(1 - risk)
    mu = gaussian_mu(*rates)
    rate = claim.rate if measured.drawn is None else min(1.0, rate_at_least(*measured.drawn, 1 - risk))
    shown = shown_epsilon(mu, rate, claim.rounds, claim.delta)
    instance = shown_epsilon(measured.shift / claim.sigma, claim.rate, claim.rounds, claim.delta)
    lower, _ = epsilon_bracket({Step(claim.rate, claim.mu): claim.rounds}, claim.delta)
    share = measured.shift / claim.sensitivity
    against = _contradictions(claim, measured, mu, rate, shown)
    wholes = {"the claim": claim.epsilon, "the bracket's lower end": lower, "what these neighbours can show": instance}
    shares = ", ".join(f"{_share(shown, whole)} of {name}" for name, whole in wholes.items())
    verdict = "; ".join(against) if against else f"the attack shows {shares}"
    rows = [
        ("bracket", f"{number(lower, 4)} to {number(claim.epsilon, 4)}, T = {claim.rounds}"),
        ("worst case", f"{why} (group {cell})"),
        ("instance ε", f"{number(instance, 4)}: it moves the sum by {share:.1%} of the sensitivity"),
        ("one release", f"μ at least {number(mu, 4)} of {number(claim.mu, 4)}, from {measured.attack.trials} of each"),
        ("one draw", _drawn(claim, measured, rate)),
    ]
    details = _details(cell, claim, measured, rates, mu, rate)
    details.update(instance_epsilon=instance, bracket_lower=lower, instance_share=share)
    return Finding(
        "canary",
        subject,
        claim.epsilon,
        claim.delta,
        shown,
        confidence,
        not against,
        verdict,
        rows,
        details,
        draw=lambda: _drawing(claim, measured, details, shown),
    )


def _contradictions(claim: Claim, measured: Measured, mu: float, rate: float, shown: float) -> list[str]:
    """What was found that the claim rules out, part by part: the whole has room that would hide a part's fault."""
    found = []
    if measured.shift > claim.sensitivity:
        found.append(f"one record moves the sum by {measured.shift / claim.sensitivity:.4g} times the sensitivity")
    if measured.repeated:
        found.append(f"{measured.repeated} releases have the noise of an earlier one")
    if mu > claim.mu:
        found.append(f"one release shows a μ of {mu:.4g}, claimed is {claim.mu:.4g}")
    if rate > claim.rate:
        found.append(f"the canary is drawn at a rate of at least {rate:.4g}, claimed is {claim.rate:.4g}")
    if shown > claim.epsilon:
        found.append(f"an ε of {shown:.4g} is shown, more than the claim")
    return found


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "nothing"


def _drawn(claim: Claim, measured: Measured, rate: float) -> str:
    seen = f"in {measured.present} of {measured.rounds} real rounds"
    if measured.drawn is None:
        return f"every record is in every batch; the canary {seen}"
    times, trials = measured.drawn
    return f"rate at least {number(rate, 4)} of {number(claim.rate, 4)}, from {times} of {trials} draws; {seen}"


def _details(
    cell: str, claim: Claim, measured: Measured, rates: tuple[float, float], mu: float, rate: float
) -> dict[str, Any]:
    attack, (scores, others) = measured.attack, measured.scores
    low, high = float(min(scores.min(), others.min())), float(max(scores.max(), others.max()))
    edges = np.linspace(low, high, _BINS + 1)
    # Error rates at other thresholds, for the figure only: the bound rests on the one fixed in advance.
    thresholds = np.quantile(np.concatenate([scores[:100_000], others[:100_000]]), np.linspace(0.02, 0.98, 25))
    return {
        "trust": "central",
        "cell": cell,
        "rounds": claim.rounds,
        "sampling_rate": claim.rate,
        "sampling_rate_lower": rate,
        "sensitivity": claim.sensitivity,
        "sigma": claim.sigma,
        "mu": claim.mu,
        "mu_lower": mu,
        "shift": measured.shift,
        "trials": attack.trials,
        "misses": attack.misses,
        "alarms": attack.alarms,
        "threshold": attack.threshold,
        "rates_upper": list(rates),
        "without_curve": epsilon_of_rates(*rates, claim.delta),
        "draws": None if measured.drawn is None else list(measured.drawn),
        "repeated_noise": measured.repeated,
        "real_rounds": [measured.present, measured.rounds],
        "histogram": {
            "edges": edges.tolist(),
            "with": np.histogram(scores, edges)[0].tolist(),
            "without": np.histogram(others, edges)[0].tolist(),
        },
        "curve": [[float((others > t).mean()), float((scores <= t).mean())] for t in thresholds],
    }


def _drawing(claim: Claim, measured: Measured, details: dict[str, Any], shown: float) -> Figure:
    from fedsw.audit.canary_figure import draw

    return draw({**details, "claimed_epsilon": claim.epsilon, "shown_epsilon": shown})
