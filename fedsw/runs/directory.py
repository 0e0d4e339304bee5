"""What a run leaves on disk: its name, config, plan, attempts, metrics, ledger, checkpoint, model, summary."""

from __future__ import annotations

import datetime
import io
import json
import math
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import Tensor, nn

from fedsw import files
from fedsw.experiment import Experiment, parse_experiment
from fedsw.runs.files import (
    ATTEMPTS,
    CONFIG,
    LEDGER,
    METRICS,
    MODEL,
    NAME,
    OUTPUTS,
    PLAN,
    RELEASES,
    SUMMARY,
    found_json,
    jsonable,
    read_json,
    read_lines,
    write_json,
)


class RunDirectory:
    """One run's folder. All that is written here is releasable, or marked unsafe in the summary.

    Not from here, and for the operator only: `log.jsonl`, which says when each round was released,
    `deployment/logs`, what the processes of a deployed run printed, and the times that the file system keeps.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._attempts: dict[int, int] | None = None  # the next number of each round that had one

    @property
    def ledger(self) -> Path:
        """The privacy ledger (SQLite)."""
        return self.path / LEDGER

    @property
    def releases(self) -> Path:
        """What clients released once, under trust models with one release."""
        return self.path / RELEASES

    @property
    def summary(self) -> Path:
        """How the run ended, the last time it ended in order."""
        return self.path / SUMMARY

    def name(self) -> str:
        """The name by which the clients know the run: the stored one, else a fresh one."""
        path = self.path / NAME
        return path.read_text(encoding="ascii").strip() if path.exists() else secrets.token_hex(16)

    def keep_name(self, name: str) -> None:
        """Store the run's name, before any client is asked for something that its ledger is charged for."""
        files.replace(self.path / NAME, f"{name}\n".encode("ascii"))

    def write_config(self, experiment: Experiment, engine: str) -> None:
        """Store the experiment as it runs, the engine it runs on, and that it begins now."""
        begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        content = {"engine": engine, "begun": begun, "experiment": experiment.model_dump(mode="json")}
        write_json(self.path / CONFIG, jsonable(content))

    def read_config(self) -> tuple[Experiment, str]:
        """The experiment and engine of a run that was started here."""
        path = self.path / CONFIG
        raw = read_json(path)
        if raw is None:
            raise FileNotFoundError(
                f"no run at {self.path}: it has no {CONFIG}; give the folder that `fedsw run` printed"
            )
        try:
            return parse_experiment(_finite_back(raw["experiment"])), str(raw["engine"])
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            raise ValueError(f"{path} is no configuration of a run: {fault}") from None

    @property
    def plan(self) -> Path:
        """The guarantee that the run began with, and for how many records."""
        return self.path / PLAN

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Store the guarantee of the run, before its first round; a resumed run keeps to it."""
        write_json(self.plan, jsonable(plan))

    def read_promise(self) -> tuple[float, float]:
        """(epsilon, delta) of the plan that the run began with."""
        try:
            stored = read_json(self.plan) or {}
            return float(stored["epsilon"]), float(stored["delta"])
        except (ValueError, LookupError, TypeError) as fault:
            raise ValueError(f"{self.plan} is no plan of a run: {fault}") from None

    def begun(self) -> str | None:
        """When the run began, whenever it was resumed; None if its config.json does not say."""
        return found_json(self.path / CONFIG).get("begun")

    def seconds(self) -> float:
        """Seconds that earlier processes of the run took, by the summary; 0 if there is none."""
        return float(found_json(self.summary).get("seconds", 0.0))

    def begin_attempt(self, round_: int) -> int:
        """The next unused attempt number of a round; on record before anything is sent."""
        fresh = self._next_attempts().get(round_, 0)
        with (self.path / ATTEMPTS).open("a", encoding="ascii") as file:
            file.write(f"{round_} {fresh}\n")
        self._next_attempts()[round_] = fresh + 1
        return fresh

    def know_attempts(self, spent: Iterable[tuple[int, int]]) -> None:
        """Number attempts after these too: a ledger may hold attempts that the log lost when its machine failed."""
        known = self._next_attempts()
        for round_, attempt in spent:
            known[round_] = max(known.get(round_, 0), attempt + 1)

    def _next_attempts(self) -> dict[int, int]:
        if self._attempts is None:
            self._attempts = {}
            path = self.path / ATTEMPTS
            text = path.read_text(encoding="ascii", errors="replace") if path.exists() else ""
            if text and not text.endswith("\n"):  # cut short by a full disk; nothing was sent under that number
                with path.open("a", encoding="ascii") as file:
                    file.write("\n")
            found = re.findall(r"^(\d+) (\d+)$", text, flags=re.MULTILINE)
            self.know_attempts((int(round_), int(attempt)) for round_, attempt in found)
        return self._attempts

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(jsonable(record)) + "\n")

    def read_metrics(self, *, through: int | None = None) -> list[dict[str, Any]]:
        """The records so far, up to and including round `through`; later ones are dropped from the file."""
        path = self.path / METRICS
        records = read_lines(path)
        if through is not None and path.exists():
            records = [record for record in records if record["round"] <= through]
            files.replace(path, "".join(json.dumps(record) + "\n" for record in records).encode())
        return records

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Store the summary."""
        write_json(self.summary, jsonable(summary))

    def read_summary(self) -> dict[str, Any]:
        """How the run ended the last time; empty if it never did in order."""
        return found_json(self.summary)

    def write_model(self, model: nn.Module) -> None:
        """Store the released model as safetensors."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        files.replace(self.path / MODEL, save(tensors))

    def write_outputs(self, arrays: Mapping[str, Tensor]) -> None:
        """Store held-out outputs (n, d), and what else the plots need, of any shape, by name."""
        found: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
        content = io.BytesIO()
        np.savez_compressed(content, **found)
        files.replace(self.path / OUTPUTS, content.getbuffer())


def _finite_back(raw: dict[str, Any]) -> dict[str, Any]:
    privacy = raw.get("privacy", {})
    if privacy.get("epsilon") == "inf":
        privacy["epsilon"] = math.inf
    return raw
