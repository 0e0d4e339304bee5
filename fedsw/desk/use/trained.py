"""Trained models and their answers: probabilities of classes, numbers in their own units, codes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from fedsw._tools.text import Short, run_facts
from fedsw.data.columns.declaration import Columns
from fedsw.data.sources import load_class_names
from fedsw.desk.use.predictions import Asked, Given, OnFaults, Thresholds, read_given, settle
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.choices import require_allowed_code
from fedsw.federation.engines.records_at_hand import handed_again
from fedsw.learning.sketches.from_settings import table_of
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.task import Inputs
from fedsw.runs.evaluation.group_thresholds import kept
from fedsw.runs.run_files import RunFile, find_run
from fedsw.runs.view import read_run

if TYPE_CHECKING:
    from fedsw.federation.engines.records_at_hand import ModelObject, TaskObject


class AnsweringModel(nn.Module):
    """A trained model with the outputs that a person asked for; the same for predictions and for exports.

    Called with features (n, p) as the columns are encoded, it returns (n, k) in the model's precision: for classes
    their probabilities, in the declared order; for a regression numbers in the targets' own units; for representations
    and autoencoders the codes; for a task of a user's own its outputs.
    """

    def __init__(self, problem: Problem, model: nn.Module) -> None:
        super().__init__()
        require_answers(problem)
        self.model = model
        self.coding = problem.coding
        self._problem, self._facts = problem, problem.task.facts
        low, width = _units(problem.experiment.data.columns if self._facts.answers == "predicted" else None)
        self.register_buffer("low", low.to(problem.dtype))
        self.register_buffer("width", width.to(problem.dtype))

    @property
    def classifies(self) -> bool:
        """True if answers are probabilities of classes."""
        return self._facts.classifies

    def forward(self, features: Tensor) -> Tensor:
        """Answers (n, k) for features (n, p)."""
        inputs = features.to(self._problem.dtype)
        if (norm := self._problem.experiment.data.row_norm) is not None:
            inputs = norm * nn.functional.normalize(inputs, dim=1)
        if self.coding is not None:
            inputs = self.coding(inputs)
        batch = Inputs(inputs, inputs[:, :0], self._problem.shape)
        answers = self._problem.task.answers(self.model(inputs), batch)
        if self._facts.answers == "predicted":
            return self.get_buffer("low") + self.get_buffer("width") * answers
        return answers


def require_answers(problem: Problem) -> None:
    """Refuse a model that takes no records.

    Raises:
        ExperimentError: saying what it makes instead.
    """
    if _generates(problem):
        made = "what it makes is in the run's outputs.npz"
        if table_of(problem.experiment) is not None:
            made = "`fedsw synthesize RUN --rows N` draws rows of it, at no cost"
        raise ExperimentError(
            f"the run {problem.experiment.name!r} learnt a generator, which makes records and predicts nothing of a "
            f"table; {made}, and `fedsw.load(run).model` is the generator itself"
        )


def _generates(problem: Problem) -> bool:
    return problem.task.facts.other_side == "generator"


def _units(columns: Columns | None) -> tuple[Tensor, Tensor]:
    """Lower bounds and widths (t,) of a regression's targets; 0 and 1 where none are declared."""
    if columns is None:
        return torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    low = [0.0 if number.low is None else number.low for number in columns.targets]
    high = [1.0 if number.high is None else number.high for number in columns.targets]
    bounds = torch.tensor([low, high], dtype=torch.float64)
    return bounds[0], bounds[1] - bounds[0]


_PIECE = 4096
"""Records that are answered at a time."""


@dataclass(frozen=True, repr=False)
class TrainedModel(Short):
    """The released model of a run, with what is public of the columns that it learnt from.

    Using it is post-processing: it spends nothing of the guarantee of the records that it learnt from. The records that
    it is asked about are not protected by it: a prediction is as secret as the record it is of.

    Attributes:
        summary: how it ended, with the guarantee, held-out metrics and warnings.
        model: the network itself, on the host, in evaluation mode.
        columns: the declared columns; None if a shipped data set was learnt from.
        classes, groups: names in the order of their numbers.
        thresholds: where a classifier of two classes answers the positive one.
    """

    directory: Path
    experiment: Experiment
    summary: Mapping[str, Any]
    model: nn.Module
    columns: Columns | None
    classes: tuple[str, ...]
    groups: tuple[str, ...]
    thresholds: Thresholds
    _problem: Problem

    @property
    def guarantee(self) -> str:
        """The sentence of the run's guarantee."""
        return str((self.summary.get("guarantee") or {}).get("statement", ""))

    @property
    def positive(self) -> str | None:
        """The favourable class by its name, which ratios between groups and thresholds are of; None if none is."""
        index = self._problem.positive
        return self.classes[index] if self.classes and index is not None else None

    @property
    def width(self) -> int:
        """Number of features of a record, as its columns are encoded."""
        return self._problem.shape.features

    @property
    def answers(self) -> bool:
        """True if the model answers for a record; a generator makes records instead."""
        return not _generates(self._problem)

    def _facts(self) -> Mapping[str, object]:
        return {"features": self.width, **run_facts(self.experiment.name, self.directory, self.summary)}

    def answering(self) -> AnsweringModel:
        """The model with what turns its outputs into answers.

        Raises:
            ExperimentError: for a generator, which answers nothing.
        """
        return AnsweringModel(self._problem, self.model).eval()

    def outputs(self, features: Tensor) -> Tensor:
        """Answers (n, k), float64, for features (n, p) that are encoded already; see `AnsweringModel`.

        Raises:
            ExperimentError: if the width is not what the model takes.
        """
        if features.ndim != 2 or features.shape[1] != self.width:
            raise ExperimentError(
                f"features have shape {tuple(features.shape)}; (n, {self.width}) is what the model takes"
            )
        answer = self.answering()
        with torch.no_grad():
            pieces = [answer(piece).double() for piece in torch.split(features, _PIECE)]
        return torch.cat(pieces) if pieces else torch.zeros((0, 0), dtype=torch.float64)

    def predict(self, source: object, *, keep: Sequence[str] = ()) -> Any:
        """Predictions for every record of a table, as a pandas DataFrame with the table's own index.

        A table may lack the column that is predicted. Every other declared column is read as it was in training, and a
        cell that does not fit (a category that was not declared, a number out of bounds, a missing value where none may
        be missing) is refused, not guessed.

        Args:
            source: a path of a CSV, Parquet or npz file, or whatever `fedsw.as_records` takes: a DataFrame, say, or one
                row of it.
            keep: columns to copy beside the predictions, an identifier for example.

        Returns:
            `predicted_TARGET` and, for classes, `probability_CLASS` of each; `code_1`, ... for representations.

        Raises:
            BadRecords, FileNotFoundError, ExperimentError: see `predictions`.
            ModuleNotFoundError: without pandas; `predictions` does without.
        """
        import pandas  # optional, and only a frame takes it

        if isinstance(source, pandas.Series) and all(isinstance(label, str) for label in source.index):
            source = source.to_frame().T.infer_objects()  # one record of a frame
        predictions = self.predictions(source, keep=keep)
        rows = pandas.Index(predictions.pop("row"), name="row")
        index = source.index if isinstance(source, pandas.DataFrame) else rows
        return pandas.DataFrame(predictions, index=index)

    def predictions(self, source: object, *, keep: Sequence[str] = (), faults: OnFaults = "refuse") -> dict[str, Any]:
        """Predict by column: `row`, as the table counts them, the columns of `keep`, and the predictions.

        Cells that do not fit are refused, all at once; or their rows are left out ("leave-out"), numbers outside their
        bounds count as the nearest one ("nearest"), or the cells count as missing ("missing").

        Raises:
            FileNotFoundError: if there is no such file.
            BadRecords: naming rows and columns of the cells that do not fit, and what is declared.
            ExperimentError: if the run has no declared columns to read a table by, or learnt a generator.
        """
        answer = self.answering()
        if self.columns is None:
            raise ExperimentError(
                f"the run {self.experiment.name!r} learnt from {self.experiment.data.label!r} data, which has no "
                "declared columns, so no table can be read for it; give features as the model takes them to "
                "fedsw.load(run).outputs, or train on tables of your own (`fedsw init`)"
            )
        reserved = {"row", self._predicted, *self.names()}
        if taken := [name for name in keep if name in reserved]:
            raise ExperimentError(
                f"column {taken[0]!r} is to be kept, and the answer has a column of that name; rename it in the table"
            )
        inputs = read_given(source, self.columns, grouped=bool(self.thresholds.by_group), keep=keep, faults=faults)
        values = self.outputs(inputs.features).numpy()
        if not (finite := np.isfinite(values).all(axis=1)).all():
            raise ExperimentError(
                f"what the model of {self.directory} answers to row {inputs.rows[~finite][0]} is not finite: it has "
                "diverged in training, and predicts nothing. Train anew with smaller steps (training.learning_rate)"
            )
        columns = {"row": inputs.rows, **inputs.beside}
        return columns | (self._of_classes(values, inputs) if answer.classifies else self._of_numbers(values))

    @property
    def _predicted(self) -> str:
        """The name of the column of classes."""
        target = self.columns.target if self.columns is not None else None
        return f"predicted_{target.name if target else 'class'}"

    def names(self) -> tuple[str, ...]:
        """Names of the k answers, in the order of the columns of `outputs`."""
        if self.answering().classifies:
            return tuple(f"probability_{name}" for name in self.classes)
        stem = self._problem.task.facts.answers
        if self.columns is not None and self.columns.targets and stem == "predicted":
            return tuple(f"{stem}_{number.name}" for number in self.columns.targets)
        return tuple(f"{stem}_{index + 1}" for index in range(self._problem.dimension))

    def _of_classes(self, values: NDArray[np.float64], inputs: Given) -> dict[str, Any]:
        chosen, positive = values.argmax(axis=1), self._problem.positive
        if len(self.classes) == 2 and positive is not None and self.thresholds.given:
            cuts = np.array([self.thresholds.by_group.get(group, self.thresholds.one) for group in self.groups])
            chosen = np.where(values[:, positive] > cuts[inputs.groups.numpy()], positive, 1 - positive)
        said = {self._predicted: np.array(self.classes)[chosen]}
        return said | dict(zip(self.names(), values.T, strict=True))

    def _of_numbers(self, values: NDArray[np.float64]) -> dict[str, Any]:
        columns: dict[str, Any] = {name: values[:, index] for index, name in enumerate(self.names())}
        for number in self.columns.targets if self.columns is not None else ():
            if number.reader.stored == "days" and f"predicted_{number.name}" in columns:
                days = columns[f"predicted_{number.name}"]
                columns[f"predicted_{number.name}"] = number.reader.values(days, number)
        return columns


def load(
    run: str | Path,
    *,
    thresholds: Asked = None,
    runs: Path = Path("runs"),
    model: ModelObject | None = None,
    task: TaskObject | None = None,
    allow_modules: Collection[str] = (),
) -> TrainedModel:
    """The released model of a run, for predictions.

    Args:
        run: the run's folder, its name under `runs`, or an experiment's name for its latest run.
        thresholds: for a classifier of two classes, of the probability of the positive one: a number, one for each
            group by name, or "best", "parity", "opportunity" or "odds", which are read off the noised counts of scores
            that the run released ([thresholds]), or found on its held-out records, and on no others. Default: the more
            probable class.
        model, task: the objects that the run was started with, where it was.
        allow_modules: modules that the run's settings may name as `module:name`; their code runs.

    Raises:
        ValueError: if there is no such run, or it has released no model yet.
        CodeRefused: if the settings name another module; none of its code has run.
        ExperimentError: for thresholds that cannot be; if objects are missing that the run began with.
        FileNotFoundError: if the files of the shipped data set that the run learnt from are not here.
    """
    record = read_run(find_run(str(run), runs))
    require_allowed_code(record.experiment, allow_modules, stored=record.directory)
    path = record.directory / RunFile.MODEL
    if not path.is_file():
        raise ValueError(
            f"{record.directory} has no {RunFile.MODEL}: the run has released no model; `fedsw show {record.directory} "
            "progress` shows how far it is"
        )
    with handed_again(record.experiment, model, task, purpose="using it", call="load(run"):
        problem = Problem.from_experiment(record.experiment.on_host())
        network = problem.build_model()
        classes = load_class_names(problem.experiment.record_source)
        about = {"groups": problem.groups, "classes": classes}
        scores = kept(record.directory) if record.experiment.thresholds.share else None
        settled = settle(
            thresholds, record.experiment, record.outputs, positive=problem.positive, scores=scores, **about
        )
    try:
        network.load_state_dict(load_file(path))
    except Exception as fault:
        words = (str(fault).splitlines() or [type(fault).__name__])[0]
        raise ValueError(f"{path} is not the model of this run's settings: {words}") from None
    columns = record.experiment.data.columns
    return TrainedModel(
        record.directory, record.experiment, record.summary, network.eval(), columns, classes, problem.groups, settled,
        problem,
    )  # fmt: skip
