"""A run's files: their names, how they are read, where runs are found, and times of rounds."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from fedsw._tools import files
from fedsw._tools.text import json_text, nearest, shown
from fedsw.data.columns.declaration import Columns
from fedsw.runs.group_names import Names, names_of_plan

_Kept = TypeVar("_Kept")


class RunFile:
    """Names of the files in a run's folder."""

    CONFIG = "config.json"
    """The experiment as it runs, its engine, and when it began."""
    PLAN = "plan.json"
    """The guarantee that the run began with, and for how many records."""
    LEDGER = files.LEDGER_OF_A_RUN
    """The privacy ledger of the server; clients' own are in `CLIENT_LEDGERS`."""
    ACCOUNT = files.ACCOUNT_OF_A_RUN
    """The last row that the run saw of its data set's account."""
    CLIENT_LEDGERS = ("clients/client-*.sqlite", "nodes/*/client-*.sqlite")
    METRICS = "metrics.jsonl"
    """A line for every released round."""
    SUMMARY = "summary.json"
    """How the run ended, the last time that it did not break off."""
    MODEL = "model.safetensors"
    """The released model."""
    OUTPUTS = "outputs.npz"
    """Held-out outputs of the released model, and other arrays for plots."""
    HELD_OUT = "held_out.json"
    """Noised counts and sums over records that clients kept out of training."""
    HISTOGRAMS = "histograms.json"
    """Noised counts of all columns of numbers, released before the moments: bins of columns are read off them."""
    MOMENTS = "moments.json"
    """Noised counts, means and second moments of all records, released before the first round."""
    SCORES = "scores.json"
    """Noised counts of scores by group and label, released after the last round: thresholds are read off them."""
    SHAPES = "shapes.json"
    """The functions that an additive model is a sum of, off its released parameters and moments."""
    DESCRIPTION = "description.json"
    """Histograms of columns, off the released sketch of a run of `fedsw describe`."""
    CARD = "card.md"
    """The model card."""
    REPORT = "report.html"
    """The run's page."""
    REGISTRY = "deployment.yaml"
    """The run's entry for the registry of deployments, with questions for the deployer."""
    LOG = "log.jsonl"
    """When each round was released: for the operator only, not for publication."""
    ROLL = "roll.json"
    """Clients online, and the state of each: for the operator only, as it repeats clients' words."""
    ATTEMPTS = "attempts.log"
    """Every attempt that was begun: round and number."""
    AGREED = "charge-lost"
    """Present while the operator agrees to charge attempts that the folder lacks."""
    GAP = "went-on"
    """Up to which round the operator agreed to release and charge again the rounds that the checkpoint lacks."""
    MOMENTS_ALONE = "moments-alone"
    """Present in a run that is to stop once its moments are released."""
    NAME = "run.name"
    """The name by which the clients know the run."""
    SKETCH = "sketch.safetensors"
    """The released sketch, under trust models with one."""
    GENERATOR = "generator.pt"
    """The state of a generator that trains on the released sketch."""
    CLASSIFIER = "classifier.safetensors"
    """The classifier in a later stage of a sketch; the number of the stage is in the file's name, as in a sketch's."""
    RELEASES = "releases"
    """The folder of clients' single releases."""
    LOCK = "run.lock"
    """Held by the server of the run."""


RUNS_REPORTED = "FEDSW_RUNS_TOLD"
"""The environment variable with the file in which a server app reports its run's folder."""


def report_run(directory: Path) -> None:
    """Report a run's folder to the starter of this process, if it set `RUNS_REPORTED`."""
    if path := os.environ.get(RUNS_REPORTED):
        with files.opened(Path(path), "a") as file:
            file.write(f"{json.dumps(str(directory.resolve()))}\n")


def reported_runs(path: Path) -> list[Path]:
    """The folders of the reported runs, in their order."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Path(json.loads(line)) for line in lines if line.endswith('"')]


RUN_NAME = "[0-9a-f]{32}"
"""The form of a run's name: clients name files by it, so that it is no path, and no two are equal by chance."""

RELEASABLE = (
    RunFile.CONFIG,
    RunFile.PLAN,
    RunFile.NAME,
    RunFile.ATTEMPTS,
    RunFile.METRICS,
    RunFile.LEDGER,
    RunFile.HISTOGRAMS,
    RunFile.MOMENTS,
    RunFile.SKETCH,
    RunFile.GENERATOR,
    RunFile.CLASSIFIER,
    RunFile.MODEL,
    RunFile.OUTPUTS,
    RunFile.HELD_OUT,
    RunFile.SCORES,
    RunFile.SHAPES,
    RunFile.DESCRIPTION,
    RunFile.SUMMARY,
)
"""Files that may leave a run's folder, and that a copy needs; a new kind of file belongs here or in `KEPT_BACK`."""
KEPT_BACK = (
    RunFile.ACCOUNT,
    RunFile.CARD,
    RunFile.REPORT,
    RunFile.REGISTRY,
    RunFile.LOG,
    RunFile.ROLL,
    RunFile.AGREED,
    RunFile.GAP,
    RunFile.MOMENTS_ALONE,
    RunFile.RELEASES,
    RunFile.LOCK,
)
"""Files that no copy has: log and roll call (times and clients); locks and agreements of one process; facts of an
account or of single clients; and card, page and entry, which are written anew from the rest."""


FORMATS = (0, 1)
"""Formats of a run's folder that are read; the last is written. A config.json from before they were written has 0."""


def require_format(config: dict[str, Any], path: Path) -> None:
    """Raise ValueError if a config.json has the format of a newer version, or an invalid one."""
    if (format_ := config.get("format", 0)) not in FORMATS or isinstance(format_, bool):
        raise ValueError(
            f"{path} has format {shown(repr(format_))}, and this version of fedsw reads {FORMATS[0]} to {FORMATS[-1]}: "
            "a newer version wrote the folder; use that version"
        )


def client_ledgers(directory: Path) -> list[Path]:
    """The ledgers that clients keep in a run's folder, as far as they are there."""
    return sorted(path for pattern in RunFile.CLIENT_LEDGERS for path in directory.glob(pattern))


def require_plain_files(directory: Path) -> None:
    """Refuse a run's folder that holds links, which lead elsewhere, or pipes and devices, which never end."""
    for folder, folders, names in os.walk(directory):
        for name in sorted((*folders, *names)):
            if (path := Path(folder, name)).is_symlink():
                raise ValueError(f"{path} is a link to {path.readlink()}; a run's folder holds none: remove it")
            if name not in folders:
                _require_regular(path)


def _require_regular(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file but a pipe, a socket, a device or a folder, and is not read: remove it")


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of one of a run's JSON files; None if there is none, and ValueError if it is damaged, or no file."""
    _require_regular(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as fault:  # no JSON, or no UTF-8
        raise ValueError(f"{path} is damaged: {fault}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it holds a {type(value).__name__} and not an object")
    return value


def read_as(path: Path, made: Callable[[dict[str, Any]], _Kept]) -> _Kept | None:
    """One of a run's JSON files as ``made`` of its content; None if there is none, and ValueError if it is damaged."""
    if (content := read_json(path)) is None:
        return None
    try:
        return made(content)
    except (LookupError, TypeError, ValueError) as fault:
        raise ValueError(f"{path} is damaged: {fault}") from None


def found_json(path: Path) -> dict[str, Any]:
    """The content of one of a run's JSON files; empty if there is none or it is damaged."""
    try:
        return read_json(path) or {}
    except ValueError:
        return {}


def jsonable(value: Any) -> Any:
    """Strict JSON of the content: infinities and NaN become the strings "inf", "-inf", "nan"."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_json(path: Path, value: Any) -> None:
    """Put JSON in place whole, on the disk on return; infinities become "inf" or "-inf", and NaN becomes null."""
    files.replace(path, (json_text(value) + "\n").encode())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's JSONL file; a last line cut short by a crash is left out. Empty if there is no file."""
    _require_regular(path)
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = []
    for position, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as fault:
            if position < len(lines):
                raise ValueError(f"{path}, line {position}: {fault}") from None
            continue
        if not isinstance(rows[-1], dict):
            raise ValueError(f"{path}, line {position} is damaged: a {type(rows[-1]).__name__}, and not an object")
    return rows


def find_run(name: str, runs: Path) -> Path:
    """The directory of a run: a path, a name under `runs`, or an experiment's name for its latest run."""
    for folder in (Path(name).expanduser(), runs / name):
        if is_run(folder):
            return folder
        if folder.is_dir() and (begun := in_order(child for child in folder.iterdir() if is_run(child))):
            return begun[-1]
    known = [
        str(folder.relative_to(runs))
        for experiment in sorted(runs.glob("*/"))
        for folder in in_order(child for child in experiment.glob("*") if is_run(child))
    ]
    latest = f"the latest are {', '.join(known[-3:])}" if known else f"there are none under {runs}/"
    raise ValueError(f"no run at {name!r}; {nearest(name, known)}{latest}")


def in_order(folders: Iterable[Path]) -> list[Path]:
    """Folders of one experiment's runs in the order in which they were begun, the latest last.

    The number in a folder's name decides. A folder without one (of an older version, or renamed) follows those that
    were begun before it, by the time in its config.json; within one second, the number at the end of its name decides.
    """
    numbered = sorted((folder for folder in folders), key=lambda folder: (files.number_of(folder), folder.name))
    others = [folder for folder in numbered if not files.number_of(folder)]
    if not others:
        return numbered
    at = {folder: _begun(folder) for folder in numbered}

    def place(folder: Path) -> tuple[int, int, float, list[int]]:
        number, within = files.number_of(folder), [int(part) for part in re.findall(r"\d+", folder.name)]
        before = (files.number_of(other) for other in numbered if at[other] < at[folder])
        return number or max(before, default=0), 0 if number else 1, at[folder], within

    return sorted(numbered, key=place)


def _begun(folder: Path) -> float:
    """When a run began, in seconds since 1970; by the file system if its config.json lacks the time."""
    path = folder / RunFile.CONFIG
    try:
        return datetime.datetime.fromisoformat(found_json(path)["begun"]).timestamp()
    except (LookupError, ValueError, TypeError):
        return path.stat().st_mtime


def is_run(folder: Path) -> bool:
    """Say whether `folder` holds a run that was started."""
    return (folder / RunFile.CONFIG).is_file()


ALONE = "stopped after moments: `fedsw plan --after-moments RUN` says from them what the rounds can come to"
"""The status of a run that stops after its moments; the rest of its budget is not spent."""


def has_ended(directory: Path) -> bool:
    """Return whether a run completed; False for a folder without a run of its own."""
    return found_json(directory / RunFile.SUMMARY).get("status") == "completed"


def ended_early(summary: Mapping[str, Any]) -> bool:
    """Return whether a run stopped before its planned end, by its summary; False for a stop after moments."""
    status = str(summary.get("status", ""))
    return status.startswith("stopped") and status != ALONE


def has_asked(folder: Path) -> bool:
    """Return whether a run in the folder, or in one below it, has begun an attempt, which may be charged."""
    return any(path.stat().st_size for path in folder.rglob(RunFile.ATTEMPTS))


def names_in(directory: Path, columns: Columns | None = None) -> Names:
    """The names that a run began with; else those of declared columns; else none."""
    return names_of_plan(found_json(directory / RunFile.PLAN), columns)


_BEGINS, _RELEASED, _CALLED = "run begins", "round released", "roll call"


def round_seconds(directory: Path) -> list[float]:
    """Seconds between the releases of a run, for each process from its start on."""
    return [
        later - earlier
        for process in _processes(directory)
        for earlier, later in pairwise(at for at, event in process if event)
    ]


def total_seconds(directory: Path) -> float:
    """Seconds of all processes of a run, each from its first line to its last."""
    return sum(process[-1][0] - process[0][0] for process in _processes(directory))


def _processes(directory: Path) -> list[list[tuple[float, bool]]]:
    """For every process of the run, its lines: the time, and whether it begins or releases."""
    path = directory / RunFile.LOG
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    processes: list[list[tuple[float, bool]]] = []
    for line in text.splitlines():
        try:
            content = json.loads(line)
            at, event = datetime.datetime.fromisoformat(content["time"]).timestamp(), content["event"]
        except (ValueError, LookupError, TypeError):
            continue  # cut short by a crash
        if event == _CALLED:
            continue  # may come before the process begins the run
        if event == _BEGINS:
            processes.append([])
        if processes:
            processes[-1].append((at, event in (_BEGINS, _RELEASED)))
    return processes
