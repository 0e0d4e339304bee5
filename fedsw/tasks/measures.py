"""What a model is worth on held-out records: the metrics of its task, and arrays that the figures are drawn from."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsw import metrics
from fedsw.clipping.outputs import Form
from fedsw.data import Records
from fedsw.data.codes import records_of_table
from fedsw.experiment.kinds import model_kind
from fedsw.experiment.sources import Shape
from fedsw.models.samples import generate, proportions_of
from fedsw.tasks.problem import Problem
from fedsw.tasks.sketched import table_of
from fedsw.tasks.tables import made_table
from fedsw.tasks.task import Inputs, Raw

_SLICES = 100
"""At least so many directions of a distance between samples, in whole orthogonal blocks."""


@dataclass(frozen=True)
class Measured:
    """Metrics by name, and arrays for the figures; `outputs` (n, d) is always among them.

    Attributes:
        report: metrics by name.
        arrays: what the figures are drawn from; empty where they were not asked for.
        directions: most directions of a sliced distance among the metrics; 0 where no metric is one.
    """

    report: dict[str, float]
    arrays: dict[str, Tensor]
    directions: int


def measure(problem: Problem, records: Records, model: nn.Module, *, arrays: bool = True) -> Measured:
    """Metrics of a model on held-out records, which the run's guarantee does not protect; and arrays, where asked.

    Metrics are computed on the run's device; arrays are returned on the host.
    """
    with torch.no_grad():
        found = Measuring(problem, records, model)
        report = problem.task.metrics(model, found)
        given = problem.task.arrays(model, found) if arrays else {}
        return Measured(report, {name: values.cpu() for name, values in given.items()}, found.taken)


class Measuring:
    """Held-out records under a model; see `fedsw.tasks.task.HeldOut`. What nobody asks for is not computed.

    Everything is on the run's device.
    """

    def __init__(self, problem: Problem, records: Records, model: nn.Module) -> None:
        self._problem, self._model = problem, model
        self._samples: dict[int, Tensor] = {}
        self.records, self.taken = records.to(problem.device), 0

    @property
    def shape(self) -> Shape:
        """What is public of the data."""
        return self._problem.shape

    @functools.cached_property
    def inputs(self) -> Inputs:
        """The records as the model takes them."""
        return self._problem.given(self.records)

    @functools.cached_property
    def raw(self) -> Raw:
        """What the model returns for them, piece by piece, joined again."""
        pieces = [self._model(self._problem.inputs(chunk)) for chunk in self._problem.chunks(self.records)]
        form = Form.of(pieces[0])
        joined = [torch.cat(each) for each in zip(*(form.parts(piece) for piece in pieces), strict=True)]
        return form.arranged(joined)

    @functools.cached_property
    def outputs(self) -> Tensor:
        """The penalty's outputs (n, d), neither centred nor projected."""
        return self._problem.outputs(self.raw, self.inputs) + self._problem.experiment.clip.centre

    @functools.cached_property
    def loss(self) -> float:
        """Mean task loss."""
        return float(self._problem.losses(self.raw, self.inputs).double().mean())

    @property
    def directions(self) -> Tensor | None:
        """Unit columns (d, k); None where d is 1."""
        found = None if self._problem.dimension == 1 else self._problem.directions(0, 0)
        self.taken = max(self.taken, 1 if found is None else found.shape[1])
        return found

    def slices(self, dimension: int) -> int:
        """How many directions a distance between samples of that dimension takes, by `evaluation`."""
        whole, evaluation = dimension * math.ceil(_SLICES / dimension), self._problem.experiment.evaluation
        few = evaluation.mode == "auto" and dimension > evaluation.directions
        found = evaluation.directions if few else whole
        self.taken = max(self.taken, found)
        return found

    @property
    def prior_radius(self) -> float:
        """Radius of the prior's ball."""
        return self._problem.experiment.objective.prior_radius

    def gap(self) -> float:
        """The largest squared (sliced) Wasserstein distance between the outputs of two groups."""
        groups = len(self.shape.groups)
        return metrics.w2_squared(self.outputs, self.records.sensitive, directions=self.directions, groups=groups)

    def samples(self, count: int) -> Tensor:
        """What a generator makes of inputs of its own, (count, d), the same at every call; or all particles (m, d)."""
        if count not in self._samples:
            self._samples[count] = self._made(count)
        return self._samples[count]

    def _made(self, count: int) -> Tensor:
        points = model_kind(self._problem.experiment.model.kind).points
        given = self._problem.latents(count, "held-out")
        raw = self._model() if points else self._model(given)
        found: Tensor = self._problem.task.outputs(raw, self._problem.imagined(given))
        return found.detach()

    def labelled(self) -> tuple[Tensor, Tensor | None]:
        """What a class-conditional generator makes, the same at every call: samples (m, p), and their labels (m,)."""
        return self._labelled

    @functools.cached_property
    def _labelled(self) -> tuple[Tensor, Tensor | None]:
        experiment = self._problem.experiment
        sketch, evaluation = experiment.sketch, experiment.evaluation
        count = sketch.generated if evaluation.mode == "full" else min(sketch.generated, evaluation.records)
        columns = experiment.data.columns
        if (coded := table_of(experiment)) is not None and columns is not None:
            made = records_of_table(made_table(self._model, columns, coded, count), columns)
            labels = made.target.to(self._problem.device) if made.is_classification and sketch.labels else None
            return self._problem.inputs(made), labels
        features, cells = generate(self._model, proportions_of(self._model), count)
        groups = len(self.shape.groups) if sketch.groups else 1
        return features, torch.div(cells, groups, rounding_mode="floor") if sketch.labels else None

    def decoded(self, codes: Tensor) -> Tensor | None:
        """What the model's own `decode` makes of codes (n, d); None for a model without."""
        decode = getattr(self._model, "decode", None)
        if decode is None:
            return None
        found: Tensor = decode(codes.to(self._problem.device, self._problem.dtype))
        return found
