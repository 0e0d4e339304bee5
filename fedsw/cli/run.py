"""`fedsw run`: one experiment from start to summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from fedsw.cli.options import (
    RUNS,
    Clients,
    DataDir,
    EngineName,
    Epsilon,
    Evaluate,
    Json,
    MomentsAlone,
    Name,
    Quiet,
    Runs,
    Seed,
    Set,
    Settings,
    Sites,
    UnsafeMetrics,
    changes_of,
)
from fedsw.cli.watching import MetricsPort, Observe, Verbose, watched

if TYPE_CHECKING:
    from fedsw.engines.driver import RunResult
    from fedsw.runs.observer import Observer


def run_command(
    experiment: Name,
    settings: Settings = None,
    engine: EngineName = "inprocess",
    clients: Clients = None,
    sites: Sites = None,
    epsilon: Epsilon = None,
    overrides: Set = None,
    seed: Seed = None,
    data_dir: DataDir = None,
    unsafe_metrics: UnsafeMetrics = False,
    evaluate: Evaluate = None,
    metrics_port: MetricsPort = None,
    observe: Observe = None,
    verbose: Verbose = False,
    moments_alone: MomentsAlone = False,
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
    from fedsw.own_data.examine import require_runnable

    changes = changes_of(settings, overrides, epsilon=epsilon, clients=clients, seed=seed, data_dir=data_dir)
    changes += [f"federation.sites={sites}"] if sites is not None else []
    changes += ["unsafe_metrics=true"] if unsafe_metrics else []
    changes += [f'evaluation.mode="{evaluate}"'] if evaluate is not None else []
    chosen = load_experiment(find_experiment(experiment), changes)
    require_runnable(chosen, named=experiment, elsewhere=engine.startswith("deployed"))
    if observe and engine == "flwr":
        raise typer.BadParameter("engine 'flwr' shows nothing while it runs; use another engine with --observe")

    def start(observer: Observer) -> RunResult:
        from fedsw.engines.driver import run

        return run(chosen, engine=engine, runs=runs, observer=observer, moments_alone=moments_alone)

    execute(
        watched(start, port=metrics_port, verbose=verbose, observe=observe or ()),
        label=chosen.name,
        as_json=as_json,
        quiet=quiet,
    )
