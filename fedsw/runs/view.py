"""One view of a run: its folder read once, as plain data that screens, cards, pages and tables are made of.

`read_run` reads what every part needs; `read_whole_run` also replays the ledgers, and reads the times of rounds and the
functions of an additive model. Fields for the operator only are marked, and `RunView.shareable` leaves them out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsw._tools.later import Later, imported_later
from fedsw._tools.text import Short, run_facts, to_float
from fedsw.experiment import Experiment, parse_experiment
from fedsw.runs.commands import command_for
from fedsw.runs.group_names import Names, names_of_plan
from fedsw.runs.run_files import (
    RunFile,
    found_json,
    read_json,
    read_lines,
    require_format,
    require_plain_files,
    round_seconds,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedsw.runs import accounts as accounts
    from fedsw.runs import additive_shapes as additive_shapes
    from fedsw.runs.accounts import RunLedgers
    from fedsw.runs.additive_shapes import ShapeFunction
else:
    np = Later("numpy")

globals().update(imported_later(__spec__))  # the numbers of a run are read in no time, its ledgers are replayed

_SHOWN = (
    RunFile.CONFIG,
    RunFile.METRICS,
    RunFile.LEDGER,
    RunFile.HISTOGRAMS,
    RunFile.MOMENTS,
    RunFile.SKETCH,
    RunFile.MODEL,
    RunFile.OUTPUTS,
    RunFile.SCORES,
    RunFile.SUMMARY,
    RunFile.CARD,
)
"""Files that a screen lists, as far as they are there."""
OPERATORS = ("seconds", "begun", "hardware", "account", "bytes_up", "bytes_down", "engine")
"""Parts of a summary that are for the operator only."""
_MEASURED = ("held_out", "constant", "gain", "best_threshold", "warnings")
"""Prefixes of the names of a summary's parts that are measured on held-out records."""
_FOR_OPERATOR: Mapping[str, bool] = {"releasable": False}
"""Marks a field that is for the operator only."""


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
class RunView(Short):
    """One run by its folder: plain data, for which no more files are read.

    ``history`` has one dict a round. ``summary`` is empty during the run, and after a process that broke off: an
    earlier process' summary shows less than has been spent since. ``names`` are those of groups and classes, ``plan``
    is the promise before the first round, ``files`` and ``plots`` are files of the folder that a screen lists.

    ``whole`` views have more: ``spending`` by the ledgers (None before the first release), the functions of an additive
    model (``shapes``), and the ``seconds`` of each round. The seconds and the command that resumes the run (``go_on``)
    are for its operator and not for publication.
    """

    directory: Path
    experiment: Experiment
    summary: dict[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)
    outputs: HeldOutOutputs | None = None
    names: Names = Names()
    plan: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    plots: tuple[str, ...] = ()
    go_on: str = field(default="", metadata=_FOR_OPERATOR)
    whole: bool = False
    spending: RunLedgers | None = None
    shapes: tuple[ShapeFunction, ...] = ()
    seconds: tuple[float, ...] = field(default=(), metadata=_FOR_OPERATOR)

    def _facts(self) -> Mapping[str, object]:
        return run_facts(self.experiment.name, self.directory, self.summary)

    @property
    def last(self) -> dict[str, Any]:
        """The last released round; empty before the first."""
        return self.history[-1] if self.history else {}

    @property
    def spent(self) -> Any:
        """Spent epsilon, by the summary or else by the last round."""
        return self.summary.get("epsilon_spent", self.last.get("epsilon") if self.history else 0.0)

    @property
    def completed(self) -> bool:
        """True if every planned round was released."""
        return self.summary.get("status") == "completed"

    def shareable(self) -> RunView:
        """A copy without values that its guarantee does not cover, and without fields for its operator.

        Guarantee: the rest is computed from the run's releases, and from public numbers. Training losses and the
        operator's parts of the summary go; if held-out records may be private, so does everything measured on them.
        """
        private = self.experiment.data.shows_private_rows
        hidden = {"training_loss", "held_out"} if private else {"training_loss"}
        history = [{name: value for name, value in row.items() if name not in hidden} for row in self.history]
        summary = {name: value for name, value in self.summary.items() if name not in OPERATORS}
        if private:
            summary = {name: value for name, value in summary.items() if not name.startswith(_MEASURED)}
        marked = [part for part in fields(self) if part.metadata == _FOR_OPERATOR]
        empty: dict[str, Any] = {part.name: part.default for part in marked if part.default is not MISSING}
        outputs = None if private else self.outputs
        return replace(self, history=history, summary=summary, outputs=outputs, **empty)


def read_run(directory: Path) -> RunView:
    """Read a run for its screen, card and pictures; no code that its experiment names is loaded.

    To build its model or its task, `fedsw.experiment.choices.require_allowed_code` comes first.

    Raises:
        ValueError: naming the file that is missing or damaged, or is a link.
    """
    require_plain_files(directory)
    config = read_json(directory / RunFile.CONFIG)
    if config is None:
        raise ValueError(f"{directory} is not a run: it has no {RunFile.CONFIG}")
    require_format(config, directory / RunFile.CONFIG)
    experiment = parse_experiment(config.get("experiment", {}))
    plan = found_json(directory / RunFile.PLAN)
    return RunView(
        directory,
        experiment,
        read_summary(directory / RunFile.SUMMARY) if _ended_in_order(directory / RunFile.LOG) else {},
        read_lines(directory / RunFile.METRICS),
        read_outputs(directory / RunFile.OUTPUTS),
        names_of_plan(plan, experiment.data.columns),
        plan,
        tuple(name for name in _SHOWN if (directory / name).is_file()),
        tuple(sorted(path.name for path in (directory / "plots").glob("*.png"))),
        command_for(directory),
    )


def read_whole_run(directory: Path) -> RunView:
    """Read a run for its page: the same, its replayed ledgers, its rounds' times and its shapes.

    Raises:
        ValueError: as `read_run`.
        LedgerDamaged, LedgerReplaced: as `fedsw.runs.accounts.read_ledgers`.
    """
    view = read_run(directory)
    spending = None
    with contextlib.suppress(FileNotFoundError):  # before the first release there is no ledger
        spending = accounts.read_ledgers(directory, view.names, view.experiment.data.unit)
    return replace(with_shapes(view), whole=True, spending=spending, seconds=tuple(round_seconds(directory)))


def with_shapes(view: RunView) -> RunView:
    """Add the functions of an additive model, if the run has one."""
    return replace(view, shapes=tuple(additive_shapes.read_shapes(view.directory)))


def require_whole(view: RunView) -> RunView:
    """Return a view that has its ledgers; ValueError for another one."""
    if not view.whole:
        raise ValueError(f"the view of {view.directory} lacks its ledgers: read it with `read_whole_run`")
    return view


_TEXTS = ("name", "status", "engine", "begun", "date", "measured_on")
_WHOLE = ("clients", "rounds", "released_rounds", "bytes_up", "bytes_down")
_NUMBERS = ("epsilon", "epsilon_spent", "epsilon_of_reader", "delta", "seconds")
_OBJECTS = (
    "epsilon_spent_by_client", "guarantee", "signal_to_noise", "held_out", "held_out_intervals",
    "held_out_standard_errors", "held_out_by_group", "held_out_by_group_intervals", "held_out_measured_on",
    "constant", "held_out_by_column", "held_out_by_column_intervals", "constant_intervals", "gain", "best_threshold",
    "versions", "hardware", "ledger", "account", "sketch", "histograms", "moments", "calibration", "thresholds",
    "held_out_at_thresholds",
)  # fmt: skip
_OF_NUMBERS = ("epsilon_spent_by_client", "held_out", "constant")
"""Objects with numbers as values."""


def read_summary(path: Path) -> dict[str, Any]:
    """A run's summary; empty before the first.

    Raises:
        ValueError: naming the file and the key, if a value has another type than it should.
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
    """Return whether the last process of a run wrote its summary; True if the folder has no log, as a copy."""
    if not log.is_file():
        return True
    with log.open(encoding="utf-8", errors="replace") as lines:
        events = [event for line in lines for event in ("run begins", "run ended") if f'"event": "{event}"' in line]
    return events[-1:] != ["run begins"]


def read_outputs(path: Path) -> HeldOutOutputs | None:
    """Held-out outputs in a file of a run; None if there is none, ValueError if it is damaged."""
    if not path.is_file():
        return None
    try:
        with np.load(path) as arrays:
            loaded = {name: arrays[name] for name in arrays.files}
            values = np.asarray(loaded.pop("outputs"), dtype=np.float64)
            none = np.zeros(len(values), dtype=np.int64)
            sensitive, target = loaded.pop("sensitive", none), loaded.pop("target", none)
            return HeldOutOutputs(values.reshape(len(values), -1), sensitive, target, loaded)
    except (KeyError, ValueError, OSError) as fault:
        raise ValueError(f"{path} is damaged: {fault}") from None
