"""Held-out metrics: on records declared outside the guarantee, the only ones a run measures itself on."""

from __future__ import annotations

from torch import Tensor, nn

from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sources import load_held_out
from fedsw.runs.directory import RunDirectory
from fedsw.tasks.measures import measure
from fedsw.tasks.task import Task


class Evaluator:
    """Evaluates flat models on the held-out part of the experiment's data set.

    Held-out records are not protected by the run's guarantee; the docs and the record say so.
    """

    def __init__(self, task: Task) -> None:
        self._task, self._records = task, load_held_out(task.experiment)
        if self._records is not None and len(self._records) == 0:
            raise ExperimentError("the data set has no held-out records; a run needs some to show metrics on")
        self._model = task.build_model()

    def metrics(self, theta: Tensor) -> dict[str, float]:
        """Metrics of the model with flat parameters `theta`; none without held-out records."""
        if self._records is None:
            return {}
        return measure(self._task, self._records, self._task.prepared(self._model, theta)).report

    def write_outputs(self, model: nn.Module, directory: RunDirectory) -> dict[str, float]:
        """Metrics of a model; its held-out outputs go to the run's folder for the plots."""
        if self._records is None:
            return {}
        measured = measure(self._task, self._records, model)
        directory.write_outputs(measured.arrays)
        return measured.report


def measured_on(experiment: Experiment) -> str:
    """What the record says of the held-out metrics: whose records they are, or why there are none."""
    if experiment.data.source != "files":
        return "the data set's held-out part, which the guarantee does not cover"
    if experiment.data.held_out is None:
        return "nothing: clients bring their own records, and data.held_out names none at the server"
    told = f"the server's own records in {experiment.data.held_out}, which the guarantee does not cover"
    if experiment.data.shows_private_rows:
        return f"{told}; they may share rows with private records (data.held_out_overlap = 'allow')"
    return told
