"""A run's folder on disk: its name, config, plan, attempts, metrics, ledger, checkpoint, model, summary."""

from __future__ import annotations

import datetime
import io
import json
import math
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsw._tools import files
from fedsw._tools.later import Later
from fedsw._tools.text import shown
from fedsw.experiment import Experiment, parse_experiment
from fedsw.experiment.choices import require_allowed_code
from fedsw.privacy.accounting.selection import Selection
from fedsw.runs.run_files import (
    ALONE,
    FORMATS,
    RUN_NAME,
    RunFile,
    found_json,
    jsonable,
    read_json,
    read_lines,
    require_format,
    require_plain_files,
    write_json,
)

if TYPE_CHECKING:
    from safetensors import torch as safetensors_of_torch
    from torch import Tensor, nn
else:  # readers of a run's files do not load torch
    safetensors_of_torch = Later("safetensors.torch")


class RunDirectory:
    """One run's folder. All that is written here is releasable, or marked unsafe in the summary.

    For the operator only, and written elsewhere: `log.jsonl` (when each round was released), `roll.json` (clients and
    their reports), `deployment/logs` (output of a deployed run's processes), and the file system's times.

    Attempts are synchronised to disk unless clients are threads of this process (`clients_in_process`): if the machine
    fails, such clients remember no attempt either, and the ledger has all that were charged.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.clients_in_process = path, False
        self.ledger, self.plan, self.summary = path / RunFile.LEDGER, path / RunFile.PLAN, path / RunFile.SUMMARY
        self.releases = path / RunFile.RELEASES
        self._attempts: dict[int, int] | None = None  # the next number of each round that had one

    def make(self) -> None:
        """Make the folder if it is not there, for its owner only."""
        if not self.path.is_dir():
            files.private_folder(self.path)

    def name(self) -> str:
        """The run's name in requests to clients: the stored one, ValueError if it is damaged, else a fresh one."""
        path = self.path / RunFile.NAME
        if not path.exists():
            return secrets.token_hex(16)
        name = path.read_text(encoding="ascii", errors="replace").strip()
        if re.fullmatch(RUN_NAME, name) is None:
            raise ValueError(f"{path} is damaged: it holds {shown(repr(name))}, and a run's name is 32 hex digits")
        return name

    def keep_name(self, name: str) -> None:
        """Store the run's name, before any client is asked for a release."""
        files.replace(self.path / RunFile.NAME, f"{name}\n".encode("ascii"))

    def write_config(self, experiment: Experiment, engine: str, selection: Selection | None = None) -> None:
        """Store the experiment as it runs, its engine, that it begins now, and the selection that it belongs to."""
        self.make()
        begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        content: dict[str, Any] = {
            "format": FORMATS[-1],
            "engine": engine,
            "begun": begun,
            "experiment": experiment.model_dump(mode="json"),
        }
        if selection is not None:
            content["selection"] = selection.as_dict()
        write_json(self.path / RunFile.CONFIG, jsonable(content))

    def write_experiment(self, experiment: Experiment) -> None:
        """Replace the stored experiment; the rest of the configuration stays."""
        content = found_json(self.path / RunFile.CONFIG) | {"experiment": experiment.model_dump(mode="json")}
        write_json(self.path / RunFile.CONFIG, jsonable(content))

    def read_config(self, allow_modules: Collection[str] = ()) -> tuple[Experiment, str]:
        """The experiment and engine of a run that was started here, with code of the allowed modules only.

        Raises:
            FileNotFoundError: if there is no run. ValueError: naming the file, if it is damaged.
            CodeRefused: if the experiment names another module.
        """
        path = self.path / RunFile.CONFIG
        raw = read_json(path)
        if raw is None:
            raise FileNotFoundError(
                f"no run at {self.path}: it has no {RunFile.CONFIG}; give the folder that `fedsw run` printed"
            )
        require_format(raw, path)
        try:
            experiment, engine = parse_experiment(raw["experiment"]), str(raw["engine"])
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            raise ValueError(f"{path} is no configuration of a run: {fault}") from None
        require_plain_files(self.path)
        require_allowed_code(experiment, allow_modules, stored=path)
        return experiment, engine

    def read_selection(self) -> Selection | None:
        """The private selection that the run won, from its config.json; None for any other run."""
        stored = (read_json(self.path / RunFile.CONFIG) or {}).get("selection")
        try:
            return None if stored is None else Selection.of(stored)
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            raise ValueError(f"{self.path / RunFile.CONFIG} is no configuration of a selected run: {fault}") from None

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Store the guarantee of the run, before its first round; a resumed run has the same."""
        write_json(self.plan, jsonable(plan))

    def read_promise(self) -> tuple[float, float]:
        """(epsilon, delta) of the plan that the run began with."""
        try:
            stored = read_json(self.plan) or {}
            return float(stored["epsilon"]), float(stored["delta"])
        except (ValueError, LookupError, TypeError) as fault:
            raise ValueError(f"{self.plan} is no plan of a run: {fault}") from None

    def begun(self) -> str | None:
        """When the run first began; None if its config.json lacks that."""
        return found_json(self.path / RunFile.CONFIG).get("begun")

    def seconds(self) -> float:
        """Seconds of the run's earlier processes, by its summary; 0 before the first summary."""
        return float(found_json(self.summary).get("seconds") or 0.0)

    def begin_attempt(self, round_: int) -> int:
        """The next unused attempt number of a round, put on record before any request is sent."""
        fresh = self.next_attempts().get(round_, 0)
        self.keep_attempt(round_, fresh)
        return fresh

    def keep_attempt(self, round_: int, attempt: int) -> None:
        """Put an attempt on record, synchronised unless clients are in this process."""
        path, text = self.path / RunFile.ATTEMPTS, self._attempts_log()
        new = not path.exists()
        ended = "" if not text or text.endswith("\n") else "\n"  # a line cut short by a full disk: nothing was sent
        with files.opened(path, "a") as file:
            file.write(f"{ended}{round_} {attempt}\n")
        if not self.clients_in_process:
            files.sync(path)
            if new:
                files.sync(self.path)
        self.know_attempts([(round_, attempt)])

    def begun_attempts(self) -> list[tuple[int, int]]:
        """Every attempt on record as (round, number), in their order."""
        attempts = re.findall(r"^(\d+) (\d+)$", self._attempts_log(), flags=re.MULTILINE)
        return [(int(round_), int(attempt)) for round_, attempt in attempts]

    def agree_to_charge(self) -> None:
        """Let the next resumed process charge the attempts that clients answered and this folder lacks."""
        files.opened(self.path / RunFile.AGREED).close()

    @property
    def agreed_to_charge(self) -> bool:
        """True if the operator agreed to that."""
        return (self.path / RunFile.AGREED).exists()

    def forget_agreement(self) -> None:
        """Remove the agreement, which covers one process."""
        (self.path / RunFile.AGREED).unlink(missing_ok=True)

    def agree_to_go_on(self) -> None:
        """Let the next resumed process release the rounds again that its checkpoint lacks."""
        files.replace(self.path / RunFile.GAP, b"agreed")

    def accepted_gap(self) -> float:
        """The last round that the operator agreed to release again; infinite before `accept_gap` limits it, else 0."""
        path = self.path / RunFile.GAP
        agreed = path.read_text(encoding="ascii", errors="replace").strip() if path.exists() else "0"
        return math.inf if agreed == "agreed" else float(agreed) if agreed.isdecimal() else 0.0

    def accept_gap(self, through: int) -> None:
        """Limit the agreement to rounds up to this one."""
        files.replace(self.path / RunFile.GAP, str(through).encode("ascii"))

    def know_attempts(self, spent: Iterable[tuple[int, int]]) -> None:
        """Number new attempts after these: a ledger may hold attempts that a failing machine lost from the log."""
        known = self.next_attempts()
        for round_, attempt in spent:
            known[round_] = max(known.get(round_, 0), attempt + 1)

    def next_attempts(self) -> dict[int, int]:
        """The next attempt number of every begun round."""
        if self._attempts is None:
            self._attempts = {}
            self.know_attempts(self.begun_attempts())
        return self._attempts

    def _attempts_log(self) -> str:
        path = self.path / RunFile.ATTEMPTS
        return path.read_text(encoding="ascii", errors="replace") if path.exists() else ""

    def stop_after_moments(self) -> None:
        """Mark the run to stop once its moments are released."""
        files.opened(self.path / RunFile.MOMENTS_ALONE).close()

    def stops_after_moments(self) -> bool:
        """True if the run is marked to stop after its moments, and has not yet stopped there."""
        return (self.path / RunFile.MOMENTS_ALONE).exists() and not self._stopped_after_moments()

    def go_on_after_moments(self) -> None:
        """Remove the mark of a run that has stopped there; its lock is held."""
        if self._stopped_after_moments():
            (self.path / RunFile.MOMENTS_ALONE).unlink(missing_ok=True)

    def _stopped_after_moments(self) -> bool:
        return self.read_summary().get("status") == ALONE

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        with files.opened(self.path / RunFile.METRICS, "a") as file:
            file.write(json.dumps(jsonable(record)) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The records so far."""
        return read_lines(self.path / RunFile.METRICS)

    def cut_metrics(self, *, through: int) -> None:
        """Drop the lines of rounds after `through`, which are done again, and a line that was cut short."""
        if (path := self.path / RunFile.METRICS).exists():
            remaining = [record for record in self.read_metrics() if record["round"] <= through]
            files.replace(path, "".join(json.dumps(record) + "\n" for record in remaining).encode())

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Store the summary."""
        write_json(self.summary, jsonable(summary))

    def read_summary(self) -> dict[str, Any]:
        """The last summary; empty before the run ended for the first time."""
        return found_json(self.summary)

    def write_model(self, model: nn.Module) -> None:
        """Store the released model as safetensors."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        files.replace(self.path / RunFile.MODEL, safetensors_of_torch.save(tensors))

    def write_outputs(self, arrays: Mapping[str, Tensor]) -> None:
        """Store held-out outputs (n, d), and other arrays for plots, of any shape, by name."""
        values: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
        content = io.BytesIO()
        np.savez_compressed(content, **values)
        files.replace(self.path / RunFile.OUTPUTS, content.getbuffer())
