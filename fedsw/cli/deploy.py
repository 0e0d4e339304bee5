"""`fedsw deploy local`: one experiment on this machine, with a process for every client."""

from __future__ import annotations

import typer

from fedsw.cli.options import (
    RUNS,
    Clients,
    DataDir,
    Epsilon,
    Evaluate,
    Json,
    Name,
    Quiet,
    Runs,
    Seed,
    Set,
    Settings,
    Stock,
    UnsafeMetrics,
)
from fedsw.cli.run import run_command

deploy = typer.Typer(no_args_is_help=True, help="Run an experiment on real client processes.")


@deploy.command("local")
def deploy_local_command(
    experiment: Name,
    settings: Settings = None,
    clients: Clients = None,
    epsilon: Epsilon = None,
    overrides: Set = None,
    seed: Seed = None,
    data_dir: DataDir = None,
    unsafe_metrics: UnsafeMetrics = False,
    evaluate: Evaluate = None,
    stock: Stock = False,
    runs: Runs = RUNS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment on this machine with a process, a key and a folder for every client.

    Certificates and keys are made for the run; when it ends, every process it started is stopped.
    """
    run_command(
        experiment,
        settings,
        engine="deployed-stock" if stock else "deployed",
        clients=clients,
        epsilon=epsilon,
        overrides=overrides,
        seed=seed,
        data_dir=data_dir,
        unsafe_metrics=unsafe_metrics,
        evaluate=evaluate,
        runs=runs,
        as_json=as_json,
        quiet=quiet,
    )
