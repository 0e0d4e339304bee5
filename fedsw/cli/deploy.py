"""The commands that start real processes: deploy local, certs, server, client."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedsw.cli.options import (
    RUNS,
    Clients,
    DataDir,
    Epsilon,
    Json,
    Name,
    Quiet,
    Runs,
    Seed,
    Set,
    Settings,
    UnsafeMetrics,
)
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


def client_command(
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server is.")],
    certs: Annotated[Path, typer.Option(metavar="DIR", help="This client's folder, made by `fedsw certs`.")],
    partition_id: Annotated[int, typer.Option(min=0, help="This client's number, from 0.")],
    num_partitions: Annotated[int, typer.Option(min=1, help="Number of clients.")],
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The node key, if not in its folder.")] = None,
    data_dir: DataDir = None,
    state_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="What must outlive the process: the client's own ledger.")
    ] = Path("client-state"),
    data_path: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The one file of this client's records.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The columns this client agrees to; limits on its own file ask for them."),
    ] = None,
    trust: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Trust models this client agrees to, separated by commas.")
    ] = None,
    max_epsilon: Annotated[
        float | None, typer.Option(help="The largest ε this client agrees to; seeds and no noise are refused.")
    ] = None,
    stock: Stock = False,
) -> None:
    """Take part with the records of this machine, until stopped; a connection that breaks is made again."""
    from fedsw.deploy.secret_files import private_folder
    from fedsw.deploy.serving import keep_connected
    from fedsw.deploy.supernode import NodeSettings

    node = NodeSettings(
        superlink=superlink,
        authority=certs / "ca.crt",
        key=key or certs / "node.key",
        client=partition_id,
        clients=num_partitions,
        data_dir=data_dir,
        state_dir=private_folder(state_dir),
        data_path=data_path,
        schema=schema,
        trust=trust,
        max_epsilon=max_epsilon,
        own_data=True,
    )
    with ending_on_sigterm():
        keep_connected(node, state_dir / "flower", stock=stock, say=lambda text: typer.echo(f"fedsw: {text}", err=True))


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C meanwhile, so that what was started is stopped in order."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
