"""Making what is missing of figures: runs that resume where they stopped, measures, computations."""

from __future__ import annotations

import datetime
import functools
import importlib
import inspect
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedsw._tools.text import installed_version
from fedsw.data.sources import load_public, load_shape
from fedsw.desk.run_grid import attempt, finish
from fedsw.experiment import Experiment
from simulations.papers.cells import Cell, Computation, cells_of, computations_of
from simulations.papers.computed.parallel import device_name
from simulations.papers.figure import Figure
from simulations.papers.finished import Finished, on_device
from simulations.papers.store import Measured, Stored, read, write

HELD_OUT = "held-out"
"""The measure that every run has: its own held-out metrics, which cover no private record."""

_ENOUGH = 0.98
"""Part of the rounds after which a run that its budget ended is a result; its file says how many there were."""

_ABOUT = (
    "status", "epsilon", "delta", "nominal", "guarantee", "rounds", "released_rounds", "clients", "seconds", "bytes_up",
    "bytes_down", "versions", "hardware", "begun", "date", "held_out_measured_on",
)  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """A run to make or to go on with, and what to measure on it; or a computation."""

    key: str
    what: Cell | Computation
    measures: tuple[str, ...]


def pieces_of(figures: Iterable[Figure], *, seeds: int | None = None) -> list[Piece]:
    """What figures are made from, every run once, with all that any of them measures on it."""
    found: dict[str, Piece] = {}
    for figure in figures:
        everything: list[Cell | Computation] = [*computations_of(figure), *cells_of(figure, seeds=seeds)]
        for what in everything:
            asked = what.measures if isinstance(what, Cell) else ()
            known = found[what.key].measures if what.key in found else ()
            found[what.key] = Piece(what.key, what, tuple(dict.fromkeys([*known, *asked])))
    return list(found.values())


def missing(results: Path, pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces that have no result, failed, or lack a measure."""
    return [piece for piece in pieces if not _whole(read(results, piece.key), piece)]


def without_data(pieces: Iterable[Piece]) -> Mapping[str, str]:
    """The pieces whose data cannot be found, by key, with where it was looked for and what to do; nothing is run.

    Every data set is looked for once. Computations look for theirs when they begin.
    """
    known: dict[str, str | None] = {}
    found: dict[str, str] = {}
    for piece in pieces:
        if isinstance(piece.what, Computation):
            continue
        experiment = piece.what.experiment
        name = json.dumps(experiment.data.model_dump(mode="json"))
        if name not in known:
            known[name] = _absence(experiment)
        reason = known[name]
        if reason is not None:
            found[piece.key] = reason
    return found


def _absence(experiment: Experiment) -> str | None:
    try:
        load_shape(experiment.record_source)
        load_public(experiment.data)
    except (FileNotFoundError, ModuleNotFoundError) as fault:
        return str(fault)
    return None


def reads_results(piece: Piece) -> bool:
    """Whether a piece is computed from other results: its function then has an argument `results`, their folder."""
    if not isinstance(piece.what, Computation):
        return False
    return "results" in inspect.signature(function("computed", piece.what.function)).parameters


def make(runs: Path, results: Path, piece: Piece, *, device: str = "cpu", anew: bool = False) -> bool:
    """Run or compute a piece, measure what is missing, and store it; or store why there is no result.

    Args:
        device: what runs compute on, "cpu" or "cuda". It is no part of what a run is, and its file names it.
        anew: make it whole, whatever is stored of it.

    Returns:
        Whether there is a result.
    """
    making = functools.partial(_make, runs, results, device, anew)
    return attempt(making, functools.partial(fail, results), piece)


def _make(runs: Path, results: Path, device: str, anew: bool, piece: Piece) -> None:
    if isinstance(piece.what, Computation):
        write(results, piece.key, _computed(piece.what, results if reads_results(piece) else None))
        return
    stored = Stored() if anew else _known(results, piece.key)
    _run_and_measure(runs, results, piece, piece.what, device, stored)


def fail(results: Path, piece: Piece, fault: str) -> None:
    """Keep why a piece has no result beside what is known of it; it is made again the next time."""
    write(results, piece.key, replace(_known(results, piece.key), fault=fault))


def _whole(stored: Stored | None, piece: Piece) -> bool:
    return stored is not None and stored.fault is None and not any(map(stored.lacks, piece.measures))


def _run_and_measure(runs: Path, results: Path, piece: Piece, cell: Cell, device: str, stored: Stored) -> None:
    if HELD_OUT in stored.measures and not any(map(stored.lacks, piece.measures)):
        write(results, piece.key, replace(stored, fault=None))
        return
    there = replace(cell, experiment=on_device(cell.experiment, device))
    summary, directory = finish(there, runs / piece.key, _far_enough)
    finished = Finished(directory)
    if not _far_enough(summary):
        raise RuntimeError(
            f"the run in {finished.directory} ended as {summary['status']!r} after {summary['released_rounds']} of "
            f"{summary['rounds']} rounds; delete its folder, and it is made afresh"
        )
    about = {"settings": cell.settings} | {name: summary.get(name) for name in _ABOUT}
    held_out = Measured(dict(summary["held_out"]))
    stored = Stored(about, {**stored.measures, HELD_OUT: held_out})
    for name in piece.measures:
        if stored.lacks(name):
            found: Measured = function("measures", name)(finished)
            stored = replace(stored, measures={**stored.measures, name: found})
            write(results, piece.key, stored)
    write(results, piece.key, stored)


def _far_enough(summary: Mapping[str, Any]) -> bool:
    """Whether a run ended, or came so far that its figure is the same.

    A round that was charged when its machine failed is charged again: the budget then ends the run that much earlier.
    """
    status, rounds = str(summary["status"]), int(summary["released_rounds"])
    return status == "completed" or (status.startswith("stopped before") and rounds >= _ENOUGH * summary["rounds"])


def _computed(computation: Computation, results: Path | None) -> Stored:
    began = time.perf_counter()
    read_from = {} if results is None else {"results": results}
    found: Measured = function("computed", computation.function)(**computation.settings, **read_from)
    about = {
        "settings": dict(computation.settings),
        "seconds": time.perf_counter() - began,
        "versions": {"python": platform.python_version(), "fedsw": installed_version()},
        "hardware": {"machine": platform.machine(), "cores": os.cpu_count(), "device": device_name()},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return Stored(about, {HELD_OUT: found})


def _known(results: Path, key: str) -> Stored:
    return read(results, key) or Stored()


def function(package: str, name: str) -> Callable[..., Any]:
    """The function "file.name" of one of the folders `measures`, `computed` and `drawn`."""
    file, _, own = name.partition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"simulations.papers.{package}.{file}"), own)
    return found
