"""Held-out metrics: on records declared outside the guarantee, the only ones a run measures itself on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsw import metrics
from fedsw.data import Records
from fedsw.experiment import ExperimentError
from fedsw.sources import load_dataset
from fedsw.task import Task
from server.run_directory import RunDirectory

_RIDGE = 1e-3


class Evaluator:
    """Evaluates flat models on the held-out part of the experiment's data set.

    Held-out records are not protected by the run's guarantee; the docs and the record say so.
    """

    def __init__(self, task: Task) -> None:
        self._task, self._records = task, load_dataset(task.experiment).test
        if len(self._records) == 0:
            raise ExperimentError("the data set has no held-out records; a run needs some to show metrics on")
        self._model = task.build_model()
        self._directions = task.directions(0, 0)

    def metrics(self, theta: Tensor) -> dict[str, float]:
        """Metrics of the model with flat parameters `theta`."""
        return self._measure(self._task.prepared(self._model, theta))[0]

    def write_outputs(self, model: nn.Module, directory: RunDirectory) -> dict[str, float]:
        """Metrics of a model; its held-out outputs go to the run's folder for the plots."""
        measured, outputs = self._measure(model)
        directory.write_outputs(outputs, self._records.sensitive, self._records.target)
        return measured

    def _measure(self, model: nn.Module) -> tuple[dict[str, float], Tensor]:
        task, records = self._task, self._records
        with torch.no_grad():
            raw = model(task.inputs(records))
            losses = task.losses(raw, records)
            outputs = (task.outputs(raw) + task.experiment.clip.centre).cpu()
        report = {"loss": float(losses.double().mean())}
        of = {"groups": len(task.groups)}
        kind = task.experiment.objective.task
        directions = None if task.dimension == 1 else self._directions
        if kind == "classification":
            predicted = (outputs[:, 0] > 0.5).long() if task.dimension == 1 else outputs.argmax(dim=1)
            report |= metrics.classification(
                outputs,
                predicted,
                records.target,
                records.sensitive,
                groups=len(task.groups),
                classes=task.classes,
                directions=directions,
            )
        else:
            report["w2_squared"] = metrics.w2_squared(outputs, records.sensitive, directions=directions, **of)
        if kind == "regression":
            report["mean_squared_error"] = metrics.mean_squared_error(outputs, records.target)
        if kind == "representation":
            report |= {f"linear_probe_{name}": value for name, value in _probes(outputs, records).items()}
        return report, outputs


def _probes(latent: Tensor, records: Records) -> dict[str, float]:
    """Accuracy of a ridge classifier on the latent, for label and group: fitted on half, measured on the other."""
    return {
        "label": _probe(latent, records.target, int(records.target.max()) + 1),
        "group": _probe(latent, records.sensitive, int(records.sensitive.max()) + 1),
    }


def _probe(latent: Tensor, labels: Tensor, classes: int) -> float:
    design = torch.cat([latent.double(), torch.ones((len(latent), 1), dtype=torch.float64)], dim=1)
    fit, held = design[::2], design[1::2]
    targets = torch.nn.functional.one_hot(labels[::2], classes).double()
    penalty = _RIDGE * torch.eye(design.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(fit.T @ fit / len(fit) + penalty, fit.T @ targets / len(fit))
    return metrics.accuracy((held @ weights).argmax(dim=1), labels[1::2])
