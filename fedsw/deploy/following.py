"""A run that goes on in another process, shown from what it leaves in its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedsw.experiment import Experiment
from fedsw.runs.files import LEDGER, METRICS
from fedsw.runs.observer import Observer


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
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns


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
        return {
            "directory": str(self._directory),
            "name": experiment.name,
            "title": experiment.title,
            "rounds": experiment.training.rounds,
            "clients": experiment.federation.clients,
            "epsilon": experiment.privacy.epsilon if experiment.privacy.noisy else float("inf"),
        }

    def _ledger_seen(self) -> int:
        ledger = self._directory / LEDGER
        return ledger.stat().st_mtime_ns if ledger.exists() else 0
