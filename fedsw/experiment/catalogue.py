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


def of_unit(unit: str) -> str:
    """What epsilon is for where a unit is declared: nobody sees whether other clients have records of it, too."""
    return f"all records of one {unit!r}, at each client by itself"


def unprotected(experiment: Experiment) -> str | None:
    """The setting that takes the guarantee away, in words; None if there is one."""
    if not experiment.privacy.noisy:
        return "no noise would be added (privacy.trust 'none' or epsilon inf)"
    if experiment.seed is not None:
        return f"seed is {experiment.seed}: whoever knows it can undo sampling and noise"
    if experiment.unsafe_metrics:
        return "unsafe_metrics asks for un-noised training losses"
    if experiment.data.shows_private_rows:
        return "data.held_out_overlap 'allow' publishes metrics of records that may be private, without noise"
    return None
