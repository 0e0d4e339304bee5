"""Observers that log a run elsewhere: MLflow, Weights & Biases, several beside each other."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsw._tools.text import to_float
from fedsw.runs.observer import Attending, Ending, Observer, Witness
from fedsw.runs.telemetry import LOGGER, event

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch import Tensor

    from fedsw.runs.observer import Outcome
    from fedsw.runs.roll_call import Called

_FOREIGN = re.compile(r"[^\w\-./ ]")
_UNSAFE = "training_loss"
_NO_NUMBERS = ("round", "seed")


def numbers_of(content: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round or a summary by name, nested ones as `held_out/accuracy`; texts and None are left out.

    An un-noised loss, recorded only if `unsafe_metrics` made the reader's epsilon infinite, is `unsafe/training_loss`.
    """
    numbers = {}
    for name, value in flat(content):
        number = to_float(value)
        if number is not None and name not in _NO_NUMBERS:
            numbers[f"unsafe/{name}" if name == _UNSAFE else name] = number
    return numbers


def words_of(content: Mapping[str, Any]) -> dict[str, str]:
    """The texts and lists of texts of a plan or a summary, by name."""
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in flat(content)
        if to_float(value) is None and value is not None
    }


def flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of nested mappings, names joined by '/', in characters that every service takes."""
    for name, value in content.items():
        path = prefix + _FOREIGN.sub("_", str(name))
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}/")
        else:
            yield path, value


class Observers:
    """Calls every observer, in order; one that raises is left out from then on, with one warning.

    A run spends budget: its releases must not be lost because a metrics server is gone. `KeyboardInterrupt`, which is
    not an error, passes.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = list(observers)

    def started(self, plan: dict[str, Any]) -> None:
        """Pass it on to every observer."""
        self._call("started", plan)

    def round_done(self, record: dict[str, Any]) -> None:
        """Pass it on to every observer."""
        self._call("round_done", record)

    def finished(self, summary: dict[str, Any]) -> None:
        """Pass it on to every observer."""
        self._call("finished", summary)

    def released(self, round_: int, theta: Tensor, outcome: Outcome) -> None:
        """Pass the model (r,) on to the observers that have `released`."""
        self._call("released", round_, theta, outcome, kind=Witness)

    def roll_called(self, called: Sequence[Called]) -> None:
        """Pass it on to the observers that have `roll_called`."""
        self._call("roll_called", called, kind=Attending)

    def broke_off(self, status: str) -> None:
        """Pass it on to the observers that have `broke_off`."""
        self._call("broke_off", status, kind=Ending)

    def _call(self, method: str, *arguments: Any, kind: type | None = None) -> None:
        for observer in list(self._observers):
            if kind is not None and not isinstance(observer, kind):
                continue
            try:
                getattr(observer, method)(*arguments)
            except Exception as fault:
                self._observers = [other for other in self._observers if other is not observer]
                name = type(observer).__name__
                words = f"the observer {name} failed and is left out from now on: {type(fault).__name__}: {fault}"
                logging.getLogger(LOGGER).warning(words, extra=event("observer left out"))


_TAGS = ("title", "directory")
_FOLDER = "fedsw.directory"
_MOST_METRICS, _MOST_PARAMETERS, _MOST_TAGS = 1000, 100, 100  # of one request to a server
_LONGEST = 5000  # characters of a tag or a parameter


class MlflowObserver:
    """Logs a run to MLflow: the plan as parameters, rounds as metrics of step = round, the summary as metrics and tags.

    Only what observers receive is sent, all of it releasable; no source, console output or machine. Every metric has
    the time at which the run began: when a round was released is not recorded there either. A resumed run continues
    its MLflow run.

    The experiment is MLflow's, by default $MLFLOW_EXPERIMENT_NAME or "fedsw"; the URI is that of its runs, by default
    $MLFLOW_TRACKING_URI or MLflow's own. ModuleNotFoundError names the extra `mlflow`; ValueError if MLflow cannot be
    reached or rejects runs.
    """

    def __init__(self, experiment: str | None = None, *, tracking_uri: str | None = None) -> None:
        try:
            from mlflow import MlflowClient, entities
        except ModuleNotFoundError as fault:
            raise ModuleNotFoundError(
                "mlflow is not installed; pip install '.[mlflow]' in fedsw's checkout brings it", name="mlflow"
            ) from fault
        name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fedsw"
        try:
            self._client: MlflowClient = MlflowClient(tracking_uri=tracking_uri)
            stored = self._client.get_experiment_by_name(name)
            self._experiment = stored.experiment_id if stored else self._client.create_experiment(name)
        except Exception as fault:
            where = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "its default place"
            raise ValueError(
                f"MLflow at {where} takes no runs: {fault}. Set MLFLOW_TRACKING_URI to a server that does, or leave "
                "this observer out"
            ) from fault
        self._entities: Any = entities
        self._run, self._begun = "", 0

    def started(self, plan: dict[str, Any]) -> None:
        """Begin an MLflow run, or continue that of the same folder, and log the plan."""
        self._begun = int(1000 * time.time())
        folder = str(Path(plan["directory"]).resolve())
        quoted = folder.replace("\\", "\\\\").replace("'", "\\'")
        runs = list(self._client.search_runs([self._experiment], f"tags.`{_FOLDER}` = '{quoted}'", max_results=1))
        tags, name = {_FOLDER: folder}, str(plan["name"])
        if not runs:
            runs.append(self._client.create_run(self._experiment, self._begun, tags, run_name=name))
        self._run = runs[0].info.run_id
        self._client.update_run(self._run, status="RUNNING")
        self._tag({f"fedsw.{name}": str(plan[name]) for name in _TAGS if plan.get(name)} | tags)
        known = self._client.get_run(self._run).data.params
        fresh = [
            self._entities.Param(name, str(value)[:_LONGEST])
            for name, value in flat(plan)
            if name not in (*_TAGS, *known) and value is not None
        ]
        for some in _batches(fresh, _MOST_PARAMETERS):
            self._client.log_batch(self._run, params=some)

    def round_done(self, record: dict[str, Any]) -> None:
        """Log a round's numbers at the step of that number."""
        self._log(numbers_of(record), step=int(record["round"]))

    def finished(self, summary: dict[str, Any]) -> None:
        """Log the summary, its words as tags, and end the MLflow run."""
        step = int(summary.get("released_rounds", 0))
        self._log({f"summary/{name}": value for name, value in numbers_of(summary).items()}, step=step)
        self._tag({f"fedsw.{name}": words for name, words in words_of(summary).items()})
        self._client.set_terminated(self._run, "FINISHED")

    def broke_off(self, status: str) -> None:
        """End the MLflow run as failed, or as killed if the run was interrupted."""
        self._tag({"fedsw.status": status})
        self._client.set_terminated(self._run, "KILLED" if status == "interrupted" else "FAILED")

    def _log(self, numbers: dict[str, float], *, step: int) -> None:
        metrics = [self._entities.Metric(name, value, self._begun, step) for name, value in numbers.items()]
        for some in _batches(metrics, _MOST_METRICS):
            self._client.log_batch(self._run, metrics=some)

    def _tag(self, tags: dict[str, str]) -> None:
        made = [self._entities.RunTag(name, words[:_LONGEST]) for name, words in tags.items()]
        for some in _batches(made, _MOST_TAGS):
            self._client.log_batch(self._run, tags=some)


def _batches(items: list[Any], most: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]


_QUIET_SETTINGS = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""Settings under which wandb sends nothing of its own accord: the server's output may repeat a client's errors."""


class WandbObserver:
    """Logs a run to Weights & Biases: the plan as config, rounds at step = round, the summary and how the run ended.

    Only what observers receive is sent, all of it releasable: console output, source, machine and packages are
    switched off. wandb dates every step, so a project shows when each round was released: that is for the run's
    operator, not for publication. A resumed run continues its wandb run.

    The project is wandb's, by default $WANDB_PROJECT or "fedsw"; the mode is "online", "offline" or "disabled", by
    default $WANDB_MODE or online. ModuleNotFoundError names the extra `wandb`.
    """

    def __init__(self, project: str | None = None, *, mode: str | None = None) -> None:
        try:
            import wandb
        except ModuleNotFoundError as fault:
            raise ModuleNotFoundError(
                "wandb is not installed; pip install '.[wandb]' in fedsw's checkout brings it", name="wandb"
            ) from fault
        self._wandb = wandb
        self._project, self._mode = project or os.environ.get("WANDB_PROJECT") or "fedsw", mode
        self._run: Any = None

    def started(self, plan: dict[str, Any]) -> None:
        """Begin a wandb run, or continue that of the same folder, with the plan as its config."""
        folder = str(Path(plan["directory"]).resolve())
        self._run = self._wandb.init(
            project=self._project,
            name=str(plan["name"]),
            id=hashlib.sha256(folder.encode()).hexdigest()[:16],
            resume="allow",
            mode=self._mode,
            config={name: value for name, value in flat(plan) if value is not None},
            settings=self._wandb.Settings(**_QUIET_SETTINGS),
        )

    def round_done(self, record: dict[str, Any]) -> None:
        """Log a round's numbers at the step of that number."""
        self._run.log(numbers_of(record), step=int(record["round"]))

    def finished(self, summary: dict[str, Any]) -> None:
        """Keep the summary with the wandb run, and end it."""
        self._run.summary.update({**numbers_of(summary), **words_of(summary)})
        self._run.finish(exit_code=0)

    def broke_off(self, status: str) -> None:
        """End the wandb run as failed."""
        self._run.summary.update({"status": status})
        self._run.finish(exit_code=1)
