"""Running a baseline by name: what it can train, its folder, and a summary of the form that runs have."""

from __future__ import annotations

import datetime
import importlib
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedsw.baselines import opacus_parts
from fedsw.baselines.asked import Asked, Guarantee, Train, Trained
from fedsw.experiment import Experiment, ExperimentError, resolve_delta
from fedsw.experiment.sources import load_dataset
from fedsw.federation.server.summary import hardware, versions
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation import Evaluator, HeldOut, measured_on
from fedsw.tasks.problem import Problem
from fedsw.text import nearest

RELATION = "add-remove-one (for replace-one at most (2ε, (1 + e^ε) δ))"


class Baseline(NamedTuple):
    """A file of `fedsw.baselines` with a function `train`, and the arguments that it takes."""

    file: str
    arguments: tuple[str, ...]


BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        "opacus": Baseline("pooled", ("accountant",)),
        "dp-fedavg": Baseline("fedavg", ("accountant",)),
        "puffle": Baseline("puffle", ("accountant", "target", "rate", "momentum")),
    }
)
"""Every baseline by name."""


class Result(NamedTuple):
    """A baseline's summary, and the folder that it left."""

    summary: dict[str, Any]
    directory: Path


def find(name: str) -> Baseline:
    """The baseline of that name.

    Raises:
        ExperimentError: if there is none, naming the nearest.
    """
    if name not in BASELINES:
        raise ExperimentError(f"no baseline {name!r}; {nearest(name, list(BASELINES))}known: {', '.join(BASELINES)}")
    return BASELINES[name]


def refusal(name: str, experiment: Experiment) -> str | None:
    """Why a baseline cannot train an experiment, with the remedy; None if it can, as far as settings say."""
    find(name)
    goal, training = experiment.objective, experiment.training
    if goal.task != "classification":
        return f"the baseline {name!r} trains classifiers, and objective.task is {goal.task!r}"
    if goal.alpha > 0 and (goal.penalty != "statistical-parity" or goal.also):
        return f"the penalty of {name!r} is for 'statistical-parity' alone; set objective.alpha to 0 to train without"
    if experiment.data.own:
        return f"{name!r} trains on a named data set, and data.source {experiment.data.source!r} is at its clients"
    if training.optimizer != "sgd" or training.scheduler is not None or training.decay or training.batch_size:
        return (
            f"{name!r} takes steps of 'sgd' at a fixed rate on batches of training.batch_fraction; leave "
            "training.optimizer, scheduler, decay and batch_size as they are by default"
        )
    return None if opacus_parts.installed() else opacus_parts.MISSING


def train(
    name: str,
    experiment: Experiment,
    *,
    epsilon: float,
    delta: float | None = None,
    seed: int | None = None,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> Trained:
    """Train with a baseline.

    Guarantee: as the baseline states (`fedsw.baselines.asked.Guarantee`), by Opacus' accountant, for adding or removing
    one record; sampling and noise are torch's, so that it is nominal.

    Args:
        epsilon: infinite for a reference without noise, which is clipped all the same.
        delta: by default the experiment's, with n the number of all private records.
        seed: of sampling and noise; a fresh one by default.

    Raises:
        ExperimentError: if the baseline cannot train it, or does not take an argument.
        ModuleNotFoundError: if Opacus is not installed.
    """
    baseline = find(name)
    for argument in arguments:
        if argument not in baseline.arguments:
            known = ", ".join(baseline.arguments)
            raise ExperimentError(f"the baseline {name!r} takes no argument {argument!r}; it takes {known}")
    opacus_parts.load()
    if reason := refusal(name, experiment):
        raise ExperimentError(reason)
    records = load_dataset(experiment).train
    asked_delta = resolve_delta(experiment.privacy.delta, records=len(records)) if delta is None else delta
    function: Train = importlib.import_module(f"fedsw.baselines.{baseline.file}").train
    with opacus_parts.quiet():
        return function(Asked(Problem.from_experiment(experiment), records, epsilon, asked_delta, seed, arguments))


def run(
    name: str,
    experiment: Experiment,
    *,
    directory: Path,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> Result:
    """Train with a baseline at the experiment's epsilon; model, held-out outputs and summary go to the folder.

    The summary has what a run's summary has (`fedsw.federation.server.summary.summarise`).

    Raises:
        ExperimentError, ModuleNotFoundError: as `train`.
    """
    privacy = experiment.privacy
    epsilon = math.inf if not privacy.noisy or privacy.epsilon is None else privacy.epsilon
    problem = Problem.from_experiment(experiment)
    delta = resolve_delta(privacy.delta, records=len(load_dataset(experiment).train))
    evaluator, folder = Evaluator(problem), RunDirectory(directory)
    folder.write_config(experiment, f"baseline {name}")
    began = time.perf_counter()
    trained = train(name, experiment, epsilon=epsilon, delta=delta, seed=experiment.seed, arguments=arguments)
    seconds = time.perf_counter() - began
    model = problem.prepared(problem.build_model(), trained.theta)
    folder.write_model(model)
    held_out = evaluator.write_outputs(model, folder)
    summary = _summary(name, experiment, trained, held_out, delta, seconds) | {"begun": folder.begun()}
    folder.write_summary(summary)
    return Result(folder.read_summary(), directory)


def _summary(
    name: str, experiment: Experiment, trained: Trained, held_out: HeldOut, delta: float, seconds: float
) -> dict[str, Any]:
    rounds, epsilon = experiment.training.rounds, trained.epsilon
    return {
        "name": experiment.name,
        "title": experiment.title,
        "status": "completed",
        "engine": f"baseline {name}",
        "clients": trained.clients,
        "rounds": rounds,
        "released_rounds": rounds,
        "epsilon": epsilon,
        "epsilon_spent": epsilon,
        "epsilon_spent_by_client": {str(client): value for client, value in trained.epsilon_by_client.items()},
        "delta": delta,
        "nominal": True,
        "epsilon_of_reader": epsilon,
        "guarantee": _guarantee(trained.guarantee, epsilon, delta),
        "notes": dict(trained.notes),
        "held_out": dict(held_out.metrics),
        "held_out_by_group": {group: dict(numbers) for group, numbers in held_out.by_group.items()},
        "held_out_measured_on": dict(held_out.measured_on),
        "measured_on": measured_on(experiment),
        "seconds": seconds,
        "bytes_up": trained.bytes_up,
        "bytes_down": trained.bytes_down,
        "seed": experiment.seed,
        "versions": versions("opacus"),
        "hardware": hardware(experiment),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _guarantee(stated: Guarantee, epsilon: float, delta: float) -> dict[str, Any]:
    finite = math.isfinite(epsilon)
    replaced = {"epsilon": 2 * epsilon, "delta": (1 + math.exp(epsilon)) * delta if finite else 1.0}
    return {
        "relation": RELATION,
        "replacement": replaced,
        "unit": "one record",
        "protects": stated.protects,
        "against": stated.against,
        "public": sorted(stated.public),
        "bound": "clip.loss",
        "accountant": f"opacus {stated.accountant}",
        "accountant_is_guarantee": True,
        "randomness": opacus_parts.RANDOMNESS,
        "sampling": "Poisson",
        "trust": "local" if stated.local else "central",
        "noise_multiplier": stated.multiplier,
        "statement": _statement(stated, epsilon, delta, replaced),
    }


def _statement(stated: Guarantee, epsilon: float, delta: float, replaced: Mapping[str, float]) -> str:
    if not math.isfinite(epsilon):
        return "No privacy: epsilon = infinity (non-private reference)."
    return (
        f"({epsilon:.4g}, {delta:.3g})-differential privacy for adding or removing one record, by Opacus' accountant "
        f"{stated.accountant!r}; for replacing one, which fedsw's own rows are about, at most "
        f"({replaced['epsilon']:.4g}, {replaced['delta']:.3g}). Noise multiplier {stated.multiplier:.4g}. Nominal: "
        f"{opacus_parts.RANDOMNESS}."
    )
