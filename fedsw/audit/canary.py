"""The canary attack: worst-case neighbours through the very code of a run, and how much of epsilon they show."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.status import Status
from scipy import stats

from fedsw.accounting import Step, epsilon, epsilon_bracket
from fedsw.audit import masked, sketched
from fedsw.audit.bounds import epsilon_of_rates, gaussian_mu, judged, rate_at_least, shown_epsilon
from fedsw.audit.finding import AttackResult, Claim, Finding
from fedsw.audit.neighbours import ABSENT, ROUNDS, Trial, TrialRun
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.trust import trust_model
from fedsw.federation.budgets import split
from fedsw.federation.trust.central.rounds import Aggregate
from fedsw.report.figures import colour, house_style, new_panels
from fedsw.text import downward, number, upward

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@house_style()
def draw(found: Mapping[str, Any]) -> Figure:
    """Three panels by a finding's details: scores of both neighbours, errors against the claimed curve, epsilons."""
    figure, (scores, errors, epsilons) = new_panels(1, 3, size=(11.0, 3.4), width_ratios=(1.2, 1.0, 0.8))
    _draw_scores(scores, found)
    _errors(errors, found)
    _epsilons(epsilons, found)
    return figure


def _draw_scores(axes: Axes, found: Mapping[str, Any]) -> None:
    edges = np.array(found["histogram"]["edges"])
    for position, (name, label) in enumerate((("without", "without the canary's value"), ("with", "with it"))):
        counts = np.array(found["histogram"][name])
        heights = counts / counts.sum() / np.diff(edges)
        axes.stairs(heights, edges, fill=True, color=colour(position), alpha=0.35, label=label)
    axes.axvline(found["threshold"], color="black", linewidth=1.0, label="threshold")
    axes.set(title="Releases in which the canary was drawn", xlabel="score (in units of σ)", ylabel="density")
    axes.set_ylim(0, 1.45 * axes.get_ylim()[1])
    axes.legend(loc="upper left")


def _errors(axes: Axes, found: Mapping[str, Any]) -> None:
    alpha = np.linspace(1e-4, 1 - 1e-4, 400)
    claimed = stats.norm.cdf(stats.norm.isf(alpha) - found["mu"])
    axes.plot(alpha, claimed, color="black", label=f"claimed, μ = {upward(found['mu'])}")
    points = np.array(found["curve"])
    axes.plot(points[:, 0], points[:, 1], ".", color=colour(0), label="measured")
    axes.plot(*found["rates_upper"], marker="s", color=colour(1), linestyle="none", label="bounded")
    axes.plot([0, 1], [1, 0], color="black", linewidth=0.6, linestyle=":")
    axes.set(title="Errors of the test", xlabel="false positives", ylabel="false negatives", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper right")


def _epsilons(axes: Axes, found: Mapping[str, Any]) -> None:
    names = ("claimed", "bracket,\nlower end", "instance", "shown")
    keys = ("claimed_epsilon", "bracket_lower", "instance_epsilon", "shown_epsilon")
    values = claimed, lower, instance, shown = [float(found[key]) for key in keys]
    shades = ("0.35", "0.6", colour(5), colour(1))
    bars = axes.bar(names, values, color=shades)
    axes.bar_label(bars, [upward(claimed), downward(lower), upward(instance), downward(shown)])
    axes.tick_params(axis="x", labelsize="small")
    axes.set(title=f"ε, T = {found['rounds']}", ylim=(0, 1.15 * max(values)))


_BINS = 80


def finding(
    experiment: Experiment, cell: str, why: str, claim: Claim, measured: AttackResult, confidence: float
) -> Finding:
    """Bounds on mu and on the rate that hold together, the epsilon that they prove, and whether any contradicts."""
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
        ("bracket", f"{downward(lower, 4)} to {upward(claim.epsilon, 4)}, T = {claim.rounds}"),
        ("worst case", f"{why} (group {cell})"),
        ("instance ε", f"{upward(instance, 4)}: it moves the sum by {share:.1%} of the sensitivity"),
        ("one release", f"μ at least {number(mu, 4)} of {number(claim.mu, 4)}, from {measured.attack.trials} of each"),
        ("one draw", _drawn(claim, measured, rate)),
    ]
    details = _details(cell, claim, measured, rates, mu, rate)
    details.update(trust=experiment.privacy.trust, instance_epsilon=instance, bracket_lower=lower, instance_share=share)
    return Finding(
        "canary",
        experiment.name,
        claim.epsilon,
        claim.delta,
        shown,
        confidence,
        not against,
        verdict,
        rows,
        details,
        draw=lambda: draw({**details, "claimed_epsilon": claim.epsilon, "shown_epsilon": shown}),
    )


def _contradictions(claim: Claim, measured: AttackResult, mu: float, rate: float, shown: float) -> list[str]:
    """What was found that the claim rules out, part by part: the whole has room that would hide a part's fault."""
    contradictions = []
    if measured.shift > claim.sensitivity:
        contradictions.append(
            f"one record moves the sum by {measured.shift / claim.sensitivity:.4g} times the sensitivity"
        )
    if measured.repeated:
        contradictions.append(f"{measured.repeated} releases have the noise of an earlier one")
    if mu > claim.mu:
        contradictions.append(f"one release shows a μ of {downward(mu, 4)}, claimed is {upward(claim.mu, 4)}")
    if rate > claim.rate:
        contradictions.append(f"the canary is drawn at a rate of at least {rate:.4g}, claimed is {claim.rate:.4g}")
    if shown > claim.epsilon:
        contradictions.append(f"an ε of {downward(shown, 4)} is shown, more than the claim")
    return contradictions


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "nothing"


def _drawn(claim: Claim, measured: AttackResult, rate: float) -> str:
    seen = f"in {measured.present} of {measured.rounds} real rounds"
    if measured.drawn is None:
        return f"every record is in every batch; the canary {seen}"
    times, trials = measured.drawn
    return f"rate at least {number(rate, 4)} of {number(claim.rate, 4)}, from {times} of {trials} draws; {seen}"


def _details(
    cell: str, claim: Claim, measured: AttackResult, rates: tuple[float, float], mu: float, rate: float
) -> dict[str, Any]:
    attack, (scores, others) = measured.attack, measured.scores
    low, high = float(min(scores.min(), others.min())), float(max(scores.max(), others.max()))
    edges = np.linspace(low, high, _BINS + 1)
    # Error rates at other thresholds, for the figure only: the bound rests on the one fixed in advance.
    thresholds = np.quantile(np.concatenate([scores[:100_000], others[:100_000]]), np.linspace(0.02, 0.98, 25))
    return {
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


TRIALS = 10_000_000
CONFIDENCE = 0.9999
DRAWS = 100_000
SINGLE = 500


def audit(
    experiment: Experiment,
    *,
    trials: int | None = None,
    show: bool = False,
    confidence: float = CONFIDENCE,
    draws: int | None = None,
    singly: int | None = None,
) -> Finding:
    """Attack the releases of an experiment by whoever knows everything but one record.

    Args:
        experiment: its seed is left out, so that sampling and noise are drawn for real.
        trials: releases of each neighbour, ``singly`` of which are made and charged one by one.
        confidence: of everything that the shown epsilon rests on, together.
        draws: of batches, where records are sampled.

    Raises:
        ExperimentError: for a trust model or an objective without worst neighbours here, naming those that have them.
        FederationError: if a client or the server refuses a round.
    """
    attacked = _attackable(experiment)
    status = Console(stderr=True, quiet=not show).status("sizes and plan")
    draws, singly = draws or DRAWS, SINGLE if singly is None else singly
    with tempfile.TemporaryDirectory() as folder, status:
        if attacked.privacy.model.sketched:
            numbers = _Numbers(trials or sketched.TRIALS, draws, singly)
            found = _measured(attacked, sketched.SketchTrial, masked.attack, numbers, Path(folder), status)
        elif trust_model(experiment.privacy.trust).masked:
            numbers = _Numbers(trials or masked.TRIALS, draws, singly)
            tables = split.asks_tables(attacked)
            found = _measured(attacked, masked.MaskedTrial, masked.attack, numbers, Path(folder), status, tables=tables)
        else:
            numbers = _Numbers(trials or TRIALS, draws, singly)
            found = _measured(attacked, TrialRun, _attack, numbers, Path(folder), status)
    return finding(experiment, *found, confidence)


class _Numbers(NamedTuple):
    """How often something is tried: releases, draws of batches, and releases that are made one by one."""

    releases: int
    draws: int
    singly: int


_Trial = TypeVar("_Trial", bound=Trial)
_Attack = Callable[[_Trial, _Trial, Claim, tuple[int, int], Status], AttackResult]


def _measured(
    attacked: Experiment,
    trial: type[_Trial],
    attack: _Attack[_Trial],
    numbers: _Numbers,
    folder: Path,
    status: Status,
    *,
    tables: bool = False,
) -> tuple[str, str, Claim, AttackResult]:
    """The canary's group, what is worst about the neighbours, the claim, and what the attack found."""
    with trial(attacked, None, folder / "sizes", canary=False) as plain:
        cell, claim = _claim(plain)
        neighbours = plain.worst(cell, tables=tables)
    with (
        trial(attacked, neighbours, folder / "with", canary=True) as one,
        trial(attacked, neighbours, folder / "without", canary=False) as other,
    ):
        singly = min(numbers.singly, numbers.releases)
        found = attack(one, other, claim, (singly, numbers.releases - singly), status)
        if claim.rate < 1.0:
            status.update("draws of batches")
            found = replace(found, drawn=(one.times_drawn(cell, neighbours.client, numbers.draws), numbers.draws))
        return one.plan.strata[cell], neighbours.why, claim, found


def _attackable(experiment: Experiment) -> Experiment:
    privacy, goal = experiment.privacy, experiment.objective
    model = privacy.model
    if model.sketched and not model.masked and privacy.noisy:
        sketched.require_sketch(experiment)
        return experiment.model_copy(update={"seed": None, "unsafe_metrics": False})
    if model.sketched and model.masked:
        raise ExperimentError(
            "a masked sketch is the sum that a trusted server would have released: audit it under trust 'sketch'"
        )
    if (model.local and not model.masked) or not model.gradients or not privacy.noisy:
        raise ExperimentError(
            f"privacy.trust is {privacy.trust!r}{'' if privacy.noisy else ' without noise'}; --canary attacks what the "
            "server of trust 'central' releases with noise, the sums of trust 'distributed', and sketches of trust "
            "'sketch' and 'sketch-local'"
        )
    if goal.also:
        raise ExperimentError(
            "objective.also has more penalties; --canary has worst neighbours of one. Leave objective.also out"
        )
    if goal.penalty == "distribution-matching":
        raise ExperimentError(
            f"objective.penalty is {goal.penalty!r}; --canary has worst neighbours of 'statistical-parity', "
            "'equality-of-odds' and 'prior-matching'"
        )
    data = experiment.data.model_copy(update={"row_norm": None})  # the worst case is not written in unit rows
    return experiment.model_copy(update={"seed": None, "unsafe_metrics": False, "data": data})


def _claim(plain: Trial) -> tuple[int, Claim]:
    """The cell that decides the experiment's epsilon, and what is claimed of its records."""
    plan, rounds = plain.plan, plain.steps
    claims = [
        Claim(rate, bound.value, plain.sigma, rounds, plan.epsilon, plan.delta)
        for rate, bound in zip(plan.rates, plan.sensitivities, strict=True)
    ]
    spent = [epsilon({Step(claim.rate, claim.mu): rounds}, plan.delta) for claim in claims]
    cell = max(range(len(claims)), key=lambda j: (spent[j], -plan.batch[j]))
    return cell, claims[cell]


def _attack(one: TrialRun, other: TrialRun, claim: Claim, releases: tuple[int, int], status: Status) -> AttackResult:
    status.update("real rounds on both neighbours")
    aggregates, shift, rounds, present = _real_rounds(one, other, claim)
    status.update("releases with real noise")
    scores, repeated = _scores((one, other), aggregates, claim, shift, releases)
    judgement = judged(*scores, threshold=shift / claim.sigma / 2)
    return AttackResult(shift, rounds, present, judgement, None, repeated, scores)


def _real_rounds(one: TrialRun, other: TrialRun, claim: Claim) -> tuple[tuple[Aggregate, Aggregate], float, int, int]:
    """Rounds of both until the canary was in enough of them; the pair of sums that it moved least."""
    enough = 1 if claim.rate == 1.0 else 3
    least, pair, present = math.inf, None, 0
    for rounds in range(1, math.ceil(ABSENT / claim.rate) + ROUNDS + 1):
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
    federations: tuple[TrialRun, TrialRun],
    pair: tuple[Aggregate, Aggregate],
    claim: Claim,
    shift: float,
    releases: tuple[int, int],
) -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], int]:
    """Each release's part along what the canary moves, in units of sigma; how many made singly equal an earlier one."""
    start, along = pair[1].vector.numpy(), (pair[0].vector - pair[1].vector).numpy() / shift
    singly, together = releases
    found, repeated = [], 0
    for federation, aggregate in zip(federations, pair, strict=True):
        alone = list(federation.release_singly(aggregate, singly))
        repeated += len(alone) - len({part.tobytes() for part in alone})
        parts = chain(alone, federation.release(aggregate, together))
        found.append(np.concatenate([(part - start) @ along for part in parts]) / claim.sigma)
    return (found[0], found[1]), repeated
