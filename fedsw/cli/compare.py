"""Verbs that train many runs and set them side by side: `fedsw compare`, `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsw._tools.exits import Exit
from fedsw.cli import options
from fedsw.cli.options import answer, answer_made, changes_of, echo

if TYPE_CHECKING:
    from fedsw.desk.compare.comparison_grid import Grid


Epsilons = Annotated[str | None, typer.Option("--epsilon", metavar="E,F,...", help="Budgets; 1,3,10 if not given.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Runs of every method at every ε; 3 if not given.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds of every run, instead of the task's.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time; as many as there are cores if not given.")]
Nominal = Annotated[bool, typer.Option("--nominal", help="Reproducible sampling and noise; every ε is then nominal.")]
Resume = Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with a comparison that stopped.")]
List = Annotated[bool, typer.Option("--list", help="Show the tasks and the methods, and run nothing.")]


def compare_command(
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="A task that --list shows, or a TOML file of your own.")
    ] = None,
    method_names: Annotated[
        str | None, typer.Option("--methods", metavar="A,B,...", help="Methods; the task's own choice if not given.")
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="What others would run, too: the task's baselines, which need Opacus.")
    ] = False,
    epsilon: Epsilons = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    clients: options.Clients = None,
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    nominal: Nominal = False,
    jobs: Jobs = None,
    resume: Resume = None,
    allow_module: options.AllowModule = None,
    list_: List = False,
    runs: options.Runs = options.RUNS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run methods side by side on one task: utility against ε.

    Methods with the same kind of guarantee stand together. Every method runs at every ε with every seed, in parallel
    processes. The table, the figure and the runs are kept under runs/compare/TASK/TIME.
    """
    from fedsw._tools.files import fresh_folder
    from fedsw.cli.execution import showing
    from fedsw.desk.compare.comparison_grid import make_grid, read_grid, write_grid
    from fedsw.desk.compare.methods import tasks
    from fedsw.experiment.choices import require_allowed_code

    if list_:
        _list(as_json=as_json)
        return
    settings = changes_of(None, overrides, clients=clients, data_dir=data_dir)
    choices = (task, method_names, epsilon, seeds, rounds)
    if resume is not None:
        if any(value is not None for value in choices) or settings or nominal or baselines:
            raise typer.BadParameter("--resume takes the grid from the comparison it goes on with; give --jobs at most")
        folder, grid = resume, read_grid(resume)
        for cell in grid.cells:
            require_allowed_code(cell.experiment, allow_module or (), stored=folder / "grid.json")
        _require_data(grid)
    else:
        if task is None:
            raise typer.BadParameter(f"name a task: {', '.join(tasks())} (`fedsw compare --list` shows more)")
        grid = make_grid(
            task,
            methods=None if method_names is None else _words(method_names),
            baselines=baselines,
            epsilons=_numbers(epsilon or "1,3,10"),
            seeds=seeds or 3,
            rounds=rounds,
            settings=settings,
            nominal=nominal,
        )
        if grid.left_out:
            named = ",".join((*grid.left_out, *grid.methods))
            typer.echo(
                f"left out: {', '.join(grid.left_out)}, runs without noise, which would make ε of the data set's "
                f"account infinite; --methods {named} runs them",
                err=True,
            )
        _require_data(grid)
        _rehearse(grid)
        folder = fresh_folder(runs / "compare" / grid.task)
        write_grid(folder, grid)
    _run(folder, grid, jobs=jobs, quiet=quiet or as_json)
    with showing(folder, f"fedsw compare --resume {folder}"):
        _show(folder, as_json=as_json, quiet=quiet)


def _rehearse(grid: Grid) -> None:
    """Try a run of each method at its first epsilon on made-up records, before any spends something."""
    from fedsw.cli.execution import rehearsed
    from fedsw.desk.own_data.rehearsal import rehearse

    methods = {cell.method: cell for cell in reversed(grid.cells) if cell.baseline is None}
    for cell in methods.values():
        rehearse(cell.experiment, rehearsed)


def _run(folder: Path, grid: Grid, *, jobs: int | None, quiet: bool) -> None:
    from fedsw.cli.execution import Begun, explaining
    from fedsw.desk.compare.comparison_grid import missing, run_missing
    from fedsw.desk.run_grid import GridProgress
    from fedsw.federation.engines.pool import cores

    done = len(grid.cells) - len(missing(folder, grid))
    with (
        GridProgress(label=f"compare {grid.task}", cells=len(grid.cells), done=done, quiet=quiet) as progress,
        explaining(lambda: Begun(folder, f"fedsw compare --resume {folder}") if progress.begun else None),
    ):
        run_missing(folder, grid, jobs=jobs or cores(), watcher=progress)


def _show(folder: Path, *, as_json: bool, quiet: bool) -> None:
    from fedsw._tools import files
    from fedsw.desk.compare.comparison_page import draw_table, read_comparison
    from fedsw.desk.compare.table import write_table
    from fedsw.runs.run_files import RunFile

    comparison = read_comparison(folder)
    table = comparison.table
    written = [*write_table(folder, table), *draw_table(folder, table), folder / RunFile.REPORT]
    files.replace(folder / RunFile.REPORT, comparison.page().encode(), durable=False)
    content = {**table, "directory": str(folder), "files": [str(path) for path in written]}
    answer_made(content, lambda: comparison.document(operator=True), folder, written, as_json=as_json, quiet=quiet)
    if table["failed"]:
        echo(
            f"fedsw: {len(table['failed'])} of {table['cells']['all']} cells failed; "
            f"`fedsw compare --resume {folder}` runs them again",
            err=True,
        )
        raise typer.Exit(Exit.BROKE_OFF)


def _list(*, as_json: bool) -> None:
    from fedsw.desk.compare.methods import able, methods, tasks
    from fedsw.desk.compare.table import tasks_view

    described: dict[str, Any] = {
        name: {**task.model_dump(exclude={"set", "tuned"}), "able": able(name)} for name, task in tasks().items()
    }
    about = {name: method.what for name, method in methods().items()}
    answer({"tasks": described, "methods": about}, tasks_view, as_json=as_json, highlight=True)


def _require_data(grid: Grid) -> None:
    """Find (or download) what the cells learn from before any of them starts."""
    from fedsw.data.sources import load_dataset, load_public, require_runnable

    first = grid.cells[0].experiment
    require_runnable(first.data, first.federation.clients, named=f"{grid.task}.toml", elsewhere=True)
    if not first.data.own:
        load_dataset(first.record_source)
    load_public(first.data)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[float]:
    from fedsw.experiment import ExperimentError

    try:
        return [float(word) for word in _words(text)]
    except ValueError:
        raise ExperimentError(f"--epsilon {text!r} cannot be read; write numbers, as in 1,3,10") from None


def demo_command(
    clients: options.Clients = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each run, instead of the experiment's.")] = None,
    seed: options.Seed = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with a demo that stopped.")] = None,
    runs: options.Runs = options.RUNS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train nine fair classifiers: a table and two figures.

    They are trained at α = 0, ½, ¾ and ε = ∞, 3, 1.
    """
    from fedsw.cli.demo import (
        ALPHAS,
        CAPTION,
        EPSILONS,
        draw_demo,
        missing_cells,
        read_demo,
        run_demo,
        start_demo,
    )
    from fedsw.cli.execution import Begun, explaining, showing
    from fedsw.runs.progress import RunProgress
    from fedsw.runs.report.screens import demo_table

    if resume is not None and (clients, rounds, seed) != (None, None, None):
        raise typer.BadParameter("--resume takes --clients, --rounds and --seed from the demo it goes on with")
    folder = resume or start_demo(runs, clients=clients or 4, rounds=rounds, seed=seed)
    cells = len(ALPHAS) * len(EPSILONS)
    done = cells - len(missing_cells(read_demo(folder)))
    with (
        RunProgress(label="demo", runs=cells, done=done, quiet=quiet or as_json) as progress,
        explaining(lambda: Begun(folder, f"fedsw demo --resume {folder}") if progress.begun else None),
    ):
        table = run_demo(folder, progress)
    with showing(folder, f"fedsw demo --resume {folder}"):
        plots = [str(path) for path in draw_demo(folder)]
        content, files = {**table, "directory": str(folder), "plots": plots}, [folder / "table.json", *plots]
        view = demo_table(table["rows"], caption=CAPTION)
        answer_made(content, lambda: view, folder, files, as_json=as_json, quiet=quiet)
