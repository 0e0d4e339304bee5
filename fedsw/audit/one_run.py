"""`fedsw audit --one-run K`: K canaries in one real training run, and what two attackers can claim afterwards."""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedsw.audit.finding import Finding
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.choices import task_facts
from fedsw.text import number

if TYPE_CHECKING:
    from torch import Tensor

    from fedsw.audit.canaries import Canaries
    from fedsw.audit.gradients import Attacker
    from fedsw.audit.leakage import Leakage
    from fedsw.audit.scores import Guesses, Released, Scores
    from fedsw.data import Records
    from fedsw.runs.observer import Observer
    from fedsw.runs.outcome import Outcome
    from fedsw.tasks.problem import Problem

CONFIDENCE = 0.95
PUBLISHED = 0.72
"""The best published share of epsilon that a black box showed: 7.21 of 10 on MNIST.

Of many trainings on samples of 1000 records, from an initial model made for the purpose; on all of MNIST it is 6.48.
Source: Annamalai and De Cristofaro 2024, "Nearly tight black-box auditing of differentially private machine learning".
"""

_OPTIONS = 16  # pairs of which each canary is the strongest
_MODELS = 5  # of a reference training, on which strength is measured
_GUESSED = 0.2  # share of the coins that are guessed, fixed before anything is seen
_NAMES = {"final": "final model only", "all": "all models"}


@dataclass(frozen=True)
class _Attack:
    """What one attacker reached."""

    scores: Scores
    guesses: Guesses
    accuracy: float
    shown: float
    shown_without_curve: float
    p_value: float
    refuted: bool


def audit(experiment: Experiment, *, canaries: int, show: bool, confidence: float = CONFIDENCE) -> Finding:
    """Train once with canaries, for real, and let two attackers guess which record of each pair was in the data.

    Sampling and noise are drawn as in any private run, also where the experiment has a seed. The probability of being
    wrong, 1 - confidence, is shared between the attackers in equal parts, and each guesses a fifth of the coins: both
    are fixed in advance. `shown` is the larger of what they show through the run's own curve.

    Args:
        canaries: records replaced by canaries.
        show: whether a bar shows how the run goes on.

    Raises:
        ExperimentError: for a trust model or a task that these attackers do not know.
        ValueError: if there are fewer records than canaries.
    """
    _require_known(experiment)
    begun = time.monotonic()
    experiment = experiment.model_copy(update={"seed": None, "unsafe_metrics": False})
    task, attacker, placed, reference = _prepare(experiment, canaries)
    prepared = time.monotonic()
    history, final, summary = _train(experiment, task, placed, show=show)
    trained = time.monotonic()
    guarantee = summary["guarantee"]
    multiplier, rate = float(guarantee["noise_multiplier"]), max(guarantee["sampling_rates"].values())
    sensitivity = max(guarantee["sensitivities"].values())
    leakage = _leakage(rate, multiplier, len(history), summary["delta"])
    scores, lengths = _scores(attacker, history, final, reference, sigma=multiplier * sensitivity)
    attacks = {
        name: _attack(found, placed, leakage, summary["delta"], error=(1 - confidence) / len(scores))
        for name, found in scores.items()
    }
    seconds = {"preparation": prepared - begun, "run": trained - prepared, "attack": time.monotonic() - trained}
    claimed, shown = float(summary["epsilon"]), max(found.shown for found in attacks.values())
    used = 2 * sum(lengths) / len(lengths) / (rate * sensitivity)  # a signature is a mean over batches
    rows = _rows(attacks, placed, sum(attacker.sizes), claimed, used)
    details = {
        "canaries": len(placed),
        "pairs_differ_in": placed.kind,
        "records": sum(attacker.sizes),
        "rounds": len(history),
        "sampling_rate": rate,
        "noise_multiplier": multiplier,
        "share_of_sensitivity": used,
        "attackers": {name: _described(found, claimed) for name, found in attacks.items()},
        "published": {"share": PUBLISHED, "epsilon": 10.0, "data": "MNIST", "source": "Annamalai, De Cristofaro 2024"},
        "seconds": seconds,
        "experiment": experiment.model_dump(mode="json", exclude_defaults=True, exclude={"data": {"data_dir"}}),
    }

    def draw() -> Any:
        from fedsw.audit.one_run_figure import draw_one_run

        named = {_NAMES[name]: (found.scores, found.shown) for name, found in attacks.items()}
        return draw_one_run(named, placed.coins, claimed=claimed, title=experiment.name, published=PUBLISHED)

    # A claim of nothing, without noise, is refuted by nobody: the curves are then no run's own.
    passed = not math.isfinite(claimed) or not any(found.refuted for found in attacks.values())
    return Finding(
        kind="one-run",
        subject=experiment.name,
        claimed=claimed,
        delta=float(summary["delta"]),
        shown=shown,
        confidence=confidence,
        passed=passed,
        verdict=_verdict(claimed, shown, passed=passed),
        rows=rows,
        details=details,
        draw=draw,
    )


def _require_known(experiment: Experiment) -> None:
    if experiment.data.unit is not None:
        raise ExperimentError(
            f"--one-run flips coins for single records, and the guarantee is that of all records of a "
            f"{experiment.data.unit!r} (data.unit); audit it with --canary"
        )
    if experiment.privacy.local:
        raise ExperimentError(
            f"--one-run knows the releases of a trusted server (privacy.trust 'central'), not those of "
            f"{experiment.privacy.trust!r}"
        )
    if experiment.objective.also:
        raise ExperimentError(
            "objective.also has more penalties; --one-run follows the gradient of one. Leave objective.also out"
        )
    if not task_facts(experiment.objective.task).private_loss:
        raise ExperimentError(
            f"--one-run compares the losses of records, and the task {experiment.objective.task!r} has none for "
            "private ones; audit classification, regression, a representation or an autoencoder"
        )


def _prepare(experiment: Experiment, count: int) -> tuple[Problem, Attacker, Canaries, list[Tensor]]:
    """The task, the attacker, the canaries, each the strongest of several, and the models of a reference training."""
    from fedsw.audit import canaries as pairs
    from fedsw.audit.gradients import Attacker
    from fedsw.tasks.problem import Problem

    torch.set_num_threads(experiment.federation.threads)
    task, rounds = Problem.from_experiment(experiment), experiment.training.rounds
    records = _records(task)
    first = pairs.draw(task, records, count)
    attacker = Attacker(task, records, first)
    models = attacker.reference(rounds)[:: math.ceil((rounds + 1) / _MODELS)]
    options = [first, *(pairs.redrawn(task, records, first) for _ in range(_OPTIONS - 1))]
    chosen = pairs.strongest(options, torch.stack([attacker.strengths(option, models) for option in options]))
    attacker = Attacker(task, records, chosen)
    return task, attacker, chosen, attacker.reference(rounds)


def _records(task: Problem) -> Records:
    """All training records, as the clients of a run in this process will load them."""
    from fedsw.data import concatenate
    from fedsw.engines.inprocess import node_configs
    from fedsw.federation.node.partition import node_records

    configs = node_configs(task.experiment.federation.clients, Path())
    return concatenate([node_records(task, config) for config in configs])


def _train(
    experiment: Experiment, task: Problem, placed: Canaries, *, show: bool
) -> tuple[list[Released], Tensor, dict[str, Any]]:
    """The run: what it released, the released model (r,), its summary. Its folder is gone afterwards."""
    from safetensors.torch import load_file

    from fedsw.engines.driver import run
    from fedsw.federation.node.substitution import substituted
    from fedsw.models import flatten
    from fedsw.report.progress import RunProgress
    from fedsw.runs.files import MODEL

    with (
        tempfile.TemporaryDirectory(prefix="fedsw-audit-") as folder,
        RunProgress(label=f"{experiment.name}, with canaries", quiet=not show) as progress,
        substituted(placed.placed),
    ):
        witness = _Witness(progress)
        result = run(experiment, runs=Path(folder), observer=witness)
        model = task.build_model()
        model.load_state_dict(load_file(result.directory / MODEL))
    return witness.history, flatten(model), result.summary


class _Witness:
    """Keeps what is released; shows the rest to another observer."""

    def __init__(self, observer: Observer) -> None:
        self.history: list[Released] = []
        self.started, self.round_done, self.finished = observer.started, observer.round_done, observer.finished

    def released(self, round_: int, theta: Tensor, outcome: Outcome) -> None:
        """Keep a round."""
        from fedsw.audit.scores import Released

        self.history.append(Released(round_, outcome.attempt, theta, outcome.vector))


def _leakage(rate: float, multiplier: float, rounds: int, delta: float) -> Leakage:
    """The run's curves; without noise those of noise multiplier 1, of which scales go to a thousand."""
    from fedsw.accounting import Step
    from fedsw.audit.leakage import Leakage

    return Leakage(Step(rate, 1 / multiplier if multiplier else 1.0), rounds, delta)


def _scores(
    attacker: Attacker, history: list[Released], final: Tensor, reference: list[Tensor], *, sigma: float
) -> tuple[dict[str, Scores], list[float]]:
    from fedsw.audit import scores

    rounds = len(history)
    if not sigma:  # a small part of a signature, so that the scores tell them apart whatever overlaps
        _, signatures = attacker.signatures(reference[-1], rounds)
        sigma = 1e-2 * float(torch.linalg.vector_norm(signatures, dim=1).mean())
    every, lengths = scores.from_all_models(attacker, history, sigma)
    return {"final": scores.from_final_model(attacker, final, reference[-1], rounds, sigma), "all": every}, lengths


def _attack(found: Scores, placed: Canaries, leakage: Leakage, delta: float, *, error: float) -> _Attack:
    from fedsw.audit.guesses import shown_epsilon
    from fedsw.audit.scores import Guesses

    coins = len(placed)
    guesses = Guesses.surest(found, placed.coins, math.ceil(_GUESSED * coins))
    counts = (guesses.correct, guesses.made, coins)
    return _Attack(
        scores=found,
        guesses=guesses,
        accuracy=Guesses.surest(found, placed.coins, coins).correct / coins,
        shown=leakage.shown(*counts, error=error),
        shown_without_curve=shown_epsilon(*counts, delta, error=error),
        p_value=leakage.p_value(*counts),
        refuted=leakage.refuted(*counts, error=error),
    )


def _rows(
    attacks: dict[str, _Attack], placed: Canaries, records: int, claimed: float, used: float
) -> list[tuple[str, str]]:
    rows = [
        (
            "canaries",
            f"{len(placed)} of {records} records, pairs that differ in {placed.kind}; a pair moves a round's sum by "
            f"{used:.0%} of its sensitivity",
        )
    ]
    for name, found in attacks.items():
        made = found.guesses
        rows.append(
            (
                _NAMES[name],
                f"{made.correct} of {made.made} guesses right ({found.accuracy:.1%} of all coins): ε ≥ "
                f"{number(found.shown)}, {_share(found.shown, claimed)} of the claimed one; by (ε, δ) alone ε ≥ "
                f"{number(found.shown_without_curve)}",
            )
        )
    rows.append(
        (
            "published",
            f"{PUBLISHED} of the claimed ε, black box, MNIST at ε = 10, many trainings on 1000 records "
            "(Annamalai and De Cristofaro 2024)",
        )
    )
    return rows


def _share(shown: float, claimed: float) -> str:
    return f"{shown / claimed:.2f}" if math.isfinite(claimed) else "none"


def _described(found: _Attack, claimed: float) -> dict[str, Any]:
    return {
        "guesses": found.guesses.made,
        "correct": found.guesses.correct,
        "accuracy_of_all": found.accuracy,
        "shown_epsilon": found.shown,
        "share_of_claimed": found.shown / claimed if math.isfinite(claimed) else 0.0,
        "shown_epsilon_without_curve": found.shown_without_curve,
        "p_value_under_guarantee": found.p_value,
    }


def _verdict(claimed: float, shown: float, *, passed: bool) -> str:
    if not passed:
        return f"the guarantee does not hold: an attacker shows ε ≥ {number(shown)} where {number(claimed)} is claimed."
    if not math.isfinite(claimed):
        return "nothing is claimed, so nothing contradicts it."
    found = f"ε ≥ {number(shown)}" if shown else "nothing"
    return f"nothing contradicts the claim: the attackers show {found} of ε = {number(claimed)}."
