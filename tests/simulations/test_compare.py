"""Laws of a comparison: the grid, who is refused, what is run again, and that guarantees are never mixed."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedsw.experiment import Experiment, ExperimentError
from fedsw.settings import read_setting
from simulations import cli, cli_compare
from simulations.compare import figure, runner, screen
from simulations.compare.grid import (
    Cell,
    Grid,
    make_grid,
    missing,
    read_grid,
    read_result,
    write_failure,
    write_grid,
    write_result,
)
from simulations.compare.methods import Comparable, able, build, methods, tasks
from simulations.compare.runner import run_cell, run_missing
from simulations.compare.table import make_table, write_table

Capture = pytest.CaptureFixture[str]
FAIR = ("none", "central", "central-paper", "local-gradient")
TINY = ("data.records=200", "data.test_records=100", "federation.clients=2")


class Counts:
    """A watcher that keeps the score."""

    def __init__(self) -> None:
        self.most_running, self.done, self.failed = 0, 0, 0

    def running(self, cells: int) -> None:
        self.most_running = max(self.most_running, cells)

    def ended(self, *, failed: bool) -> None:
        self.done += 1
        self.failed += failed


def thread_pool(jobs: int) -> Executor:
    return ThreadPoolExecutor(jobs)


def summary_of(experiment: Experiment, **changes: Any) -> dict[str, Any]:
    """What a run of the experiment would say of itself."""
    privacy = experiment.privacy
    local = privacy.local
    epsilon = privacy.epsilon if privacy.noisy else math.inf
    assert epsilon is not None
    seed = experiment.model.seed
    return {
        "status": "completed",
        "rounds": experiment.training.rounds,
        "released_rounds": experiment.training.rounds,
        "epsilon": epsilon,
        "delta": 3.3e-6,
        "nominal": experiment.seed is not None,
        "epsilon_of_reader": epsilon,
        "clients": 4,
        "guarantee": {
            "relation": "replace-one",
            "protects": "each record of every client" + (", by its own client's noise and ledger" if local else ""),
            "against": "everyone, including the server and the other clients" if local else "readers of the models",
            "accountant": privacy.accountant,
            "accountant_is_guarantee": privacy.accountant not in ("clt", "gdp-clt-uniform"),
        },
        "held_out": {"accuracy": 0.7 + 0.01 * seed, "disparate_impact": 0.5, "sw2": 0.1 + 0.02 * seed, "loss": 0.4},
        "seconds": 2.0 + seed,
        "bytes_up": 1000 + seed,
        "bytes_down": 2_000_000,
        "versions": {"fedsw": "0.1.0"},
        "hardware": {"cores": 2},
        **changes,
    }


def leave_run(folder: Path, cell: Cell, points: np.ndarray[Any, Any] | None = None) -> Path:
    directory = folder / "runs" / cell.id / "20250101-120000"
    directory.mkdir(parents=True)
    config = {"engine": "inprocess", "experiment": cell.experiment.model_dump(mode="json")}
    (directory / "config.json").write_text(json.dumps(config))
    if points is not None:
        np.savez(directory / "outputs.npz", outputs=points, reference=points[::-1] * 0.9)
    return directory


def pretend(folder: Path, cell: Cell) -> bool:
    """A stand-in for training."""
    write_result(folder, cell, summary=summary_of(cell.experiment), directory=leave_run(folder, cell))
    return True


def begun(folder: Path, grid: Grid) -> Grid:
    write_grid(folder, grid)
    return grid


def run_all(folder: Path, grid: Grid, work: runner.Work = pretend, jobs: int = 1) -> Counts:
    counts = Counts()
    run_missing(folder, grid, jobs=jobs, watcher=counts, work=work, open_pool=thread_pool)
    return counts


# The grid


def test_the_grid_is_methods_by_budgets_by_seeds_and_none_runs_once_a_seed() -> None:
    grid = make_grid("fair-classification", epsilons=[10, 1, 3, 1], seeds=3)
    assert grid.methods == FAIR
    assert grid.epsilons == (1, 3, 10)
    assert len(grid.cells) == 3 + 3 * 3 * 3 == len({cell.id for cell in grid.cells})
    for method in FAIR:
        found = sorted((cell.epsilon, cell.seed) for cell in grid.cells if cell.method == method)
        budgets = [math.inf] if method == "none" else [1, 3, 10]
        assert found == [(epsilon, seed) for epsilon in budgets for seed in range(3)]


def test_a_cell_is_what_its_method_epsilon_and_seed_say() -> None:
    for cell in make_grid("fair-classification", epsilons=[1, 3], seeds=2, rounds=7, settings=TINY).cells:
        privacy = cell.experiment.privacy
        trust = {"none": "none", "local-gradient": "local-gradient"}.get(cell.method, "central")
        assert (privacy.trust, privacy.epsilon) == (trust, cell.epsilon)
        assert (privacy.bound == "paper") == (cell.method == "central-paper")
        assert (cell.experiment.training.rounds, cell.experiment.data.records) == (7, 200)


def test_a_seed_moves_the_public_seeds_and_leaves_sampling_and_noise_secret() -> None:
    settings = ["data.seed=40", "slicing.seed=9"]
    for cell in make_grid("ring", methods=["dp-swd"], epsilons=[1], seeds=3, settings=settings).cells:
        one = cell.experiment
        assert (one.data.seed, one.partition.seed, one.model.seed, one.slicing.seed) == (
            40 + cell.seed,
            cell.seed,
            cell.seed,
            9 + cell.seed,
        )
        assert one.seed is None
    nominal = make_grid("ring", methods=["dp-swd"], epsilons=[1], seeds=3, nominal=True).cells
    assert [cell.experiment.seed for cell in nominal] == [0, 1, 2]


def test_methods_differ_in_nothing_but_their_own_and_their_tuned_settings() -> None:
    cells = {c.method: c.experiment for c in make_grid("fair-classification", epsilons=[1], seeds=1).cells}
    for one in cells.values():
        for section in ("data", "partition", "model", "objective", "clip", "slicing", "training", "federation"):
            assert getattr(one, section) == getattr(cells["central"], section)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"epsilons": [0.0]}, "epsilon is 0; it must be above 0"),
        ({"epsilons": [-1.0]}, "epsilon is -1; it must be above 0"),
        ({"epsilons": [math.inf]}, "the method 'none' has no privacy"),
        ({"epsilons": [math.nan]}, "epsilon is nan"),
        ({"epsilons": []}, "no epsilon"),
        ({"methods": []}, "no method"),
        ({"methods": ["centrall"]}, "nearest: 'central'"),
        ({"seeds": 0}, "seeds is 0"),
        ({"settings": ["privacy.epsilon=3"]}, "--epsilon chooses it"),
        ({"settings": ["privacy.trust=none"]}, "--methods chooses it"),
        ({"settings": ["seed=3"]}, "--nominal"),
        ({"settings": ["training.round=3"]}, "nearest known: 'training.rounds'"),
    ],
)
def test_a_grid_that_cannot_be_compared_is_refused_with_the_remedy(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        make_grid("fair-classification", **arguments)
    assert reason in str(refused.value)


# Methods and tasks


def test_every_task_can_run_what_it_compares() -> None:
    assert {"fair-classification", "adult", "ring", "gaussians", "swae-digits", "swae-mnist"} <= set(tasks())
    for name, task in tasks().items():
        assert set(task.methods) <= set(able(name))
        for method in able(name):
            build(name, method, ["privacy.epsilon=1.0"] if method != "none" else [])


@pytest.mark.parametrize(
    ("task", "method", "why", "instead"),
    [
        ("fair-classification", "flow", "privacy.trust 'local-slices' cannot run 'classification'", FAIR),
        ("fair-classification", "entropic", "it releases records once, for a generator to learn from", FAIR),
        ("fair-classification", "central-both", "a generator's inputs", FAIR),
        ("ring", "local-gradient", "rank the outputs of private groups", ("central-both", "dp-swd", "entropic")),
        ("swae-digits", "dp-swd", "cannot run 'autoencoder'", ("none", "central", "central-paper")),
    ],
)
def test_a_method_that_a_task_cannot_run_is_refused_with_why_and_which_can(
    task: str, method: str, why: str, instead: tuple[str, ...]
) -> None:
    with pytest.raises(ExperimentError) as refused:
        build(task, method)
    text = str(refused.value)
    assert f"{method!r} cannot run the task {task!r}" in text
    assert why in text
    listed = text.rpartition("Methods that can: ")[2].split(", ")
    assert set(instead) <= set(listed)
    assert method not in listed
    for able_one in listed:
        build(task, able_one)


def test_a_task_runs_a_method_with_its_tuning_and_the_command_line_wins() -> None:
    tuned = [(name, method, found) for name, task in tasks().items() for method, found in task.tuned.items()]
    assert tuned
    for name, method, settings in tuned:
        assert method in able(name)
        for keys, value in map(read_setting, settings):
            assert reduce(getattr, keys, build(name, method)) == value
    assert build("ring", "flow", ["training.rounds=7"]).training.rounds == 7


def test_a_methods_file_that_names_what_is_not_there_is_refused() -> None:
    method = {"none": {"what": "nothing", "set": ["privacy.trust=none"]}}
    task = {"metric": "sw2", "better": "lower", "methods": ["none"]}
    assert Comparable.model_validate({"method": method, "task": {"ring": task}})
    for wrong in ({"methods": ["nobody"]}, {"tuned": {"nobody": []}}, {"set": ["training.rounds"]}, {"sett": []}):
        with pytest.raises(ValueError, match="nobody|cannot be read|Extra inputs"):
            Comparable.model_validate({"method": method, "task": {"ring": {**task, **wrong}}})


# Running


def test_a_folder_gives_back_the_grid_that_it_was_made_with(tmp_path: Path) -> None:
    grid = begun(tmp_path, make_grid("ring", epsilons=[1, 3], seeds=2, rounds=5))
    assert read_grid(tmp_path) == grid
    (tmp_path / "grid.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no comparison"):
        read_grid(tmp_path)


def test_resuming_runs_only_what_is_missing_failed_or_damaged(tmp_path: Path) -> None:
    grid = begun(tmp_path, make_grid("fair-classification", epsilons=[1], seeds=2))
    first, second, third, *_ = grid.cells
    assert run_all(tmp_path, grid).done == len(grid.cells) == 8
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
    grid = begun(tmp_path, make_grid("fair-classification", epsilons=[1], seeds=2))
    broken = grid.cells[3]

    def run(experiment: Experiment, *, runs: Path) -> Any:
        if experiment.name == broken.id:
            raise RuntimeError("client 2 raised ZeroDivisionError")
        directory = runs / experiment.name
        return type("Result", (), {"summary": summary_of(experiment), "directory": directory})()

    monkeypatch.setattr("simulations.driver.run", run)
    counts = run_all(tmp_path, grid, run_cell)
    assert (counts.done, counts.failed) == (8, 1)
    assert missing(tmp_path, grid) == [broken]
    result = read_result(tmp_path, broken)
    assert result == {"status": "failed", "error": "RuntimeError: client 2 raised ZeroDivisionError"}
    table = make_table(tmp_path)
    assert table["failed"] == [{"cell": broken.id, "error": "RuntimeError: client 2 raised ZeroDivisionError"}]
    assert table["cells"] == {"all": 8, "completed": 7, "failed": 1}
    (row,) = [row for group in table["groups"] for row in group["rows"] if row["failed"]]
    assert (row["method"], row["seeds"], row["failed"]) == (broken.method, 1, 1)


def test_cells_beyond_a_killed_process_run_in_new_ones(tmp_path: Path) -> None:
    grid = begun(tmp_path, make_grid("fair-classification", epsilons=[1], seeds=2))
    opened: list[Executor] = []

    class Mortal(ThreadPoolExecutor):
        """Refuses everything after the cell that kills it, as a process pool does."""

        dead = False

        def submit(self, call: Any, folder: Any, cell: Any, /) -> Any:  # type: ignore[override]
            if self.dead:
                raise BrokenProcessPool("already broken")
            self.dead = cell.id == grid.cells[2].id
            return super().submit(_die if self.dead else call, folder, cell)

    def _die(folder: Path, cell: Cell) -> bool:
        raise BrokenProcessPool("terminated abruptly")

    def open_pool(jobs: int) -> Executor:
        opened.append(Mortal(jobs))
        return opened[-1]

    counts = Counts()
    run_missing(tmp_path, grid, jobs=2, watcher=counts, work=pretend, open_pool=open_pool)
    assert len(opened) == 2
    assert missing(tmp_path, grid) == [grid.cells[2]]
    assert "was killed" in (read_result(tmp_path, grid.cells[2]) or {})["error"]
    assert (counts.done, counts.failed) == (8, 1)


def test_no_more_cells_run_at_a_time_than_jobs(tmp_path: Path) -> None:
    grid = begun(tmp_path, make_grid("fair-classification", epsilons=[1], seeds=2))
    assert run_all(tmp_path, grid, jobs=3).most_running == 3


# The table


def rows_of(table: dict[str, Any]) -> dict[tuple[str, float], dict[str, Any]]:
    return {(row["method"], row["epsilon_asked"]): row for group in table["groups"] for row in group["rows"]}


def table_of(folder: Path, grid: Grid, change: Callable[[Cell], dict[str, Any]] = lambda cell: {}) -> dict[str, Any]:
    begun(folder, grid)
    for cell in grid.cells:
        summary = summary_of(cell.experiment) | change(cell)
        write_result(folder, cell, summary=summary, directory=leave_run(folder, cell))
    return make_table(folder)


def test_guarantees_are_never_mixed_in_one_group(tmp_path: Path) -> None:
    chosen = ["none", "central", "central-paper", "central-both", "dp-swd", "flow", "entropic", "laplace"]
    table = table_of(tmp_path, make_grid("ring", methods=chosen, epsilons=[1, 3], seeds=2))
    members = [{row["method"] for row in group["rows"]} for group in table["groups"]]
    assert members == [
        {"central", "central-paper"},
        {"central-both"},
        {"dp-swd", "flow", "entropic", "laplace"},
        {"none"},
    ]
    for group in table["groups"]:
        kinds = {
            (row["guarantee"], row["protects"], row["against"], row["relation"], row["why_not"])
            for row in group["rows"]
        }
        assert len(kinds) == 1
    headings = [group["heading"] for group in table["groups"]]
    assert len(set(headings)) == 4
    assert headings[0].startswith("protects each record of every client, against readers of the models")
    assert "the generator's inputs" in headings[1]
    assert "against everyone, including the server" in headings[2]
    assert headings[3] == "no guarantee: no noise was added"
    assert [group["guarantee"] for group in table["groups"]] == [True, True, True, False]


@pytest.mark.parametrize(
    ("methods_", "settings", "nominal", "why"),
    [
        (["dp-swd"], ["privacy.accountant=clt"], False, "accountant clt"),
        (["entropic"], ["local.diameter=paper"], False, "half of what a replaced record moves"),
        (["central"], [], True, "nominal"),
    ],
)
def test_what_is_not_a_guarantee_is_grouped_apart_with_the_reason(
    tmp_path: Path, methods_: list[str], settings: list[str], nominal: bool, why: str
) -> None:
    grid = make_grid("ring", methods=methods_, epsilons=[1], seeds=1, settings=settings, nominal=nominal)
    table = table_of(tmp_path, grid)
    assert not any(group["guarantee"] for group in table["groups"])
    ((row,),) = [group["rows"] for group in table["groups"]]
    assert not row["guarantee"]
    assert why in row["why_not"]
    assert table["groups"][0]["heading"].startswith("no guarantee (")


def test_a_record_that_shows_private_metrics_is_no_guarantee_for_its_readers(tmp_path: Path) -> None:
    grid = make_grid("ring", methods=["central"], epsilons=[1], seeds=1)
    table = table_of(tmp_path, grid, lambda cell: {"epsilon_of_reader": "inf"})
    assert table["groups"][0]["rows"][0]["why_not"] == "the record shows metrics of private records"


def test_a_row_has_the_mean_and_spread_over_seeds_and_the_worst_epsilon(tmp_path: Path) -> None:
    grid = make_grid("fair-classification", epsilons=[1, 3], seeds=3)
    table = table_of(tmp_path, grid, lambda cell: {"epsilon": cell.epsilon * (1 + 0.01 * cell.seed)})
    row = rows_of(table)["central", 3.0]
    assert row["epsilon"] == pytest.approx(3 * 1.02)
    assert row["metrics"]["accuracy"] == pytest.approx({"mean": 0.71, "sd": 0.01})
    assert (row["seconds"], row["bytes_up"], row["seeds"], row["rounds"]) == (3.0, 1001.0, 3, 250)
    assert row["delta"] == 3.3e-6
    assert rows_of(table)["none", math.inf]["delta"] is None


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    table = table_of(tmp_path, make_grid("fair-classification", methods=["central"], epsilons=[1], seeds=1))
    assert rows_of(table)["central", 1.0]["metrics"]["accuracy"] == {"mean": pytest.approx(0.7), "sd": None}


def test_json_and_csv_name_for_every_row_who_is_protected_from_whom_and_at_what_cost(tmp_path: Path) -> None:
    table = table_of(tmp_path, make_grid("fair-classification", epsilons=[1, 3], seeds=2))
    write_table(tmp_path, table)

    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} in JSON")

    stored = json.loads((tmp_path / "table.json").read_text(), parse_constant=refuse)
    assert stored["versions"] == [{"fedsw": "0.1.0"}] and stored["hardware"] == [{"cores": 2}] and stored["date"]
    assert "compose" in stored["caption"]
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1 + 3 * 2 == sum(len(group["rows"]) for group in stored["groups"])
    for row in rows:
        for column in ("group", "method", "what", "protects", "against", "relation", "epsilon", "rounds", "bytes_up"):
            assert row[column]
        assert row["seeds"] == "2" and float(row["seconds"]) == 2.5 and float(row["bytes_down"]) == 2e6
        assert float(row["accuracy_mean"]) == pytest.approx(0.705)
        assert float(row["accuracy_sd"]) == pytest.approx(0.01 / math.sqrt(2))
        assert (row["delta"] == "") == (row["method"] == "none")
    assert {row["epsilon"] for row in rows} == {"inf", "1.0", "3.0"}


def test_the_screen_shows_every_group_under_its_heading(tmp_path: Path) -> None:
    grid = make_grid("fair-classification", epsilons=[1, 3], seeds=2)
    table = table_of(tmp_path, grid, lambda cell: {"status": "stopped"} if cell.method == "central" else {})
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(screen.table_view(table))
    text = console.export_text()
    places = [text.index(group["heading"][:60]) for group in table["groups"]]
    assert places == sorted(places) and len(places) == 3
    assert places[0] < text.index("central-paper") < places[1] < text.index("local-gradient") < places[2]
    assert "2, 2 stopped" in text and "0.705 ± 0.0071" in text and "compose" in text


# Figures


def test_the_figure_has_a_curve_for_each_private_method_and_a_dashed_line_for_none(tmp_path: Path) -> None:
    table = table_of(tmp_path, make_grid("fair-classification", epsilons=[1, 3, 10], seeds=2))
    drawn = figure.draw_utility(table)
    assert drawn is not None
    left, right = drawn.axes
    curves = {line.get_label(): line for line in left.get_lines() if line.get_label() in FAIR}
    assert set(curves) == set(FAIR)
    assert curves["none"].get_linestyle() == "--"
    assert [list(curves[name].get_xdata()) for name in FAIR[1:]] == [[1, 3, 10]] * 3
    assert left.get_xscale() == right.get_xscale() == "log"
    assert (left.get_title(), right.get_title()) == ("accuracy (higher is better)", "DI")


def test_planar_samples_have_a_panel_for_each_method(tmp_path: Path) -> None:
    grid = begun(tmp_path, make_grid("ring", methods=["none", "central", "dp-swd"], epsilons=[1, 3], seeds=1))
    points = np.random.default_rng(0).normal(size=(50, 2))
    for cell in grid.cells:
        directory = leave_run(tmp_path, cell, points)
        write_result(tmp_path, cell, summary=summary_of(cell.experiment), directory=directory)
    drawn = figure.draw_all_samples(tmp_path, make_table(tmp_path))
    assert drawn is not None
    titles = [axes.get_title() for axes in drawn.axes]
    assert [title.split("\n")[0] for title in titles] == ["none, no privacy", "central, ε = 3", "dp-swd, ε = 3"]
    assert all(len(axes.collections) == 2 for axes in drawn.axes)


# The command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


@pytest.fixture
def pretending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run_cell", pretend)
    monkeypatch.setattr(runner, "_processes", thread_pool)
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
    assert cli.main(arguments) == 1
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
        def submit(self, call: Any, folder: Any, cell: Any, /) -> Any:  # type: ignore[override]
            if cell.seed == 1:
                raise KeyboardInterrupt
            return super().submit(call, folder, cell)

    monkeypatch.setattr(runner, "_processes", AtOnce)
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
        (["compare", "ring", "--methods", "local-gradient"], "Methods that can: none, central"),
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
    assert found["tasks"]["fair-classification"]["able"] == list(FAIR)
    assert cli.main(["compare", "--list"]) == 0
    assert "local-gradient" in capsys.readouterr().out


# The real thing


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
    assert figure.draw_table(here, table) == [here / "figure.png"]


@pytest.mark.slow
def test_an_interrupted_command_ends_its_processes_and_resumes(here: Path) -> None:
    app = str(Path(cli.__file__).parents[1])
    code = "import sys; from fedsw.console import main; sys.exit(main(sys.argv[1:]))"
    start = [sys.executable, "-c", code, "--app", app, "compare", "fair-classification", "--methods", "none,central",
             "--epsilon", "1", "--seeds", "1", "--rounds", "400", "--jobs", "2", "--quiet"]  # fmt: skip
    process = subprocess.Popen(start, stderr=subprocess.PIPE, text=True, start_new_session=True)
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
