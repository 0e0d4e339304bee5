"""Verbs that carry one run out: `fedsw run`, `resume`, and what it may be watched by besides its progress."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fedsw.cli import options
from fedsw.cli._modules import driver, execution, experiments, observers, rehearsal, run_folder, sources, telemetry
from fedsw.cli.options import changes_of, echo, found

if TYPE_CHECKING:
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
    """Let a start be observed by services, a metrics endpoint and the log as well, where they are asked for."""

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
                echo(f"metrics at {where}, to who sends 'Authorization: Bearer' and {token}", err=True)
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

    rehearsal.rehearse(
        chosen, execution.rehearsed
    )  # two rounds on made-up records: the first releases of a process are these

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
