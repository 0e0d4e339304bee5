"""The reference without privacy: a model that is well trained on all records in one place, by whatever trains it best.

What a run loses is measured against it, and never against the run's own settings with the noise taken out: rounds,
clips and step that suit noise may be what a run loses most by. It has no guarantee: epsilon is infinite for
its readers. It takes records that are public, or those of a simulation: its server sees everything; in a
deployment no place holds the records of all.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import nn

from fedsw._tools.text import number
from fedsw.data import Records
from fedsw.desk.baselines import scikit
from fedsw.desk.baselines.scikit import Outside, converged
from fedsw.experiment import Experiment, ExperimentError, parse_experiment, resolve_delta
from fedsw.experiment.task_kinds import MODELS, task_facts
from fedsw.federation.engines import driver
from fedsw.federation.node.held_records import held_out_records, held_records
from fedsw.federation.node.simulated import simulating
from fedsw.federation.server.summary import described
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting.lifetime import account_named
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation.evaluator import Evaluator, HeldOutMetrics
from fedsw.runs.evaluation.quality import units_of

NAMES = ("reference", "reference-any")
"""A model of the run's own kind, which is linear where the run's is; and the best of all kinds that are tried."""
_EVERYTHING = {"partition-id": 0, "num-partitions": 1}
"""The one site of a simulation that holds all clients."""
_LONGER = 4
"""Factor of a run's rounds, where no model of scikit-learn fits the task."""
UNRELEASED = "; made by an operator who sees all records and may not be released: no account counts it"
"""Sentence that follows the name of a reference on a user's own records."""
_NOTHING: Mapping[str, Any] = MappingProxyType(
    {
        "relation": "none",
        "unit": "one record",
        "protects": "nothing",
        "against": "nobody",
        "public": [],
        "bound": "none",
        "accountant": "none",
        "accountant_is_guarantee": True,
        "trust": "none",
        "noise_multiplier": 0.0,
        "statement": "No privacy: epsilon = infinity (non-private reference).",
    }
)
"""The guarantee of a reference, in the form that runs have."""


@dataclass(frozen=True)
class Reference:
    """A well-trained model, which takes and returns what the problem's own does, and its steps; 0 of scikit-learn."""

    name: str
    settings: str
    model: nn.Module
    steps: int = 0

    @property
    def words(self) -> str:
        """Name of the model and how it was trained, in words."""
        return f"{self.name} on all records together, no privacy ({self.settings})"


def well_trained(problem: Problem, records: Records, *, any_kind: bool = False, plain: bool = False) -> Reference:
    """Train a classification or a regression as well as can be, without noise and clips.

    Without a penalty it is scikit-learn's best: linear models, and boosted trees if the problem's model is not
    linear or any kind will do, chosen by cross-validation on the records; ``plain`` linear models are the same without
    scikit-learn (importing it takes a second) if there are at most two classes. With a penalty it is the problem's
    own model, trained until it is at rest.
    """
    if _penalised(problem.experiment):
        rested = converged(problem, records)
        name = f"the same model trained to rest at α = {number(problem.experiment.objective.alpha)}"
        settings = f"without noise or clips, {rested.steps} steps of Adam" + (
            "" if rested.still else ", not yet at rest"
        )
        return Reference(name, settings, rested.model, rested.steps)
    trees = any_kind or not MODELS.get(problem.experiment.model.kind).linear
    plain = plain and not trees and problem.classes <= 2
    fitted = (scikit.fit_plain if plain else partial(scikit.fit, trees=trees))(
        problem.inputs(records).cpu().double().numpy(),
        records.target.cpu().numpy(),
        classes=problem.classes,
        units=units_of(records),
        seed=problem.experiment.model.seed,
    )
    return Reference(fitted.name, f"{fitted.settings}, by cross-validation", Outside(fitted.predict, problem.classes))


def refusal(name: str, experiment: Experiment) -> str | None:
    """Say why there is no reference of that name for an experiment, with the remedy; None if there is one."""
    data = experiment.data
    if data.account is not None and not _supervised(experiment):
        return (
            "the reference without privacy would be a run that spends all of the account of data set "
            f"{data.account!r}; leave data.account out, or the reference"
        )
    if data.account is not None and account_named(data.account).state().epsilon is not None:
        return (
            f"the account of data set {data.account!r} has a limit, under which nothing is made without noise; leave "
            "the reference out"
        )
    if data.own_files is not None and data.own_files.folder is None:
        return "the reference without privacy takes the records of all clients in one place: set data.data_dir"
    if name == NAMES[1] and (not _supervised(experiment) or _penalised(experiment)):
        return "models of any kind are tried for classification and regression without a penalty alone"
    if not _supervised(experiment) or _penalised(experiment):
        return None
    return None if importlib.util.find_spec("sklearn") else scikit.MISSING


def run_reference(name: str, experiment: Experiment, *, directory: Path) -> tuple[dict[str, Any], Path]:
    """Train the reference of an experiment in a simulation, and measure it on its held-out records, into a folder.

    The summary has what a run's summary has, and `reference`: what the model is, in words. Tasks that are neither
    classification nor regression are run as they are, without noise and clips, for four times the rounds.

    Guarantee: none; epsilon is infinite. ExperimentError if there is no reference for it; as
    `fedsw.federation.engines.driver.run`.
    """
    if reason := refusal(name, experiment):
        raise ExperimentError(reason)
    if not _supervised(experiment):
        return _longer(experiment, directory)
    problem, began = Problem.from_experiment(experiment), time.perf_counter()
    with simulating():
        records = held_records(problem, _EVERYTHING).records
        held_out_rows = held_out_records(problem, _EVERYTHING).records if experiment.data.held_out_released else None
    evaluator, folder = Evaluator(problem, records=held_out_rows), RunDirectory(directory)
    folder.write_config(experiment, f"baseline {name}")
    fitted = well_trained(problem, records, any_kind=name == NAMES[1])
    held_out = evaluator.write_outputs(fitted.model, folder)
    summary = _summary(problem, fitted, held_out, records, time.perf_counter() - began)
    folder.write_summary(summary | {"engine": f"baseline {name}", "begun": folder.begun()})
    return folder.read_summary(), directory


def _supervised(experiment: Experiment) -> bool:
    return task_facts(experiment.objective.task).supervised


def _penalised(experiment: Experiment) -> bool:
    goal = experiment.objective
    return goal.alpha > 0 or any(penalty.weight > 0 for penalty in goal.also)


def _longer(experiment: Experiment, directory: Path) -> tuple[dict[str, Any], Path]:
    """A task that scikit-learn has no model of: the same run without noise and clips, for more rounds."""
    raw = parse_experiment(experiment.model_dump(), ["privacy.trust=none"]).model_dump()
    rounds = _LONGER * experiment.training.rounds
    raw["training"] |= {"preset": "none", "rounds": rounds}
    try:
        longer = parse_experiment(raw, ["clip.mode=none"])
    except ExperimentError:  # its clips are a part of what it is
        longer = parse_experiment(raw)
    result = driver.run(longer, runs=directory)
    clips = "without noise or clips" if longer.clip.mode == "none" else "without noise"
    words = f"the same task {clips}, {rounds} rounds, {_LONGER} times the run's, no privacy"
    summary = result.summary | {"reference": words}
    RunDirectory(result.directory).write_summary(summary)
    return summary, result.directory


def _summary(
    problem: Problem, fitted: Reference, held_out: HeldOutMetrics, records: Records, seconds: float
) -> dict[str, Any]:
    experiment = problem.experiment
    facts = {
        "status": "completed",
        "reference": fitted.words + (UNRELEASED if experiment.data.own else ""),
        "clients": experiment.federation.clients,
        "rounds": fitted.steps,
        "released_rounds": fitted.steps,
        "epsilon": math.inf,
        "epsilon_spent": math.inf,
        "epsilon_spent_by_client": {},
        "delta": resolve_delta(experiment.privacy.delta, records=len(np.unique(units_of(records)))),
        "nominal": False,
        "epsilon_of_reader": math.inf,
        "guarantee": dict(_NOTHING),
        "seconds": seconds,
        "bytes_up": len(records) * (problem.features + 2) * 4,
        "bytes_down": 0,
    }
    return described(experiment, held_out, facts, ["scikit-learn"])
