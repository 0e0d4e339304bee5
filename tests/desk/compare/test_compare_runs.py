"""Laws of running a comparison: what is run again, and what a broken cell costs."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from fedsw.desk.compare.comparison_grid import (
    Cell,
    make_grid,
    missing,
    read_grid,
    read_result,
    run_cell,
    run_missing,
    write_failure,
    write_result,
)
from fedsw.desk.compare.table import make_table
from fedsw.experiment import Experiment
from tests.desk.compare.comparing import FAIR, TINY, Counts, begun, pretend, run_all, summary_of


def test_a_folder_gives_back_the_grid_that_it_was_made_with(tmp_path: Path) -> None:
    grid = begun(tmp_path, make_grid("ring", epsilons=[1, 3], seeds=2, rounds=5))
    assert read_grid(tmp_path) == grid
    (tmp_path / "grid.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no comparison"):
        read_grid(tmp_path)


def test_resuming_runs_only_what_is_missing_failed_or_damaged(tmp_path: Path) -> None:
    grid = begun(tmp_path, make_grid("fair-classification", methods=FAIR[1:], epsilons=[1], seeds=2))
    first, second, third, *_ = grid.cells
    assert run_all(tmp_path, grid).done == len(grid.cells) == 10
    assert missing(tmp_path, grid) == []
    (tmp_path / "cells" / f"{first.id}.json").unlink()
    write_failure(tmp_path, second, "RuntimeError: gone")
    (tmp_path / "cells" / f"{third.id}.json").write_text('{"status": "comp')
    ran: list[Cell] = []

    def note(folder: Path, cell: Cell) -> bool:
        ran.append(cell)
        write_result(folder, cell, summary=summary_of(cell.experiment), directory=folder)
        return True

    counts = run_all(tmp_path, read_grid(tmp_path), note)
    assert ran == [first, second, third]
    assert (counts.done, counts.failed) == (3, 0)
    assert missing(tmp_path, grid) == []


def test_a_cell_that_fails_leaves_its_reason_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = begun(tmp_path, make_grid("fair-classification", methods=FAIR[1:], epsilons=[1], seeds=2))
    broken = grid.cells[3]

    def run(experiment: Experiment, *, runs: Path, observer: Any) -> Any:
        if experiment.name == broken.id:
            raise RuntimeError("client 2 raised ZeroDivisionError")
        directory = runs / experiment.name
        return type("Result", (), {"summary": summary_of(experiment), "directory": directory})()

    monkeypatch.setattr("fedsw.federation.engines.driver.run", run)
    counts = run_all(tmp_path, grid, run_cell)
    assert (counts.done, counts.failed) == (10, 1)
    assert missing(tmp_path, grid) == [broken]
    result = read_result(tmp_path, broken)
    assert result == {"status": "failed", "error": "RuntimeError: client 2 raised ZeroDivisionError"}
    table = make_table(tmp_path)
    assert table["failed"] == [{"cell": broken.id, "error": "RuntimeError: client 2 raised ZeroDivisionError"}]
    assert table["cells"] == {"all": 10, "completed": 9, "failed": 1}
    (row,) = [row for group in table["groups"] for row in group["rows"] if row["failed"]]
    assert (row["method"], row["seeds"], row["failed"]) == (broken.method, 1, 1)


def test_a_cell_that_was_cut_short_goes_on_with_its_own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = make_grid("fair-classification", methods=["central"], epsilons=[1], seeds=1, rounds=3, settings=TINY)
    (cell,) = begun(tmp_path, grid).cells
    with monkeypatch.context() as broken:
        broken.setattr("fedsw.runs.optimizer.Trainer.step", _failing_in_the_second())
        assert not run_cell(tmp_path, cell)
    assert run_cell(tmp_path, cell)
    (directory,) = (tmp_path / "runs" / cell.id).iterdir()
    attempts = (directory / "attempts.log").read_text(encoding="ascii").splitlines()
    assert attempts[0] == "1 0" and sum(line.startswith("1 ") for line in attempts) == 1


def _failing_in_the_second() -> Any:
    from fedsw.runs.optimizer import Trainer

    step, calls = Trainer.step, []

    def failing(self: Trainer, *arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the machine went down")
        return step(self, *arguments, **named)

    return failing


def test_cells_beyond_a_killed_process_run_in_new_ones(tmp_path: Path) -> None:
    grid = begun(tmp_path, make_grid("fair-classification", methods=FAIR[1:], epsilons=[1], seeds=2))
    opened: list[Executor] = []

    class Mortal(ThreadPoolExecutor):
        """Refuses everything after the cell that kills it, as a process pool does."""

        dead = False

        def submit(self, call: Any, cell: Any, /) -> Any:  # type: ignore[override]
            if self.dead:
                raise BrokenProcessPool("already broken")
            self.dead = cell.id == grid.cells[2].id
            return super().submit(_die if self.dead else call, cell)

    def _die(cell: Cell) -> bool:
        raise BrokenProcessPool("terminated abruptly")

    def open_pool(jobs: int) -> Executor:
        opened.append(Mortal(jobs))
        return opened[-1]

    counts = Counts()
    run_missing(tmp_path, grid, jobs=2, watcher=counts, work=pretend, open_pool=open_pool)
    assert len(opened) == 2
    assert missing(tmp_path, grid) == [grid.cells[2]]
    assert "was killed" in (read_result(tmp_path, grid.cells[2]) or {})["error"]
    assert (counts.done, counts.failed) == (10, 1)


def test_no_more_cells_run_at_a_time_than_jobs(tmp_path: Path) -> None:
    grid = begun(tmp_path, make_grid("fair-classification", methods=FAIR[1:], epsilons=[1], seeds=2))
    assert run_all(tmp_path, grid, jobs=3).most_running == 3
