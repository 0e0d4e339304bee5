"""Held-out metrics: on records declared outside the guarantee, the only ones a run measures itself on."""

from __future__ import annotations

from torch import Tensor, nn

from fedsw.experiment import ExperimentError
from fedsw.sources import load_dataset
from fedsw.task import Task
from server.measures import measure
from server.run_directory import RunDirectory


class Evaluator:
    """Evaluates flat models on the held-out part of the experiment's data set.

    Held-out records are not protected by the run's guarantee; the docs and the record say so.
    """

    def __init__(self, task: Task) -> None:
        self._task, self._records = task, load_dataset(task.experiment).test
        if len(self._records) == 0:
            raise ExperimentError("the data set has no held-out records; a run needs some to show metrics on")
        self._model = task.build_model()

    def metrics(self, theta: Tensor) -> dict[str, float]:
        """Metrics of the model with flat parameters `theta`."""
        return measure(self._task, self._records, self._task.prepared(self._model, theta)).report

    def write_outputs(self, model: nn.Module, directory: RunDirectory) -> dict[str, float]:
        """Metrics of a model; its held-out outputs go to the run's folder for the plots."""
        measured = measure(self._task, self._records, model)
        directory.write_outputs(measured.arrays)
        return measured.report
