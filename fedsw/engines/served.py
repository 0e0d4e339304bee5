"""A run on clients of other machines, through a SuperLink that `fedsw server` keeps."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fedsw.deploy.superlink import SuperLink
from fedsw.engines.deployed import follow
from fedsw.engines.driver import RunResult, as_run, fresh_directory, read_result
from fedsw.experiment import Experiment
from fedsw.runs.directory import RunDirectory
from fedsw.runs.observer import Observer
from fedsw.runs.record import SERVED
from fedsw.runs.recovery import require_free


def prepare(experiment: Experiment, runs: Path) -> Path:
    """A fresh folder `runs/<name>/<time>/` that says what will run."""
    directory = fresh_directory(runs / experiment.name)
    RunDirectory(directory).write_config(experiment, SERVED)
    return directory


def run(
    link: SuperLink, directory: Path, observer: Observer, *, resume: bool, allow_modules: Collection[str] = ()
) -> RunResult:
    """Run the job of a folder on the clients that connect, or go on with it.

    Args:
        allow_modules: modules that the folder's settings may name as `module:name`; their code runs.

    Raises:
        CodeRefused: if the settings name another module.
        FileNotFoundError: if nothing was prepared there. RunBusy: if the run is going on.
        RuntimeError: if the run leaves no completed summary.
    """
    experiment, _ = RunDirectory(directory).read_config(allow_modules)
    require_free(directory)
    follow(link, directory, experiment, observer, resume=resume)
    return read_result(directory, as_run(directory, experiment))
