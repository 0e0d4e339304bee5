"""A node's configuration in a file that its operator edits: `fedsw client --config node.toml`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from fedsw.experiment import Experiment
from fedsw.experiment.load import SHIPPED
from fedsw.federation.node.limits import ANY_TRUST
from fedsw.runs.files import CONFIG, LEDGER, METRICS, found_json
from fedsw.runs.observer import Observer
from fedsw.settings import read_toml, validated

_PATHS = ("certs", "key", "server-key", "data-dir", "data-path", "schema", "state-dir", "accounts", "roster")


class NodeFile(BaseModel):
    """What `fedsw client` can be given, by the names of its options; a key that is left out has the option's default.

    `trust` and `modules` are lists of names, and `trust` may be "any". Every other value is that of the option.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"), strict=True
    )

    superlink: str | None = None
    certs: Path | None = None
    key: Path | None = None
    server_key: Path | None = None
    partition_id: Annotated[int, Field(ge=0)] | None = None
    num_partitions: Annotated[int, Field(ge=1)] | None = None
    num_clients: Annotated[int, Field(ge=1)] | None = None
    data_dir: Path | None = None
    data_path: Path | None = None
    schema_: Annotated[Path | None, Field(alias="schema")] = None
    state_dir: Path | None = None
    trust: tuple[str, ...] | None = None
    max_epsilon: float | None = None
    max_memory: float | None = None
    max_seconds: float | None = None
    bundle: str | None = None
    modules: tuple[str, ...] | None = None
    stock: bool | None = None
    roster: Path | None = None
    colluding: Annotated[int, Field(ge=0)] | None = None
    account: str | None = None
    accounts: Path | None = None

    @field_validator("trust", "modules", mode="before")
    @classmethod
    def _names(cls, value: object, about: ValidationInfo) -> object:
        if about.field_name == "trust" and value == ANY_TRUST:
            return (ANY_TRUST,)
        return tuple(value) if isinstance(value, list) else value


def write_node_file(path: Path) -> None:
    """Write the commented node file that is shipped, for a client's operator to edit; none is written over."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write((SHIPPED / "node.toml").read_text(encoding="utf-8"))
    except FileExistsError:
        raise FileExistsError(f"{path} is there already; -o names another file") from None


def read_node_file(path: Path) -> NodeFile:
    """The configuration in a TOML file. A path in it that is not absolute is looked for beside the file."""
    raw = read_toml(path, "the node's configuration")
    here = path.resolve().parent
    raw |= {name: here / raw[name] for name in _PATHS if isinstance(raw.get(name), str)}
    return validated(NodeFile, raw, where=f"the node's configuration {path}: ")


class Replaced:
    """A file that a run writes whole when it ends: whether it did, or an earlier process left it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before = self._stamp()

    def is_new(self) -> bool:
        """Whether another file has taken its place."""
        return self._stamp() not in (None, self._before)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns


class Follower:
    """Tells an observer what appears in a run's folder: the plan's length, then every released round.

    `metrics.jsonl` holds releasable numbers only, so no more can be shown than the run's own process would show.
    `started` says whether the observer has received the plan.
    """

    def __init__(self, directory: Path, experiment: Experiment, observer: Observer) -> None:
        self._directory, self._experiment, self._observer = directory, experiment, observer
        self._read, self._file, self.started = 0, 0, False
        self._ledger_before = self._ledger_seen()

    def look(self) -> None:
        """Pass on what is new."""
        metrics = self._directory / METRICS
        if not self.started and (self._ledger_seen() != self._ledger_before or metrics.exists()):
            self.started = True
            self._observer.started(self._plan())
        if not metrics.exists():
            return
        with metrics.open("rb") as file:
            if (now := os.fstat(file.fileno()).st_ino) != self._file:  # a resumed run writes what it keeps anew
                self._read, self._file = 0, now
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # still being written
                self._read += len(line)
                self._observer.round_done(json.loads(line))

    def _plan(self) -> dict[str, Any]:
        experiment = self._experiment
        begun_with = found_json(self._directory / CONFIG).get("experiment", {})  # with what a preset chose
        return {
            "directory": str(self._directory),
            "name": experiment.name,
            "title": experiment.title,
            "rounds": begun_with.get("training", {}).get("rounds", experiment.training.rounds),
            "clients": experiment.federation.clients,
            "epsilon": experiment.privacy.epsilon if experiment.privacy.noisy else float("inf"),
        }

    def _ledger_seen(self) -> int:
        ledger = self._directory / LEDGER
        return ledger.stat().st_mtime_ns if ledger.exists() else 0
