"""From clients' own tables to a synthetic one: the experiment that learns it, and the file that it is written to."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsw import files
from fedsw.columns.declaration import Columns
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.runs.files import MODEL, SUMMARY, read_json

if TYPE_CHECKING:
    from torch import nn

    from fedsw.tasks.problem import Problem

STEPS = 800
"""Optimizer steps of the generator; post-processing, so they cost time and nothing else. Chosen on Adult."""

_KEPT = ("name", "title", "data", "partition", "federation", "seed")
_OF_SYNTHESIS = ("model", "sketch", "training", "evaluation")


def as_synthesis(own: Experiment, *, trust: str | None, fair: bool, epsilon: float | None) -> Experiment:
    """The experiment that learns a synthetic table from the clients' files of another one.

    Declaration, files, account, clients, partition, seed, epsilon and delta stay. Name, model, sketch and training are
    those of tables, unless the experiment is of synthesis from a sketch of kind "table" itself.

    Args:
        own: an experiment on clients' own tables, of any task.
        trust: the trust model; None for that of a synthesis, or "sketch".
        fair: whether labels are made independent of the group.
        epsilon: in place of the experiment's.

    Raises:
        ExperimentError: if there is no declaration, or no class and group where `fair` needs them.
    """
    columns = own.data.columns
    if columns is None:
        raise ExperimentError(
            f"data.source {own.data.source!r} has no declared columns, and a table is written in them: declare "
            "[data.columns] (`fedsw init DATA` drafts it)"
        )
    if fair and (columns.target is None or columns.sensitive is None):
        missing = "target" if columns.target is None else "sensitive"
        raise ExperimentError(f"--fair makes labels independent of the group: declare data.columns.{missing}")
    raw = own.model_dump()
    settings: dict[str, Any] = {name: raw[name] for name in _KEPT}
    given = own.objective.task == "synthesis" and own.sketch.kind == "table"
    if not given:
        settings["name"] = f"{own.name}-synthetic"  # its runs are no runs of the model that `own` trains
    settings["data"] |= {"held_out_to": "operator"}  # there is no trained model to measure at the clients
    settings |= {name: raw[name] for name in _OF_SYNTHESIS} if given else _of_tables(columns)
    settings["objective"] = {"task": "synthesis", "penalty": "distribution-matching", "alpha": 1.0}
    settings["evaluate_every"] = settings["training"]["rounds"]
    privacy = own.privacy
    settings["privacy"] = {"delta": privacy.delta, "device": privacy.device}
    settings["privacy"]["trust"] = trust or (privacy.trust if privacy.sketch else "sketch")
    if settings["privacy"]["trust"] == privacy.trust:
        settings["local"] = raw.get("local", {})  # how many may collude
    if epsilon is None and privacy.noise_multiplier is not None:
        settings["privacy"] |= {"noise_multiplier": privacy.noise_multiplier, "epsilon": None}
    else:
        settings["privacy"]["epsilon"] = privacy.epsilon if epsilon is None else epsilon
    if fair:
        settings["sketch"] |= {"groups": True, "independent": True}
    return parse_experiment(settings)


def _of_tables(columns: Columns) -> dict[str, Any]:
    sketch = {"kind": "table", "labels": not columns.targets, "counts": 0.1, "batch": 500, "learning_rate": 0.005}
    model = {"kind": "table-generator", "latent": 16}
    return {"model": model, "sketch": sketch, "training": {"rounds": STEPS}}


@dataclass(frozen=True)
class LearntTable:
    """A finished run that learnt a table: what ran, its public declaration, the generator, and the run's summary."""

    experiment: Experiment
    problem: Problem
    network: nn.Module
    summary: dict[str, Any]

    @property
    def columns(self) -> Columns:
        """The declaration that rows are written in."""
        assert self.experiment.data.columns is not None
        return self.experiment.data.columns


def learnt(directory: Path, allow_modules: Collection[str] = ()) -> LearntTable:
    """What a finished run learnt; drawing rows from it is post-processing and costs nothing.

    Args:
        allow_modules: modules that the run's settings may name as `module:name`; their code runs.

    Raises:
        CodeRefused: if the settings name another module.
        ExperimentError: if the run is of something else, or has not ended: naming the command that goes on.
        FileNotFoundError, ValueError: if it is no run, or damaged.
    """
    from safetensors.torch import load_file

    from fedsw.runs.directory import RunDirectory
    from fedsw.tasks.problem import Problem
    from fedsw.tasks.sketched import table_of

    experiment, _ = RunDirectory(directory).read_config(allow_modules)
    if table_of(experiment) is None:
        raise ExperimentError(
            f"{directory} is a run of {experiment.objective.task!r}, which learnt no table: give one of "
            "`fedsw synthesize`"
        )
    summary = read_json(directory / SUMMARY) or {}
    if summary.get("status") != "completed" or not (directory / MODEL).is_file():
        raise ExperimentError(f"{directory} has not ended, and its generator is not there: `fedsw resume {directory}`")
    problem = Problem.from_experiment(experiment)
    network = problem.build_model()
    network.load_state_dict(load_file(directory / MODEL))
    return LearntTable(experiment, problem, network.eval(), summary)


def table_cells(found: LearntTable, rows: int, *, seed: int = 0) -> dict[str, list[str]]:
    """The cells of a synthetic table by column; another seed gives other rows, at no cost."""
    from fedsw.tasks.measures import made_table
    from fedsw.tasks.sketched import table_of

    coded = table_of(found.experiment)
    assert coded is not None
    return made_table(found.network, found.columns, coded, rows, seed=seed)


def write_table(path: Path, cells: dict[str, list[str]], columns: Columns) -> None:
    """A table as CSV, whole or not at all, with the declared separator; a client's file reads the same way."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=columns.separator, lineterminator="\n")
    writer.writerow(cells)
    writer.writerows(zip(*cells.values(), strict=True))
    files.replace(path, text.getvalue().encode("utf-8"))
