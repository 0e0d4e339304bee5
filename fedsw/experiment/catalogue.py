"""Which experiments are shipped, and how a name on the command line becomes one."""

from __future__ import annotations

from pathlib import Path

from fedsw.experiment import Experiment, ExperimentError, load_experiment
from fedsw.shipped import EXPERIMENTS
from fedsw.text import nearest


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
        f"no experiment {name!r}; {nearest(name, list(known))}known: {', '.join(known)}. "
        "A path to a TOML file works too"
    )
