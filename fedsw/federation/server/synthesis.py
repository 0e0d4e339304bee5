"""A run whose records leave once, as a sketch: the exchange, then a generator by the code of one machine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedsw.accounting import BudgetExhausted
from fedsw.experiment import ExperimentError
from fedsw.federation.exchange.exchange import Traffic
from fedsw.federation.server.job import Job
from fedsw.federation.trust.model import OneRelease
from fedsw.models import flatten
from fedsw.models.labelled import generate, proportions_of
from fedsw.models.tables import TableGenerator
from fedsw.runs import recovery
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation import Evaluator, HeldOut
from fedsw.runs.files import GENERATOR
from fedsw.runs.releases import StoredSketch, keep, keep_classifier, of_stage, stored_classifier, stored_sketch
from fedsw.runs.telemetry import event
from fedsw.sketches.fit import FitSettings, Progress, fit_generator, sketch_distance, tried_in
from fedsw.sketches.law import Sketcher
from fedsw.sketches.learnt import Lessons, flat_bytes, taught
from fedsw.sketches.noised import NoisedSketch, bits_per_number, independent_proportions, reweighed
from fedsw.sketches.tables import Pairs
from fedsw.sketches.trees import choose, next_pairs
from fedsw.tasks.measures import law_of_problem, sketcher_of
from fedsw.tasks.problem import Problem
from fedsw.tasks.sketched import Stage, classifier_of, marks_of, table_of

_JUDGED = 4000
"""Samples whose distance to the sketch the summary states."""


@dataclass(frozen=True)
class Synthesis:
    """How such a run ended: in words, its held-out metrics, and what the summary says of the sketch."""

    stopped: str
    held_out: HeldOut
    sketch: dict[str, Any]


def synthesise(
    job: Job,
    task: Problem,
    method: OneRelease,
    evaluator: Evaluator,
    directory: RunDirectory,
    traffic: Traffic,
    log: logging.Logger,
) -> Synthesis:
    """Release the sketch, or take the one that the run has; train the generator from where it is; store it whole.

    Guarantee: only the exchange reads records. All that follows is post-processing: steps, batches, BatchNorm and how
    often it is resumed cost nothing.

    Raises:
        ExperimentError: if restarts would all be the same network.
        FederationError: when too few clients answer.
    """
    network, restarts, released = task.build_model(), restarts_of(task), list[_Stage]()
    stages, steps = len(job.experiment.sketch.shares), job.experiment.training.rounds
    for number in range(1, 1 + stages):
        stage, weights = Stage(), torch.zeros(0, dtype=torch.float64)
        if number > 1:
            weights = _learnt(task, network, released, directory, number)
            stage = Stage(number, flat_bytes(weights))
        try:
            stored = _obtained(job, task, method, directory, stage, weights)
        except BudgetExhausted as exhausted:
            if number == 1:
                return Synthesis(f"stopped before the sketch: {exhausted}", HeldOut(), {})
            stopped = f"stopped before stage {number} of the sketch: {exhausted}"
            break
        released.append(_Stage(stored, sketcher_of(task, stage)))
        again, before = () if number > 1 else restarts, (number - 1) * steps
        _fitted(job, task, method, evaluator, directory, traffic, log, network, again, released, before)
    else:
        stopped = "completed"
    chosen = _chosen(task, released, network)
    directory.write_model(network)
    held_out = evaluator.write_outputs(network, directory)
    about = _described(task, released, network, method) | _restarted(directory, restarts) | chosen
    return Synthesis(stopped, held_out, about)


@dataclass(frozen=True, eq=False)
class _Stage:
    """A stage that was released, with its law drawn."""

    stored: StoredSketch
    sketcher: Sketcher


def _fitted(
    job: Job,
    task: Problem,
    method: OneRelease,
    evaluator: Evaluator,
    directory: RunDirectory,
    traffic: Traffic,
    log: logging.Logger,
    network: nn.Module,
    restarts: Sequence[nn.Module],
    released: Sequence[_Stage],
    before: int,
) -> None:
    """Let the generator go on with all stages that are released; `before` steps were taken in the stages before."""
    first, stored = released[0], released[-1].stored

    def done(progress: Progress) -> None:
        record = _record(progress, before, stored, method, traffic)
        record["held_out"] = evaluator.metrics_of(progress.network)
        directory.append_metrics(record)
        names = ("round", "attempt", "epsilon", "snr", "clients", "bytes_up", "bytes_down")
        log.info("round released", extra=event("round released", **{name: record[name] for name in names}))
        job.observer.round_done(record)

    weights, proportions = _independent(task, first.stored.sketch)
    fit_generator(
        first.stored.sketch,
        network,
        settings_of(task),
        sketcher=first.sketcher,
        later=[(each.stored.sketch, each.sketcher) for each in released[1:]],
        weights=weights,
        proportions=proportions,
        restarts=restarts,
        observer=done,
        every=job.experiment.evaluate_every,
        checkpoint=directory.path / of_stage(GENERATOR, len(released)),
    )


def restarts_of(task: Problem) -> list[nn.Module]:
    """The generator from the initial weights of the next seeds, as many as `sketch.restarts` asks for beside the first.

    Raises:
        ExperimentError: if the next seed gives the same weights.
    """
    spec, count = task.experiment.model, task.experiment.sketch.restarts
    seeds = [spec.model_copy(update={"seed": spec.seed + number}) for number in range(1, count)]
    made = [
        replace(task, experiment=task.experiment.model_copy(update={"model": each})).build_model() for each in seeds
    ]
    if made and torch.equal(flatten(made[0]), flatten(task.build_model())):
        raise ExperimentError(
            f"sketch.restarts is {count}, and model.kind {spec.kind!r} begins with the same weights under every "
            "model.seed, so that there is nothing to choose between: leave restarts out, or name what makes a network"
        )
    return made


def _restarted(directory: RunDirectory, restarts: Sequence[nn.Module]) -> dict[str, Any]:
    """What the summary says of restarts: the squared distances that they were chosen by, and which went on, from 1."""
    if not restarts:
        return {}
    tried = tried_in(directory.path / GENERATOR)
    return {"restarts": {"taken": 1 + tried.index(min(tried)), "distances": tried}}


def _chosen(task: Problem, released: Sequence[_Stage], network: nn.Module) -> dict[str, Any]:
    """What the summary says of what a table's rows are drawn from: the network, or a tree that is put in its place."""
    if not isinstance(network, TableGenerator):
        return {}
    sketches = [each.stored.sketch for each in released]
    _, proportions = _independent(task, sketches[0])
    wanted = task.experiment.sketch.generator
    sketchers = [each.sketcher for each in released]
    chosen = choose(sketches, network, wanted=wanted, sketchers=sketchers, proportions=proportions)
    return {"generator": {**asdict(chosen), "wanted": wanted}}


def _learnt(
    task: Problem, network: nn.Module, released: Sequence[_Stage], directory: RunDirectory, number: int
) -> Tensor:
    """What a stage measures (z,): what is on disk; else pairs of columns, or weights of a classifier that the
    generator teaches."""
    found = stored_classifier(directory, number)
    if found is None and (coded := table_of(task.experiment)) is not None:
        count = task.experiment.sketch.stages[number - 2].tables
        found = marks_of(next_pairs([each.stored.sketch for each in released], count), len(coded))
        keep_classifier(directory, number, found)
    elif found is None:
        sketch = task.experiment.sketch
        untrained = classifier_of(task.experiment, task.shape, seed=sketch.seed + number)
        groups = len(task.shape.groups) if sketch.groups else 1
        pupil = untrained.to(next(network.parameters()))
        classifier = taught(pupil, network, proportions_of(network), groups, Lessons())
        found = flatten(classifier).detach().cpu().to(torch.float64)
        keep_classifier(directory, number, found)
    return found


def settings_of(task: Problem) -> FitSettings:
    """How the generator of an experiment is trained: its steps are `training.rounds`."""
    sketch = task.experiment.sketch
    return FitSettings(
        task.experiment.training.rounds,
        sketch.batch,
        sketch.seed,
        sketch.learning_rate,
        sketch.fraction,
        sketch.averaging,
    )


def _obtained(
    job: Job, task: Problem, method: OneRelease, directory: RunDirectory, stage: Stage, weights: Tensor
) -> StoredSketch:
    """A stage's sketch. One that is stored is the only one there will be, but where it grows (`sketch-local`): clients
    that were missing are asked, and a pool that grew is learnt from anew, as long as no later stage was learnt from it:
    then a client that missed it answers the next."""
    law, number = law_of_problem(task, stage), stage.number
    stored = stored_sketch(directory, law, number) if job.resume else None
    used = stored_classifier(directory, number + 1) is not None
    if stored is not None and (used or not method.grows):
        return stored
    recovery.require_space(directory.path, 8 * law.cells * (sketcher_of(task, stage).coordinates + 1))
    outcome = method.round(number, weights)
    value = outcome.vector.reshape(law.cells, -1)
    if stored is not None and torch.equal(stored.sketch.value, value):
        return stored
    assert outcome.sigma is not None
    sketch = NoisedSketch(law, value, outcome.sigma, method.records)
    found = StoredSketch(sketch, outcome.clients, outcome.attempt, outcome.spent)
    keep(directory, found, number, (number - 1) * job.experiment.training.rounds)
    return found


def _independent(task: Problem, sketch: NoisedSketch) -> tuple[Tensor | None, Tensor | None]:
    """How cells weigh in the loss, and how often they are generated, where labels are not to depend on the group."""
    if not task.experiment.sketch.independent:
        return None, None
    law = sketch.law
    proportions = independent_proportions(sketch.proportions.reshape(law.classes, law.groups)).reshape(-1)
    return reweighed(sketch.proportions, proportions), proportions


def _record(
    progress: Progress, before: int, stored: StoredSketch, method: OneRelease, traffic: Traffic
) -> dict[str, Any]:
    """A line of metrics.jsonl: functions of the released sketch alone."""
    record: dict[str, Any] = {
        "round": before + progress.step,
        "attempt": stored.attempt,
        "epsilon": stored.spent,
        "sigma": stored.sketch.sigma,
        "snr": None,
        "distance": progress.distance,
        "clients": stored.clients,
        "bytes_up": traffic.up,
        "bytes_down": traffic.down,
    }
    if by_client := method.epsilon_by_client():
        record["epsilon_by_client"] = {str(client): epsilon for client, epsilon in by_client.items()}
    return record


def _described(task: Problem, released: Sequence[_Stage], network: nn.Module, method: OneRelease) -> dict[str, Any]:
    """What the summary says of the sketch of the first stage, and how far from each the generator's samples are."""
    stored = released[0].stored
    sketch = stored.sketch
    features, cells = generate(network, proportions_of(network), _JUDGED)
    return {
        "records": sketch.records,
        "records_by_client": {str(client): held for client, held in method.records_by_client.items()},
        "clients": stored.clients,
        "cells": sketch.law.cells,
        "coordinates": sketch.coordinates,
        "sigma": sketch.sigma,
        "bits_per_number": bits_per_number(sketch.law, sketch.records),
        "distance": sketch_distance(sketch, features, cells, sketcher=released[0].sketcher),
        **({"later": [_later(each, features, cells) for each in released[1:]]} if len(released) > 1 else {}),
    }


def _later(each: _Stage, features: Tensor, cells: Tensor) -> dict[str, Any]:
    """What the summary says of a later stage."""
    sketch = each.stored.sketch
    (part, *_) = sketch.law.parts
    return {
        **({"pairs": part.chosen} if isinstance(part, Pairs) else {}),
        "records": sketch.records,
        "clients": each.stored.clients,
        "coordinates": sketch.coordinates,
        "sigma": sketch.sigma,
        "distance": sketch_distance(sketch, features, cells, sketcher=each.sketcher),
    }
