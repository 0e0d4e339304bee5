"""Verbs that carry runs out: `fedsw run`, `resume`, `synthesize`, `compare`, `demo`, and what watches a run."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fedsw._tools import files
from fedsw._tools.exits import Exit
from fedsw._tools.files import fresh_folder
from fedsw._tools.text import for_spreadsheets, warning_of_formulas
from fedsw.cli import options
from fedsw.cli._modules import (
    cards,
    comparable,
    comparison_grid,
    comparison_page,
    comparison_table,
    demo_grid,
    driver,
    execution,
    experiment_code,
    experiments,
    observers,
    other_tables,
    pool,
    rehearsal,
    run_files,
    run_folder,
    run_grid,
    run_progress,
    screens,
    sources,
    synthetic_table,
    telemetry,
)
from fedsw.cli.options import (
    answer,
    answer_made,
    changes_of,
    echo,
    echo_json,
    files_of_run,
    found,
    require_format,
    require_writable,
)
from fedsw.runs.report.console import Screen

if TYPE_CHECKING:
    from fedsw.desk.compare.comparison_grid import Grid
    from fedsw.desk.own_data.apart import OtherTable
    from fedsw.desk.own_data.synthetic_table import LearntTable
    from fedsw.experiment import Experiment
    from fedsw.federation.engines.driver import RunResult
    from fedsw.runs.observer import Observer


MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        help="Serve Prometheus metrics on this port of 127.0.0.1 (0 finds one), to holders of its token.",
    ),
]


class Service(StrEnum):
    """Services that a run's releasable numbers may be logged to, too."""

    MLFLOW = "mlflow"
    WANDB = "wandb"


Observe = Annotated[
    list[Service] | None,
    typer.Option("--observe", help="Log releasable numbers to MLflow or Weights & Biases, too; may be repeated."),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print the structured log to stderr, too.")]


_Result = TypeVar("_Result")


def watched(
    start: Callable[[Observer], _Result], *, port: int | None, verbose: bool = False, observe: Sequence[Service] = ()
) -> Callable[[Observer], _Result]:
    """Let a start also be observed by services, a metrics endpoint and the log, as asked."""

    def begin(observer: Observer) -> _Result:
        services: dict[Service, Callable[[], Observer]]
        services = {Service.MLFLOW: observers.MlflowObserver, Service.WANDB: observers.WandbObserver}
        more = [services[name]() for name in dict.fromkeys(observe)]
        with contextlib.ExitStack() as stack:
            if verbose:
                stack.enter_context(telemetry.logging_to_stderr())
            if port is not None:
                endpoint = stack.enter_context(telemetry.MetricsEndpoint(port))
                token = (
                    telemetry.METRICS_TOKEN
                    if os.environ.get(telemetry.METRICS_TOKEN)
                    else f"this run's token, {endpoint.token}"
                )
                where = f"http://{endpoint.host}:{endpoint.port}/metrics"
                echo(f"metrics at {where}, for requests with 'Authorization: Bearer' and {token}", err=True)
                more.append(endpoint)
            return start(observers.Observers(observer, *more) if more else observer)

    return begin


def run_command(
    experiment: options.Name,
    settings: options.Settings = None,
    engine: options.EngineName = "inprocess",
    clients: options.Clients = None,
    sites: options.Sites = None,
    epsilon: options.Epsilon = None,
    overrides: options.Set = None,
    seed: options.Seed = None,
    data_dir: options.DataDir = None,
    unsafe_metrics: options.UnsafeMetrics = False,
    evaluate: options.Evaluate = None,
    metrics_port: MetricsPort = None,
    observe: Observe = None,
    verbose: Verbose = False,
    moments_alone: options.MomentsAlone = False,
    runs: options.Runs = options.RUNS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train one experiment, with its guarantee, from start to summary.

    EXPERIMENT is the name of a shipped experiment (`fedsw list`) or a TOML file; settings may follow it.
    """
    changes = changes_of(settings, overrides, epsilon=epsilon, clients=clients, seed=seed, data_dir=data_dir)
    changes += [f"federation.sites={sites}"] if sites is not None else []
    changes += ["unsafe_metrics=true"] if unsafe_metrics else []
    changes += [f'evaluation.mode="{evaluate}"'] if evaluate is not None else []
    chosen = experiments.load_experiment(experiment, changes)
    sources.require_runnable(chosen.data, chosen.federation.clients, named=experiment, elsewhere=engine == "deployed")
    if observe and engine == "flwr":
        raise typer.BadParameter("engine 'flwr' shows nothing while it runs; use another engine with --observe")

    # Two rounds on made-up records: code that fails does so before anything is spent.
    rehearsal.rehearse(chosen, execution.rehearsed)

    def start(observer: Observer) -> RunResult:
        return driver.run(chosen, engine=engine, runs=runs, observer=observer, moments_alone=moments_alone)

    execution.execute(
        watched(start, port=metrics_port, verbose=verbose, observe=observe or ()),
        label=chosen.name,
        as_json=as_json,
        quiet=quiet,
    )


def resume_command(
    run: options.Run,
    charge_lost: options.ChargeLost = False,
    go_on: options.GoOn = False,
    metrics_port: MetricsPort = None,
    observe: Observe = None,
    verbose: Verbose = False,
    allow_module: options.AllowModule = None,
    runs: options.Runs = options.RUNS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Resume a run that stopped; what it has spent stays spent.

    RUN is the run's directory, or an experiment's name for its latest run. A folder that is older than what the
    clients of its run answered (a backup, a copy) is refused without --charge-lost, one with a damaged checkpoint
    without --go-on.
    """
    directory = found(run, runs)

    rehearsal.rehearse(run_folder.RunDirectory(directory).read_config(allow_module or ())[0], execution.rehearsed)

    def start(observer: Observer) -> RunResult:
        allowed = allow_module or ()
        return driver.resume(directory, observer=observer, allow_modules=allowed, charge_lost=charge_lost, go_on=go_on)

    execution.execute(
        watched(start, port=metrics_port, verbose=verbose, observe=observe or ()),
        label=directory.parent.name,
        as_json=as_json,
        quiet=quiet,
    )


_UNKNOWN = (
    "The table's quality is unknown: name a table without private records (data.held_out, or --held-out for a run), "
    "and the card compares with it."
)


def synthesize_command(
    source: Annotated[str, typer.Argument(metavar="EXPERIMENT|RUN", help="A TOML file, or a run that learnt a table.")],
    settings: options.Settings = None,
    overrides: options.Set = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The CSV file that is written.")
    ] = Path("synthetic.csv"),
    rows: Annotated[int, typer.Option(min=1, max=10_000_000, help="How many rows.")] = 10_000,
    data_dir: options.DataDir = None,
    epsilon: options.Epsilon = None,
    trust: options.Trust = None,
    fair: Annotated[bool, typer.Option("--fair", help="Make labels independent of the group.")] = False,
    draw: Annotated[int, typer.Option(min=0, help="Another number draws other rows of the same run.")] = 0,
    engine: options.EngineName = "inprocess",
    seed: options.Seed = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For a RUN: a table of the declared columns to compare with; with --data-dir it is held against the "
            "clients' files, else the card says ε = ∞ for its reader.",
        ),
    ] = None,
    other_people: options.OtherPeople = False,
    allow_module: options.AllowModule = None,
    runs: options.Runs = options.RUNS,
    spreadsheet: options.Spreadsheet = False,
    force: options.Force = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a synthetic table that may leave, and its card.

    The table has the declared columns; the card, in Markdown and as a page (HTML), says what it keeps of the records.
    Records leave once, as a noised sketch (one release; its ε is all that is spent). Given the folder of a run that
    learnt a table, further rows are drawn from it at no cost.
    """
    outputs = (output, output.with_suffix(".md"), output.with_suffix(".html"))
    require_writable(*outputs, force=force, read=[Path(source), *([held_out] if held_out else [])])
    require_format(output, "the table")
    if not output.resolve().parent.is_dir():
        raise experiments.ExperimentError(
            f"there is no folder {output.parent} to write {output.name} in; make it, or name another"
        )
    run: Path | None = Path(source)
    if not Path(source).is_dir():
        run = runs / source if run_files.is_run(runs / source) else None
    if other_people and held_out is None:
        raise experiments.ExperimentError("--other-people requires --held-out: name a table, or leave it out")
    with contextlib.ExitStack() as shown:
        if run is None:
            if held_out is not None:
                raise experiments.ExperimentError(
                    "--held-out is for a run; an experiment names its own table in data.held_out"
                )
            named = experiments.load_experiment(source, changes_of(settings, overrides, seed=seed, data_dir=data_dir))
            experiment = synthetic_table.as_synthesis(named, trust=trust, fair=fair, epsilon=epsilon)
            sources.require_runnable(experiment.data, experiment.federation.clients, named=source, elsewhere=False)
            read = [
                *sources.visible_tables(experiment.data, experiment.federation.clients),
                *([Path(experiment.data.held_out)] if experiment.data.held_out else []),
            ]
            require_writable(*outputs, force=force, read=read)
            rehearsal.rehearse(experiment, lambda directory: _rehearsed(directory, experiment))
            records = sources.load_held_out(experiment.record_source)  # an unreadable file costs nothing
            run = execution.run_whole(experiment, engine, runs, quiet=as_json or quiet)
            shown.enter_context(execution.showing(run, f"fedsw synthesize {run} -o OTHER.csv"))
            table = synthetic_table.learnt(run, experiment_code.modules_of(experiment))
            other = None if records is None else other_tables.OtherTable(records)
        elif settings or overrides or fair or (epsilon, trust, seed) != (None, None, None):
            raise experiments.ExperimentError(
                f"{source} is a run with a released sketch: only --rows, --draw, --held-out, --data-dir and -o apply "
                "to it; leave the others out"
            )
        elif data_dir is not None and held_out is None:
            raise experiments.ExperimentError(
                f"{source} is a run: --held-out is compared with --data-dir; name both or none"
            )
        else:
            require_writable(*outputs, force=force, read=files_of_run(run))
            table, other = synthetic_table.learnt(run, allow_module or ()), None
            if held_out is not None:  # a file that a stored experiment names is not opened
                other = other_tables.other_table(
                    held_out, table.columns, data_dir, option="--held-out", others=other_people
                )
        _write(run, table, other, held_out, output, rows, draw, spreadsheet=spreadsheet, as_json=as_json, quiet=quiet)


def _rehearsed(directory: Path, experiment: Experiment) -> None:
    """Draw, compare and describe a table from a run on made-up records."""
    cards.rehearse_table(
        synthetic_table.learnt(directory, experiment_code.modules_of(experiment)),
        held_out=experiment.data.held_out is not None,
    )


def _write(
    run: Path,
    table: LearntTable,
    other: OtherTable | None,
    named: Path | None,
    output: Path,
    rows: int,
    draw: int,
    *,
    spreadsheet: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    made = cards.made_table(table, other, named, name=output.name, rows=rows, draw=draw)
    doubted = other is not None and other.doubt
    compared, said = made.compared, made.said
    cells = made.cells
    if spreadsheet:
        cells = {for_spreadsheets(name): list(map(for_spreadsheets, values)) for name, values in cells.items()}
    elif why := warning_of_formulas(itertools.chain(cells, *cells.values())):
        echo(f"fedsw: warning: {why}", err=True)
    synthetic_table.write_table(output, cells, table.columns)
    beside, page = output.with_suffix(".md"), output.with_suffix(".html")
    files.replace(beside, made.card.markdown().encode("utf-8"))
    files.replace(page, made.card.page().encode("utf-8"))
    if as_json:
        shown = {"table": str(output), "card": str(beside), "page": str(page), "rows": rows, "directory": str(run)}
        shown["epsilon_spent"] = table.summary["epsilon_spent"]
        shown["epsilon_of_reader"] = math.inf if doubted else table.summary["epsilon_of_reader"]
        shown["findings"] = said
        shown["held_out"] = None if compared is None else compared.plain()
        echo_json(shown)
    elif quiet:
        echo(output)
    else:
        statement = table.summary["guarantee"]["statement"]
        screen = Screen(highlight=False)
        screen.print(f"{output}: {rows} rows. {statement}\n{beside}, {page}: what the table keeps and what not.")
        if other is not None and other.doubt:
            screen.print(other.doubt, style="bold red")
        worth = None if compared is None else compared.usefulness
        if worth is not None:
            screen.print(worth.verdict, style="bold red" if worth.useless else "")
        elif compared is None:
            screen.print(_UNKNOWN)
        for sentence in said:
            screen.print(sentence)
        screen.print(f"More rows, at no cost: fedsw synthesize {run} --rows N --draw 1 -o OTHER.csv")


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
        # each method at its first epsilon is tried on made-up records, before anything is spent
        for cell in {cell.method: cell for cell in reversed(grid.cells) if cell.baseline is None}.values():
            rehearsal.rehearse(cell.experiment, execution.rehearsed)
        folder = fresh_folder(runs / "compare" / grid.task)
        comparison_grid.write_grid(folder, grid)
    _run(folder, grid, jobs=jobs, quiet=quiet or as_json)
    with execution.showing(folder, f"fedsw compare --resume {folder}"):
        _show(folder, as_json=as_json, quiet=quiet)


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
