"""A released model on the records that clients kept out of training: for the screens of whoever holds the records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedsw.data import Records, tables_in
from fedsw.data.units import Units
from fedsw.experiment import Experiment, ExperimentError
from fedsw.federation.node.partition import held_out_records
from fedsw.randomness import Stream
from fedsw.runs.by_group import by_group
from fedsw.runs.evaluation import quality_of
from fedsw.runs.files import MODEL
from fedsw.runs.record import read_run
from fedsw.runs.verdict import warnings_of
from fedsw.tasks.measures import measure
from fedsw.tasks.problem import Problem


@dataclass(frozen=True)
class Evaluated:
    """What a model is worth on held-out records of a client, or of all. Without noise: for their owner alone.

    Attributes:
        name: whose they are.
        count: how many records, one of each unit.
        metrics, standard_errors: of the model; errors over draws of records.
        constant: metrics of the best predictor that looks at no input, on the same records.
        answer: what that always answers.
        by_group: metrics by group.
        warnings: what a reader must know first.
    """

    name: str
    count: int
    metrics: Mapping[str, float]
    standard_errors: Mapping[str, float]
    constant: Mapping[str, float]
    answer: str
    by_group: Mapping[str, Mapping[str, float]]
    warnings: tuple[str, ...]


def evaluate(directory: Path, data_dir: Path | None, client: int | None = None) -> tuple[Evaluated, ...]:
    """Measure a run's model on what clients kept out of its training, client by client and all together.

    Nothing is written, sent or charged: the split, the model and the settings are public, and the metrics, which are
    not, go to the caller.

    Args:
        directory: the run's; its config.json and model.safetensors are read.
        data_dir: where the clients' files are, as in the run; the run's own folder if it is None.
        client: this client's records alone; `data_dir` may then be its own folder.

    Raises:
        ExperimentError: if the run kept nothing out of training, or its records are not in files.
        FileNotFoundError, BadRecords: for a model or files that are missing or do not fit.
    """
    experiment = _asked(read_run(directory).experiment, data_dir)
    task = Problem.from_experiment(experiment)
    model = _model(task, directory / MODEL)
    held = held_out_records(task, _places(experiment, client))
    parts = [(f"client {number}", held.owner == place) for place, number in enumerate(held.clients)]
    if len(parts) > 1:
        parts.append(("all clients", np.ones(len(held.owner), dtype=bool)))
    return tuple(_evaluated(name, task, model, held.records.take(rows)) for name, rows in parts if rows.any())


def _asked(experiment: Experiment, data_dir: Path | None) -> Experiment:
    spec = experiment.data
    if not spec.held_out_fraction:
        raise ExperimentError(
            "this run kept no records out of training (data.held_out_fraction = 0); set it for the next one, or name a "
            "table at the server with data.held_out"
        )
    if spec.source != "files":
        raise ExperimentError(f"evaluate reads clients' files, and this run's records came from {spec.label!r}")
    folder = spec.data_dir if data_dir is None else str(data_dir.expanduser())
    if folder is None:
        raise ExperimentError("this run does not say where the clients' files are: add --data-dir DIR")
    return experiment.model_copy(update={"data": spec.model_copy(update={"data_dir": folder})})


def _places(experiment: Experiment, client: int | None) -> dict[str, Any]:
    """The configuration of a node that holds the client, or all of them."""
    clients = experiment.federation.clients
    if client is None:
        return {"partition-id": 0, "num-partitions": 1}
    if client >= clients:
        raise ExperimentError(f"--client is {client}, and the run has clients 0 to {clients - 1}")
    alone = {"partition-id": client, "num-partitions": clients}
    folder = Path(str(experiment.data.data_dir))
    return {**alone, "data-dir": str(folder)} if tables_in(folder) else alone


def _model(task: Problem, path: Path) -> nn.Module:
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"there is no model {path}; a run leaves it when it ends")
    model = task.build_model()
    model.load_state_dict(load_file(path))
    return model


def _evaluated(name: str, task: Problem, model: nn.Module, records: Records) -> Evaluated:
    """Of every unit one row, the same at every call: rows of one person say little more than one of them."""
    units = Units.of(records)
    rows = units.one_row_each(np.arange(len(units)), Stream.seeded(0, "evaluate"), seeded=False)
    chosen = records.take(rows)
    measured = measure(task, chosen.to(task.device), model)
    outputs = measured.arrays["outputs"]
    quality = quality_of(task, outputs, chosen)
    return Evaluated(
        name,
        len(chosen),
        measured.report,
        quality.standard_errors,
        quality.constant,
        quality.answer,
        by_group(task, outputs, chosen),
        warnings_of(
            metrics=measured.report, quality=quality, records=len(chosen), start=None, epsilon=0.0, noisy=False
        ),
    )
