"""A run's folder as it lies on disk, read with json, sqlite3 and nothing of fedsw's own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from fedsw._tools.database import opened
from fedsw._tools.settings import ExperimentError
from fedsw.audit.finding import Check
from fedsw.experiment import Experiment, parse_experiment
from fedsw.experiment.choices import require_allowed_code
from fedsw.experiment.task_kinds import shipped_task
from fedsw.experiment.trust import TrustModel, trust_model
from fedsw.learning.moments.moments_sum import layout_of
from fedsw.learning.moments.preparation import Preparation, prepare
from fedsw.learning.moments.released_moments import Moments
from fedsw.learning.objectives import Clip
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.recovery import is_running
from fedsw.runs.run_files import require_format, require_plain_files

LAPLACE = "laplace"
HELD_OUT = "held out"
SCORES_FILE = "scores.json"
FORMULAS = ("statistical-parity", "equality-of-odds", "prior-matching", "distribution-matching", "none")
"""The penalties whose sensitivity is written again in `fedsw.audit.record._bounds_again`."""


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
    def kept(self) -> dict[str, Any] | None:
        """The charge of records that are kept out of training; None if the row releases nothing of them."""
        return next((c for c in self.charges if c["group"] == HELD_OUT and c["sampling_rate"] > 0), None)


@dataclass(frozen=True)
class Book:
    """One ledger file: `header` is (body, digest) as stored, `promise` its body read, of which some numbers follow.

    After the ``last`` round of training come sums over kept records, and scores.
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

    @property
    def client(self) -> str | None:
        """The client's number; None for the server's ledger."""
        match = re.fullmatch(r"client-(\d+)", self.path.stem)
        return match[1] if match else None

    @property
    def rounds(self) -> tuple[Row, ...]:
        """The rows of training."""
        return tuple(row for row in self.rows if row.kept is None and 0 < row.round <= self.last)

    @property
    def scores(self) -> tuple[Row, ...]:
        """The rows that release counts of scores, after the last round."""
        return tuple(row for row in self.rows if row.kept is None and row.round > self.last)

    @property
    def moments(self) -> tuple[Row, ...]:
        """The rows that release moments, before the first round."""
        return tuple(row for row in self.rows if row.round == 0)

    @property
    def tallies(self) -> tuple[Row, ...]:
        """The rows that release something of records that are kept out of training."""
        return tuple(row for row in self.rows if row.kept is not None)


@dataclass(frozen=True)
class Folder:
    """A run that is not going on; the summary is empty where its last process ended without one."""

    directory: Path
    experiment: dict[str, Any]
    summary: dict[str, Any]
    selection: dict[str, Any] | None = None
    allow_modules: Collection[str] = ()

    @property
    def privacy(self) -> dict[str, Any]:
        """The settings of the guarantee."""
        return dict(self.experiment["privacy"])

    @property
    def declared(self) -> int | None:
        """The declared number of records of a guarantee for additions and removals; None for a replacement."""
        added = {"add-remove": True, "replace-one": False}[self.privacy.get("relation", "replace-one")]
        return int(self.privacy["records"]) if added else None

    @property
    def trust(self) -> str:
        """The trust model."""
        return str(self.privacy["trust"])

    @property
    def model(self) -> TrustModel:
        """Facts of the trust model for the run's task."""
        task = shipped_task(self.experiment["objective"]["task"])
        return trust_model(self.trust, sketch=task is not None and task.facts.sketched)

    @property
    def local(self) -> bool:
        """True if the ledgers are the clients'."""
        return self.model.by_ledgers(server=False, clients=True)

    @property
    def sketch(self) -> bool:
        """True if one sum over all records was released, once."""
        return self.model.by_release(rounds=False, once=True)

    @property
    def masked(self) -> bool:
        """True if sums were masked, so that rows of all clients are of one noise."""
        return bool(self.model.masks)

    @property
    def seeded(self) -> bool:
        """True if sampling and noise follow from a seed."""
        return self.experiment.get("seed") is not None

    @property
    def stages(self) -> int:
        """How many stages a sketch has."""
        return 1 + len(self.experiment["sketch"]["stages"])

    def sigma_of(self, rows: Sequence[Row], clients: float) -> float:
        """Noise in a sum of so many clients that is charged in these rows: that of all of them, or of a masked sum."""
        if self.masked and rows:
            return self.masked_sigma(rows[0], clients)
        return math.hypot(*(row.sigma for row in rows))

    def masked_sigma(self, row: Row, clients: float) -> float:
        """Noise in a masked sum of so many clients: every row has that of the honest ones together."""
        federation = self.experiment["federation"]
        honest = (federation["min_clients"] or federation["clients"]) - self.experiment["local"]["colluding"]
        return row.sigma * math.sqrt(clients / honest)

    @property
    def releases_kept(self) -> bool:
        """True if counts of records that are kept out of training are released, once."""
        return bool(self.experiment["data"].get("held_out_to", "operator") == "everybody")

    @property
    def share_of_moments(self) -> float:
        """The share of the budget that buys moments before the first round; 0 where none are released."""
        return float(self.privacy.get("moments") or 0.0)

    @cached_property
    def moments(self) -> dict[str, Any] | None:
        """moments.json; None if there is none."""
        return _json(self.directory / "moments.json")

    @cached_property
    def preparation(self) -> Preparation | None:
        """The map of features and the scale of clips that the released moments give; None without moments."""
        if not self.share_of_moments or self.moments is None:
            return None
        layout = layout_of(self.task)
        values = torch.tensor(self.moments["values"], dtype=torch.float64)
        if layout is None or tuple(values.shape) != (layout.cells, layout.width):
            raise ValueError(f"moments.json holds values of shape {tuple(values.shape)}")
        records = tuple(int(count) for count in self.moments["records"])
        moments = Moments(layout, values, float(self.moments["sigma"]), records, self.declared is not None)
        return prepare(self.task, moments)

    @property
    def noisy(self) -> bool:
        """True if a guarantee was asked for."""
        epsilon, multiplier = self.privacy.get("epsilon"), self.privacy.get("noise_multiplier")
        guarantee = self.model.guarantee(epsilon=None if epsilon is None else real(epsilon), multiplier=multiplier)
        return guarantee.by_noise(noised=True, none=False)

    @property
    def accountant(self) -> str:
        """The accountant that the settings ask for; by its bare name where this process does not know it."""
        try:
            return self.model.accountant(self._written)
        except ExperimentError:
            return str(self.privacy["accountant"])

    @property
    def mechanism(self) -> str:
        """The noise of what is released, as the trust model says; empty where the settings cannot be read here."""
        try:
            return self.model.mechanism(self._written)
        except ExperimentError:
            return ""

    @cached_property
    def plan(self) -> dict[str, Any]:
        """plan.json: epsilon, delta and the sizes of the groups; empty if there is none."""
        return _json(self.directory / "plan.json") or {}

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last one that was cut short is left out."""
        return _lines(self.directory / "metrics.jsonl")

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The lines of log.jsonl."""
        return _lines(self.directory / "log.jsonl")

    @cached_property
    def books(self) -> list[Book]:
        """The ledgers: the server's, or the clients' as far as they are in the folder."""
        last = math.inf if self.sketch else int(self.experiment["training"]["rounds"])
        return [read_book(path, last) for path in ledgers(self.directory)]

    @property
    def share_of_scores(self) -> float:
        """The share of the budget that buys counts of scores after the last round; 0 where none are released."""
        return max(float(self.experiment.get(name, {}).get("share", 0.0)) for name in ("calibration", "thresholds"))

    @cached_property
    def scores(self) -> dict[str, Any] | None:
        """scores.json: the noised counts of scores, and how they corrected probabilities; None if there is none."""
        return _json(self.directory / SCORES_FILE)

    @property
    def claimed(self) -> float:
        """Epsilon of the summary, or without one that of the plan."""
        return real(self.summary["epsilon"]) if self.summary else real(self.plan.get("epsilon", math.inf))

    @property
    def delta(self) -> float:
        """Delta at which the ledgers are kept: the summary's, but for Laplace noise, whose guarantee has none."""
        reported = self.plan.get("delta", self.summary.get("delta", 0.0))
        return float(reported if self.accountant == LAPLACE else self.summary.get("delta", reported))

    @property
    def own_penalties(self) -> tuple[str, ...]:
        """The penalties that the settings name and no formula here is that of: a user's own, or a package's."""
        goal = self.experiment["objective"]
        names = (goal["penalty"], *(more["penalty"] for more in goal["also"]))
        return tuple(name for name in names if name not in FORMULAS)

    @cached_property
    def penalties(self) -> list[dict[str, Any]]:
        """Every penalty with its weight, radius and Jacobian; one of the user's own as its parts, or as "stated".

        What is somebody's own is loaded, which CodeRefused says where it may not be.
        """
        goal = self.experiment["objective"]
        if not self.own_penalties:
            return [{**goal, "weight": goal["alpha"]}, *goal["also"]]
        objective, penalties = self.task.objective, []
        for penalty, part in zip(objective.penalties, objective.parts, strict=True):
            clip = penalty.clip
            known: dict[str, Any] = {"weight": part.alpha, "dimension": penalty.dimension}
            known |= {} if clip is None else {"radius": clip.output, "jacobian": clip.jacobian}
            known |= part.described()
            if (bounding := known.pop("bounding", None)) is not None:
                known["stated"] = partial(_stated, bounding, float(self.experiment["clip"]["loss"]))
            penalties.append(known)
        return penalties

    @property
    def word(self) -> str:
        """Whose word the bounds of all penalties are."""
        stated = self.own_penalties and any(penalty["penalty"] == "stated" for penalty in self.penalties)
        return "stated" if stated else "proven"

    @property
    def sizes(self) -> dict[str, int]:
        """Records of every group."""
        return {str(group): int(size) for group, size in self.plan["groups"].items()}

    @cached_property
    def _written(self) -> Experiment:
        """The settings, validated; what they name of somebody's own is not loaded."""
        return parse_experiment(self.experiment)

    @cached_property
    def settings(self) -> Experiment:
        """The settings, validated; CodeRefused if they name a module that is not in `allow_modules`."""
        require_allowed_code(self._written, self.allow_modules, stored=self.directory)
        return self._written

    @cached_property
    def task(self) -> Problem:
        """The settings made concrete; Unchecked if they need files that are not here."""
        try:
            return Problem.from_experiment(self.settings.on_host())
        except OSError as fault:
            raise Unchecked(f"the shape of the data set is not known here: {fault}") from fault

    @property
    def planned_releases(self) -> int:
        """Releases of a record that the settings plan: one a round, or one for all."""
        return self.model.releases(self._written)


def _stated(
    bound: Callable[[Sequence[int], Clip], float], loss: float, sizes: list[int], side: tuple[float, float]
) -> float:
    """The bound that a user states for these sizes of groups, and these clips of outputs and Jacobians."""
    return bound(sizes, Clip(*side, loss))


def read_folder(directory: Path, allow_modules: Collection[str] = ()) -> Folder:
    """The folder of a run that is finished, failed or was killed; ValueError if it is no such, or holds links."""
    config = _json(directory / "config.json")
    if config is None or not isinstance(config.get("experiment"), Mapping):
        raise ValueError(f"{directory} is not a run: it has no config.json with an experiment")
    require_format(config, directory / "config.json")
    require_plain_files(directory)
    if is_running(directory):
        raise ValueError(
            f"{directory} is being run by another process; `fedsw show {directory} progress` "
            "shows how far it is. Audit it when it has ended"
        )
    folder = Folder(directory, dict(config["experiment"]), {}, config.get("selection"))
    events = [line.get("event") for line in folder.log if line.get("event") in ("run begins", "run ended")]
    summary = {} if events[-1:] == ["run begins"] else _json(directory / "summary.json") or {}
    return replace(folder, summary=summary, allow_modules=allow_modules)


def ledgers(directory: Path) -> list[Path]:
    """The ledger files of a run."""
    if (directory / "ledger.sqlite").exists():
        return [directory / "ledger.sqlite"]
    paths = (*directory.glob("clients/client-*.sqlite"), *directory.glob("nodes/*/client-*.sqlite"))
    return sorted(paths, key=lambda path: (len(path.name), path.name))


def read_book(path: Path, last: float = math.inf) -> Book:
    """A ledger file of so many rounds, whatever its digests say.

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
    promise = json.loads(headers[0][0])
    rows = tuple(Row(*line, **_released(json.loads(line[2]))) for line in stored)
    numbers = str(promise["accountant"]), real(promise["epsilon"]), float(promise["delta"])
    groups = tuple(map(str, promise["groups"]))
    return Book(path.stem.replace("-", " "), path, headers[0], promise, rows, *numbers, groups, last)


def _released(body: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {"round": int(body["round"]), "attempt": int(body["attempt"]), "sigma": float(body["sigma"])}
    return {**numbers, "charges": tuple(body["charges"])}


def real(value: Any) -> float:
    """A number of a run's JSON, where infinity is the word "inf"."""
    return math.inf if value is None else float(value)


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as fault:
        raise ValueError(f"{path} is damaged: {fault}") from None
    return value


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for position, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as fault:
            if position < len(lines):
                raise ValueError(f"{path}, line {position} is damaged: {fault}") from None
    return rows


def without_ledgers(name: str) -> Check:
    """A check that takes the clients' ledgers."""
    return Check(name, None, "the clients' ledgers are not in the folder; audit them where they are")


def made(name: str, of: Callable[[Folder], Check], folder: Folder) -> Check:
    """A check's outcome; what is no such file counts as a failure, and stops no other check.

    Files that are there and that the system does not let be read are no failure of the run.
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
