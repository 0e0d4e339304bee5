"""Reading back what a run left on disk, finished or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsw.experiment import Experiment, parse_experiment
from fedsw.runs.files import CONFIG, LOG, METRICS, OUTPUTS, SUMMARY, read_json, read_lines
from fedsw.runs.names import Names, names_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Outputs:
    """Held-out outputs of the released model: `values` (n, d), `sensitive` (n,), `target` (n,) or (n, t).

    Generated samples have neither group nor label: zeros. `extra` holds the other arrays by name: held-out samples to
    compare with, images, reconstructions, decoded samples.
    """

    values: NDArray[np.float64]
    sensitive: NDArray[np.int64]
    target: NDArray[Any]
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """One run's directory: `history` has one dict a round.

    `summary` is empty while the run goes on, and after a process that did not end in order: what an earlier one left
    shows less than has been spent since. `names` are those of groups and classes.
    """

    directory: Path
    experiment: Experiment
    summary: dict[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)
    outputs: Outputs | None = None
    names: Names = Names()

    @property
    def completed(self) -> bool:
        """Whether every planned round was released."""
        return self.summary.get("status") == "completed"


def read_run(directory: Path) -> RunRecord:
    """Everything of a run that plots and reports need.

    Raises:
        ValueError: naming the file that is missing or damaged.
    """
    experiment = _read_experiment(directory)
    return RunRecord(
        directory,
        experiment,
        (read_json(directory / SUMMARY) or {}) if _ended_in_order(directory / LOG) else {},
        read_lines(directory / METRICS),
        _read_outputs(directory / OUTPUTS),
        names_in(directory, experiment.data.columns),
    )


def _read_experiment(directory: Path) -> Experiment:
    config = read_json(directory / CONFIG)
    if config is None:
        raise ValueError(f"{directory} is not a run: it has no {CONFIG}")
    return parse_experiment(config.get("experiment", {}))


def _ended_in_order(log: Path) -> bool:
    """Whether the last process of a run wrote its summary; without a log, as far as one can see."""
    if not log.is_file():
        return True
    with log.open(encoding="utf-8", errors="replace") as lines:
        found = [event for line in lines for event in ("run begins", "run ended") if f'"event": "{event}"' in line]
    return found[-1:] != ["run begins"]


def _read_outputs(path: Path) -> Outputs | None:
    if not path.is_file():
        return None
    import numpy as np

    try:
        with np.load(path) as arrays:
            found = {name: arrays[name] for name in arrays.files}
            values = np.asarray(found.pop("outputs"), dtype=np.float64)
            none = np.zeros(len(values), dtype=np.int64)
            sensitive, target = found.pop("sensitive", none), found.pop("target", none)
            return Outputs(values.reshape(len(values), -1), sensitive, target, found)
    except (KeyError, ValueError, OSError) as fault:
        raise ValueError(f"{path} is damaged: {fault}") from None
