"""Verbs that train many runs and set them side by side: `fedsw compare`, `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsw._tools import files
from fedsw._tools.exits import Exit
from fedsw._tools.files import fresh_folder
from fedsw.cli import options
from fedsw.cli._modules import (
    comparable,
    comparison_grid,
    comparison_page,
    comparison_table,
    demo_grid,
    execution,
    experiment_code,
    experiments,
    pool,
    rehearsal,
    run_files,
    run_grid,
    run_progress,
    screens,
    sources,
)
from fedsw.cli.options import answer, answer_made, changes_of, echo

if TYPE_CHECKING:
    from fedsw.desk.compare.comparison_grid import Grid


Epsilons = Annotated[str | None, typer.Option("--epsilon", metavar="E,F,...", help="Budgets; 1,3,10 if not given.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Runs of every method at every ε; 3 if not given.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds of every run, instead of the task's.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time; as many as there are cores if not given.")]
Nominal = Annotated[bool, typer.Option("--nominal", help="Reproducible sampling and noise; every ε is then nominal.")]
Resume = Annotated[Path | None, typer.Option(metavar="DIR", help="Resume a comparison that stopped.")]
List = Annotated[bool, typer.Option("--list", help="Show the tasks and the methods, and run nothing.")]


def compare_command(
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="A task that --list shows, or your TOML file.")
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
    if list_:
        _list(as_json=as_json)
        return
    settings = changes_of(None, overrides, clients=clients, data_dir=data_dir)
    choices = (task, method_names, epsilon, seeds, rounds)
    if resume is not None:
        if any(value is not None for value in choices) or settings or nominal or baselines:
            raise typer.BadParameter("--resume takes the grid from the comparison it goes on with; give --jobs at most")
        folder, grid = resume, comparison_grid.read_grid(resume)
        for cell in grid.cells:
            experiment_code.require_allowed_code(cell.experiment, allow_module or (), stored=folder / "grid.json")
        _require_data(grid)
    else:
        if task is None:
            raise typer.BadParameter(
                f"name a task: {', '.join(comparable.tasks())} (`fedsw compare --list` shows more)"
            )
        grid = comparison_grid.make_grid(
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
        comparison_grid.write_grid(folder, grid)
    _run(folder, grid, jobs=jobs, quiet=quiet or as_json)
    with execution.showing(folder, f"fedsw compare --resume {folder}"):
        _show(folder, as_json=as_json, quiet=quiet)


def _rehearse(grid: Grid) -> None:
    """Try a run of each method at its first epsilon on made-up records, before any spends something."""
    methods = {cell.method: cell for cell in reversed(grid.cells) if cell.baseline is None}
    for cell in methods.values():
        rehearsal.rehearse(cell.experiment, execution.rehearsed)


def _run(folder: Path, grid: Grid, *, jobs: int | None, quiet: bool) -> None:
    done = len(grid.cells) - len(comparison_grid.missing(folder, grid))
    with (
        run_grid.GridProgress(label=f"compare {grid.task}", cells=len(grid.cells), done=done, quiet=quiet) as progress,
        execution.explaining(
            lambda: execution.Begun(folder, f"fedsw compare --resume {folder}") if progress.begun else None
        ),
    ):
        comparison_grid.run_missing(folder, grid, jobs=jobs or pool.cores(), watcher=progress)


def _show(folder: Path, *, as_json: bool, quiet: bool) -> None:
    comparison = comparison_page.read_comparison(folder)
    table = comparison.table
    written = [
        *comparison_table.write_table(folder, table),
        *comparison_page.draw_table(folder, table),
        folder / run_files.RunFile.REPORT,
    ]
    files.replace(folder / run_files.RunFile.REPORT, comparison.page().encode(), durable=False)
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
    described: dict[str, Any] = {
        name: {**task.model_dump(exclude={"set", "tuned"}), "able": comparable.able(name)}
        for name, task in comparable.tasks().items()
    }
    about = {name: method.what for name, method in comparable.methods().items()}
    answer({"tasks": described, "methods": about}, comparison_table.tasks_view, as_json=as_json, highlight=True)


def _require_data(grid: Grid) -> None:
    """Find (or download) what the cells learn from before any of them starts."""
    first = grid.cells[0].experiment
    sources.require_runnable(first.data, first.federation.clients, named=f"{grid.task}.toml", elsewhere=True)
    if not first.data.own:
        sources.load_dataset(first.record_source)
    sources.load_public(first.data)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in _words(text)]
    except ValueError:
        raise experiments.ExperimentError(f"--epsilon {text!r} cannot be read; write numbers, as in 1,3,10") from None


def demo_command(
    clients: options.Clients = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each run, instead of the experiment's.")] = None,
    seed: options.Seed = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Resume a demo that stopped.")] = None,
    runs: options.Runs = options.RUNS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train nine fair classifiers: a table and two figures.

    They are trained at α = 0, ½, ¾ and ε = ∞, 3, 1.
    """
    if resume is not None and (clients, rounds, seed) != (None, None, None):
        raise typer.BadParameter("--resume takes --clients, --rounds and --seed from the demo it goes on with")
    folder = resume or demo_grid.start_demo(runs, clients=clients or 4, rounds=rounds, seed=seed)
    cells = len(demo_grid.ALPHAS) * len(demo_grid.EPSILONS)
    done = cells - len(demo_grid.missing_cells(demo_grid.read_demo(folder)))
    with (
        run_progress.RunProgress(label="demo", runs=cells, done=done, quiet=quiet or as_json) as progress,
        execution.explaining(
            lambda: execution.Begun(folder, f"fedsw demo --resume {folder}") if progress.begun else None
        ),
    ):
        table = demo_grid.run_demo(folder, progress)
    with execution.showing(folder, f"fedsw demo --resume {folder}"):
        plots = [str(path) for path in demo_grid.draw_demo(folder)]
        content, files = {**table, "directory": str(folder), "plots": plots}, [folder / "table.json", *plots]
        view = screens.demo_table(table["rows"], caption=demo_grid.CAPTION)
        answer_made(content, lambda: view, folder, files, as_json=as_json, quiet=quiet)
