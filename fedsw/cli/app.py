"""The `fedsw` command: run, resume, show, list, ledger, demo; the other commands are registered here.

What a command needs is imported when it runs, here and in every file of this folder: `fedsw --help` loads none of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedsw.cli.audit import audit_command
from fedsw.cli.budget import budget
from fedsw.cli.compare import compare_command
from fedsw.cli.deploy import add_deployment
from fedsw.cli.options import (
    RUNS,
    Clients,
    DataDir,
    EngineName,
    Epsilon,
    Evaluate,
    Json,
    Name,
    Quiet,
    Run,
    Runs,
    Seed,
    Set,
    Settings,
    UnsafeMetrics,
)
from fedsw.cli.shell import invoke, new_group, split_debug
from fedsw.cli.status import MetricsPort, Observe, Verbose, add_status, watched
from fedsw.text import json_text

if TYPE_CHECKING:
    from fedsw.engines.driver import RunResult
    from fedsw.experiment import Experiment
    from fedsw.runs.observer import Observer

app = new_group()
app.command("budget")(budget)
app.command("compare")(compare_command)
app.command("audit")(audit_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 done, 1 the run failed, 2 bad input."""
    debug, rest = split_debug(sys.argv[1:] if arguments is None else arguments)
    return invoke(app, rest, debug=debug)


@app.command("run")
def run_command(
    experiment: Name,
    settings: Settings = None,
    engine: EngineName = "inprocess",
    clients: Clients = None,
    epsilon: Epsilon = None,
    overrides: Set = None,
    seed: Seed = None,
    data_dir: DataDir = None,
    unsafe_metrics: UnsafeMetrics = False,
    evaluate: Evaluate = None,
    metrics_port: MetricsPort = None,
    observe: Observe = None,
    verbose: Verbose = False,
    runs: Runs = RUNS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one experiment, with its guarantee, from start to summary.

    EXPERIMENT is the name of a shipped experiment (`fedsw list`) or a TOML file; settings may follow it.
    """
    from fedsw.cli.execution import execute
    from fedsw.experiment import load_experiment
    from fedsw.experiment.catalogue import find_experiment

    changes = [*(overrides or ()), *(settings or ())]
    changes += [f"federation.clients={clients}"] if clients is not None else []
    changes += [f"privacy.epsilon={epsilon!r}"] if epsilon is not None else []
    changes += [f"seed={seed}"] if seed is not None else []
    changes += [f"data.data_dir={_toml_text(data_dir)}"] if data_dir is not None else []
    changes += ["unsafe_metrics=true"] if unsafe_metrics else []
    changes += [f'evaluation.mode="{evaluate}"'] if evaluate is not None else []
    chosen = load_experiment(find_experiment(experiment), changes)
    if observe and engine == "flwr":
        raise typer.BadParameter("engine 'flwr' shows nothing while it runs; use another engine with --observe")

    def start(observer: Observer) -> RunResult:
        from fedsw.engines.driver import run

        return run(chosen, engine=engine, runs=runs, observer=observer)

    execute(
        watched(start, port=metrics_port, verbose=verbose, observe=observe or ()),
        label=chosen.name,
        as_json=as_json,
        quiet=quiet,
    )


add_deployment(app, run_command)
add_status(app)


@app.command("resume")
def resume_command(
    run: Run,
    metrics_port: MetricsPort = None,
    observe: Observe = None,
    verbose: Verbose = False,
    runs: Runs = RUNS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that stopped; what it has spent stays spent.

    RUN is the run's directory, or an experiment's name for its latest run.
    """
    from fedsw.cli.execution import execute
    from fedsw.runs.finding import find_run

    directory = find_run(run, runs)

    def start(observer: Observer) -> RunResult:
        from fedsw.engines.driver import resume

        return resume(directory, observer=observer)

    execute(
        watched(start, port=metrics_port, verbose=verbose, observe=observe or ()),
        label=directory.parent.name,
        as_json=as_json,
        quiet=quiet,
    )


@app.command("show")
def show_command(run: Run, runs: Runs = RUNS, as_json: Json = False) -> None:
    """Print the summary of a run again.

    RUN is the run's directory, or an experiment's name for its latest run.
    """
    from fedsw.cli.execution import print_run
    from fedsw.runs.finding import find_run

    print_run(find_run(run, runs), as_json=as_json)


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """List the shipped experiments."""
    from fedsw.experiment.catalogue import shipped_experiments
    from fedsw.report.screens import experiments_table

    experiments = shipped_experiments()
    if as_json:
        typer.echo(json_text([_listed(experiment) for experiment in experiments]))
    else:
        Console().print(experiments_table(experiments))


@app.command("ledger")
def ledger_command(run: Run, runs: Runs = RUNS, as_json: Json = False) -> None:
    """Replay a run's ledger and print what it has spent.

    RUN is the run's directory, or an experiment's name for its latest run.
    """
    from fedsw.report.screens import ledger_report
    from fedsw.runs.accounts import read_ledger
    from fedsw.runs.finding import find_run

    account = read_ledger(find_run(run, runs))
    if as_json:
        typer.echo(json_text(account))
    else:
        Console().print(ledger_report(account))


@app.command("demo")
def demo_command(
    clients: Clients = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each run, instead of the experiment's.")] = None,
    seed: Seed = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with a demo that stopped.")] = None,
    runs: Runs = RUNS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train fair classifiers at α = 0, ½, ¾ and ε = ∞, 3, 1: a table and two figures."""
    from fedsw.cli.execution import explaining
    from fedsw.compare.demo import ALPHAS, CAPTION, EPSILONS, draw_demo, missing_cells, read_demo, run_demo, start_demo
    from fedsw.report.progress import RunProgress
    from fedsw.report.screens import demo_table

    if resume is not None and (clients, rounds, seed) != (None, None, None):
        raise typer.BadParameter("--resume takes --clients, --rounds and --seed from the demo it goes on with")
    folder = resume or start_demo(runs, clients=clients or 4, rounds=rounds, seed=seed)
    cells = len(ALPHAS) * len(EPSILONS)
    done = cells - len(missing_cells(read_demo(folder)))
    with (
        RunProgress(label="demo", runs=cells, done=done, quiet=quiet or as_json) as progress,
        explaining(lambda: f"fedsw demo --resume {folder}" if progress.begun else None),
    ):
        table = run_demo(folder, progress)
    plots = [str(path) for path in draw_demo(folder)]
    if as_json:
        typer.echo(json_text({**table, "directory": str(folder), "plots": plots}))
    elif quiet:
        typer.echo(folder)
    else:
        Console().print(demo_table(table["rows"], caption=CAPTION))
        Console().print("\n".join([str(folder / "table.json"), *plots]), style="cyan", highlight=False)


def _listed(experiment: Experiment) -> dict[str, Any]:
    from fedsw.report.screens import target_epsilon

    return {
        "name": experiment.name,
        "title": experiment.title,
        "task": experiment.objective.task,
        "penalty": experiment.objective.penalty,
        "alpha": experiment.objective.alpha,
        "epsilon": experiment.privacy.epsilon if experiment.privacy.noisy else float("inf"),
        "target": target_epsilon(experiment),
        "rounds": experiment.training.rounds,
        "clients": experiment.federation.clients,
    }


def _toml_text(path: Path) -> str:
    return json.dumps(str(path.expanduser().resolve()), ensure_ascii=False)
