"""Runs of several methods at several budgets: their cells, how each is run, what is kept."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsw._tools import files
from fedsw._tools.settings import read_setting
from fedsw._tools.text import to_float, upward
from fedsw.desk.compare import GRID
from fedsw.desk.compare.methods import ComparedTask, build, find_task, fixed_by, is_own
from fedsw.desk.compare.methods import methods as all_methods
from fedsw.desk.run_grid import SEEDS, GridRun, at_seed, attempt, finish
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.experiment.trust import trust_model
from fedsw.federation.engines.pool import Watcher, run_all
from fedsw.runs.run_files import found_json, write_json

_DECIDED = {
    ("name",): "the cells are named by the comparison",
    ("seed",): "--nominal makes sampling and noise reproducible",
    ("privacy", "trust"): "--methods chooses it",
    ("privacy", "epsilon"): "--epsilon chooses it",
    ("privacy", "noise_multiplier"): "--epsilon decides it",
}
_CELL = ("id", "method", "epsilon", "seed")


@dataclass(frozen=True, kw_only=True)
class Cell(GridRun):
    """One run of the grid; `epsilon` is what it is asked to guarantee, infinite without privacy."""

    id: str
    method: str
    epsilon: float
    seed: int


@dataclass(frozen=True)
class Grid:
    """Cells of a comparison: every method at every epsilon with every seed; methods without privacy once a seed.

    ``left_out`` are methods of the task's own choice that would count as infinite in the account of the data set.
    """

    task: str
    methods: tuple[str, ...]
    epsilons: tuple[float, ...]
    seeds: int
    nominal: bool
    cells: tuple[Cell, ...]
    about: ComparedTask
    left_out: tuple[str, ...] = ()


def make_grid(
    task: str,
    *,
    methods: Sequence[str] | None = None,
    baselines: bool = False,
    epsilons: Sequence[float] = (1.0, 3.0, 10.0),
    seeds: int = 3,
    rounds: int | None = None,
    settings: Sequence[str] = (),
    nominal: bool = False,
) -> Grid:
    """Make the grid of a task, each cell with its experiment.

    Seed i adds i to the experiment's seeds of the data (the draw of synthetic records, the split of the digits), of
    the partition, of the model's initialisation, of the slicing directions, and of a sketch. Sampling and noise stay
    secret, unless `nominal` seeds them too: epsilon is then nominal.

    Methods are by default the task's own choice, without those that would put an infinite epsilon into the account of
    the data set. ExperimentError if the task cannot run a method (with those that can), a budget is not positive and
    finite, or a setting is wrong, is the grid's to decide, or is what makes one of the methods.
    """
    about = find_task(task)
    named = methods if methods is not None else about.methods
    chosen = tuple(dict.fromkeys([*named, *(about.baselines if baselines else ())]))
    budgets = tuple(sorted(set(epsilons)))
    _require(chosen, budgets, seeds, settings)
    shared = [*settings, *([f"training.rounds={rounds}"] if rounds is not None else [])]
    cells = tuple(cell for method in chosen for cell in _cells_of(task, method, budgets, seeds, shared, nominal))
    # a run without noise would put an infinite epsilon into the account of the data set: only who names it runs it
    spends_all = (
        cell.method
        for cell in cells
        if cell.experiment.data.account is not None
        and cell.baseline is None
        and trust_model(cell.experiment.privacy.trust).fixed_epsilon is not None
    )
    left_out = tuple(dict.fromkeys(spends_all)) if methods is None else ()
    cells = tuple(cell for cell in cells if cell.method not in left_out)
    chosen = tuple(name for name in chosen if name not in left_out)
    for data in (cell.experiment.data for cell in cells):
        if data.own and data.held_out is None and not data.held_out_released:
            raise ExperimentError(
                f"{task} names no held-out records, and methods are compared on them: set data.held_out to a table at "
                "the server that holds nobody's private record (--set data.held_out=held-out.csv), or let clients keep "
                "some (data.held_out_fraction, with data.held_out_to 'everybody')"
            )
    name = Path(task).stem if is_own(task) else task
    return Grid(name, chosen, budgets, seeds, nominal, cells, about, left_out)


def write_grid(folder: Path, grid: Grid) -> None:
    """Put the grid into its folder, with every cell's experiment as it runs."""
    files.new_folder(folder / "cells")
    plain = ("task", "methods", "epsilons", "seeds", "nominal")
    cells = [
        {name: getattr(cell, name) for name in _CELL} | {"experiment": cell.experiment.model_dump(mode="json")}
        for cell in grid.cells
    ]
    content = {name: getattr(grid, name) for name in plain}
    write_json(folder / GRID, content | {"about": grid.about.model_dump(mode="json"), "cells": cells})


def read_grid(folder: Path) -> Grid:
    """Read the grid of a folder that `write_grid` made."""
    try:
        raw = json.loads((folder / GRID).read_text(encoding="utf-8"))
        cells = tuple(_read_cell(cell) for cell in raw["cells"])
        epsilons = tuple(float(epsilon) for epsilon in raw["epsilons"])
        about = ComparedTask.model_validate(raw["about"]) if "about" in raw else find_task(raw["task"])
        return Grid(raw["task"], tuple(raw["methods"]), epsilons, raw["seeds"], raw["nominal"], cells, about)
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as fault:
        raise ValueError(f"{folder} holds no comparison: {GRID} is missing or damaged ({fault})") from None


def write_result(folder: Path, cell: Cell, *, summary: Mapping[str, Any], directory: Path) -> None:
    """Keep what a cell's run came to."""
    where = str(directory.relative_to(folder))
    write_json(_file(folder, cell), {"status": "completed", "summary": summary, "directory": where})


def write_failure(folder: Path, cell: Cell, fault: str) -> None:
    """Keep why a cell has no result; resuming the comparison runs it again."""
    write_json(_file(folder, cell), {"status": "failed", "error": fault})


def read_result(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """Read a cell's result or failure; None if it has not ended or its file is damaged."""
    result = found_json(_file(folder, cell))
    return result if result.get("status") in ("completed", "failed") else None


def missing(folder: Path, grid: Grid) -> list[Cell]:
    """List the cells that have no result yet, or failed."""
    return [cell for cell in grid.cells if (read_result(folder, cell) or {}).get("status") != "completed"]


def _cells_of(
    task: str, method: str, budgets: Sequence[float], seeds: int, shared: Sequence[str], nominal: bool
) -> Iterator[Cell]:
    base = build(task, method, shared)
    private = trust_model(base.privacy.trust).fixed_epsilon is None
    seeds_of = SEEDS + base.privacy.model.seeds
    for epsilon in budgets if private else (math.inf,):
        for seed in range(seeds):
            name = f"{method}-epsilon-{epsilon:g}-seed-{seed}" if private else f"{method}-seed-{seed}"
            changes = [f'name="{name}"', f'title="{method}, ε = {upward(epsilon)}, seed {seed}"']
            seeded = seeds_of[1:] if base.data.own else seeds_of
            changes += at_seed(base, seed, seeded)
            changes += [f"privacy.epsilon={epsilon!r}"] if private else []
            changes += [f"seed={seed}"] if nominal else []
            yield _cell(name, method, epsilon, seed, build(task, method, [*shared, *changes]))


def _cell(name: str, method: str, epsilon: float, seed: int, experiment: Experiment) -> Cell:
    known = all_methods()[method]
    return Cell(
        id=name,
        method=method,
        epsilon=epsilon,
        seed=seed,
        experiment=experiment,
        baseline=known.baseline,
        arguments=known.arguments,
    )


def _read_cell(raw: dict[str, Any]) -> Cell:
    epsilon = to_float(raw["epsilon"])
    if epsilon is None:
        raise KeyError("epsilon")
    if not re.fullmatch(r"[\w.+-]+", str(raw["id"])) or raw["id"] in (".", ".."):
        raise ValueError(f"a comparison's cell has the id {raw['id']!r}, which is no name of a file in its folder")
    return _cell(raw["id"], raw["method"], epsilon, raw["seed"], parse_experiment(raw["experiment"]))


def _require(methods: Sequence[str], epsilons: Sequence[float], seeds: int, settings: Sequence[str]) -> None:
    if not methods:
        raise ExperimentError("there is no method to compare; name some, as in --methods none,central")
    for epsilon in epsilons:
        if not 0 < epsilon < math.inf:
            raise ExperimentError(
                f"epsilon is {str(epsilon).removesuffix('.0')}; it must be above 0 and finite (the method 'none' "
                "has no privacy)"
            )
    if not epsilons:
        raise ExperimentError("there is no epsilon to compare at; give some, as in --epsilon 1,3,10")
    if seeds < 1:
        raise ExperimentError(f"seeds is {seeds}; a comparison needs at least 1")
    for setting in settings:
        keys = read_setting(setting)[0]
        if reason := next((why for decided, why in _DECIDED.items() if _overlap(keys, decided)), None):
            raise ExperimentError(f"setting {setting!r} cannot be the same in every cell: {reason}")
        for method in methods:
            if fixed := next((key for key in fixed_by(method) if _overlap(keys, key)), None):
                raise ExperimentError(
                    f"setting {setting!r}: {'.'.join(fixed)} is part of what the method {method!r} is; leave it out, "
                    "or compare without that method"
                )


def _overlap(keys: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Say whether to set one key is to set the other, or a section that it is in."""
    return all(one == other for one, other in zip(keys, others, strict=False))


def _file(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{cell.id}.json"


Work = Callable[[Path, Cell], bool]


def run_missing(
    folder: Path,
    grid: Grid,
    *,
    jobs: int,
    watcher: Watcher,
    work: Work | None = None,
    open_pool: Callable[[int], Executor] | None = None,
) -> None:
    """Run the cells of the grid that have no result yet, `jobs` at a time; each leaves its result in the folder.

    A cell that fails leaves its reason, and the others go on; one that was cut short goes on when the comparison is
    resumed. The work says whether a cell came to a result; the pool is of processes with one thread each by default.
    """
    run_all(
        missing(folder, grid),
        functools.partial(work or run_cell, folder),
        jobs=jobs,
        watcher=watcher,
        failed=functools.partial(write_failure, folder),
        open_pool=open_pool,
    )


def run_cell(folder: Path, cell: Cell) -> bool:
    """Train one cell under `folder`/runs and leave its result, or the reason why there is none."""

    def make(cell: Cell) -> None:
        summary, directory = finish(cell, folder / "runs")
        write_result(folder, cell, summary=summary, directory=directory)

    return attempt(make, functools.partial(write_failure, folder), cell)
