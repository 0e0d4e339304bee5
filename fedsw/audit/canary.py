"""The canary attack: worst-case neighbours through the very code of a run, and how much of epsilon they show."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from fedsw.audit import canary_masked as masked
from fedsw.audit import canary_once as once
from fedsw.audit.bounds import epsilon_of_rates, expected_mu, gaussian_mu, judged, rate_at_least, shown_epsilon
from fedsw.audit.finding import AttackResult, AuditedPart, Claim, Finding, content_of, rows_of, said_of, square_of
from fedsw.audit.neighbours import Pair, Trial, TrialRun, View
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.experiment.trust import Law
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.mathematics.clipping.rules import Worst
from fedsw.privacy.accounting import Step, epsilon, epsilon_bracket, epsilon_by
from fedsw.privacy.relations import RELATIONS
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
    lower, _ = epsilon_bracket({Step(claim.rate, claim.mu, claim.sampling): claim.rounds}, claim.delta)
    share = measured.shift / claim.sensitivity
    moved = {f"one record, through {layer},": shift for layer, shift in layers.items()}
    against = _contradictions(claim, {"one record": measured.shift, **moved}, measured, mu, rate, shown)
    wholes = {"the claim": claim.epsilon, "the bracket's lower end": lower, "what these neighbours can show": instance}
    shares = ", ".join(f"{_share(shown, whole)} of {name}" for name, whole in wholes.items())
    correct, half = _power(measured.shift / claim.sigma, measured.attack.trials, 1 - risk)
    blind = half <= claim.mu
    verdict = f"the attack shows {shares}"
    if blind:
        verdict = f"half the noise would show a μ of {downward(half, 4)} alone, and {upward(claim.mu, 4)} is claimed"
    rows = [
        ("bracket", f"{downward(lower, 4)} to {upward(claim.epsilon, 4)}, T = {claim.rounds}"),
        ("worst case", f"{why} (group {cell})"),
        ("power", _in_words(correct, half, claim)),
        ("instance ε", f"{upward(instance, 4)}: it moves the sum by {share:.1%} of the sensitivity"),
        *_attacked_rows(experiment, claim, layers),
        ("one release", f"μ at least {number(mu, 4)} of {number(claim.mu, 4)}, from {measured.attack.trials} of each"),
        ("one draw", _drawn(claim, measured, rate)),
    ]
    details = _details(cell, claim, measured, rates, mu, rate)
    details.update(trust=experiment.privacy.trust, instance_epsilon=instance, bracket_lower=lower, instance_share=share)
    details.update(power={"correct": correct, "half_the_noise": half})
    details.update(layers={layer: shift / claim.sensitivity for layer, shift in layers.items()})
    return Finding(
        "canary",
        experiment.name,
        claim.epsilon,
        claim.delta,
        shown,
        confidence,
        "failed" if against else "no verdict" if blind else "passed",
        "; ".join(against) or verdict,
        rows,
        details,
        draw=lambda: draw({**details, "claimed_epsilon": claim.epsilon, "shown_epsilon": shown}),
    )


def _power(mu: float, trials: int, confidence: float) -> tuple[float, float]:
    """Return the mu that ``trials`` releases, mu apart, show of a correct build, and of one with half the noise."""
    return expected_mu(mu, trials, confidence), expected_mu(mu, trials, confidence, noise=0.5)


def _in_words(correct: float, half: float, claim: Claim) -> str:
    return (
        f"of a correct build this shows a μ of {upward(correct, 4)} at most, of half the noise {downward(half, 4)}; "
        f"{upward(claim.mu, 4)} is claimed"
    )


def _attacked_rows(experiment: Experiment, claim: Claim, layers: Mapping[str, float]) -> list[tuple[str, str]]:
    """Rows that name what stood in for the experiment's model, and how its own layers were attacked."""
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
_COMPARED = 16
"""Numbers of a release, at least, by which releases that were made singly are distinguished."""
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
    """Attack an experiment's releases, knowing everything but one record (membership inference on worst neighbours).

    Its seed is left out, so that sampling and noise are drawn for real. Of ``trials`` releases of each neighbour so
    many as ``singly`` says are made one by one; ``draws`` are of batches, where records are sampled. Everything that
    the shown epsilon rests on holds together with ``confidence``.

    What leaves once, of all records, is attacked beside the rounds, part by part, each on its own worst neighbours:
    moments, counts of scores, sums over kept records (`fedsw.audit.canary_once`). Where rounds have no worst
    neighbours here they are listed as not attacked. The shown epsilon is the largest of any one part.

    ExperimentError for a trust model, an objective, a map of inputs or a layer without worst neighbours here, naming
    those that have them, unless something leaves once; FederationError if a client or the server refuses a round.
    """
    why = ""
    try:
        _require_attackable(experiment)
    except ExperimentError as fault:
        why, privacy = str(fault), experiment.privacy
        if privacy.guarantee.unprotected or not privacy.model.beside:  # nothing leaves with noise beside the rounds
            raise ExperimentError(why) from None
    open_experiment = experiment.model_copy(update={"seed": None, "unsafe_metrics": False})
    begun = Console(stderr=True, quiet=not show).status("sizes and plan")
    trial = _TRIALS.get(experiment.privacy.model.law, once.Unattacked)
    with tempfile.TemporaryDirectory() as name, begun as status:
        folder = Path(name)
        with trial(open_experiment, None, folder / "sizes", canary=False) as plain:
            attacked, plan, (cell, claim) = plain.task.experiment, plain.plan, _claim(plain)
            if trial not in _TRIALS.values():  # its rounds are not attacked, and cost what is planned for them
                claim = replace(claim, rounds=attacked.training.rounds)
            sums = once.beside_rounds(plain)
            own_layers, neighbours = list[Worst](), None
            if not why:
                try:
                    own_layers, neighbours = plain.layers(), plain.worst(cell)
                except ExperimentError as fault:
                    why = str(fault)
            if why and not sums:
                raise ExperimentError(why)
        setting = _Setting(attacked, folder, status, trials, SINGLE if singly is None else singly)
        certain = 1 - (1 - confidence) / (len(sums) + (neighbours is not None))  # of all parts together
        findings: dict[str, Finding] = {}
        if neighbours is not None:
            try:
                layers = _through_layers(setting, trial, own_layers, neighbours, claim)
                attack, group = _of_rounds(setting, trial, neighbours, claim, cell, draws or DRAWS, certain)
                findings[""] = finding(attacked, group, neighbours.why, claim, attack, certain, layers)
            except ExperimentError as fault:
                if not sums:
                    raise
                why = str(fault)
        for part, pair, of_part in sums:
            with setting.both(partial(once.OnceTrial, part=part, plan=plan), pair, f"{part}-") as (one, other):
                attack = _attack(one, other, of_part, setting, certain)
            findings[part] = finding(attacked, once.WHOSE[pair.held_out], pair.why, of_part, attack, certain)
    if not sums:
        return findings[""]
    return _together(attacked, plan, claim, {part: of_part for part, _, of_part in sums}, findings, why, confidence)


@dataclass(frozen=True)
class _Setting:
    """Settings that all parts of an attack share."""

    experiment: Experiment
    folder: Path
    status: Status
    trials: int | None
    singly: int

    @contextlib.contextmanager
    def both(
        self, trial: Callable[..., Trial], neighbours: Pair, name: str = "", worst: Worst | None = None
    ) -> Iterator[tuple[Trial, Trial]]:
        """Both data sets behind the real apps, each in a folder of its own: with the canary's value, and without."""
        with_, without = self.folder / f"{name}with", self.folder / f"{name}without"
        with (
            trial(self.experiment, neighbours, with_, canary=True, worst=worst) as one,
            trial(self.experiment, neighbours, without, canary=False, worst=worst) as other,
        ):
            yield one, other

    def sizes(self, trial: Trial, mu: float, numbers: int, confidence: float) -> list[int]:
        """How many copies each release is of: one, as often as asked for, then many, after that of a real round.

        The canary moves ``numbers`` of a release, and all of it by ``mu``.
        """
        trials = self.trials or trial.enough(mu, numbers, confidence)
        alone = min(self.singly, trials, trial.singly)
        return [1] * (alone - 1) + [trials - alone] * (trials > alone)


def _through_layers(
    setting: _Setting, trial: type[Trial], layers: Sequence[Worst], neighbours: Pair, claim: Claim
) -> dict[str, float]:
    """How far the canary moves the sum through each layer's own worst neighbours, by their words."""
    moved = {}
    for index, layer in enumerate(layers):
        setting.status.update(f"layers: {layer.why}")
        with setting.both(trial, neighbours, f"{index}-", layer) as (one, other):
            ((direction, _), *_), _ = _real_rounds(one, other, claim, least=1, enough=1)
            moved[layer.why] = direction.mu * claim.sigma
    return moved


def _of_rounds(
    setting: _Setting,
    trial: type[Trial],
    neighbours: Pair,
    claim: Claim,
    cell: int,
    draws: int,
    confidence: float,
) -> tuple[AttackResult, str]:
    """The attack on the rounds, and the name of the canary's cell."""
    with setting.both(trial, neighbours) as (one, other):
        attack = _attack(one, other, claim, setting, confidence)
        if claim.rate < 1.0:
            setting.status.update("draws of batches")
            attack = replace(attack, drawn=(one.times_drawn(cell, neighbours.client, draws), draws))
        return attack, one.plan.strata[cell]


def _together(
    experiment: Experiment,
    plan: FederationPlan,
    claim: Claim,
    sums: Mapping[str, Claim],
    findings: Mapping[str, Finding],
    why: str,
    confidence: float,
) -> Finding:
    """One finding of the attacks on rounds and on what leaves beside them, with the part of mu^2 that each is of."""
    of_rounds = {Step(claim.rate, claim.mu, claim.sampling): claim.rounds}
    costs = {part: {Step(1.0, one.mu, claim.sampling): one.rounds} for part, one in sums.items()}
    trained = Counter(of_rounds)
    for part, steps in costs.items():
        if not once.of_kept(part):
            trained.update(steps)
    spent = max(
        epsilon_by(plan.accountant, dict(steps), plan.delta)
        for steps in (trained, *(costs[part] for part in costs if once.of_kept(part)))
    )
    parts = [_part(part, part, square_of(steps, plan.delta), findings, "") for part, steps in costs.items()]
    parts.insert(0, _part("", f"{claim.rounds} rounds", square_of(of_rounds, plan.delta), findings, why))
    against = [
        f"{one.name}: {findings[key].verdict}"
        for key, one in zip(("", *sums), parts, strict=True)
        if key in findings and findings[key].outcome == "failed"
    ]
    if spent > plan.epsilon * (1 + _SAME):
        against.append(f"all parts together cost ε = {upward(spent, 4)}, and {upward(plan.epsilon, 4)} is claimed")
    shown = max(one.shown for one in findings.values())
    main = findings.get("") or next(iter(findings.values()))
    passed = any(part.passed for part in parts)
    return Finding(
        "canary",
        experiment.name,
        plan.epsilon,
        plan.delta,
        shown,
        confidence,
        "failed" if against else "passed" if passed else "no verdict",
        "; ".join(against) or f"nothing contradicts the claim: {said_of(parts)}",
        [*(main.rows if "" in findings else ()), *rows_of(parts)],
        {
            **main.details,
            "parts": content_of(parts),
            "attacks": {key: one.details for key, one in findings.items() if key},
        },
        draw=main.draw,
    )


def _part(key: str, name: str, square: float, findings: Mapping[str, Finding], why: str) -> AuditedPart:
    """Report how one kind of rows was attacked, or why it was not."""
    held_out = once.of_kept(key)
    if key not in findings:
        return AuditedPart(name, square, "not attacked", f"({why})", held_out)
    one = findings[key].details
    words = f"at μ ≥ {downward(one['mu_lower'], 4)} of {upward(one['mu'], 4)} claimed"
    words += f" (its neighbours move it by {one['instance_share']:.0%} of the sensitivity)"
    if one["sampling_rate"] < 1:
        words += f" a round, and a rate of at least {number(one['sampling_rate_lower'], 4)}"
    if findings[key].outcome == "no verdict":
        return AuditedPart(name, square, "no verdict", f"({findings[key].verdict})", held_out)
    return AuditedPart(name, square, "attacked", words, held_out)


_SAME = 1e-4
"""Relative: what the plan's own composition may differ by from that of its parts."""


_TRIALS: Mapping[Law | None, type[Trial]] = {
    "clipped sum": TrialRun,
    "masked sum": masked.MaskedTrial,
    "sum of waves": once.OnceTrial,
}
"""Attacked runs by what a trust model noises."""


def _require_attackable(experiment: Experiment) -> None:
    """Refuse, by name, what is not among the relations, trust models and penalties that worst neighbours are known of.

    The map of inputs and the layers of the model follow, where they are known: `Trial.layers`.
    """
    privacy, law = experiment.privacy, experiment.privacy.model.law
    without = " without noise" if privacy.guarantee.unprotected else ""
    if law not in _REQUIRED or without:
        raise ExperimentError(
            f"privacy.trust is {privacy.trust!r}{without}; --canary attacks what the server of trust 'central' "
            "releases with noise, the sums of trust 'distributed', and sketches of every trust model"
        )
    _REQUIRED[law](experiment)


def _require_worst(experiment: Experiment) -> None:
    """Refuse penalties that no worst neighbours are known of."""
    goal = experiment.objective
    if goal.also:
        raise ExperimentError(
            "objective.also has more penalties; --canary has worst neighbours of one. Leave objective.also out"
        )
    if not PENALTIES.get(goal.penalty).canary:
        known = ", ".join(repr(name) for name, kind in PENALTIES.items() if kind.canary)
        raise ExperimentError(f"objective.penalty is {goal.penalty!r}; --canary has worst neighbours of {known}")


_REQUIRED: Mapping[Law | None, Callable[[Experiment], None]] = {
    "clipped sum": _require_worst,
    "masked sum": _require_worst,
    "sum of waves": once.require_sketch,
}
"""What refuses an experiment that an attack of `_TRIALS` has no worst neighbours of."""


def _claim(plain: Trial) -> tuple[int, Claim]:
    """The cell that decides the experiment's epsilon, and what is claimed of its records."""
    plan, rounds = plain.plan, plain.steps
    sampling = RELATIONS.get(plan.relation).sampling
    claims = [
        Claim(rate, bound.value, plain.sigma, rounds, plan.epsilon, plan.delta, sampling)
        for rate, bound in zip(plan.rates, plan.sensitivities, strict=True)
    ]
    spent = [epsilon({Step(claim.rate, claim.mu, sampling): rounds}, plan.delta) for claim in claims]
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

    @property
    def more_places(self) -> list[Tensor]:
        """The same and some others, so that equal noise of two releases is not chance among few numbers on a grid."""
        others = [torch.arange(min(_COMPARED, len(along))) for along in self.along]
        return [torch.unique(torch.cat([at, more])) for at, more in zip(self.places, others, strict=True)]

    def score(
        self, held: Sequence[NDArray[np.float64]], views: Sequence[View], places: Sequence[Tensor]
    ) -> NDArray[np.float64]:
        """The most powerful statistic of releases (n, p): N(0, 1) without the canary's value, N(mu, 1) with it."""
        total = 0.0
        for numbers, start, along, at, view in zip(held, self.start, self.along, places, views, strict=True):
            total = total + ((numbers - start[at].numpy()) @ along[at].numpy()) / view.scale**2
        return np.asarray(total) / self.mu


_Views = tuple[Sequence[View], Sequence[View]]
"""Views of one round, with the canary's value and without."""


def _attack(one: Trial, other: Trial, claim: Claim, setting: _Setting, confidence: float) -> AttackResult:
    """Run the distinguishing attack on a round's full view; of the rounds with the canary the weakest result counts."""
    status = setting.status
    status.update("real rounds on both neighbours")
    least, enough = min(_ROUNDS, claim.rounds), 1 if claim.rate == 1.0 else 3
    present, rounds = _real_rounds(one, other, claim, least=least, enough=enough)
    direction, views = min(present, key=lambda seen_round: seen_round[0].mu)
    sizes = setting.sizes(one, direction.mu, sum(map(len, direction.places)), confidence)
    status.console.print(_in_words(*_power(direction.mu, 1 + sum(sizes), confidence), claim))
    status.update("releases with real noise")
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
    places, more = direction.places, direction.more_places
    real = [view.held[at][None].numpy() for view, at in zip(views, places, strict=True)]
    scores, alone = [direction.score(real, views, places)], []
    most = max(1, _NUMBERS // max(1, sum(map(len, places))))
    for size in sizes:
        looked_at = more if size == 1 else places
        for start in range(0, size, most):
            left = [view.again(at, min(most, size - start)) for view, at in zip(views, looked_at, strict=True)]
            scores.append(direction.score(left, views, looked_at))
            if size == 1:
                alone.append(b"".join(numbers.tobytes() for numbers in left))
    return np.concatenate(scores), alone
