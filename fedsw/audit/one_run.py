"""The one-run audit: real training with canaries in it, and what guessing them shows of epsilon."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from fedsw._tools.text import downward, upward
from fedsw.audit import canary_once as once
from fedsw.audit import canary_pairs as pairs
from fedsw.audit.bounds import Leakage, Scores, curve_p_value, epsilon_of_guesses, excludes
from fedsw.audit.canary_pairs import Attacker, Canaries, Guesses, ReleasedRound
from fedsw.audit.finding import AuditedPart, Finding, How, content_of, rows_of, said_of, square_of
from fedsw.data import Records, concatenate
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.experiment.preset_rules import left_open
from fedsw.experiment.task_kinds import task_facts
from fedsw.experiment.trust import accounting_at_server
from fedsw.federation.engines.driver import run
from fedsw.federation.engines.inprocess import node_configs
from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.simulated import simulating, substituted
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.learning.models import flatten
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Step
from fedsw.runs.observer import Observer, Outcome
from fedsw.runs.progress import RunProgress
from fedsw.runs.report.figures import colour, histogram_by_group, house_style, new_panels
from fedsw.runs.run_files import RunFile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@house_style()
def draw_one_run(
    attacks: Mapping[str, tuple[NDArray[np.float64], float]],
    coins: NDArray[np.bool_],
    *,
    claimed: float,
    title: str,
    published: float,
) -> Figure:
    """Histograms of each attacker's scores (m,) by coin (m,), and the epsilon that it shows beside the claimed one."""
    figure, panels = new_panels(1, len(attacks) + 1, size=(3.3 * (len(attacks) + 1), 3.1))
    for axes, (name, (scores, _)) in zip(panels, attacks.items(), strict=False):
        _histograms(axes, scores / (scores.std() or 1.0), coins)
        axes.set(title=name, xlabel="score, in standard deviations", ylabel="density")
    panels[0].legend(fontsize="small")
    _bars(panels[-1], {name: shown for name, (_, shown) in attacks.items()}, claimed, published)
    figure.suptitle(f"{title}: one run, {len(coins)} canaries")
    return figure


def _histograms(axes: Axes, scores: NDArray[np.float64], coins: NDArray[np.bool_]) -> None:
    most = float(np.abs(scores).max()) or 1.0
    histogram_by_group(axes, scores, coins.astype(np.int64), limits=(-most, most), name=lambda coin: f"coin {coin}")


def _bars(axes: Axes, shown: Mapping[str, float], claimed: float, published: float) -> None:
    names = list(shown)
    finite = math.isfinite(claimed)
    heights = [shown[name] for name in names] + ([claimed] if finite else [])
    labels = [name.replace(" ", "\n", 1) for name in names] + (["claimed"] if finite else [])
    colours = [colour(2 + index) for index in range(len(names))] + ["0.6"]
    axes.bar(range(len(heights)), heights, color=colours[: len(heights)], width=0.6)
    texts = [downward(shown[name]) for name in names] + ([upward(claimed)] if finite else [])
    for position, (height, text) in enumerate(zip(heights, texts, strict=True)):
        axes.annotate(text, (position, height), ha="center", va="bottom", fontsize="small")
    if finite:
        axes.axhline(published * claimed, color="black", linestyle="--", linewidth=1.0)
        axes.annotate(
            f"{published} of ε: best published\nblack box (MNIST, ε = 10)",
            (-0.4, published * claimed),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize="x-small",
        )
        axes.set_ylim(0, 1.12 * max(heights))
    axes.set_xticks(range(len(heights)), labels)
    axes.set(title="ε shown and claimed", ylabel="ε")


CONFIDENCE = 0.95
PUBLISHED = 0.72
"""The best published share of epsilon that a black box showed: 7.21 of 10 on MNIST.

Of many trainings on samples of 1000 records, from an initial model made for the purpose; on all of MNIST it is 6.48.
Source: Annamalai and De Cristofaro 2024, "Nearly tight black-box auditing of differentially private machine learning".
"""

UNSAFE = (
    "epsilon = infinity for a reader of this finding: guesses, the choice of canaries and the share of the sensitivity "
    "come from trainings without noise on private records; it is for who may see these records, not for publication"
)
_OPTIONS = 16  # pairs of which each canary is the strongest
_MODELS = 5  # of a reference training, on which strength is measured
_SIMULATED = 51  # guesses of all coins, from which power is estimated
_GUESSED = 0.2  # share of the coins that are guessed, fixed before anything is seen
_NAMES = {"final": "final model only", "all": "all models"}


@dataclass(frozen=True)
class _Attack:
    scores: Scores
    guesses: Guesses
    accuracy: float
    shown: float
    shown_without_curve: float
    p_value: float
    refuted: bool


def audit(
    experiment: Experiment, *, canaries: int, show: bool, confidence: float = CONFIDENCE, unsafe: bool = False
) -> Finding:
    """Train once with canaries, for real, and let two attackers guess which record of each pair was in the data.

    Its finding is not a private release: canaries are chosen, and guesses made, by trainings without noise on the same
    records. So records of a user's own are refused unless `unsafe`, and the finding then says whom it is for.

    Sampling and noise are drawn as in any private run, also where the experiment has a seed. The probability of being
    wrong, 1 - confidence, is shared between the attackers in equal parts, and each guesses a fifth of the coins: both
    are fixed in advance. `shown` is the larger of what they show through the run's own curve.

    ExperimentError for what these attackers do not know, and for a user's own records; nothing was then read.
    """
    _require_known(experiment, unsafe=unsafe)
    begun = time.monotonic()
    experiment = experiment.model_copy(update={"seed": None, "unsafe_metrics": False})
    task, attacker, placed, reference = _prepare(experiment, canaries)
    plan, beside = _planned(experiment)
    power = _power(attacker, reference, plan, error=(1 - confidence) / len(_NAMES))
    if power is not None:
        Console(stderr=True, quiet=not show).print(power.words)
    prepared = time.monotonic()
    history, final, summary = _train(experiment, task, placed, show=show)
    trained = time.monotonic()
    guarantee = summary["guarantee"]
    multiplier, rate = float(guarantee["noise_multiplier"]), max(guarantee["sampling_rates"].values())
    sensitivity = max(guarantee["sensitivities"].values())
    # Without noise the curves are those of noise multiplier 1, scaled up to a thousand.
    leakage = Leakage(Step(rate, 1 / multiplier if multiplier else 1.0), len(history), summary["delta"])
    scores, lengths = _scores(attacker, history, final, reference, sigma=multiplier * sensitivity)
    delta, error = float(summary["delta"]), (1 - confidence) / len(scores)
    attacks = {name: _attack(attack, placed, leakage, delta, error=error) for name, attack in scores.items()}
    seconds = {"preparation": prepared - begun, "run": trained - prepared, "attack": time.monotonic() - trained}
    claimed, shown = float(summary["epsilon"]), max(attack.shown for attack in attacks.values())
    used = 2 * sum(lengths) / len(lengths) / (rate * sensitivity)  # a signature is a mean over batches
    # Without noise nothing is claimed, so nothing is refuted: the curves are then not the run's.
    refuted = math.isfinite(claimed) and any(attack.refuted for attack in attacks.values())
    blind = power is not None and not power.refutes
    how: How = "no verdict" if blind and not refuted else "attacked"
    m = plan.multiplier  # the square is mu^2 of the one release that costs as much as the rounds
    square = square_of({Step(max(plan.rates), 1 / m): plan.rounds}, plan.delta) if m else 0.0
    rounds = AuditedPart(f"{len(history)} rounds", square, how, f"at ε ≥ {downward(shown)}")
    parts = [rounds, *beside] if beside else []
    rows = _rows(attacks, placed, sum(attacker.sizes), claimed, used)
    rows += [] if power is None else [("power", power.words)]
    rows += rows_of(parts)
    if experiment.data.own:
        rows.insert(0, ("UNSAFE", UNSAFE))
    details = {
        **({"unsafe": UNSAFE, "epsilon_of_reader": math.inf} if experiment.data.own else {}),
        "canaries": len(placed),
        "pairs_differ_in": placed.kind,
        "records": sum(attacker.sizes),
        "rounds": len(history),
        "sampling_rate": rate,
        "noise_multiplier": multiplier,
        "share_of_sensitivity": used,
        "attackers": {name: _described(attack, claimed) for name, attack in attacks.items()},
        "published": {"share": PUBLISHED, "epsilon": 10.0, "data": "MNIST", "source": "Annamalai, De Cristofaro 2024"},
        "power": None if power is None else dataclasses.asdict(power),
        "parts": content_of(parts),
        "seconds": seconds,
        "experiment": experiment.model_dump(mode="json", exclude_defaults=True, exclude={"data": {"data_dir"}}),
    }

    def draw() -> Any:
        named = {_NAMES[name]: (attack.scores, attack.shown) for name, attack in attacks.items()}
        return draw_one_run(named, placed.coins, claimed=claimed, title=experiment.name, published=PUBLISHED)

    return Finding(
        kind="one-run",
        subject=experiment.name,
        claimed=claimed,
        delta=delta,
        shown=shown,
        confidence=confidence,
        outcome="failed" if refuted else "no verdict" if blind else "passed",
        verdict="; ".join(filter(None, (_verdict(claimed, shown, refuted=refuted, blind=blind), said_of(parts)))),
        rows=rows,
        details=details,
        draw=draw,
    )


def _require_known(experiment: Experiment, *, unsafe: bool) -> None:
    """Refuse what these attackers do not know, and un-noised findings about records of a user's own."""
    if experiment.privacy.hides_sizes:
        raise ExperimentError(
            f"privacy.relation is {experiment.privacy.relation!r}, and --one-run replaces its canaries, of which that "
            "epsilon promises nothing: attack the same settings with relation 'replace-one'"
        )
    if experiment.data.unit is not None:
        raise ExperimentError(
            f"--one-run flips coins for single records, and the guarantee is that of all records of a "
            f"{experiment.data.unit!r} (data.unit); audit it with --canary"
        )
    elsewhere = (
        f"--one-run knows the releases of a trusted server (privacy.trust 'central'), not those of "
        f"{experiment.privacy.trust!r}"
    )
    if experiment.privacy.trust not in accounting_at_server():
        raise ExperimentError(elsewhere)
    if still_open := left_open(experiment):
        names = ", ".join(f"{section}.{name}" for section, chosen in still_open.items() for name in chosen)
        raise ExperimentError(
            f"a run chooses {names} when its clients have sent their sizes, and --one-run follows a run with settings "
            "that are known before: write them, as config.json of a run has them, and leave training.preset out"
        )
    if experiment.privacy.moments:
        raise ExperimentError(
            f"privacy.moments is {experiment.privacy.moments:g}, and --one-run follows the gradients of inputs that no "
            "moments have prepared: set privacy.moments to 0, or attack with --canary"
        )
    if experiment.objective.also:
        raise ExperimentError(
            "objective.also has more penalties; --one-run follows the gradient of one. Leave objective.also out"
        )
    if PENALTIES.get(experiment.objective.penalty).custom:
        raise ExperimentError(
            f"objective.penalty {experiment.objective.penalty!r} is of your own; --one-run follows the gradient of "
            f"{', '.join(map(repr, PENALTIES))}"
        )
    if not task_facts(experiment.objective.task).private_loss:
        raise ExperimentError(
            f"--one-run compares the losses of records, and the task {experiment.objective.task!r} has none for "
            "private ones; audit classification, regression, a representation or an autoencoder"
        )
    if experiment.data.own and not unsafe:
        raise ExperimentError(
            f"data.source is {experiment.data.source!r}, and --one-run would write how attackers who trained on these "
            "records without noise guessed, which no guarantee covers. Audit a shipped data set, or --canary, or the "
            "run's folder; --unsafe-finding writes it for readers who may see the records themselves"
        )


def _prepare(experiment: Experiment, count: int) -> tuple[Problem, Attacker, Canaries, list[Tensor]]:
    """The task, the attacker, the canaries, each the strongest of several, and the models of a reference training."""
    torch.set_num_threads(experiment.federation.cores)
    task, rounds = Problem.from_experiment(experiment), experiment.training.rounds
    records = _records(task)
    first = pairs.draw(task, records, count)
    attacker = Attacker(task, records, first)
    models = attacker.reference(rounds)[:: math.ceil((rounds + 1) / _MODELS)]
    options = [first, *(pairs.redrawn(task, records, first) for _ in range(_OPTIONS - 1))]
    chosen = pairs.strongest(options, torch.stack([attacker.strengths(option, models) for option in options]))
    attacker = Attacker(task, records, chosen)
    return task, attacker, chosen, attacker.reference(rounds)


def _planned(experiment: Experiment) -> tuple[FederationPlan, list[AuditedPart]]:
    """The run's plan, and what leaves beside its rounds, which these attackers do not look at."""
    with (
        tempfile.TemporaryDirectory(prefix="fedsw-audit-") as folder,
        once.Unattacked(experiment, None, Path(folder) / "sizes", canary=False) as sites,
    ):
        parts = []
        for part, releases in once.releases_of(sites.task).items() if sites.plan.multiplier else ():
            claim = once.claim_of(sites.plan, part, releases)
            square = square_of({Step(1.0, claim.mu): claim.rounds}, claim.delta)
            parts.append(AuditedPart(part, square, "not attacked", "(--canary attacks it)", once.of_kept(part)))
        return sites.plan, parts


@dataclass(frozen=True)
class Power:
    """Epsilon that one who sees all models is expected to show of a correct build, and of one with half the noise.

    ``refutes`` says if half the noise would contradict the claim.
    """

    correct: float
    half_the_noise: float
    refutes: bool

    @property
    def words(self) -> str:
        """The line of the screen."""
        half = f"ε ≥ {downward(self.half_the_noise)}" + (", which fails" if self.refutes else ", which does not fail")
        return f"of a correct build this shows about ε ≥ {downward(self.correct)}, of half the noise {half}"


def _power(attacker: Attacker, reference: list[Tensor], plan: FederationPlan, *, error: float) -> Power | None:
    """Simulate the guesses of one who sees all models, along the reference training; None without noise.

    What a canary shows in a round is as in `from_all_models`; in how many rounds it is drawn is by chance.
    """
    if not plan.multiplier:
        return None
    rounds, rate, coins = plan.rounds, max(plan.rates), attacker.canaries
    sigma = plan.multiplier * max(bound.value for bound in plan.sensitivities)
    gram, some = torch.zeros((coins, coins), dtype=torch.float64), reference[:-1][:: math.ceil(rounds / _MODELS)]
    for theta in some:
        signatures = attacker.signatures(theta, 1)[1]
        gram += signatures @ signatures.T * (rounds / len(some) / sigma**2)
    values, vectors = torch.linalg.eigh(gram)
    root, draw = vectors * values.clamp(min=0).sqrt(), np.random.default_rng(coins)
    guesses, leakage = math.ceil(_GUESSED * coins), Leakage(Step(rate, 1 / plan.multiplier), rounds, plan.delta)

    def right(noise: float) -> int:
        """The median of right guesses, at this multiple of the noise."""
        counts = []
        for _ in range(_SIMULATED):
            coin = draw.integers(0, 2, coins).astype(bool)
            drawn = draw.binomial(rounds, rate, coins) / (rounds * rate)
            seen = gram @ torch.from_numpy((2.0 * coin - 1) * drawn) + noise * root @ torch.from_numpy(
                draw.standard_normal(coins)
            )
            counts.append(Guesses.surest(pairs.apart(gram, seen), coin, guesses).correct)
        return int(np.median(counts))

    correct, half = right(1.0), right(0.5)
    return Power(
        leakage.shown(correct, guesses, coins, error=error),
        leakage.shown(half, guesses, coins, error=error),
        excludes(half, guesses, coins, leakage.least(), error=error),
    )


def _records(task: Problem) -> Records:
    """All training records, as the clients of a run in this process will load them."""
    configs = node_configs(task.experiment.federation.clients, Path())
    with simulating():
        return concatenate([held_records(task, config).records for config in configs])


def _train(
    experiment: Experiment, task: Problem, placed: Canaries, *, show: bool
) -> tuple[list[ReleasedRound], Tensor, dict[str, Any]]:
    """The run: what it released, the released model (r,), its summary. Its folder is gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="fedsw-audit-") as folder,
        RunProgress(label=f"{experiment.name}, with canaries", quiet=not show) as progress,
        substituted(placed.placed),
    ):
        witness = _Witness(progress)
        result = run(experiment, runs=Path(folder), observer=witness)
        model = task.build_model()
        model.load_state_dict(load_file(result.directory / RunFile.MODEL))
    return witness.history, flatten(model), result.summary


class _Witness:
    """Keeps what is released; shows the rest to another observer."""

    def __init__(self, observer: Observer) -> None:
        self.history: list[ReleasedRound] = []
        self.started, self.round_done, self.finished = observer.started, observer.round_done, observer.finished

    def released(self, round_: int, theta: Tensor, outcome: Outcome) -> None:
        """Keep a round."""
        self.history.append(ReleasedRound(round_, outcome.attempt, theta, outcome.vector))


def _scores(
    attacker: Attacker, history: list[ReleasedRound], final: Tensor, reference: list[Tensor], *, sigma: float
) -> tuple[dict[str, Scores], list[float]]:
    rounds = len(history)
    if not sigma:  # a small part of a signature, so that the scores tell them apart whatever overlaps
        _, signatures = attacker.signatures(reference[-1], rounds)
        sigma = 1e-2 * float(torch.linalg.vector_norm(signatures, dim=1).mean())
    every, lengths = pairs.from_all_models(attacker, history, sigma)
    return {"final": pairs.from_final_model(attacker, final, reference[-1], rounds, sigma), "all": every}, lengths


def _attack(scores: Scores, placed: Canaries, leakage: Leakage, delta: float, *, error: float) -> _Attack:
    coins = len(placed)
    guesses = Guesses.surest(scores, placed.coins, math.ceil(_GUESSED * coins))
    counts = (guesses.correct, guesses.made, coins)
    return _Attack(
        scores=scores,
        guesses=guesses,
        accuracy=Guesses.surest(scores, placed.coins, coins).correct / coins,
        shown=leakage.shown(*counts, error=error),
        shown_without_curve=epsilon_of_guesses(*counts, delta, error=error),
        p_value=curve_p_value(*counts, leakage.least()),
        refuted=excludes(*counts, leakage.least(), error=error),
    )


def _rows(
    attacks: dict[str, _Attack], placed: Canaries, records: int, claimed: float, used: float
) -> list[tuple[str, str]]:
    rows = {
        "canaries": f"{len(placed)} of {records} records, pairs that differ in {placed.kind}; a pair moves a round's "
        f"sum by {used:.0%} of its sensitivity"
    }
    for name, attack in attacks.items():
        share = downward(attack.shown / claimed, 2) if math.isfinite(claimed) else "none"
        rows[_NAMES[name]] = (
            f"{attack.guesses.correct} of {attack.guesses.made} guesses right ({attack.accuracy:.1%} of all coins): "
            f"ε ≥ {downward(attack.shown)}, {share} of the claimed one; by (ε, δ) alone ε ≥ "
            f"{downward(attack.shown_without_curve)}"
        )
    rows["published"] = (
        f"{PUBLISHED} of the claimed ε, black box, MNIST at ε = 10, many trainings on 1000 records "
        "(Annamalai and De Cristofaro 2024)"
    )
    return list(rows.items())


def _described(attack: _Attack, claimed: float) -> dict[str, Any]:
    return {
        "guesses": attack.guesses.made,
        "correct": attack.guesses.correct,
        "accuracy_of_all": attack.accuracy,
        "shown_epsilon": attack.shown,
        "share_of_claimed": attack.shown / claimed if math.isfinite(claimed) else 0.0,
        "shown_epsilon_without_curve": attack.shown_without_curve,
        "p_value_under_guarantee": attack.p_value,
    }


def _verdict(claimed: float, shown: float, *, refuted: bool, blind: bool) -> str:
    if refuted:
        return (
            f"the guarantee does not hold: an attacker shows ε ≥ {downward(shown)} where {upward(claimed)} is claimed"
        )
    if not math.isfinite(claimed):
        return "nothing is claimed, so nothing contradicts it"
    if blind:
        return "half the noise would not be seen in it: take more canaries, wider records or a larger ε, or --canary"
    shown_bound = f"ε ≥ {downward(shown)}" if shown else "nothing"
    return f"nothing contradicts the claim: the attackers show {shown_bound} of ε = {upward(claimed)}"
