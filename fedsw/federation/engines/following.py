"""Following a run that another process makes: an observer is shown what appears in the run's folder."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsw._tools.text import to_float
from fedsw.runs.observer import Attending, Observer
from fedsw.runs.roll_call import read_roll
from fedsw.runs.run_files import RunFile, found_json, read_json

if TYPE_CHECKING:
    from fedsw.experiment import Experiment
    from fedsw.federation.deploy.flower_processes import SuperLink


class Follower:
    """Shows an observer what appears in a run's folder: who is there, the plan's length, then every released round.

    `metrics.jsonl` holds releasable numbers only, so no more can be shown than the run's own process would show.
    `started` says whether the observer has received the plan. Of a run that another user submits, the `experiment` is
    None, and read from its folder.
    """

    def __init__(self, directory: Path, experiment: Experiment | None, observer: Observer) -> None:
        self._directory, self._experiment, self._observer = directory, experiment, observer
        self._read, self._file, self.started = 0, 0, False
        self._ledger_before, self._roll = self._ledger_seen(), Replaced(directory / RunFile.ROLL)

    def look(self) -> None:
        """Pass on what is new."""
        if isinstance(self._observer, Attending) and self._roll.is_new():
            self._roll = Replaced(self._roll.path)
            self._observer.roll_called(read_roll(self._directory))
        metrics = self._directory / RunFile.METRICS
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
        begun_with = found_json(self._directory / RunFile.CONFIG).get("experiment")  # with what a preset chose
        settings = begun_with or ({} if self._experiment is None else self._experiment.model_dump(mode="json"))
        return {
            "directory": str(self._directory),
            "name": settings.get("name", self._directory.name),
            "title": settings.get("title", ""),
            "rounds": settings.get("training", {}).get("rounds", 0),
            "clients": settings.get("federation", {}).get("clients", 0),
            "epsilon": to_float(settings.get("privacy", {}).get("epsilon")),
        }

    def _ledger_seen(self) -> int:
        ledger = self._directory / RunFile.LEDGER
        return ledger.stat().st_mtime_ns if ledger.exists() else 0


class Replaced:
    """A file that a run writes whole when it ends, distinguished from one that an earlier process left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before = self._stamp()

    def is_new(self) -> bool:
        """True if another file has taken its place."""
        return self._stamp() not in (None, self._before)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns


class ServiceFollower:
    """Shows an observer the run that was submitted last to a SuperLink which goes on serving, and how it ended."""

    def __init__(self, link: SuperLink, observer: Observer) -> None:
        self._link, self._observer = link, observer
        self._directory: Path | None = None
        self._follower: Follower | None = None
        self._summary: Replaced | None = None

    def look(self) -> None:
        """Pass on what is new; a file that cannot be read ends no service."""
        with contextlib.suppress(OSError, ValueError):
            directory = runs[-1] if (runs := self._link.runs) else self._directory
            if directory is not None and directory != self._directory:
                self._directory, self._follower = directory, Follower(directory, None, self._observer)
                self._summary = Replaced(directory / RunFile.SUMMARY)
            if self._follower is None:
                return
            self._follower.look()
            if self._summary is not None and self._summary.is_new():
                self._observer.finished(read_json(self._summary.path) or {})
                self._summary = None
