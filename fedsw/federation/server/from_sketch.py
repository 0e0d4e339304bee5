"""A run that takes records once, as a sketch: the exchange, then a generator by the code of one machine."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedsw.experiment import ExperimentError
from fedsw.federation.server.federation import FederatedRun
from fedsw.federation.server.releases_once import release_sum
from fedsw.federation.server.summary import line_of, logged
from fedsw.federation.trust.sketch.sketch_once import SketchSum
from fedsw.learning.models import flatten
from fedsw.learning.models.labelled import TableGenerator, generate, proportions_of
from fedsw.learning.sketches.fit import FitSettings, Progress, fit_generator, sketch_distance, tried_in
from fedsw.learning.sketches.from_settings import Stage, classifier_of, marks_of, table_of
from fedsw.learning.sketches.learnt import Lessons, flat_bytes, taught
from fedsw.learning.sketches.noised import NoisedSketch, bits_per_number, independent_cells, reweighed
from fedsw.learning.sketches.sketch_law import Sketcher
from fedsw.learning.sketches.table_counts import Pairs
from fedsw.learning.sketches.table_parts import Triples, next_triples
from fedsw.learning.sketches.trees import move_rows, next_pairs, settle_rows
from fedsw.learning.tasks.measures import law_of_problem, sketcher_of
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import BudgetExhausted
from fedsw.runs.evaluation.evaluator import HeldOutMetrics
from fedsw.runs.releases import StoredSketch, keep, keep_classifier, of_stage, stored_classifier, stored_sketch
from fedsw.runs.run_files import RunFile

_JUDGED = 4000
"""Samples for the distance to the sketch that the summary states."""


@dataclass(frozen=True, eq=False)
class _Stage:
    """A stage that was released, with its law drawn."""

    stored: StoredSketch
    sketcher: Sketcher


@dataclass
class OnceRun(FederatedRun):
    """A run on a sketch: the exchange of every stage, and the generator that learns from them.

    Guarantee: only the exchange, by `side`, reads records. All that follows is post-processing: steps, batches,
    BatchNorm and how often it is resumed cost nothing.
    """

    def __post_init__(self) -> None:
        self._network, self._restarts = self.task.build_model(), restarts_of(self.task)
        self._stages = list[_Stage]()

    def made(self) -> set[int]:
        """Stages of the sketch that were released."""
        stages = range(1, 1 + len(self.job.experiment.sketch.shares))
        return {number for number in stages if (self.directory.path / of_stage(RunFile.SKETCH, number)).exists()}

    def carried_on(self) -> tuple[str, HeldOutMetrics]:
        """Release the sketch, or take the one that the run has; train the generator from where it is; store it.

        Returns how the run ended, in words, and its held-out metrics.
        """
        for number in range(1, 1 + len(self.job.experiment.sketch.shares)):
            stage, weights = Stage(), torch.zeros(0, dtype=torch.float64)
            if number > 1:
                weights = self._learnt(number)
                stage = Stage(number, flat_bytes(weights))
            try:
                stored = self._obtained(stage, weights)
            except BudgetExhausted as exhausted:
                if number == 1:
                    self.about["sketch"] = {}
                    return f"stopped before the sketch: {exhausted}", HeldOutMetrics()
                stopped = f"stopped before stage {number} of the sketch: {exhausted}"
                break
            self._stages.append(_Stage(stored, sketcher_of(self.task, stage)))
            self._fitted()
        else:
            stopped = "completed"
        chosen = self._chosen()
        self.directory.write_model(self._network)
        held_out = self.evaluator.write_outputs(self._network, self.directory)
        restarted = {}
        if self._restarts:  # all squared distances, and the number of the one taken, from 1
            tried = tried_in(self.directory.path / RunFile.GENERATOR)
            restarted = {"restarts": {"taken": 1 + tried.index(min(tried)), "distances": tried}}
        self.about["sketch"] = self._described() | restarted | chosen
        return stopped, held_out

    def _fitted(self) -> None:
        """Let the generator go on with all stages that are released."""
        first, last, number = self._stages[0], self._stages[-1].stored, len(self._stages)
        before = (number - 1) * self.job.experiment.training.rounds

        def done(progress: Progress) -> None:
            numbers = {"sigma": last.sketch.sigma, "snr": None, "distance": progress.distance}
            round_, attempt, spent, clients = before + progress.step, last.attempt, last.spent, last.clients
            record = line_of(self.side, self.context.traffic, round_, attempt, spent, clients, numbers)
            record["held_out"] = self.evaluator.metrics_of(progress.network)
            self.directory.append_metrics(record)
            self.log.info("round released", extra=logged(record))
            self.job.observer.round_done(record)

        weights = proportions = None
        if self.task.experiment.sketch.independent:  # labels are not to depend on the group
            proportions = independent_cells(first.stored.sketch)
            weights = reweighed(first.stored.sketch.proportions, proportions)
        fit_generator(
            first.stored.sketch,
            self._network,
            settings_of(self.task),
            sketcher=first.sketcher,
            later=[(stage.stored.sketch, stage.sketcher) for stage in self._stages[1:]],
            weights=weights,
            proportions=proportions,
            restarts=() if number > 1 else self._restarts,
            observer=done,
            every=self.job.experiment.evaluate_every,
            checkpoint=self.directory.path / of_stage(RunFile.GENERATOR, number),
        )

    def _chosen(self) -> dict[str, Any]:
        """Choose what draws a table's rows, the network or a tree in its place; returns the summary's entry."""
        settings = self.task.experiment.sketch
        sketches = [stage.stored.sketch for stage in self._stages]
        sketchers = [stage.sketcher for stage in self._stages]
        chosen = settle_rows(settings, self._network, sketches, sketchers)
        if chosen is None:
            return {}
        return {"generator": {**asdict(chosen), "wanted": settings.generator}}

    def _learnt(self, number: int) -> Tensor:
        """Load or learn what a stage measures (z,): marks of pairs of columns, or weights of a taught classifier."""
        learnt, experiment = stored_classifier(self.directory, number), self.task.experiment
        if learnt is not None:
            return learnt
        sketch = experiment.sketch
        if (coded := table_of(experiment)) is not None:
            count, sketches = sketch.stages[number - 2].tables, [stage.stored.sketch for stage in self._stages]
            columns: tuple[tuple[int, ...], ...]
            if sketch.together == 2:
                columns = next_pairs(sketches, count)
            else:  # by a copy of the generator, with rows moved by what was released
                moved = copy.deepcopy(self._network)
                assert isinstance(moved, TableGenerator)
                move_rows(sketches, moved)
                columns = next_triples(moved, count)
            learnt = marks_of(columns, len(coded), sketch.together)
        else:
            untrained = classifier_of(experiment, self.task.shape, seed=sketch.seed + number)
            groups = len(self.task.shape.groups) if sketch.groups else 1
            pupil = untrained.to(next(self._network.parameters()))
            classifier = taught(pupil, self._network, proportions_of(self._network), groups, Lessons())
            learnt = flatten(classifier).detach().cpu().to(torch.float64)
        keep_classifier(self.directory, number, learnt)
        return learnt

    def _obtained(self, stage: Stage, weights: Tensor) -> StoredSketch:
        """A stage's sketch: a stored one, unless it grows (`sketch-local`) and no later stage was learnt from it."""
        law, number = law_of_problem(self.task, stage), stage.number
        stored = stored_sketch(self.directory, law, number) if self.job.resume else None
        used = stored_classifier(self.directory, number + 1) is not None
        if stored is not None and (used or not self.side.grows):
            return stored
        summed = release_sum(self.context, self.side, SketchSum, number, weights, self.directory, self.log)
        if stored is not None and torch.equal(stored.sketch.value, summed.values):
            return stored
        sketch = NoisedSketch(law, summed.values, summed.sigma, int(summed.records.sum()))
        released = StoredSketch(sketch, summed.clients, summed.attempt, summed.spent)
        keep(self.directory, released, number, (number - 1) * self.job.experiment.training.rounds)
        return released

    def _described(self) -> dict[str, Any]:
        """The summary's entry on the first stage's sketch, with the distance of samples to every stage's."""
        sketch = self._stages[0].stored.sketch
        features, cells = generate(self._network, proportions_of(self._network), _JUDGED)
        first, *later = [_measured(stage, features, cells) for stage in self._stages]
        return {
            **first,
            "records_by_client": {str(client): held for client, held in self.side.records_by_client.items()},
            "cells": sketch.law.cells,
            "bits_per_number": bits_per_number(sketch.law, sketch.records),
            **({"later": later} if later else {}),
        }


def restarts_of(task: Problem) -> list[nn.Module]:
    """The generator from the initial weights of the next seeds: with the first, as many as `sketch.restarts`."""
    spec, count = task.experiment.model, task.experiment.sketch.restarts
    seeds = [spec.model_copy(update={"seed": spec.seed + number}) for number in range(1, count)]
    made = [
        replace(task, experiment=task.experiment.model_copy(update={"model": section})).build_model()
        for section in seeds
    ]
    if made and torch.equal(flatten(made[0]), flatten(task.build_model())):
        raise ExperimentError(
            f"sketch.restarts is {count}, and model.kind {spec.kind!r} begins with the same weights under every "
            "model.seed, so that there is nothing to choose between: leave restarts out, or name what makes a network"
        )
    return made


def settings_of(task: Problem) -> FitSettings:
    """Training settings of an experiment's generator: its steps are `training.rounds`."""
    sketch = task.experiment.sketch
    return FitSettings(
        task.experiment.training.rounds,
        sketch.batch,
        sketch.seed,
        sketch.learning_rate,
        sketch.fraction,
        sketch.averaging,
    )


def _measured(stage: _Stage, features: Tensor, cells: Tensor) -> dict[str, Any]:
    """The summary's entry on a stage, with the distance to it of samples (n, p) of cells (n,)."""
    sketch = stage.stored.sketch
    (part, *_) = sketch.law.parts
    return {
        **({"pairs": part.chosen} if isinstance(part, Pairs) and part.chosen else {}),
        **({"triples": part.chosen} if isinstance(part, Triples) else {}),
        "records": sketch.records,
        "clients": stage.stored.clients,
        "coordinates": sketch.coordinates,
        "sigma": sketch.sigma,
        "distance": sketch_distance(sketch, features, cells, sketcher=stage.sketcher),
    }
