"""Laws of `fedsw compare` as a command, pretended and real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedsw.cli import app as cli
from fedsw.cli import run as cli_compare
from fedsw.desk.compare import comparison_grid as runner
from fedsw.desk.compare import comparison_page as page
from fedsw.desk.compare.comparison_grid import Cell, make_grid, missing, read_grid, run_missing, write_failure
from fedsw.desk.compare.methods import methods, tasks
from fedsw.desk.compare.table import make_table, write_table
from fedsw.federation.engines import pool
from tests.desk.compare.comparing import BASELINES, FAIR, TINY, Capture, Counts, begun, pretend, thread_pool
from tests.processes import interruptible


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


@pytest.fixture
def pretending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run_cell", pretend)
    monkeypatch.setattr(pool, "_processes", thread_pool)
    monkeypatch.setattr(cli_compare, "_require_data", lambda grid: None)


@pytest.mark.usefixtures("pretending")
def test_the_command_leaves_table_and_figure_and_prints_where(here: Path, capsys: Capture) -> None:
    assert cli.main(["compare", "fair-classification", "--epsilon", "1,3", "--seeds", "2", "--rounds", "4"]) == 0
    (folder,) = (here / "runs/compare/fair-classification").iterdir()
    assert {"grid.json", "table.json", "table.csv", "figure.png", "cells"} <= {path.name for path in folder.iterdir()}
    text = capsys.readouterr().out
    assert "figure.png" in text and "local-gradient" in text
    assert read_grid(folder).cells[0].experiment.training.rounds == 4


@pytest.mark.usefixtures("pretending")
def test_json_is_all_that_the_command_prints_when_asked(here: Path, capsys: Capture) -> None:
    assert cli.main(["compare", "adult", "--methods", "none, central", "--epsilon", "1", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["task"], found["methods"], found["seeds"]) == ("adult", ["none", "central"], 3)
    assert Path(found["directory"], "table.csv").is_file()
    assert captured.err == ""


@pytest.mark.usefixtures("here", "pretending")
def test_a_failed_cell_makes_the_command_say_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def fail(folder: Path, cell: Cell) -> bool:
        if cell.method == "central":
            write_failure(folder, cell, "RuntimeError: no")
            return False
        return pretend(folder, cell)

    monkeypatch.setattr(runner, "run_cell", fail)
    arguments = ["compare", "fair-classification", "--methods", "none,central", "--epsilon", "1", "--seeds", "2"]
    assert cli.main(arguments) == 3
    (folder,) = Path("runs/compare/fair-classification").iterdir()
    captured = capsys.readouterr()
    assert f"2 of 4 cells failed; `fedsw compare --resume {folder}`" in captured.err
    assert "RuntimeError: no" in captured.out
    monkeypatch.setattr(runner, "run_cell", pretend)
    assert cli.main(["compare", "--resume", str(folder)]) == 0
    assert make_table(folder)["cells"] == {"all": 4, "completed": 4, "failed": 0}


@pytest.mark.usefixtures("here", "pretending")
def test_an_interruption_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    class AtOnce(ThreadPoolExecutor):
        def submit(self, call: Any, cell: Any, /) -> Any:  # type: ignore[override]
            if cell.seed == 1:
                raise KeyboardInterrupt
            return super().submit(call, cell)

    monkeypatch.setattr(pool, "_processes", AtOnce)
    arguments = ["compare", "fair-classification", "--methods", "none", "--jobs", "1"]
    assert cli.main(arguments) == 130
    (folder,) = Path("runs/compare/fair-classification").iterdir()
    assert f"`fedsw compare --resume {folder}` goes on" in capsys.readouterr().err
    assert [cell.seed for cell in missing(folder, read_grid(folder))] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["compare"], "name a task"),
        (["compare", "fair-clasification"], "nearest: 'fair-classification'"),
        (["compare", "ring", "--epsilon", "1;3"], "cannot be read; write numbers"),
        (["compare", "ring", "--methods", "local-gradient"], "Methods that can: reference, none, unclipped, central"),
        (["compare", "--resume", "nowhere"], "nowhere holds no comparison"),
        (["compare", "ring", "--resume", "nowhere"], "--resume takes the grid"),
        (["compare", "--resume", "nowhere", "--nominal"], "--resume takes the grid"),
    ],
)
@pytest.mark.usefixtures("pretending")
def test_a_command_that_cannot_be_run_says_why_and_leaves_nothing(
    here: Path, arguments: list[str], reason: str, capsys: Capture
) -> None:
    assert cli.main(arguments) == 2
    assert reason in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.usefixtures("here")
def test_missing_data_is_refused_before_anything_starts(here: Path, capsys: Capture) -> None:
    (here / "empty").mkdir()
    assert cli.main(["compare", "swae-mnist", "--data-dir", "empty"]) == 2
    assert "empty" in capsys.readouterr().err
    assert not (here / "runs").exists()


def test_the_list_names_every_task_and_method(capsys: Capture) -> None:
    assert cli.main(["compare", "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["tasks"]) == set(tasks())
    assert set(found["methods"]) == set(methods())
    assert found["tasks"]["fair-classification"]["able"] == [*("reference", "none", "unclipped", *FAIR[2:], *BASELINES)]
    assert set(found["tasks"]["fair-classification"]["baselines"]) == set(BASELINES)
    assert cli.main(["compare", "--list"]) == 0
    assert "local-gradient" in capsys.readouterr().out


def test_a_tiny_comparison_trains_and_keeps_what_it_says(here: Path) -> None:
    grid = begun(here, make_grid("fair-classification", methods=["none", "central"], epsilons=[1.0], seeds=1, rounds=3,
                                 settings=[*TINY, "training.batch_fraction=0.5"]))  # fmt: skip
    counts = Counts()
    run_missing(here, grid, jobs=1, watcher=counts, open_pool=thread_pool)
    assert (counts.done, counts.failed) == (2, 0)
    table = make_table(here)
    assert [group["guarantee"] for group in table["groups"]] == [True, False]
    row = table["groups"][0]["rows"][0]
    assert row["epsilon"] == pytest.approx(1.0) and row["delta"] == pytest.approx(0.1 / 200)
    assert row["released_rounds"] == row["rounds"] == 3 and row["bytes_up"] > 0
    assert 0 <= row["metrics"]["accuracy"]["mean"] <= 1
    assert (here / row["directories"][0] / "ledger.sqlite").is_file()
    write_table(here, table)
    assert page.draw_table(here, table) == [here / "figure.png"]


@pytest.mark.slow
def test_an_interrupted_command_ends_its_processes_and_resumes(here: Path) -> None:
    code = "from fedsw.cli.app import program; program()"
    start = [sys.executable, "-c", code, "compare", "fair-classification", "--methods", "none,central",
             "--epsilon", "1", "--seeds", "1", "--rounds", "4000", "--jobs", "2", "--quiet"]  # fmt: skip
    process = subprocess.Popen(
        start, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=interruptible
    )
    try:
        deadline = time.monotonic() + 300
        while not list(here.glob("runs/compare/*/*/runs/*/*/ledger.sqlite")) and time.monotonic() < deadline:
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    (folder,) = Path("runs/compare/fair-classification").iterdir()
    assert f"`fedsw compare --resume {folder}` goes on" in said and "Traceback" not in said
    import psutil

    assert [one for one in psutil.process_iter() if one.pid != os.getpid() and _belongs(one, here)] == []
    assert len(missing(folder, read_grid(folder))) == 2


def _belongs(process: Any, folder: Path) -> bool:
    import psutil

    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder))
    except psutil.Error:
        return False
