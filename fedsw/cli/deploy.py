"""The commands that start a federation of real processes: deploy local, certs, server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedsw.cli.client import bundle_command, client_command
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
    UnsafeMetrics,
)
from fedsw.cli.shell import ending_on_sigterm
from fedsw.text import json_text

if TYPE_CHECKING:
    from fedsw.engines.driver import RunResult
    from fedsw.runs.observer import Observer

Stock = Annotated[bool, typer.Option("--stock", help="Flower's own executors: a Python process for every message.")]
Host = Annotated[list[str], typer.Option("--host", metavar="NAME", help="A name or address of the server's machine.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="The port clients connect to.")]
_LOOK_SECONDS = 1.0


def add_deployment(app: typer.Typer, run_command: Callable[..., None]) -> None:
    """Add the commands to the command line; `run_command` is the one behind `fedsw run`."""
    deploy = typer.Typer(no_args_is_help=True, help="Run an experiment on real client processes.")
    app.add_typer(deploy, name="deploy")
    app.command("certs")(certs_command)
    app.command("server")(server_command)
    app.command("client")(client_command)
    app.command("bundle")(bundle_command)

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
        with ending_on_sigterm():
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


def certs_command(
    host: Host,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the machines' folders are made.")],
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")],
    as_json: Json = False,
) -> None:
    """Make the server's certificate and a key for every client: one folder for each machine.

    The key of the authority that signs the certificate is not kept.
    """
    from fedsw.deploy.serving import write_federation

    server, nodes = write_federation(out, host, clients)
    if as_json:
        typer.echo(json_text({"server": str(server), "clients": [str(node) for node in nodes]}))
        return
    console = Console(highlight=False)
    console.print(f"{server}  → the server's machine ({', '.join(host)})")
    for node in nodes:
        console.print(f"{node}  → {node.name}'s machine")


def server_command(
    certs: Annotated[Path, typer.Option(metavar="DIR", help="The server's folder, made by `fedsw certs`.")],
    experiment: Annotated[str | None, typer.Argument(metavar="[EXPERIMENT]")] = None,
    settings: Settings = None,
    port: Port = 9092,
    home: Annotated[Path, typer.Option(metavar="DIR", help="Flower's files and logs.")] = Path("superlink"),
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with a run of this server.")] = None,
    runs: Runs = RUNS,
    stock: Stock = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Serve clients on other machines; with an experiment, run it when they are there, and end.

    Without an experiment it serves until it is stopped; runs are then submitted with `flwr run` (docs/deploy.md).
    """
    from fedsw.cli.execution import execute
    from fedsw.deploy.serving import serving
    from fedsw.experiment import load_experiment
    from fedsw.experiment.catalogue import find_experiment

    if experiment is None and resume is None:
        with ending_on_sigterm(), serving(certs, home, port=port, stock=stock) as link:
            typer.echo(f"serving on port {port}; logs are in {home / 'logs'}", err=True)
            while link.process.poll() is None:
                time.sleep(_LOOK_SECONDS)
            raise RuntimeError(f"the SuperLink ended; it said:\n{link.processes.said('superlink')}")
    if experiment is not None and resume is not None:
        raise typer.BadParameter("--resume takes the experiment from the run; leave EXPERIMENT out")
    from fedsw.engines import served

    if resume is not None:
        directory = resume
    else:
        directory = served.prepare(load_experiment(find_experiment(str(experiment)), settings or ()), runs)

    def start(observer: Observer) -> RunResult:
        with ending_on_sigterm(), serving(certs, home, port=port, stock=stock) as link:
            return served.run(link, directory, observer, resume=resume is not None)

    execute(start, label=directory.parent.name, as_json=as_json, quiet=quiet)
