"""A run's releasable numbers in MLflow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsw.observers.values import flat, numbers_of, words_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

_TAGS = ("title", "directory")
_FOLDER = "fedsw.directory"
_MOST_METRICS, _MOST_PARAMETERS, _MOST_TAGS = 1000, 100, 100  # of one request to a server
_LONGEST = 5000


class MlflowObserver:
    """Logs a run to MLflow: the plan as parameters, rounds as metrics of step = round, the summary as metrics and tags.

    Only what observers are handed over is sent, all of it releasable; no source, console output or machine. Every
    metric bears the time at which the run began, so that the time of a round is not on record there either. A resumed
    run goes on in the MLflow run that it had.

    Args:
        experiment: of MLflow; else that of MLFLOW_EXPERIMENT_NAME, else "fedsw".
        tracking_uri: where MLflow keeps runs; else that of MLFLOW_TRACKING_URI, else MLflow's default.

    Raises:
        ModuleNotFoundError: naming the extra `mlflow`. ValueError: if MLflow cannot be reached or does not take runs.
    """

    def __init__(self, experiment: str | None = None, *, tracking_uri: str | None = None) -> None:
        try:
            from mlflow import MlflowClient
        except ModuleNotFoundError as fault:
            raise ModuleNotFoundError(
                "mlflow is not installed; pip install 'fedsw[mlflow]' brings it", name="mlflow"
            ) from fault
        name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fedsw"
        try:
            self._client: MlflowClient = MlflowClient(tracking_uri=tracking_uri)
            found = self._client.get_experiment_by_name(name)
            self._experiment = found.experiment_id if found else self._client.create_experiment(name)
        except Exception as fault:
            where = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "its default place"
            raise ValueError(
                f"MLflow at {where} takes no runs: {fault}. Set MLFLOW_TRACKING_URI to a server that does, or leave "
                "this observer out"
            ) from fault
        self._run, self._begun = "", 0

    def started(self, plan: dict[str, Any]) -> None:
        """Begin an MLflow run, or go on with that of the same folder, and log the plan."""
        self._begun = int(1000 * time.time())
        folder = str(Path(plan["directory"]).resolve())
        self._run = (
            self._before(folder)
            or self._client.create_run(
                self._experiment, self._begun, {_FOLDER: folder}, run_name=str(plan["name"])
            ).info.run_id
        )
        self._client.update_run(self._run, status="RUNNING")
        self._tag({f"fedsw.{name}": str(plan[name]) for name in _TAGS if plan.get(name)} | {_FOLDER: folder})
        from mlflow.entities import Param

        known = self._client.get_run(self._run).data.params
        fresh = [
            Param(name, str(value)[:_LONGEST])
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

    def _before(self, folder: str) -> str | None:
        """The MLflow run of a folder; None if it has none."""
        quoted = folder.replace("\\", "\\\\").replace("'", "\\'")
        found = self._client.search_runs([self._experiment], f"tags.`{_FOLDER}` = '{quoted}'", max_results=1)
        return found[0].info.run_id if found else None

    def _log(self, numbers: dict[str, float], *, step: int) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, value, self._begun, step) for name, value in numbers.items()]
        for some in _batches(metrics, _MOST_METRICS):
            self._client.log_batch(self._run, metrics=some)

    def _tag(self, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        for some in _batches([RunTag(name, words[:_LONGEST]) for name, words in tags.items()], _MOST_TAGS):
            self._client.log_batch(self._run, tags=some)


def _batches(items: list[Any], most: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]
