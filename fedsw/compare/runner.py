"""Running what is missing of a comparison: cells in processes of their own, as many at a time as there are cores."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from fedsw.compare.grid import Cell, Grid, missing, write_failure, write_result
from fedsw.compare.methods import methods
from fedsw.engines.pool import Watcher, run_all

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

    A cell that fails leaves its reason, and the others go on; one that was cut short starts again when the comparison
    is resumed.

    Args:
        work: runs a cell and says whether it came to a result; `run_cell` by default.
        open_pool: what the cells run in; processes with one thread each by default.
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
    """Train one cell under `folder`/runs and leave its result, or the reason why there is none.

    Returns:
        Whether there is a result.
    """
    try:
        summary, directory = _trained(cell, folder / "runs")
    except Exception as fault:
        write_failure(folder, cell, f"{type(fault).__name__}: {fault}")
        return False
    write_result(folder, cell, summary=summary, directory=directory)
    return True


def _trained(cell: Cell, runs: Path) -> tuple[dict[str, Any], Path]:
    """The summary and the folder of a cell's run, or of its baseline."""
    from fedsw.baselines.run import run as run_baseline
    from fedsw.engines.driver import fresh_directory, run

    method = methods()[cell.method]
    if method.baseline is not None:
        directory = fresh_directory(runs / cell.experiment.name)
        return run_baseline(method.baseline, cell.experiment, directory=directory, arguments=method.arguments)
    result = run(cell.experiment, runs=runs)
    return result.summary, result.directory
