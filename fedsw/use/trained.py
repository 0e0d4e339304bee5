"""A run's released model, ready for use: predictions for tables, with the columns that it learnt from."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsw.columns import Columns
from fedsw.engines.objects import handed_again
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sources import load_class_names
from fedsw.runs.files import MODEL
from fedsw.runs.finding import find_run
from fedsw.runs.record import RunRecord, read_run
from fedsw.tasks.problem import Problem
from fedsw.use.answers import Answer
from fedsw.use.tables import Given, read_given
from fedsw.use.thresholds import Asked, Thresholds, settle

if TYPE_CHECKING:
    from fedsw.engines.objects import ModelObject, TaskObject

_PIECE = 4096


@dataclass(frozen=True)
class TrainedModel:
    """The released model of a run, with what is public of the columns that it learnt from.

    Using it is post-processing: it spends nothing of the guarantee of the records that it learnt from. The records that
    it is asked about are not protected by it: a prediction is as secret as the record it is of.

    Attributes:
        directory: the run's folder.
        experiment: what ran.
        summary: how it ended, with the guarantee, held-out metrics and warnings.
        model: the network itself, on the host, in evaluation mode.
        columns: the declared columns; None where a shipped data set was learnt from.
        classes, groups: names in the order of their numbers.
        thresholds: where a classifier of two classes says yes.
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
    def width(self) -> int:
        """How many features a record has, as the model takes it."""
        return self._problem.features

    def answering(self) -> Answer:
        """The model with what turns its outputs into answers.

        Raises:
            ExperimentError: for a generator, which answers nothing.
        """
        return Answer(self._problem, self.model).eval()

    def outputs(self, features: Tensor) -> Tensor:
        """Answers (n, k), float64, for features (n, p) that are encoded already; see `fedsw.use.answers.Answer`.

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
            source: a path of a CSV, Parquet or npz file, or whatever `fedsw.as_records` takes: a DataFrame, say.
            keep: columns to copy beside the predictions, an identifier for example.

        Returns:
            `predicted_TARGET` and, for classes, `probability_CLASS` of each; `code_1`, ... for representations.

        Raises:
            BadRecords, FileNotFoundError, ExperimentError: see `predictions`.
            ModuleNotFoundError: without pandas; `predictions` does without.
        """
        import pandas

        found = self.predictions(source, keep=keep)
        rows = pandas.Index(found.pop("row"), name="row")
        index = source.index if isinstance(source, pandas.DataFrame) else rows
        return pandas.DataFrame(found, index=index)

    def predictions(self, source: object, *, keep: Sequence[str] = ()) -> dict[str, Any]:
        """The same by column: `row`, as the table counts them, the columns of `keep`, and the predictions.

        Raises:
            FileNotFoundError: if there is no such file.
            BadRecords: naming the row and column of the first cell that does not fit, and what is declared.
            ExperimentError: if the run has no declared columns to read a table by, or learnt a generator.
        """
        answer = self.answering()
        if self.columns is None:
            raise ExperimentError(
                f"the run {self.experiment.name!r} learnt from {self.experiment.data.label!r} data, whose columns are "
                "nowhere declared, so no table can be read for it; give features as the model takes them to "
                "fedsw.load(run).outputs, or train on tables of your own (`fedsw init`)"
            )
        given = read_given(source, self.columns, grouped=bool(self.thresholds.by_group), keep=keep)
        values = self.outputs(given.features).numpy()
        found = {"row": given.rows, **{name: cells for name, cells in given.kept.items()}}
        return found | (self._of_classes(values, given) if answer.classifies else self._of_numbers(values))

    def names(self) -> tuple[str, ...]:
        """Names of the k answers, in the order of the columns of `outputs`."""
        if self.answering().classifies:
            return tuple(f"probability_{name}" for name in self.classes)
        if self.columns is not None and self.columns.targets and self.experiment.objective.task == "regression":
            return tuple(f"predicted_{number.name}" for number in self.columns.targets)
        kind = self.experiment.objective.task
        stem = {"regression": "predicted", "representation": "code", "autoencoder": "code"}.get(kind, "output")
        return tuple(f"{stem}_{place + 1}" for place in range(self._problem.dimension))

    def _of_classes(self, values: NDArray[np.float64], given: Given) -> dict[str, Any]:
        names = np.array(self.classes)
        if len(self.classes) == 2:
            own = np.array([self.thresholds.by_group.get(group, self.thresholds.one) for group in self.groups])
            chosen = (values[:, 1] > own[given.groups.numpy()]).astype(int)
        else:
            chosen = values.argmax(axis=1)
        target = self.columns.target if self.columns is not None else None
        said = {f"predicted_{target.name if target else 'class'}": names[chosen]}
        return said | {name: values[:, place] for place, name in enumerate(self.names())}

    def _of_numbers(self, values: NDArray[np.float64]) -> dict[str, Any]:
        found: dict[str, Any] = {name: values[:, place] for place, name in enumerate(self.names())}
        for number in self.columns.targets if self.columns is not None else ():
            if number.kind == "date" and number.since is not None and f"predicted_{number.name}" in found:
                days = np.rint(found[f"predicted_{number.name}"])
                found[f"predicted_{number.name}"] = [number.since + datetime.timedelta(days=int(day)) for day in days]
        return found


def load(
    run: str | Path,
    *,
    thresholds: Asked = None,
    runs: Path = Path("runs"),
    model: ModelObject | None = None,
    task: TaskObject | None = None,
) -> TrainedModel:
    """The released model of a run, for predictions.

    Args:
        run: the run's folder, its name under `runs`, or an experiment's name for its latest run.
        thresholds: for a classifier of two classes: a number, one for each group by name, or "best", "parity" or
            "opportunity", which are found on the run's held-out records and on no others. Default: the more probable
            class.
        model, task: the objects that the run was started with, where it was.

    Raises:
        ValueError: if there is no such run, or it has released no model yet.
        ExperimentError: for thresholds that cannot be; if objects are missing that the run began with.
        FileNotFoundError: if the run learnt from a shipped data set whose files are not here.
    """
    from safetensors.torch import load_file

    record = read_run(find_run(str(run), runs))
    path = record.directory / MODEL
    if not path.is_file():
        raise ValueError(
            f"{record.directory} has no {MODEL}: the run has released no model; `fedsw status {record.directory}` "
            "shows how far it is"
        )
    with handed_again(record.experiment, model, task, purpose="using it", call="load(run"):
        problem = Problem.from_experiment(_on_host(record))
        network = problem.build_model()
    try:
        network.load_state_dict(load_file(path))
    except Exception as fault:
        words = (str(fault).splitlines() or [type(fault).__name__])[0]
        raise ValueError(f"{path} is not the model of this run's settings: {words}") from None
    classes = load_class_names(problem.experiment)
    found = settle(thresholds, record.experiment, record.outputs, groups=problem.groups, classes=classes)
    columns = record.experiment.data.columns
    return TrainedModel(
        record.directory, record.experiment, record.summary, network.eval(), columns, classes, problem.groups, found,
        problem,
    )  # fmt: skip


def _on_host(record: RunRecord) -> Experiment:
    """The run's experiment for this machine, which need not have the device that it was trained on."""
    training = record.experiment.training.model_copy(update={"device": "cpu"})
    privacy = record.experiment.privacy.model_copy(update={"device": None})
    return record.experiment.model_copy(update={"training": training, "privacy": privacy})
