"""A run on clients of other machines, through a SuperLink that `fedsw server` keeps."""

from __future__ import annotations

from pathlib import Path

from fedsw.deploy.superlink import SuperLink
from fedsw.engines.deployed import follow
from fedsw.engines.driver import RunResult, fresh_directory, read_result
from fedsw.experiment import Experiment
from fedsw.experiment.preset import require_settled
from fedsw.runs.directory import RunDirectory
from fedsw.runs.observer import Observer
from fedsw.runs.recovery import require_free
from fedsw.runs.resuming import SERVED


def prepare(experiment: Experiment, runs: Path) -> Path:
    """A fresh folder `runs/<name>/<time>/` that says what will run.

    Raises:
        ExperimentError: if settings are left to `training.preset`: nobody here can count the clients' records.
    """
    require_settled(experiment)
    directory = fresh_directory(runs / experiment.name)
    RunDirectory(directory).write_config(experiment, SERVED)
    return directory


def run(link: SuperLink, directory: Path, observer: Observer, *, resume: bool) -> RunResult:
    """Run the job of a folder on the clients that connect, or go on with it.

    Raises:
        FileNotFoundError: if nothing was prepared there. RunBusy: if the run is going on.
        RuntimeError: if the run leaves no completed summary.
    """
    experiment, _ = RunDirectory(directory).read_config()
    require_free(directory)
    follow(link, directory, experiment, observer, resume=resume)
    return read_result(directory, experiment)
