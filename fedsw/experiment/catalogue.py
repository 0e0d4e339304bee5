"""Which experiments are shipped, where runs are, and how a name on the command line becomes either."""

from __future__ import annotations

import difflib
from pathlib import Path

from fedsw.experiment import Experiment, ExperimentError, load_experiment
from fedsw.shipped import EXPERIMENTS


def shipped() -> dict[str, Path]:
    """The files of the shipped experiments by name."""
    return {path.stem: path for path in sorted(EXPERIMENTS.glob("*.toml"), key=lambda path: path.stem)}


def shipped_experiments() -> list[Experiment]:
    """Every shipped experiment, validated."""
    return [load_experiment(path) for path in shipped().values()]


def find_experiment(name: str) -> Path:
    """The file behind a shipped name or a path.

    Raises:
        ExperimentError: if there is none, naming the nearest shipped experiment.
    """
    known = shipped()
    if name in known:
        return known[name]
    path = Path(name).expanduser()
    if path.suffix == ".toml" or len(path.parts) > 1 or path.is_file():
        return path
    raise ExperimentError(
        f"no experiment {name!r}; {_nearest(name, list(known))}known: {', '.join(known)}. "
        "A path to a TOML file works too"
    )


def find_run(name: str, runs: Path) -> Path:
    """The directory of a run: a path, a name under `runs`, or an experiment's name for its latest run.

    Raises:
        ValueError: if there is no such run, naming the nearest one.
    """
    for folder in (Path(name).expanduser(), runs / name):
        if is_run(folder):
            return folder
        if folder.is_dir() and (dated := sorted(child for child in folder.iterdir() if is_run(child))):
            return dated[-1]
    known = [str(child.relative_to(runs)) for child in sorted(runs.glob("*/*")) if is_run(child)]
    latest = f"the latest are {', '.join(known[-3:])}" if known else f"there are none under {runs}/"
    raise ValueError(f"no run at {name!r}; {_nearest(name, known)}{latest}")


def is_run(folder: Path) -> bool:
    """Whether `folder` holds a run that was started."""
    return (folder / "config.json").is_file()


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"nearest: {close[0]!r}; " if close else ""
