"""A run whose records leave once, as a sketch: the exchange, then a generator by the code of one machine."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedsw.accounting import BudgetExhausted
from fedsw.federation.exchange.exchange import Traffic
from fedsw.federation.server.job import Job
from fedsw.federation.trust.model import OneRelease
from fedsw.models.labelled import generate, proportions_of
from fedsw.runs import recovery
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation import Evaluator, HeldOut
from fedsw.runs.files import GENERATOR
from fedsw.runs.releases import StoredSketch, keep, stored_sketch
from fedsw.runs.telemetry import event
from fedsw.sketches.fit import FitSettings, Progress, fit_generator, sketch_distance
from fedsw.sketches.noised import NoisedSketch, bits_per_number, independent_proportions, reweighed
from fedsw.tasks.measures import law_of_problem, sketcher_of
from fedsw.tasks.problem import Problem

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
        FederationError: when too few clients answer.
    """
    try:
        stored = _obtained(job, task, method, directory)
    except BudgetExhausted as exhausted:
        return Synthesis(f"stopped before the sketch: {exhausted}", HeldOut(), {})
    network, sketcher = task.build_model(), sketcher_of(task)

    def done(progress: Progress) -> None:
        record = _record(progress, stored, method, traffic)
        record["held_out"] = evaluator.metrics_of(progress.network)
        directory.append_metrics(record)
        names = ("round", "attempt", "epsilon", "snr", "clients", "bytes_up", "bytes_down")
        log.info("round released", extra=event("round released", **{name: record[name] for name in names}))
        job.observer.round_done(record)

    weights, proportions = _independent(task, stored.sketch)
    fit_generator(
        stored.sketch,
        network,
        settings_of(task),
        sketcher=sketcher,
        weights=weights,
        proportions=proportions,
        observer=done,
        every=job.experiment.evaluate_every,
        checkpoint=directory.path / GENERATOR,
    )
    directory.write_model(network)
    return Synthesis(
        "completed", evaluator.write_outputs(network, directory), _described(task, stored, network, method)
    )


def settings_of(task: Problem) -> FitSettings:
    """How the generator of an experiment is trained: its steps are `training.rounds`."""
    sketch = task.experiment.sketch
    return FitSettings(
        task.experiment.training.rounds, sketch.batch, sketch.seed, sketch.learning_rate, sketch.fraction
    )


def _obtained(job: Job, task: Problem, method: OneRelease, directory: RunDirectory) -> StoredSketch:
    """The run's sketch. Under `sketch` one that is stored is the only one there will be; under `sketch-local` clients
    that were missing are asked, and a pool that grew is learnt from anew."""
    law = law_of_problem(task)
    stored = stored_sketch(directory, law) if job.resume else None
    if stored is not None and not job.experiment.privacy.local:
        return stored
    recovery.require_space(directory.path, 8 * law.cells * (sketcher_of(task).coordinates + 1))
    outcome = method.round(1, torch.zeros(0))
    value = outcome.vector.reshape(law.cells, -1)
    if stored is not None and torch.equal(stored.sketch.value, value):
        return stored
    assert outcome.sigma is not None
    sketch = NoisedSketch(law, value, outcome.sigma, method.records)
    found = StoredSketch(sketch, outcome.clients, outcome.attempt, outcome.spent)
    keep(directory, found)
    return found


def _independent(task: Problem, sketch: NoisedSketch) -> tuple[Tensor | None, Tensor | None]:
    """How cells weigh in the loss, and how often they are generated, where labels are not to depend on the group."""
    if not task.experiment.sketch.independent:
        return None, None
    law = sketch.law
    proportions = independent_proportions(sketch.proportions.reshape(law.classes, law.groups)).reshape(-1)
    return reweighed(sketch.proportions, proportions), proportions


def _record(progress: Progress, stored: StoredSketch, method: OneRelease, traffic: Traffic) -> dict[str, Any]:
    """A line of metrics.jsonl: functions of the released sketch alone."""
    record: dict[str, Any] = {
        "round": progress.step,
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


def _described(task: Problem, stored: StoredSketch, network: nn.Module, method: OneRelease) -> dict[str, Any]:
    """What the summary says of the sketch, and how far from it the generator's samples are."""
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
        "distance": sketch_distance(sketch, features, cells, sketcher=sketcher_of(task)),
    }
