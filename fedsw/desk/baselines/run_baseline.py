"""Running a baseline by name: what it can train, its folder, and a summary of the form that runs have."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedsw._tools.text import nearest, upward
from fedsw.data.sources import load_dataset
from fedsw.desk.baselines import (
    fedavg,
    pooled,
    processed,
    reference,
)
from fedsw.desk.baselines.pooled import ADD_REMOVE, BaselineGuarantee, BaselineTask, Train, Trained
from fedsw.experiment import Experiment, ExperimentError, resolve_delta
from fedsw.experiment.task_kinds import task_facts
from fedsw.experiment.trust import accounting_at_server, trust_model
from fedsw.federation.server.settling import settled
from fedsw.federation.server.summary import described
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation.evaluator import Evaluator, HeldOutMetrics


class Baseline(NamedTuple):
    """A baseline: its training, the arguments that this takes, whether it needs Opacus, penalties that it may add."""

    train: Train
    arguments: tuple[str, ...]
    opacus: bool = True
    penalties: tuple[str, ...] = ("statistical-parity",)


BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        "opacus": Baseline(pooled.train, ("accountant",)),
        "dp-fedavg": Baseline(fedavg.train, ("accountant",)),
        "puffle": Baseline(fedavg.train_puffle, ("accountant", "target", "rate", "momentum")),
        "barycentre": Baseline(processed.train, ("radius",), opacus=False),
    }
)
"""Every baseline by name."""


class Result(NamedTuple):
    """A baseline's summary, and the folder that it left."""

    summary: dict[str, Any]
    directory: Path


def find(name: str) -> Baseline:
    """The baseline of that name, if there is one; references without privacy are none."""
    if name not in BASELINES:
        raise ExperimentError(f"no baseline {name!r}; {nearest(name, list(BASELINES))}known: {', '.join(BASELINES)}")
    return BASELINES[name]


def refusal(name: str, experiment: Experiment) -> str | None:
    """Say why a baseline cannot train an experiment, with the remedy; None if it can, as far as settings say."""
    if name in reference.NAMES:
        return reference.refusal(name, experiment)
    if experiment.data.held_out_released:
        return (
            f"{name!r} is measured at the server, and data.held_out_to is 'everybody': clients alone have held-out "
            "records. Name a table with data.held_out, or leave it out"
        )
    baseline = find(name)
    if not baseline.opacus:
        return _unprocessed(name, experiment)
    goal, training, facts = experiment.objective, experiment.training, task_facts(experiment.objective.task)
    if not (facts.supervised and facts.classifies):
        return f"the baseline {name!r} trains classifiers, and objective.task is {goal.task!r}"
    if goal.alpha > 0 and (goal.penalty not in baseline.penalties or goal.also):
        able = " or ".join(map(repr, baseline.penalties))
        return f"the penalty of {name!r} is for {able} alone; set objective.alpha to 0 to train without"
    if experiment.data.own:
        return f"{name!r} trains on a named data set, and data.source {experiment.data.source!r} is at its clients"
    if training.optimizer != "sgd" or training.scheduler is not None or training.decay or training.batch_size:
        return (
            f"{name!r} takes steps of 'sgd' at a fixed rate on batches of training.batch_fraction; leave "
            "training.optimizer, scheduler, decay and batch_size as they are by default"
        )
    return None if pooled.installed() else pooled.MISSING


def train(
    name: str,
    experiment: Experiment,
    *,
    epsilon: float,
    delta: float | None = None,
    seed: int | None = None,
    arguments: Mapping[str, Any] = MappingProxyType({}),
    folder: Path = Path(),
) -> Trained:
    """Train with a baseline.

    Guarantee: as the baseline states (`BaselineGuarantee`). With Opacus it is by its accountant, for
    adding or removing one record, and nominal: sampling and noise are torch's.

    An infinite epsilon is a reference without noise, which is clipped all the same. The experiment's delta is the
    default, with n the number of all private records. "barycentre" puts its run and its account into the folder.
    ExperimentError if the baseline cannot train it, or does not take an argument; ModuleNotFoundError without Opacus.
    """
    baseline = find(name)
    for argument in arguments:
        if argument not in baseline.arguments:
            known = ", ".join(baseline.arguments)
            raise ExperimentError(f"the baseline {name!r} takes no argument {argument!r}; it takes {known}")
    if baseline.opacus:
        pooled.load()
    if reason := refusal(name, experiment):
        raise ExperimentError(reason)
    records = load_dataset(experiment.record_source).train
    asked_delta = resolve_delta(experiment.privacy.delta, records=len(records)) if delta is None else delta
    with pooled.quiet():
        problem = Problem.from_experiment(experiment)
        return baseline.train(BaselineTask(problem, records, epsilon, asked_delta, seed, arguments, folder))


def run(
    name: str, experiment: Experiment, *, directory: Path, arguments: Mapping[str, Any] = MappingProxyType({})
) -> Result:
    """Train with a baseline at the experiment's epsilon; model, held-out outputs and summary go to the folder.

    The references without privacy have names among the baselines'. The summary has what a run's summary has.
    ExperimentError as `train`, or if the data set has an account, which no baseline counts in.
    """
    experiment = settled(experiment)
    if name in reference.NAMES:
        return Result(*reference.run_reference(name, experiment, directory=directory))
    if experiment.data.account is not None:
        raise ExperimentError(
            f"baseline {name} keeps no ledger, so that nothing of it would count in the account of data set "
            f"{experiment.data.account!r}; leave the baseline out, or data.account"
        )
    privacy = experiment.privacy
    epsilon = math.inf if privacy.epsilon is None else privacy.epsilon
    problem = Problem.from_experiment(experiment)
    delta = resolve_delta(privacy.delta, records=len(load_dataset(experiment.record_source).train))
    evaluator, folder = Evaluator(problem), RunDirectory(directory)
    folder.write_config(experiment, f"baseline {name}")
    began = time.perf_counter()
    trained = train(
        name, experiment, epsilon=epsilon, delta=delta, seed=experiment.seed, arguments=arguments, folder=directory
    )
    seconds = time.perf_counter() - began
    model = problem.prepared(problem.build_model(), trained.theta)
    folder.write_model(model)
    if trained.processed is None:
        held_out = evaluator.write_outputs(model, folder)
    else:
        held_out = processed.write_processed(problem, model, trained.processed, folder)
    summary = _summary(name, experiment, trained, held_out, delta, seconds) | {"begun": folder.begun()}
    folder.write_summary(summary)
    return Result(folder.read_summary(), directory)


def _summary(
    name: str, experiment: Experiment, trained: Trained, held_out: HeldOutMetrics, delta: float, seconds: float
) -> dict[str, Any]:
    rounds, epsilon = experiment.training.rounds, trained.epsilon
    facts = {
        "status": "completed",
        "engine": f"baseline {name}",
        "clients": trained.clients,
        "rounds": rounds,
        "released_rounds": rounds,
        "epsilon": epsilon,
        "epsilon_spent": epsilon,
        "epsilon_spent_by_client": {str(client): value for client, value in trained.epsilon_by_client.items()},
        "delta": delta,
        "nominal": trained.guarantee.nominal,
        "epsilon_of_reader": math.inf if experiment.unsafe_metrics else epsilon,
        "guarantee": _guarantee(trained.guarantee, epsilon, delta),
        "notes": dict(trained.notes),
        "seconds": seconds,
        "bytes_up": trained.bytes_up,
        "bytes_down": trained.bytes_down,
    }
    return described(experiment, held_out, facts, ["opacus"])


def _guarantee(stated: BaselineGuarantee, epsilon: float, delta: float) -> dict[str, Any]:
    stated_words = {
        **{name: getattr(stated, name) for name in ("relation", "protects", "against", "bound", "accountant")},
        "unit": "one record",
        "public": sorted(stated.public),
        "accountant_is_guarantee": stated.holds,
        "trust": "local" if stated.local else "central",
        "noise_multiplier": stated.multiplier,
        "statement": _statement(stated, epsilon, delta),
    }
    if stated.relation == ADD_REMOVE and math.isfinite(epsilon):
        stated_words["replacement"] = dict(zip(("epsilon", "delta"), replaced(epsilon, delta), strict=True))
    return stated_words | ({"randomness": stated.randomness} if stated.randomness else {})


def replaced(epsilon: float, delta: float) -> tuple[float, float]:
    """Return (epsilon, delta) for replacing a record from that for adding or removing one: one less and one more."""
    return 2 * epsilon, (1 + math.exp(epsilon)) * delta


def _statement(stated: BaselineGuarantee, epsilon: float, delta: float) -> str:
    if not math.isfinite(epsilon):
        return "No privacy: epsilon = infinity (non-private reference)."
    words = (
        f"({upward(epsilon, 4)}, {upward(delta)})-differential privacy for neighbours {stated.relation}, by the "
        f"accountant {stated.accountant}; noise multiplier {stated.multiplier:.4g}."
    )
    if stated.relation == ADD_REMOVE:
        twice, more = replaced(epsilon, delta)
        most = f"({upward(twice, 4)}, {upward(more)})"
        words += f" For replacing one record, which fedsw's own rows are about: at most {most}."
    if not stated.holds:
        words = f"No guarantee: what the accountant {stated.accountant} says may fall below the truth. It says {words}"
    return words + (f" Nominal: {stated.randomness or 'sampling and noise are seeded'}." if stated.nominal else "")


def _unprocessed(name: str, experiment: Experiment) -> str | None:
    goal, trust = experiment.objective, trust_model(experiment.privacy.trust)
    if not task_facts(goal.task).supervised:
        return f"{name!r} changes scores between groups, and objective.task {goal.task!r} has none"
    if goal.alpha > 0 or trust.fixed_epsilon is not None or trust.name not in accounting_at_server():
        return (
            f"{name!r} changes the scores of a model without a penalty under trust 'central': set objective.alpha to 0"
        )
    has_own_data = experiment.data.own
    return f"{name!r} takes a named data set; data.source is {experiment.data.source!r}" if has_own_data else None
