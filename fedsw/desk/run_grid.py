"""A grid of runs: each has a key made of its settings, is made once, goes on where it stopped, and its faults are kept.

`fedsw compare`, `fedsw demo` and the papers' figures are made of it; each keeps results in its own form.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedsw._tools.files import fresh_folder
from fedsw._tools.later import imported_later
from fedsw.experiment import Experiment
from fedsw.experiment.choices import modules_of
from fedsw.runs.observer import Observer
from fedsw.runs.progress import Display
from fedsw.runs.run_files import RunFile, in_order, read_json

if TYPE_CHECKING:  # loaded when a run begins: the grid's list and its bar take no torch
    from fedsw.desk.baselines import run_baseline as run_baseline
    from fedsw.federation.engines import driver as driver

globals().update(imported_later(__spec__))

SEEDS = ("data", "partition", "model", "slicing")
"""Sections with a public seed of their own."""

_HOUR = 3600.0

Piece = TypeVar("Piece")


@dataclass(frozen=True, kw_only=True)
class GridRun:
    """One run of a grid: an experiment, or a ``baseline`` with its ``arguments`` that trains in its place."""

    experiment: Experiment
    baseline: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the run that are not the default, and the baseline that trains in its place."""
        settings = settings_of(self.experiment)
        return settings if self.baseline is None else settings | {"baseline": {"name": self.baseline, **self.arguments}}

    @property
    def key(self) -> str:
        """Name of the run and a digest of its settings that are not the default: equal for equal runs."""
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:12]
        return f"{self.experiment.name}-{digest}"


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """Return the settings of an experiment that are not the default, without its names and where its data lie."""
    settings = experiment.model_dump(mode="json", exclude_defaults=True, exclude={"name", "title"})
    settings.get("data", {}).pop("data_dir", None)
    return settings


def at_seed(base: Experiment, seed: int, sections: Sequence[str] = SEEDS) -> list[str]:
    """Write the settings that move an experiment's public seeds on by `seed`."""
    return [f"{section}.seed={getattr(base, section).seed + seed}" for section in sections]


def finish(
    run: GridRun,
    folder: Path,
    is_enough: Callable[[Mapping[str, Any]], bool] = lambda summary: summary["status"] == "completed",
    observer: Observer | None = None,
) -> tuple[Mapping[str, Any], Path]:
    """Return summary and folder of a run: the finished one in `folder`/<name>, else a resumed, else a fresh one.

    ``is_enough`` says of a summary whether its run needs nothing more.
    A baseline that stopped begins afresh: nothing of it is kept.
    """
    begun = in_order(path.parent for path in folder.glob(f"{run.experiment.name}/*/{RunFile.CONFIG}"))
    for directory in begun:
        summary = read_json(directory / RunFile.SUMMARY)
        if summary and is_enough(summary):
            return summary, directory
    if run.baseline is not None:
        fresh = fresh_folder(folder / run.experiment.name)
        return run_baseline.run(run.baseline, run.experiment, directory=fresh, arguments=run.arguments)
    if begun:
        result = driver.resume(begun[-1], observer=observer, allow_modules=modules_of(run.experiment))
    else:
        result = driver.run(run.experiment, runs=folder, observer=observer)
    return result.summary, result.directory


def attempt(make: Callable[[Piece], None], fail: Callable[[Piece, str], None], piece: Piece) -> bool:
    """Make a piece of the grid, or let `fail` keep why there is no result; return whether there is one."""
    try:
        make(piece)
    except Exception as fault:
        fail(piece, f"{type(fault).__name__}: {fault}")
        return False
    return True


class GridProgress(Display):
    """A bar over the cells of a grid; a context manager. `begun` says whether any cell was started."""

    def __init__(self, *, label: str, cells: int, done: int, quiet: bool = False) -> None:
        super().__init__(quiet=quiet, estimate=_HOUR)
        self.begun = False
        self._running, self._failed = 0, 0
        self._task = self._bar.add_task(label, total=cells, completed=done, state="")

    def running(self, cells: int) -> None:
        """Show how many cells run now."""
        self.begun, self._running = True, cells
        self._show()

    def ended(self, *, failed: bool) -> None:
        """Count a cell."""
        self._running -= 1
        self._failed += failed
        self._bar.advance(self._task)
        self._show()

    def _show(self) -> None:
        failures = f", {self._failed} failed" if self._failed else ""
        self._bar.update(self._task, state=f"{self._running} running{failures}")
