"""The canary attack: worst-case neighbours through the very code of a run, and how much of epsilon they show."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.status import Status
from scipy import stats
from torch import Tensor

from fedsw._tools.text import downward, number, upward
from fedsw.audit import _canary_masked as masked
from fedsw.audit import _canary_sketch as sketched
from fedsw.audit._bounds import epsilon_of_rates, gaussian_mu, judged, rate_at_least, shown_epsilon
from fedsw.audit._neighbours import Trial, TrialRun, View
from fedsw.audit.finding import AttackResult, Claim, Finding
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.experiment.trust import Law
from fedsw.privacy.accounting import Step, epsilon, epsilon_bracket
from fedsw.runs.report.figures import colour, house_style, new_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@house_style()
def draw(details: Mapping[str, Any]) -> Figure:
    """Three panels by a finding's details: scores of both neighbours, errors against the claimed curve, epsilons."""
    figure, (scores, errors, epsilons) = new_panels(1, 3, size=(11.0, 3.4), width_ratios=(1.2, 1.0, 0.8))
    _draw_scores(scores, details)
    _errors(errors, details)
    _epsilons(epsilons, details)
    return figure


def _draw_scores(axes: Axes, details: Mapping[str, Any]) -> None:
    edges = np.array(details["histogram"]["edges"])
    for position, (name, label) in enumerate((("without", "without the canary's value"), ("with", "with it"))):
        counts = np.array(details["histogram"][name])
        heights = counts / counts.sum() / np.diff(edges)
        axes.stairs(heights, edges, fill=True, color=colour(position), alpha=0.35, label=label)
    axes.axvline(details["threshold"], color="black", linewidth=1.0, label="threshold")
    axes.set(title="Releases in which the canary was drawn", xlabel="score (in units of σ)", ylabel="density")
    axes.set_ylim(0, 1.45 * axes.get_ylim()[1])
    axes.legend(loc="upper left")


def _errors(axes: Axes, details: Mapping[str, Any]) -> None:
    alpha = np.linspace(1e-4, 1 - 1e-4, 400)
    claimed = stats.norm.cdf(stats.norm.isf(alpha) - details["mu"])
    axes.plot(alpha, claimed, color="black", label=f"claimed, μ = {upward(details['mu'])}")
    points = np.array(details["curve"])
    axes.plot(points[:, 0], points[:, 1], ".", color=colour(0), label="measured")
    axes.plot(*details["rates_upper"], marker="s", color=colour(1), linestyle="none", label="bounded")
    axes.plot([0, 1], [1, 0], color="black", linewidth=0.6, linestyle=":")
    axes.set(title="Errors of the test", xlabel="false positives", ylabel="false negatives", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper right")


def _epsilons(axes: Axes, details: Mapping[str, Any]) -> None:
    names = ("claimed", "bracket,\nlower end", "instance", "shown")
    keys = ("claimed_epsilon", "bracket_lower", "instance_epsilon", "shown_epsilon")
    values = claimed, lower, instance, shown = [float(details[key]) for key in keys]
    shades = ("0.35", "0.6", colour(5), colour(1))
    bars = axes.bar(names, values, color=shades)
    axes.bar_label(bars, [upward(claimed), downward(lower), upward(instance), downward(shown)])
    axes.tick_params(axis="x", labelsize="small")
    axes.set(title=f"ε, T = {details['rounds']}", ylim=(0, 1.15 * max(values)))


_BINS = 80


def finding(
    experiment: Experiment,
    cell: str,
    why: str,
    claim: Claim,
    measured: AttackResult,
    confidence: float,
    layers: Mapping[str, float] | None = None,
) -> Finding:
    """Bounds on mu and on the rate that hold together, the epsilon that they prove, and whether any contradicts.

    ``layers`` are those of the experiment's own model, and how far a record moves the sum through each.
    """
    layers = layers or {}
    # Half of what may go wrong to the draws, where there are any; the bounds then hold together.
    risk = (1 - confidence) / (1 if measured.drawn is None else 2)
    rates = measured.attack.rates(1 - risk)
    mu = gaussian_mu(*rates)
    rate = claim.rate if measured.drawn is None else min(1.0, rate_at_least(*measured.drawn, 1 - risk))
    shown = shown_epsilon(mu, rate, claim.rounds, claim.delta)
    instance = shown_epsilon(measured.shift / claim.sigma, claim.rate, claim.rounds, claim.delta)
    lower, _ = epsilon_bracket({Step(claim.rate, claim.mu): claim.rounds}, claim.delta)
    share = measured.shift / claim.sensitivity
    against = _contradictions(claim, {"one record": measured.shift, **_by_layer(layers)}, measured, mu, rate, shown)
    wholes = {"the claim": claim.epsilon, "the bracket's lower end": lower, "what these neighbours can show": instance}
    shares = ", ".join(f"{_share(shown, whole)} of {name}" for name, whole in wholes.items())
    verdict = "; ".join(against) if against else f"the attack shows {shares}"
    rows = [
        ("bracket", f"{downward(lower, 4)} to {upward(claim.epsilon, 4)}, T = {claim.rounds}"),
        ("worst case", f"{why} (group {cell})"),
        ("instance ε", f"{upward(instance, 4)}: it moves the sum by {share:.1%} of the sensitivity"),
        *_attacked_rows(experiment, claim, layers),
        ("one release", f"μ at least {number(mu, 4)} of {number(claim.mu, 4)}, from {measured.attack.trials} of each"),
        ("one draw", _drawn(claim, measured, rate)),
    ]
    details = _details(cell, claim, measured, rates, mu, rate)
    details.update(trust=experiment.privacy.trust, instance_epsilon=instance, bracket_lower=lower, instance_share=share)
    details.update(layers={layer: shift / claim.sensitivity for layer, shift in layers.items()})
    return Finding(
        "canary",
        experiment.name,
        claim.epsilon,
        claim.delta,
        shown,
        confidence,
        "failed" if against else "passed",
        verdict,
        rows,
        details,
        draw=lambda: draw({**details, "claimed_epsilon": claim.epsilon, "shown_epsilon": shown}),
    )


def _by_layer(layers: Mapping[str, float]) -> dict[str, float]:
    return {f"one record, through {layer},": shift for layer, shift in layers.items()}


def _attacked_rows(experiment: Experiment, claim: Claim, layers: Mapping[str, float]) -> list[tuple[str, str]]:
    """What stood in for the experiment's model, and how its own layers were attacked."""
    if not layers:
        return []
    kind = experiment.model.kind
    parts = "; ".join(f"{layer}: {shift / claim.sensitivity:.1%}" for layer, shift in layers.items())
    return [
        ("model", f"outputs and gradients are what records say, in place of those of model.kind {kind!r}"),
        ("its layers", f"{parts} of the sensitivity"),
    ]


def _contradictions(
    claim: Claim, moved: Mapping[str, float], measured: AttackResult, mu: float, rate: float, shown: float
) -> list[str]:
    """List the results that the claim rules out, part by part: the whole has room that would hide a part's fault."""
    checked = [
        *(
            (
                shift > claim.sensitivity,
                f"{what} moves the sum by {shift / claim.sensitivity:.4g} times the sensitivity",
            )
            for what, shift in moved.items()
        ),
        (measured.repeated > 0, f"{measured.repeated} releases have the noise of an earlier one"),
        (mu > claim.mu, f"one release shows a μ of {downward(mu, 4)}, claimed is {upward(claim.mu, 4)}"),
        (rate > claim.rate, f"the canary is drawn at a rate of at least {rate:.4g}, claimed is {claim.rate:.4g}"),
        (shown > claim.epsilon, f"an ε of {downward(shown, 4)} is shown, more than the claim"),
    ]
    return [words for wrong, words in checked if wrong]


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


CONFIDENCE = 0.9999
DRAWS = 100_000
SINGLE = 500
_ROUNDS = 20
"""Real rounds, where the canary is in every batch."""
_ABSENT = 20.0
"""Rounds without the canary, as it is to be expected, until its absence is reported: exp(-20) by chance."""
_NUMBERS = 2**21
"""Most numbers in one release of many copies."""


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

    Its seed is left out, so that sampling and noise are drawn for real. Of ``trials`` releases of each neighbour so
    many as ``singly`` says are made one by one; ``draws`` are of batches, where records are sampled. Everything that
    the shown epsilon rests on holds together with ``confidence``.

    ExperimentError for a trust model, an objective, a map of inputs or a layer without worst neighbours here, naming
    those that have them; FederationError if a client or the server refuses a round.
    """
    _require_attackable(experiment)
    open_experiment = experiment.model_copy(update={"seed": None, "unsafe_metrics": False})
    draws, singly = draws or DRAWS, SINGLE if singly is None else singly
    begun = Console(stderr=True, quiet=not show).status("sizes and plan")
    trial = _TRIALS[experiment.privacy.model.law]
    with tempfile.TemporaryDirectory() as name, begun as status:
        folder = Path(name)
        with trial(open_experiment, None, folder / "sizes", canary=False) as plain:
            attacked, (cell, claim) = plain.task.experiment, _claim(plain)
            own, neighbours = plain.layers(), plain.worst(cell)
        layers = {}
        for number, layer in enumerate(own):
            status.update(f"layers: {layer.why}")
            with (
                trial(attacked, neighbours, folder / f"with-{number}", canary=True, worst=layer) as one,
                trial(attacked, neighbours, folder / f"without-{number}", canary=False, worst=layer) as other,
            ):
                ((direction, _), *_), _ = _real_rounds(one, other, claim, least=1, enough=1)
                layers[layer.why] = direction.mu * claim.sigma
        with (
            trial(attacked, neighbours, folder / "with", canary=True) as one,
            trial(attacked, neighbours, folder / "without", canary=False) as other,
        ):
            attack = _attack(one, other, claim, _sizes(trials or trial.trials, singly), status)
            if claim.rate < 1.0:
                status.update("draws of batches")
                attack = replace(attack, drawn=(one.times_drawn(cell, neighbours.client, draws), draws))
            group = one.plan.strata[cell]
    return finding(attacked, group, neighbours.why, claim, attack, confidence, layers)


_TRIALS: Mapping[Law | None, type[Trial]] = {
    "clipped sum": TrialRun,
    "masked sum": masked.MaskedTrial,
    "sum of waves": sketched.SketchTrial,
}
"""Attacked runs by what a trust model noises."""


def _require_attackable(experiment: Experiment) -> None:
    """Refuse, by name, what is not among the relations, trust models and penalties that worst neighbours are known of.

    The map of inputs and the layers of the model follow, where they are known: `Trial.layers`.
    """
    privacy, goal = experiment.privacy, experiment.objective
    model = privacy.model
    if privacy.relation != "replace-one":
        raise ExperimentError(
            f"privacy.relation is {privacy.relation!r}, and --canary replaces a record, of which that epsilon promises "
            "nothing: attack the same settings with relation 'replace-one', whose clips and release are the same"
        )
    if model.unaudited is not None:
        raise ExperimentError(model.unaudited)
    without = privacy.guarantee.by_noise(noised="", none=" without noise")
    if model.law not in _TRIALS or without:
        raise ExperimentError(
            f"privacy.trust is {privacy.trust!r}{without}; --canary attacks what the server of trust 'central' "
            "releases with noise, the sums of trust 'distributed', and sketches of trust 'sketch' and 'sketch-local'"
        )
    if model.law == "sum of waves":
        sketched.require_sketch(experiment)
        return
    if goal.also:
        raise ExperimentError(
            "objective.also has more penalties; --canary has worst neighbours of one. Leave objective.also out"
        )
    if not PENALTIES.get(goal.penalty).canary:
        known = ", ".join(repr(name) for name, kind in PENALTIES.items() if kind.canary)
        raise ExperimentError(f"objective.penalty is {goal.penalty!r}; --canary has worst neighbours of {known}")


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


@dataclass(frozen=True)
class _Direction:
    """The canary's move of each release of a round: where they start, along what, and mu, all that they tell."""

    mu: float
    start: tuple[Tensor, ...]
    along: tuple[Tensor, ...]

    @classmethod
    def between(cls, one: Sequence[View], other: Sequence[View]) -> _Direction:
        """From the views of a round without the canary's value, `other`, to those with it."""
        start = tuple(view.exact for view in other)
        along = tuple(view.exact - at for view, at in zip(one, start, strict=True))
        parts = [float(moved.norm()) / view.scale for moved, view in zip(along, one, strict=True)]
        return cls(math.hypot(*parts), start, along)

    @property
    def places(self) -> list[Tensor]:
        """Coordinates (p,) of each release that it moves: noise of the others tells nothing."""
        return [torch.nonzero(along.abs() > 0).reshape(-1) for along in self.along]

    def score(self, held: Sequence[NDArray[np.float64]], views: Sequence[View]) -> NDArray[np.float64]:
        """The most powerful statistic of releases (n, p): N(0, 1) without the canary's value, N(mu, 1) with it."""
        total = 0.0
        for numbers, start, along, at, view in zip(held, self.start, self.along, self.places, views, strict=True):
            total = total + ((numbers - start[at].numpy()) @ along[at].numpy()) / view.scale**2
        return np.asarray(total) / self.mu


_Views = tuple[Sequence[View], Sequence[View]]
"""Views of one round, with the canary's value and without."""


def _sizes(trials: int, singly: int) -> list[int]:
    """How many copies each release is of, after that of a real round: one, as often as asked for, then many."""
    alone = min(singly, trials)
    return [1] * (alone - 1) + [trials - alone] * (trials > alone)


def _attack(one: Trial, other: Trial, claim: Claim, sizes: Sequence[int], status: Status) -> AttackResult:
    """Run the distinguishing attack on a round's full view; of the rounds with the canary the weakest result counts."""
    status.update("real rounds on both neighbours")
    least, enough = min(_ROUNDS, claim.rounds), 1 if claim.rate == 1.0 else 3
    present, rounds = _real_rounds(one, other, claim, least=least, enough=enough)
    status.update("releases with real noise")
    direction, views = min(present, key=lambda seen_round: seen_round[0].mu)
    repeated, scores = 0, []
    for which in (0, 1):
        noises = [b"".join((v.held - v.exact).numpy().tobytes() for v in seen[which]) for _, seen in present]
        many, alone = _scores(views[which], direction, sizes)
        repeated += len(noises) - len(set(noises)) + len(alone) - len(set(alone))
        scores.append(many)
    judgement = judged(scores[0], scores[1], threshold=direction.mu / 2)
    shift = direction.mu * claim.sigma
    return AttackResult(shift, rounds, len(present), judgement, None, repeated, (scores[0], scores[1]))


def _real_rounds(
    one: Trial, other: Trial, claim: Claim, *, least: int, enough: int
) -> tuple[list[tuple[_Direction, _Views]], int]:
    """Views of both data sets in rounds with the canary, until they are enough; and how many rounds were made."""
    present, made = list[tuple[_Direction, _Views]](), 0
    for round_ in one.rounds(math.ceil(_ABSENT / claim.rate) + _ROUNDS):
        made += 1
        views = one.views(round_), other.views(round_)
        direction = _Direction.between(*views)
        if direction.mu > 0.01 * claim.mu:
            present.append((direction, views))
        if made >= least and len(present) >= enough:
            break
    if not present:
        raise ExperimentError(
            f"the canary moved nothing in {made} rounds, and its rate is said to be {claim.rate:g}; raise "
            "training.batch_fraction, or training.rounds where clients have ledgers"
        )
    return present, made


def _scores(
    views: Sequence[View], direction: _Direction, sizes: Sequence[int]
) -> tuple[NDArray[np.float64], list[bytes]]:
    """Scores of what was held in a real round and of releases of as many copies, and what left of those of one."""
    places = direction.places
    scores = [direction.score([view.held[at][None].numpy() for view, at in zip(views, places, strict=True)], views)]
    alone = []
    most = max(1, _NUMBERS // max(1, sum(map(len, places))))
    for size in sizes:
        for start in range(0, size, most):
            left = [view.again(at, min(most, size - start)) for view, at in zip(views, places, strict=True)]
            scores.append(direction.score(left, views))
            if size == 1:
                alone.append(b"".join(numbers.tobytes() for numbers in left))
    return np.concatenate(scores), alone
