"""`fedsw server`: a federation's server, for clients on other machines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsw.cli.options import (
    RUNS,
    AllowModule,
    ChargeLost,
    Epsilon,
    Json,
    Quiet,
    Runs,
    Set,
    Settings,
    Stock,
    changes_of,
    echo,
)

if TYPE_CHECKING:
    from fedsw.engines.driver import RunResult
    from fedsw.runs.observer import Observer

Port = Annotated[int, typer.Option(min=1, max=65535, help="The port clients connect to.")]
_LOOK_SECONDS = 1.0


def server_command(
    certs: Annotated[Path, typer.Option(metavar="DIR", help="The server's folder, made by `fedsw certs`.")],
    experiment: Annotated[str | None, typer.Argument(metavar="[EXPERIMENT]")] = None,
    settings: Settings = None,
    epsilon: Epsilon = None,
    overrides: Set = None,
    port: Port = 9092,
    home: Annotated[Path, typer.Option(metavar="DIR", help="Flower's files and logs.")] = Path("superlink"),
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Go on with a run of this server.")] = None,
    charge_lost: ChargeLost = False,
    allow_module: AllowModule = None,
    runs: Runs = RUNS,
    stock: Stock = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Serve clients on other machines.

    With an experiment the server runs it when they are there, and ends. Without an experiment it serves until it is
    stopped; runs are then submitted with `flwr run` (docs/deploy.md).
    """
    from fedsw.cli.execution import execute
    from fedsw.deploy.serving import serving
    from fedsw.experiment import load_experiment
    from fedsw.experiment.catalogue import find_experiment

    if experiment is None and resume is None:
        with serving(certs, home, port=port, stock=stock) as link:
            echo(f"serving on port {port}; logs are in {home / 'logs'}", err=True)
            while link.process.poll() is None:
                time.sleep(_LOOK_SECONDS)
            raise RuntimeError(f"the SuperLink ended; it said:\n{link.processes.said('superlink')}")
    if experiment is not None and resume is not None:
        raise typer.BadParameter("--resume takes the experiment from the run; leave EXPERIMENT out")
    from fedsw.engines.driver import prepare_served, run_served
    from fedsw.experiment.stored import modules_of
    from fedsw.runs.directory import RunDirectory
    from fedsw.runs.files import find_run

    if resume is not None:
        directory, allowed = find_run(resume, runs), tuple(allow_module or ())
        RunDirectory(directory).read_config(allowed)  # refused before anything is started
        if charge_lost:
            RunDirectory(directory).agree_to_charge()
    else:
        chosen = load_experiment(find_experiment(str(experiment)), changes_of(settings, overrides, epsilon=epsilon))
        directory, allowed = prepare_served(chosen, runs), modules_of(chosen)

    def start(observer: Observer) -> RunResult:
        with serving(certs, home, port=port, stock=stock) as link:
            return run_served(link, directory, observer, resume=resume is not None, allow_modules=allowed)

    execute(start, label=directory.parent.name, as_json=as_json, quiet=quiet)
