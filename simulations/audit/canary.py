"""`fedsw audit EXPERIMENT --canary`: the released path on the worst neighbours of the experiment's own bound."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from fedsw.accounting import Step, epsilon, epsilon_bracket
from fedsw.audit import Attack, epsilon_of_rates, gaussian_mu, judged, rate_at_least, shown_epsilon
from fedsw.console import number
from fedsw.experiment import Experiment, ExperimentError
from fedsw.matching import Matching
from simulations.audit.finding import Finding
from simulations.audit.neighbours import require_room, worst_neighbours
from simulations.audit.released import Released

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from server.rounds import Aggregate

TRIALS = 4_000_000
CONFIDENCE = 0.9999
DRAWS = 40_000
SINGLE = 500
ROUNDS = 20

_PRESENT = 20.0  # rounds without the canary until its absence is reported: exp(-20) by chance
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
        scores: of either neighbour, in units of sigma, 0 and shift / sigma where the noise is.
    """

    shift: float
    rounds: int
    present: int
    attack: Attack
    drawn: tuple[int, int] | None
    scores: tuple[NDArray[np.float64], NDArray[np.float64]]


def audit(
    experiment: Experiment,
    *,
    trials: int | None = None,
    show: bool = False,
    confidence: float = CONFIDENCE,
    draws: int = DRAWS,
) -> Finding:
    """Attack the releases of an experiment by whoever knows everything but one record.

    Args:
        experiment: of trust `central`; its seed is left out, so that sampling and noise are drawn for real.
        trials: releases of each neighbour.
        show: whether to say what is going on.
        confidence: of everything that the shown epsilon rests on, together.
        draws: of batches, where records are sampled.

    Raises:
        ExperimentError: for a trust model or an objective without worst neighbours here, naming those that have them.
        FederationError: if a client or the server refuses a round.
    """
    attacked = _attackable(experiment)
    status = Console(stderr=True, quiet=not show).status("sizes and plan")
    with tempfile.TemporaryDirectory() as folder, status:
        with Released(attacked, None, Path(folder) / "sizes", canary=False) as plain:
            require_room(plain.task)
            cell, claim = _claim(plain)
            neighbours = worst_neighbours(plain.task, cell, plain.holder(cell))
        with (
            Released(attacked, neighbours, Path(folder) / "with", canary=True) as one,
            Released(attacked, neighbours, Path(folder) / "without", canary=False) as other,
        ):
            status.update("real rounds on both neighbours")
            aggregates, shift, rounds, present = _real_rounds(one, other, claim)
            status.update("releases with real noise")
            scores = _scores(one, other, aggregates, claim, shift, trials or TRIALS)
            attack = judged(*scores, threshold=shift / claim.sigma / 2)
            drawn = None
            if claim.rate < 1.0:
                status.update("draws of batches")
                drawn = (one.times_drawn(neighbours, draws), draws)
        cell_name = one.task.objective.cells[cell]
    measured = Measured(shift, rounds, present, attack, drawn, scores)
    return _finding(experiment.name, cell_name, neighbours.why, claim, measured, confidence)


def _attackable(experiment: Experiment) -> Experiment:
    privacy, goal = experiment.privacy, experiment.objective
    if privacy.trust != "central" or not privacy.noisy:
        raise ExperimentError(
            f"privacy.trust is {privacy.trust!r}{'' if privacy.noisy else ' without noise'}; --canary attacks what the "
            "server of trust 'central' releases with noise"
        )
    if goal.penalty == "distribution-matching":
        raise ExperimentError(
            f"objective.penalty is {goal.penalty!r}; --canary has worst neighbours of 'statistical-parity', "
            "'equality-of-odds' and 'prior-matching'"
        )
    data = experiment.data.model_copy(update={"row_norm": None})  # the worst case is not written in unit rows
    return experiment.model_copy(update={"seed": None, "unsafe_metrics": False, "data": data})


def _claim(plain: Released) -> tuple[int, Claim]:
    """The cell that decides the experiment's epsilon, and what is claimed of its records."""
    plan, rounds = plain.plan, plain.task.experiment.training.rounds
    claims = [
        Claim(rate, bound.value, plain.sigma, rounds, plan.epsilon, plan.delta)
        for rate, bound in zip(plan.rates, plan.sensitivities, strict=True)
    ]
    cell = max(range(len(claims)), key=lambda j: epsilon({Step(claims[j].rate, claims[j].mu): rounds}, plan.delta))
    return cell, claims[cell]


def _real_rounds(
    one: Released, other: Released, claim: Claim
) -> tuple[tuple[Aggregate, Aggregate], float, int, int]:
    """Rounds of both until the canary was in enough of them; the pair of sums that it moved least.

    Public randomness (directions, a prior's points) is that of the round and attempt, the same for both; batches are
    each one's own. Where the canary is not drawn the sums are equal.
    """
    enough = 1 if claim.rate == 1.0 else 3
    least, pair, present = math.inf, None, 0
    for rounds in range(1, math.ceil(_PRESENT / claim.rate) + ROUNDS + 1):
        round_ = (rounds - 1) % claim.rounds + 1
        sums = one.sum(round_), other.sum(round_)
        shift = float((sums[0].vector - sums[1].vector).norm())
        if shift > 0.01 * claim.sensitivity:
            present += 1
            if shift < least:
                least, pair = shift, sums
        if rounds >= min(ROUNDS, claim.rounds) and present >= enough:
            break
    if pair is None:
        raise ExperimentError(f"the canary moved no sum in {rounds} rounds; its rate is said to be {claim.rate:g}")
    return pair, least, rounds, present


def _scores(
    one: Released, other: Released, pair: tuple[Aggregate, Aggregate], claim: Claim, shift: float, trials: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the attacker computes of each release: its part along what the canary moves, in units of sigma."""
    start, along = pair[1].vector.numpy(), (pair[0].vector - pair[1].vector).numpy() / shift
    singly = min(SINGLE, trials // 2)
    found = []
    for federation, aggregate in zip((one, other), pair, strict=True):
        parts = chain(federation.release_singly(aggregate, singly), federation.release(aggregate, trials - singly))
        found.append(np.concatenate([(part - start) @ along for part in parts]) / claim.sigma)
    return found[0], found[1]


def _finding(
    subject: str, cell: str, why: str, claim: Claim, measured: Measured, confidence: float
) -> Finding:
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
    verdict = (
        "; ".join(against)
        if against
        else f"the attack shows {shown / claim.epsilon:.0%} of the claim, {shown / lower:.0%} of the bracket's lower end"
    )
    rows = [
        ("bracket", f"{number(lower, 4)} to {number(claim.epsilon, 4)} over {claim.rounds} rounds"),
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
    if mu > claim.mu:
        found.append(f"one release shows a μ of {mu:.4g}, claimed is {claim.mu:.4g}")
    if rate > claim.rate:
        found.append(f"the canary is drawn at a rate of at least {rate:.4g}, claimed is {claim.rate:.4g}")
    if shown > claim.epsilon:
        found.append(f"an ε of {shown:.4g} is shown, more than the claim")
    return found


def _drawn(claim: Claim, measured: Measured, rate: float) -> str:
    told = f"in {measured.present} of {measured.rounds} real rounds"
    if measured.drawn is None:
        return f"every record is in every batch; the canary {told}"
    times, trials = measured.drawn
    return f"rate at least {number(rate, 4)} of {number(claim.rate, 4)}, from {times} of {trials} draws; {told}"


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
        "real_rounds": [measured.present, measured.rounds],
        "histogram": {
            "edges": edges.tolist(),
            "with": np.histogram(scores, edges)[0].tolist(),
            "without": np.histogram(others, edges)[0].tolist(),
        },
        "curve": [[float((others > t).mean()), float((scores <= t).mean())] for t in thresholds],
    }


def _drawing(claim: Claim, measured: Measured, details: dict[str, Any], shown: float) -> Figure:
    from simulations.audit.canary_figure import draw

    return draw({**details, "claimed_epsilon": claim.epsilon, "shown_epsilon": shown})
