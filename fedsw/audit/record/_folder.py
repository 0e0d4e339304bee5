"""A run's folder as it lies on disk: its settings, its files, and ledgers with every row; digests are for `_chain`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsw._tools.database import opened
from fedsw.audit.finding import Check
from fedsw.experiment import Experiment, parse_experiment
from fedsw.experiment.choices import require_allowed_code
from fedsw.experiment.compatibility import relation_of
from fedsw.experiment.trust import accounting_at_server
from fedsw.federation.trust.budget_shares import HISTOGRAMS_PART, sum_budget
from fedsw.learning.moments.column_counts import ColumnCounts, counts_of_columns
from fedsw.learning.moments.preparation import Preparation, prepare
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accountants import accountant_named
from fedsw.runs import checkpoint
from fedsw.runs.directory import RunDirectory
from fedsw.runs.recovery import is_running
from fedsw.runs.releases import kept_moments
from fedsw.runs.run_files import RunFile, client_ledgers, read_json, read_lines, require_format, require_plain_files

HELD_OUT = "held out"
"""A ledger's name for records that are kept out of training."""


class Unchecked(Exception):
    """Something cannot be checked here; the message says why."""


@dataclass(frozen=True)
class Row:
    """One line of a ledger's table `rows`, with its body read; `charges` are of every group."""

    sequence: int
    key: str
    body: str
    previous: str
    digest: str
    round: int
    attempt: int
    sigma: float
    charges: tuple[dict[str, Any], ...]

    @property
    def trained(self) -> tuple[dict[str, Any], ...]:
        """The charges of records that are trained on."""
        return tuple(charge for charge in self.charges if charge["group"] != HELD_OUT)

    @property
    def kept(self) -> tuple[dict[str, Any], ...]:
        """The charges of records that are kept out of training: one, or none if the row releases nothing of them."""
        return tuple(c for c in self.charges if c["group"] == HELD_OUT and c["sampling_rate"] > 0)


@dataclass(frozen=True)
class Book:
    """One ledger file: `header` is (body, digest) as stored, `promise` its body read, of which some numbers follow.

    After the ``last`` round of training come sums over kept records, and scores. Histograms, with rows charged by
    the sensitivity ``of_histograms``, come before moments; it is 0 if none are asked for.
    """

    name: str
    path: Path
    header: tuple[str, str]
    promise: dict[str, Any]
    rows: tuple[Row, ...]
    accountant: str
    budget: float
    delta: float
    groups: tuple[str, ...]
    last: float = math.inf
    of_histograms: float = 0.0

    @property
    def client(self) -> str | None:
        """The client's number; None for the server's ledger."""
        match = re.fullmatch(r"client-(\d+)", self.path.stem)
        return match[1] if match else None

    @cached_property
    def kinds(self) -> dict[str, list[Row]]:
        """The rows by what they release: moments come before the first round, and scores after the last."""
        kinds: dict[str, list[Row]] = {"histograms": [], "moments": [], "rounds": [], "scores": [], "kept records": []}
        first = [row for row in self.rows if row.round == 0]
        counted = [any(math.isclose(c["sensitivity"], self.of_histograms) for c in row.trained) for row in first]
        if self.of_histograms and all(counted):  # of one column, which moves as moments do: the earlier half
            counted = [number < (len(first) + 1) // 2 for number in range(len(first))]
        for row, of_histograms in zip(first, counted, strict=True):
            kinds["histograms" if of_histograms else "moments"].append(row)
        for row in self.rows:
            if row.round:
                kinds["kept records" if row.kept else "rounds" if row.round <= self.last else "scores"].append(row)
        return kinds

    @property
    def released_once(self) -> list[Row]:
        """The last row of each sum over all records of training that is released beside the rounds."""
        return [row for kind in ("histograms", "moments", "scores") for row in self.kinds[kind][-1:]]

    @property
    def rounds(self) -> list[Row]:
        """The rows of training."""
        return self.kinds["rounds"]


@dataclass(frozen=True)
class Folder:
    """A run that is not going on; the summary is empty if its last process ended without one."""

    directory: Path
    experiment: dict[str, Any]
    summary: dict[str, Any]
    selection: dict[str, Any] | None = None
    allow_modules: Collection[str] = ()

    @cached_property
    def written(self) -> Experiment:
        """The settings, validated; custom objects that they name are not loaded."""
        accountant_named(str(self.experiment["privacy"].get("accountant", "pld")))  # which says what helps
        return parse_experiment(self.experiment)

    @cached_property
    def settings(self) -> Experiment:
        """The settings, validated; CodeRefused if they name a module that is not in `allow_modules`."""
        require_allowed_code(self.written, self.allow_modules, stored=self.directory)
        return self.written

    @cached_property
    def task(self) -> Problem:
        """The settings made concrete; Unchecked if they need files that are not here."""
        try:
            return Problem.from_experiment(self.settings.on_host())
        except OSError as fault:
            raise Unchecked(f"the shape of the data set is not known here: {fault}") from fault

    @cached_property
    def counts_of_columns(self) -> ColumnCounts | None:
        """Counts of columns that histograms are of, by the settings only; None if none are released."""
        columns = self.written.data.columns if self.written.privacy.histograms else None
        return None if columns is None else counts_of_columns(columns, self.written.model)

    @cached_property
    def preparation(self) -> Preparation | None:
        """The map of features and the scale of clips that the released moments give; None without moments."""
        moments = kept_moments(self.task, RunDirectory(self.directory)) if self.written.privacy.moments else None
        return None if moments is None else prepare(self.task, moments)

    @cached_property
    def prepared(self) -> Problem:
        """The problem of the rounds: its clips have the scale that released moments give them."""
        return self.task if self.preparation is None else self.task.under(self.preparation)

    @property
    def local(self) -> bool:
        """True if the ledgers are the clients'."""
        return self.written.privacy.trust not in accounting_at_server()

    @property
    def sketch(self) -> bool:
        """True if one sum over all records was released, once."""
        return self.written.stages > 0

    @property
    def masked(self) -> bool:
        """True if sums were masked, so that rows of all clients are of one noise."""
        return bool(self.written.privacy.model.masks)

    @property
    def noisy(self) -> bool:
        """True if a guarantee was asked for."""
        return self.written.privacy.guarantee.unprotected is None

    @property
    def seeded(self) -> bool:
        """True if sampling and noise follow from a seed."""
        return self.experiment.get("seed") is not None

    @property
    def sizes(self) -> dict[str, int]:
        """Records of every group."""
        return {str(group): int(size) for group, size in self.plan["groups"].items()}

    @property
    def claimed(self) -> float:
        """Epsilon of the summary, or without one that of the plan."""
        return real(self.summary["epsilon"]) if self.summary else real(self.plan.get("epsilon", math.inf))

    @property
    def delta(self) -> float:
        """Delta at which the ledgers are kept, also under a noise with a pure guarantee."""
        return float(self.plan.get("delta", self.summary.get("delta", 0.0)))

    @cached_property
    def plan(self) -> dict[str, Any]:
        """plan.json: epsilon, delta and the sizes of the groups; empty if there is none."""
        return read_json(self.directory / RunFile.PLAN) or {}

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last one that was cut short is left out."""
        return read_lines(self.directory / RunFile.METRICS)

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The lines of log.jsonl."""
        return read_lines(self.directory / RunFile.LOG)

    @cached_property
    def checkpoint(self) -> dict[str, Any] | None:
        """The whole state as stored, with round and ledger's row of the last release on file; None without one."""
        try:
            stored = checkpoint.read(self.directory)
        except checkpoint.CheckpointDamaged:
            return None
        if stored is None:
            return None
        state, steps = stored
        if steps:
            head = steps[-1].ledger
            state |= {"round": steps[-1].round, "ledger": None if head is None else asdict(head)}
        return state

    @cached_property
    def books(self) -> list[Book]:
        """The ledgers: the server's, or the clients' as far as they are in the folder."""
        last = math.inf if self.sketch else self.written.training.rounds
        counts, of_histograms = self.counts_of_columns, 0.0
        if counts is not None:
            of_histograms = sum_budget(HISTOGRAMS_PART, counts, 1.0, relation_of(self.written)).sensitivity.value
        return [replace(read_book(path, last), of_histograms=of_histograms) for path in ledgers(self.directory)]


def read_folder(directory: Path, allow_modules: Collection[str] = ()) -> Folder:
    """The folder of a run that is finished, failed or was killed; ValueError if it is no such, or holds links."""
    config = read_json(directory / RunFile.CONFIG)
    if config is None or not isinstance(config.get("experiment"), Mapping):
        raise ValueError(f"{directory} is not a run: it has no config.json with an experiment")
    require_format(config, directory / RunFile.CONFIG)
    require_plain_files(directory)
    if is_running(directory):
        raise ValueError(
            f"{directory} is being run by another process; `fedsw show {directory} progress` "
            "shows how far it is. Audit it when it has ended"
        )
    folder = Folder(directory, dict(config["experiment"]), {}, config.get("selection"))
    events = [line.get("event") for line in folder.log if line.get("event") in ("run begins", "run ended")]
    summary = {} if events[-1:] == ["run begins"] else read_json(directory / RunFile.SUMMARY) or {}
    return replace(folder, summary=summary, allow_modules=allow_modules)


def ledgers(directory: Path) -> list[Path]:
    """The ledger files of a run."""
    server = directory / RunFile.LEDGER
    return [server] if server.exists() else sorted(client_ledgers(directory), key=lambda p: (len(p.name), p.name))


def read_book(path: Path, last: float = math.inf) -> Book:
    """A ledger file up to its ``last`` round, whatever its digests are.

    ValueError if it has more than its tables: statements would run.
    """
    database = opened(path, "ro")
    try:
        kinds = dict(database.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"))
        if kinds != {"header": "table", "rows": "table"}:
            raise ValueError(f"{path.name} holds more than the tables of a ledger: {', '.join(sorted(kinds))}")
        headers = database.execute("SELECT body, digest FROM header").fetchall()
        stored = database.execute("SELECT sequence, key, body, previous, digest FROM rows ORDER BY sequence").fetchall()
    finally:
        database.close()
    if len(headers) != 1:
        raise ValueError(f"{path.name} has {len(headers)} headers")
    promise, rows = json.loads(headers[0][0]), list[Row]()
    for line in stored:
        body = json.loads(line[2])
        round_, attempt, sigma = int(body["round"]), int(body["attempt"]), float(body["sigma"])
        sequence, key, text, previous, digest = line
        rows.append(Row(sequence, key, text, previous, digest, round_, attempt, sigma, tuple(body["charges"])))
    limits = str(promise["accountant"]), real(promise["epsilon"]), float(promise["delta"])
    groups = tuple(map(str, promise["groups"]))
    return Book(path.stem.replace("-", " "), path, headers[0], promise, tuple(rows), *limits, groups, last)


def real(value: Any) -> float:
    """A number of a run's JSON, where infinity is the word "inf"."""
    return math.inf if value is None else float(value)


def without_ledgers(name: str) -> Check:
    """A check that takes the clients' ledgers."""
    return Check(name, None, "the clients' ledgers are not in the folder; audit them where they are")


def made(name: str, of: Callable[[Folder], Check], folder: Folder) -> Check:
    """A check's outcome; what is no such file counts as a failure, and stops no other check.

    Files that are there and that the system does not let be read are not a failure of the run.
    """
    try:
        return of(folder)
    except ModuleNotFoundError as missing:
        brings = "pip install '.[compare]' in fedsw's checkout"
        return Check(name, None, f"needs {missing.name}, which is not installed ({brings})")
    except Unchecked as reason:
        return Check(name, None, str(reason))
    except OSError as fault:
        absent = isinstance(fault, FileNotFoundError)
        return Check(name, False if absent else None, str(fault), unread=not absent)
    except Exception as fault:
        return Check(name, False, f"cannot be read: {type(fault).__name__}: {fault}")
