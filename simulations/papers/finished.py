"""A finished run as measures see it: its model, its task, its records."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from fedsw.data import Dataset
from fedsw.data.sources import load_dataset, load_public
from fedsw.experiment import Experiment
from fedsw.experiment.choices import require_allowed_code
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.run_files import RunFile
from fedsw.runs.view import RunView, read_run

_OWN = ("simulations.papers.public_maps", "simulations.papers.starts")


def on_device(experiment: Experiment, device: str) -> Experiment:
    """The same experiment, computed on "cpu" or "cuda"; its ε is the processor's where it is not the clients' own."""
    training = experiment.training.model_copy(update={"device": device})
    read = {"device"}.difference(experiment.privacy.model.unread)
    privacy = experiment.privacy.model_copy(update=dict.fromkeys(read, "cpu"))
    return experiment.model_copy(update={"training": training, "privacy": privacy})


@dataclass(frozen=True)
class Finished:
    """A run in its folder. What a measure reads of private records is outside the run's guarantee: it must say so.

    Whatever the run was made on, it is measured on the processor.
    """

    directory: Path

    @functools.cached_property
    def record(self) -> RunView:
        """Experiment, summary, lines of metrics, held-out outputs."""
        return read_run(self.directory)

    @property
    def experiment(self) -> Experiment:
        """What ran; a paper's file names no code but the maps and starts that papers bring.

        Raises:
            CodeRefused: if what is stored does.
        """
        found = self.record.experiment
        require_allowed_code(found, _OWN, stored=self.directory)
        return found.on_host()

    @functools.cached_property
    def problem(self) -> Problem:
        """The run's task on its data."""
        return Problem.from_experiment(self.experiment)

    @functools.cached_property
    def dataset(self) -> Dataset:
        """Private (`train`) and held-out (`test`) records."""
        return load_dataset(self.experiment.record_source)

    @functools.cached_property
    def public(self) -> Dataset | None:
        """The public labelled data set, where the experiment has one."""
        return load_public(self.experiment.data)

    @functools.cached_property
    def model(self) -> nn.Module:
        """The released model, in evaluation mode."""
        model = self.problem.build_model()
        model.load_state_dict(load_file(self.directory / RunFile.MODEL))
        return model.eval()
