"""Held-out metrics of scores that are changed after the model made them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsw.data import Records
from fedsw.experiment.sources import load_held_out
from fedsw.runs.by_group import by_group
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation import HeldOut
from fedsw.runs.subsample import subsample
from fedsw.tasks.measures import Measuring
from fedsw.tasks.problem import Problem

Process = Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]]


class Processed(Measuring):
    """Held-out records under a model whose scores go through a function of score and group."""

    def __init__(self, problem: Problem, records: Records, model: nn.Module, process: Process) -> None:
        super().__init__(problem, records, model)
        self._process = process

    @functools.cached_property
    def outputs(self) -> Tensor:
        """The scores (n, 1) after it."""
        own = super().outputs
        scores, groups = own[:, 0].double().cpu().numpy(), self.records.sensitive.cpu().numpy()
        return torch.from_numpy(self._process(scores, groups)).to(own).unsqueeze(1)


def write_processed(problem: Problem, model: nn.Module, process: Process, directory: RunDirectory) -> HeldOut:
    """Metrics as a run has them, but for the loss, which is of the model; outputs go to the folder."""
    records, evaluation = load_held_out(problem.experiment), problem.experiment.evaluation
    if records is None:
        return HeldOut()
    all_of_them = len(records)
    if evaluation.mode == "auto":
        records = subsample(records, evaluation.records)
    found = Processed(problem, records, model, process)
    with torch.no_grad():
        report = {name: value for name, value in problem.task.metrics(model, found).items() if name != "loss"}
        arrays = {name: values.cpu() for name, values in problem.task.arrays(model, found).items()}
    directory.write_outputs(arrays)
    table = by_group(problem, arrays["outputs"], records)
    return HeldOut(report, table, {"records": len(records), "of": all_of_them})
