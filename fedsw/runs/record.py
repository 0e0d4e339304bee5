"""Read a run's folder, and name the command that goes on with a run that is not finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsw._tools.text import Short, run_facts, to_float
from fedsw.experiment import Experiment, parse_experiment
from fedsw.experiment.own_objects import is_held
from fedsw.runs.run_files import (
    CONFIG,
    LOG,
    METRICS,
    OUTPUTS,
    SUMMARY,
    Names,
    found_json,
    names_in,
    read_json,
    read_lines,
    require_plain_files,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SERVED = "served"
"""Clients on other machines, through a SuperLink that `fedsw server` keeps for this run."""
SERVICE = "service"
"""Clients on other machines, submitted with `flwr run` to a server that goes on serving."""
ELSEWHERE = (SERVED, SERVICE)


def command_for(directory: Path) -> str:
    """The command or call that resumes the run of a folder; its operator replaces the words in capitals."""
    engine, source = _stored(directory)
    if is_held(source):
        return f"fedsw.resume(Path({str(directory)!r}), data=...)"
    if engine == SERVED:
        return f"fedsw server --certs DIR --resume {directory}"
    if engine == SERVICE:
        config = f"directory={json.dumps(str(directory.resolve()), ensure_ascii=False)} resume=true"
        return f"FLWR_HOME=HOME flwr run APP fedsw --stream --run-config '{config}'"
    return f"fedsw resume {directory}"


def command_to_charge(directory: Path) -> str:
    """The same for a folder that is older than what its run's clients answered, which is then charged."""
    return _command_with(directory, "charge-lost")


def command_to_go_on(directory: Path) -> str:
    """The same for a folder whose checkpoint lacks rounds that were released, which are then released again."""
    return _command_with(directory, "go-on")


def _command_with(directory: Path, option: str) -> str:
    engine, source = _stored(directory)
    if is_held(source):
        return f"{command_for(directory).removesuffix(')')}, {option.replace('-', '_')}=True)"
    if engine == SERVICE:
        return f"fedsw resume {directory} --{option}"
    return f"{command_for(directory)} --{option}"


def _stored(directory: Path) -> tuple[str, str]:
    """Engine and data source by its config.json; empty if that cannot be read: resuming then explains the fault."""
    try:
        config = found_json(directory / CONFIG)
        return str(config["engine"]), str(config["experiment"]["data"]["source"])
    except (OSError, ValueError, LookupError, TypeError):
        return "", ""


@dataclass(frozen=True)
class HeldOutOutputs:
    """Held-out outputs of the released model: `values` (n, d), `sensitive` (n,), `target` (n,) or (n, t).

    Generated samples have neither group nor label: zeros. `extra` holds the other arrays by name: held-out samples to
    compare with, images, reconstructions, decoded samples.
    """

    values: NDArray[np.float64]
    sensitive: NDArray[np.int64]
    target: NDArray[Any]
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class RunRecord(Short):
    """One run's directory: `history` has one dict a round.

    `summary` is empty while the run goes on, and after a process that did not end in order: what an earlier one left
    shows less than has been spent since. `names` are those of groups and classes.
    """

    directory: Path
    experiment: Experiment
    summary: dict[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)
    outputs: HeldOutOutputs | None = None
    names: Names = Names()

    def _facts(self) -> Mapping[str, object]:
        return run_facts(self.experiment.name, self.directory, self.summary)

    @property
    def last(self) -> dict[str, Any]:
        """The last released round; empty before the first."""
        return self.history[-1] if self.history else {}

    @property
    def spent(self) -> Any:
        """Epsilon that was spent, by the summary or else by the last round."""
        return self.summary.get("epsilon_spent", self.last.get("epsilon") if self.history else 0.0)

    @property
    def completed(self) -> bool:
        """True if every planned round was released."""
        return self.summary.get("status") == "completed"


def read_run(directory: Path) -> RunRecord:
    """Everything of a run that plots and reports need; no code that its experiment names is loaded.

    To build its model or its task, `fedsw.experiment.choices.require_allowed_code` comes first.

    Raises:
        ValueError: naming the file that is missing or damaged, or is a link.
    """
    require_plain_files(directory)
    config = read_json(directory / CONFIG)
    if config is None:
        raise ValueError(f"{directory} is not a run: it has no {CONFIG}")
    experiment = parse_experiment(config.get("experiment", {}))
    return RunRecord(
        directory,
        experiment,
        read_summary(directory / SUMMARY) if _ended_in_order(directory / LOG) else {},
        read_lines(directory / METRICS),
        _read_outputs(directory / OUTPUTS),
        names_in(directory, experiment.data.columns),
    )


_TEXTS = ("name", "status", "engine", "begun", "date", "measured_on")
_WHOLE = ("clients", "rounds", "released_rounds", "bytes_up", "bytes_down")
_NUMBERS = ("epsilon", "epsilon_spent", "epsilon_of_reader", "delta", "seconds")
_OBJECTS = (
    "epsilon_spent_by_client", "guarantee", "signal_to_noise", "held_out", "held_out_intervals",
    "held_out_standard_errors", "held_out_by_group", "held_out_by_group_intervals", "held_out_measured_on", "constant",
    "constant_intervals", "gain", "best_threshold", "versions", "hardware", "ledger", "account", "sketch", "moments",
)  # fmt: skip
_OF_NUMBERS = ("epsilon_spent_by_client", "held_out", "constant")
"""Objects whose values are numbers."""


def read_summary(path: Path) -> dict[str, Any]:
    """How a run ended, by its summary's file; empty if there is none.

    Raises:
        ValueError: naming the file and the key, if it is damaged: something else stands where a text or number belongs.
    """
    summary = read_json(path) or {}

    def require(names: Iterable[str], values: Mapping[str, Any], kind: Callable[[Any], bool], wanted: str) -> None:
        for name in names:
            if (value := values.get(name)) is not None and not kind(value):
                type_name = type(value).__name__
                raise ValueError(f"{path} is damaged: {name!r} is a {type_name}, and {wanted} belongs there")

    require(_TEXTS, summary, lambda value: isinstance(value, str), "a text")
    require(_WHOLE, summary, lambda value: type(value) is int, "a whole number")
    require(_NUMBERS, summary, _is_number, "a number")
    require(_OBJECTS, summary, lambda value: isinstance(value, dict), "an object")
    require(("warnings",), summary, lambda value: isinstance(value, list), "a list")
    for name in _OF_NUMBERS:
        values = summary.get(name) or {}
        require(values, values, _is_number, f"a number of {name!r}")
    return summary


def _is_number(value: Any) -> bool:
    return to_float(value) is not None


def _ended_in_order(log: Path) -> bool:
    """Say whether the last process of a run wrote its summary; without a log, as far as one can see."""
    if not log.is_file():
        return True
    with log.open(encoding="utf-8", errors="replace") as lines:
        events = [event for line in lines for event in ("run begins", "run ended") if f'"event": "{event}"' in line]
    return events[-1:] != ["run begins"]


def _read_outputs(path: Path) -> HeldOutOutputs | None:
    if not path.is_file():
        return None
    import numpy as np

    try:
        with np.load(path) as arrays:
            loaded = {name: arrays[name] for name in arrays.files}
            values = np.asarray(loaded.pop("outputs"), dtype=np.float64)
            none = np.zeros(len(values), dtype=np.int64)
            sensitive, target = loaded.pop("sensitive", none), loaded.pop("target", none)
            return HeldOutOutputs(values.reshape(len(values), -1), sensitive, target, loaded)
    except (KeyError, ValueError, OSError) as fault:
        raise ValueError(f"{path} is damaged: {fault}") from None
