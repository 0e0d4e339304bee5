"""Measurements of records under a problem: metrics of outputs, tallies of kept records, sums of a sketch."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsw._tools.subnormal import flushing_to_zero
from fedsw.data import Records
from fedsw.data.codes import cells_of_table, codes_of, drawn_codes, one_hot, records_of_table
from fedsw.data.columns.declaration import Coded, Columns
from fedsw.data.sources import Shape
from fedsw.experiment.task_kinds import MODELS
from fedsw.learning.models.labelled import generate, proportions_of
from fedsw.learning.sketches.from_settings import FIRST, Stage, drawn, law_of, marks_of, table_of
from fedsw.learning.sketches.learnt import flat_bytes
from fedsw.learning.sketches.noised import least_noise_shares
from fedsw.learning.sketches.sketch_law import STEP, Law, Sketcher
from fedsw.learning.sketches.table_parts import sums_of_codes
from fedsw.learning.tasks import metrics
from fedsw.learning.tasks.objective import in_pieces
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import Tally
from fedsw.learning.tasks.task import Inputs, Raw
from fedsw.mathematics.clipping import OutputForm, unchanged


def made_table(
    network: nn.Module, columns: Columns, coded: tuple[Coded, ...], count: int, *, labels: bool, seed: int = 0
) -> dict[str, list[str]]:
    """The cells of `count` synthetic rows by column, as text, in the declared order of columns.

    Guarantee: post-processing of the sketch that the network learnt from; any number of rows costs nothing.
    The network is a trained generator of the columns' codes (``coded``); ``labels`` says if its cells have the class,
    which is a code of its own or the first one where they have not; ``seed`` is of noise, codes and numbers.
    """
    chances, cells = generate(network, proportions_of(network), count, seed=seed)
    codes, where = drawn_codes(chances, coded, seed=seed), cells.cpu()
    classes = max(1, len(columns.classes)) if labels and columns.target is not None else 1
    groups = int(getattr(network, "cells")) // classes  # noqa: B009
    label = torch.div(where, groups, rounding_mode="floor")
    return cells_of_table(codes, label, where % groups, columns, coded, seed=seed)


_SLICES = 100
"""The least number of directions of a distance between samples, in whole orthogonal blocks."""


@dataclass(frozen=True)
class Measurements:
    """Metrics by name (``report``), and ``arrays`` for the figures, where asked: `outputs` (n, d) is always among them.

    ``directions`` are the most of a sliced distance among the metrics, 0 if none is one; ``losses`` the task loss of
    every record (n,), where their mean is a metric; ``without`` the metrics without each part of the records in turn,
    but those for which something has to be trained.
    """

    report: dict[str, float]
    arrays: dict[str, Tensor]
    directions: int
    losses: Tensor | None = None
    without: tuple[dict[str, float], ...] = ()


def measure(
    problem: Problem, records: Records, model: nn.Module, *, arrays: bool = True, parts: Tensor | None = None
) -> Measurements:
    """Metrics of a model on held-out records, which the run's guarantee does not protect; and arrays, where asked.

    Metrics are computed on the run's device; arrays are returned on the host. ``parts`` (n,) says in which part each
    record is, to have the metrics without each part as well.
    """
    with torch.no_grad(), unchanged(model, problem.task):
        measuring = Measuring(problem, records.copied(), model)  # a task's own code may change what it looks at
        report = problem.task.metrics(model, measuring)
        drawn = problem.task.arrays(model, measuring) if arrays else {}
        losses = measuring.losses.cpu() if arrays and "loss" in measuring.__dict__ else None
        numbers = [] if parts is None else sorted(set(parts.tolist()))
        apart = [measuring.only(parts != number) for number in numbers if parts is not None and len(numbers) > 1]
        without = tuple(problem.task.metrics(model, remaining) for remaining in apart)
        return Measurements(
            report, {name: values.cpu() for name, values in drawn.items()}, measuring.taken, losses, without
        )


class Measuring:
    """Held-out records under a model; see `fedsw.learning.tasks.task.HeldOut`. Metrics are computed on demand."""

    def __init__(self, problem: Problem, records: Records, model: nn.Module) -> None:
        self._problem, self._model = problem, model
        self._samples: dict[int, Tensor] = {}
        self.records, self.taken = records.to(problem.device), 0

    @property
    def shape(self) -> Shape:
        """The public facts of the data."""
        return self._problem.shape

    def only(self, rows: Tensor) -> Measuring:
        """The same of the records where `rows` (n,) holds: nothing is made or trained again, labels are left out."""
        part = Measuring(self._problem, self.records.take(rows.to(self.records.ids.device)), self._model)
        part._samples = self._samples
        if "raw" in self.__dict__:
            form = OutputForm.of(self.raw)
            part.raw = form.arranged([output[rows.to(output.device)] for output in form.parts(self.raw)])
        if "_labelled" in self.__dict__:
            part._labelled = (self._labelled[0], None)
        return part

    @functools.cached_property
    def inputs(self) -> Inputs:
        """The records as the model takes them."""
        return self._problem.given(self.records)

    @functools.cached_property
    def raw(self) -> Raw:
        """The model's return value for the records, computed piece by piece and joined again."""
        problem = self._problem
        chunks = in_pieces(self.records, problem.clipped.micro_batch)
        pieces = [self._model(problem.inputs(chunk)) for chunk in chunks]
        form = OutputForm.of(pieces[0])
        joined = [torch.cat(outputs) for outputs in zip(*(form.parts(piece) for piece in pieces), strict=True)]
        return form.arranged(joined)

    @functools.cached_property
    def outputs(self) -> Tensor:
        """The penalty's outputs (n, d), neither centred nor projected."""
        return self._problem.outputs(self.raw, self.inputs) + self._problem.experiment.clip.centre

    @functools.cached_property
    def losses(self) -> Tensor:
        """Task loss of every record (n,)."""
        return self._problem.clipped.losses(self.raw, self.inputs).double()

    @functools.cached_property
    def loss(self) -> float:
        """Mean task loss."""
        return float(self.losses.mean())

    @property
    def directions(self) -> Tensor | None:
        """Unit columns (d, k); None if d is 1."""
        directions = None if self._problem.dimension == 1 else self._problem.clipped.directions(0, 0)[0]
        self.taken = max(self.taken, 1 if directions is None else directions.shape[1])
        return directions

    def slices(self, dimension: int) -> int:
        """Number of directions for a distance between samples of that dimension, by `evaluation`."""
        whole, evaluation = dimension * math.ceil(_SLICES / dimension), self._problem.experiment.evaluation
        few = evaluation.mode == "auto" and dimension > evaluation.directions
        count = evaluation.directions if few else whole
        self.taken = max(self.taken, count)
        return count

    @property
    def prior_radius(self) -> float:
        """Radius of the prior's ball."""
        return self._problem.experiment.objective.prior_radius

    def gap(self) -> float:
        """The largest squared (sliced) Wasserstein distance between the outputs of two groups."""
        groups = len(self.shape.groups)
        return metrics.w2_squared(self.outputs, self.records.sensitive, directions=self.directions, groups=groups)

    def samples(self, count: int) -> Tensor:
        """Return a generator's samples (count, d), the same at every call; or all particles (m, d)."""
        if count not in self._samples:
            self._samples[count] = self._made(count)
        return self._samples[count]

    def _made(self, count: int) -> Tensor:
        points = MODELS.get(self._problem.experiment.model.kind).points
        latents = self._problem.latents(count, "held-out")
        raw = self._model() if points else self._model(latents)
        outputs: Tensor = self._problem.task.outputs(raw, self._problem.imagined(latents))
        return outputs.detach()

    def labelled(self) -> tuple[Tensor, Tensor | None]:
        """Return a class-conditional generator's samples (m, p) and their labels (m,), the same at every call."""
        return self._labelled

    @functools.cached_property
    def _labelled(self) -> tuple[Tensor, Tensor | None]:
        experiment = self._problem.experiment
        sketch, evaluation = experiment.sketch, experiment.evaluation
        count = sketch.generated if evaluation.mode == "full" else min(sketch.generated, evaluation.records)
        columns = experiment.data.columns
        if (coded := table_of(experiment)) is not None and columns is not None:
            made = records_of_table(made_table(self._model, columns, coded, count, labels=sketch.labels), columns)
            labels = made.target.to(self._problem.device) if made.is_classification and sketch.labels else None
            return self._problem.inputs(made), labels
        features, cells = generate(self._model, proportions_of(self._model), count)
        groups = len(self.shape.groups) if sketch.groups else 1
        return features, torch.div(cells, groups, rounding_mode="floor") if sketch.labels else None

    def decoded(self, codes: Tensor) -> Tensor | None:
        """Return codes (n, d) decoded by the model's own `decode`; None for a model without."""
        decode = getattr(self._model, "decode", None)
        if decode is None:
            return None
        decoded: Tensor = decode(codes.to(self._problem.device, self._problem.dtype))
        return decoded


@flushing_to_zero
def tally_of_records(problem: Problem, tally: Tally, records: Records, model: nn.Module) -> Tensor:
    """Sums over records by group, WITHOUT NOISE, in whole steps of 2^-26: (groups, t) int64.

    Each record's vector is rounded to whole steps by itself, so sums are exact, in any order and however records are
    spread over clients: at most sqrt(t) steps more than `moved` for one replaced record, which the slack of
    sensitivities covers.
    """
    total = torch.zeros((tally.groups, tally.width), dtype=torch.int64)
    if not len(records):
        return total
    with torch.no_grad(), unchanged(model, problem.task):
        outputs = Measuring(problem, records, model).outputs.cpu()
    steps = (tally.vectors(outputs, records.target) / STEP).round().to(torch.int64)
    return total.index_add_(0, records.sensitive.long(), steps)


def law_of_problem(problem: Problem, stage: Stage = FIRST) -> Law:
    """Return the law of a stage's sketch."""
    return law_of(problem.experiment, problem.shape, stage)


def sketcher_of(problem: Problem, stage: Stage = FIRST) -> Sketcher:
    """The law with its public numbers drawn, in the run's precision, on its device."""
    return drawn(law_of_problem(problem, stage), problem.dtype, problem.device)


def chosen_shares(problem: Problem) -> tuple[float, ...]:
    """The shares of the budget of a sketch's stages, by `least_noise_shares`: from settings and the data's shape only.

    Which pairs or triples of columns a later stage of a table measures is not known yet: the largest are taken.
    """
    experiment, coded = problem.experiment, table_of(problem.experiment)
    stages = [FIRST]
    for number, settings in enumerate(experiment.sketch.stages, start=2):
        stage = Stage(number)
        if coded is not None and settings.together == 2:
            pairs = itertools.combinations(range(len(coded)), 2)
            largest = sorted(pairs, key=lambda pair: -coded[pair[0]].size * coded[pair[1]].size)[: settings.tables]
            stage = Stage(number, flat_bytes(marks_of(largest, len(coded))))
        stages.append(stage)
    return least_noise_shares([sketcher_of(problem, stage) for stage in stages])


def sketch_of_records(problem: Problem, records: Records, stage: Stage = FIRST) -> Tensor:
    """The records' exact sum (cells, F + 1), float64, on the host. WITHOUT NOISE: it leaves as a `Bounded` only."""
    sketcher, cells = sketcher_of(problem, stage), cells_of(problem, records)
    if (coded := table_of(problem.experiment)) is not None:
        codes = codes_of(records, coded)
        if (counted := sums_of_codes(sketcher, codes, cells)) is not None:
            return counted
    return sketcher.sums(inputs_of(problem, records), cells).cpu()


@flushing_to_zero
def inputs_of(problem: Problem, records: Records) -> Tensor:
    """Features (n, p) as the sketch looks at them, on the run's device: the records' own, or their columns' codes."""
    coded = table_of(problem.experiment)
    if coded is None:
        return problem.inputs(records)
    return one_hot(codes_of(records, coded), coded, problem.dtype).to(problem.device)


def cells_of(problem: Problem, records: Records) -> Tensor:
    """The cell (n,) int64 of every record, on the run's device: the block that it is in."""
    sketch, law = problem.experiment.sketch, law_of_problem(problem)
    none = torch.zeros(len(records), dtype=torch.int64)
    labels = records.target if sketch.labels and law.classes > 1 else none
    groups = records.sensitive if sketch.groups else none
    return law.cell_of(labels.to(torch.int64), groups.to(torch.int64)).to(problem.device)
