"""Verbs of real processes: `fedsw deploy local`, `server`, `client`, `bundle`, and `certs`, which makes their keys."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fedsw._tools.exits import Exit
from fedsw._tools.files import private_folder
from fedsw.cli import options
from fedsw.cli._modules import (
    bundles,
    certificates,
    client_check,
    driver,
    execution,
    experiment_code,
    experiments,
    following,
    installed,
    limits,
    node_settings,
    rosters,
    run_folder,
    run_progress,
    served,
    settings_models,
)
from fedsw.cli.options import Clients, Json, Verbs, changes_of, echo, echo_json, found
from fedsw.cli.run import MetricsPort, run_command, watched
from fedsw.runs.report.console import Screen

if TYPE_CHECKING:
    from fedsw.federation.engines.driver import RunResult
    from fedsw.runs.observer import Observer


deploy = Verbs(no_args_is_help=True, help="Run an experiment on real client processes.")


@deploy.command("local")
def deploy_local_command(
    experiment: options.Name,
    settings: options.Settings = None,
    clients: options.Clients = None,
    epsilon: options.Epsilon = None,
    overrides: options.Set = None,
    seed: options.Seed = None,
    data_dir: options.DataDir = None,
    unsafe_metrics: options.UnsafeMetrics = False,
    evaluate: options.Evaluate = None,
    metrics_port: MetricsPort = None,
    runs: options.Runs = options.RUNS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run one experiment on this machine with a process, a key and a folder for every client.

    Certificates and keys are made for the run; when it ends, every process it started is stopped.
    """
    run_command(
        experiment,
        settings,
        engine="deployed",
        clients=clients,
        epsilon=epsilon,
        overrides=overrides,
        seed=seed,
        data_dir=data_dir,
        unsafe_metrics=unsafe_metrics,
        evaluate=evaluate,
        metrics_port=metrics_port,
        runs=runs,
        as_json=as_json,
        quiet=quiet,
    )


Port = Annotated[int, typer.Option(min=1, max=65535, help="The port clients connect to.")]
_LOOK_SECONDS = 1.0
"""Seconds between two looks at the clients."""


def server_command(
    certs: Annotated[Path, typer.Option(metavar="DIR", help="The server's folder, made by `fedsw certs`.")],
    experiment: Annotated[str | None, typer.Argument(metavar="[EXPERIMENT]")] = None,
    settings: options.Settings = None,
    epsilon: options.Epsilon = None,
    overrides: options.Set = None,
    port: Port = 9092,
    home: Annotated[Path, typer.Option(metavar="DIR", help="Flower's files and logs.")] = Path("superlink"),
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Resume a run of this server.")] = None,
    charge_lost: options.ChargeLost = False,
    go_on: options.GoOn = False,
    allow_module: options.AllowModule = None,
    metrics_port: MetricsPort = None,
    runs: options.Runs = options.RUNS,
    stock: options.Stock = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Serve clients on other machines.

    With an experiment the server runs it when they are there, and ends. Without an experiment it serves until it is
    stopped; runs are then submitted with `flwr run` (docs/deploy.md). A line says of each client when it is there, was
    greeted, refuses, goes or is back.
    """
    if experiment is None and resume is None:

        def serve(observer: Observer) -> NoReturn:
            with served.serving(certs, home, port=port, stock=stock) as link:
                echo(f"serving on port {port}; logs are in {home / 'logs'}", err=True)
                follower = following.ServiceFollower(link, observer)
                while link.process.poll() is None:
                    follower.look()
                    time.sleep(_LOOK_SECONDS)
                raise RuntimeError(f"the SuperLink ended; it said:\n{link.processes.said('superlink')}")

        watched(serve, port=metrics_port)(run_progress.RollLines(lambda line: None if quiet else echo(line, err=True)))
    if experiment is not None and resume is not None:
        raise typer.BadParameter("--resume takes the experiment from the run; leave EXPERIMENT out")

    stored = None if resume is None else found(resume, runs)
    if stored is not None:
        allowed: Collection[str] = tuple(allow_module or ())
        chosen, _ = run_folder.RunDirectory(stored).read_config(allowed)  # refused before anything is started
        if charge_lost:
            run_folder.RunDirectory(stored).agree_to_charge()
        if go_on:
            run_folder.RunDirectory(stored).agree_to_go_on()
    else:
        chosen = experiments.load_experiment(str(experiment), changes_of(settings, overrides, epsilon=epsilon))
        allowed = experiment_code.modules_of(chosen)

    def start(observer: Observer) -> RunResult:
        if stored is not None and not (charge_lost or go_on) and (whole := driver.ended(stored, chosen)):
            return whole
        with served.serving(certs, home, port=port, stock=stock) as link:
            directory = stored or driver.prepare_served(chosen, runs)
            return driver.run_served(link, directory, observer, resume=stored is not None, allow_modules=allowed)

    execution.execute(watched(start, port=metrics_port), label=chosen.name, as_json=as_json, quiet=quiet)


def client_command(
    superlink: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the server is.")] = None,
    certs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="This client's folder, made by `fedsw certs`.")
    ] = None,
    partition_id: Annotated[int | None, typer.Option(min=0, help="This client's number, from 0.")] = None,
    num_partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes, which are clients unless there is --num-clients.")
    ] = None,
    num_clients: Annotated[
        int | None, typer.Option(min=1, help="Number of clients, where a node holds several: data-dir/NUMBER for each.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The node key, if not in its folder.")] = None,
    server_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The server's public key, if not in the folder: it signs requests."),
    ] = None,
    data_dir: options.DataDir = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help=f"What must outlive the process: the client's own ledger. [{options.STATE}]"),
    ] = None,
    data_path: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The one file of this client's records.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The columns this client agrees to; limits on its own file ask for them."),
    ] = None,
    trust: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Trust models this client agrees to, by commas; any: what the server asks."),
    ] = None,
    max_epsilon: Annotated[
        float | None, typer.Option(help="The largest ε this client agrees to; seeds and no noise are refused.")
    ] = None,
    max_memory: Annotated[
        float | None, typer.Option(metavar="GIB", help="The most memory of a run. [half of the machine's]")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The most computing of a run. [86400]")
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The public keys of all sites, for trust 'distributed'; see `fedsw certs`."),
    ] = None,
    colluding: Annotated[
        int | None, typer.Option(min=0, help="With --roster: how many clients may be on the server's side.")
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="The data set's name: all local-trust runs on it have one budget."),
    ] = None,
    accounts: options.Accounts = None,
    bundle: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="The only bundle to load code from; `own`: that of the installed fedsw."),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(
            metavar="HASHES",
            help="The installed fedsw that a server must have, by commas; `own`: this one's. [any; own if distributed]",
        ),
    ] = None,
    allow_module: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A module that an experiment may name here; may be repeated."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file with these options; those given here come first.")
    ] = None,
    stock: Annotated[
        bool | None, typer.Option("--stock", help="Flower's own executors: a Python process for every message.")
    ] = None,
    init: Annotated[bool, typer.Option("--init", help="Write a commented node file, and end.")] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The node file that --init writes.")
    ] = Path("node.toml"),
    check: Annotated[
        bool, typer.Option("--check", help="Try what can fail later, as the user who runs this, and end.")
    ] = False,
) -> None:
    """Take part with the records of this machine, until stopped.

    A connection that breaks is made again. What it takes part in is for its operator to say: --trust, --max-epsilon,
    or both, here or in a node file. With --check nothing takes part: state, accounts, disk, HOME, columns, certificate,
    server, clock and code are tried, each a line with its remedy.
    """
    # Parameters are named for the keys of a node file, so that no list repeats them.
    options_here = {name.replace("_", "-"): value for name, value in locals().items() if value is not None}
    if init:
        node_settings.write_node_file(output)
        echo(f"{output} is written; edit it, then start `fedsw client --config {output}`")
        return
    file = {} if config is None else node_settings.read_node_file(config)
    chosen = {**file, **options_here, "modules": tuple(allow_module or file.get("modules", ()))}
    if "trust" not in chosen and "max-epsilon" not in chosen:
        raise typer.BadParameter(f"a client says what it takes part in before it starts; {limits.CHOICE}")
    _require(chosen, "certs")
    folder, state = chosen["certs"], chosen.get("state-dir", options.STATE)
    made, plain = certificates.ServerCertificates.of(folder), bool(chosen.get("stock"))

    def settings() -> node_settings.NodeSettings:
        _require(chosen, "superlink", "partition-id", "num-partitions")
        return node_settings.NodeSettings.of(
            {"key": folder / "node.key", "server-key": made.signing_public, **chosen},
            authority=made.authority,
            state_dir=private_folder(state),
            own_data=True,
        )

    if check:
        faults = 0
        for outcome in client_check.tried(settings, stock=plain):
            echo(outcome.line())
            faults += not outcome.good
        raise typer.Exit(Exit.FAILED if faults else Exit.DONE)
    node = settings()

    def say(text: str) -> None:
        echo(f"fedsw: {text}", err=True)

    say(f"this client takes part in {limits.choice_of(node.node_config)}")
    served.keep_connected(node, state / "flower", stock=plain, say=say)


def _require(chosen: Mapping[str, object], *names: str) -> None:
    for name in names:
        if name not in chosen:
            raise typer.BadParameter(f"--{name} is missing; give it here, or {name} in the file of --config")


def bundle_command(
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Write the bundle's files into it.")] = None,
    as_json: options.Json = False,
) -> None:
    """Print the hash of the bundle that this fedsw sends to nodes.

    A node can demand it (`--bundle`). With DIR the files are written there, to be read, or submitted with `flwr run
    DIR`. With --json also the digest of the fedsw that is installed here, which servers and clients state.
    """
    if folder is not None:
        bundles.write_bundle(folder)
    digest, written = bundles.bundle_hash(), None if folder is None else str(folder)
    if as_json:
        files = sorted(bundles.bundle_files())
        echo_json({"sha256": digest, "code": installed.code_digest(), "files": files, "directory": written})
    else:
        echo(digest)


certs = Verbs(help="Make the certificates and keys of a federation's machines.", invoke_without_command=True)
roster = Verbs(help="Keep the public keys of all sites, for trust 'distributed'.", no_args_is_help=True)
certs.add_typer(roster, name="roster")

File = Annotated[Path, typer.Argument(metavar="FILE", help="The roster, a TOML file.")]


@certs.callback()
def certs_command(
    context: typer.Context,
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="A name or address of the server's machine.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the machines' folders are made.")] = None,
    clients: Clients = None,
    as_json: Json = False,
) -> None:
    """Make the server's certificate and a key for every client.

    Each machine gets one folder. The key of the authority that signs the certificate is not kept.
    """
    if context.invoked_subcommand is not None:
        return

    if host is None or out is None or clients is None:
        missing = "host" if host is None else "out" if out is None else "clients"
        raise typer.BadParameter(f"--{missing} is missing")
    server, nodes = certificates.write_federation(out, host, clients)
    until = f"{certificates.valid_until(certificates.ServerCertificates.of(server).certificate):%Y-%m-%d}"
    if as_json:
        echo_json({"server": str(server), "clients": [str(node) for node in nodes], "until": until})
        return
    console = Screen(highlight=False)
    console.print(f"{server}  → the server's machine ({', '.join(host)})")
    for node in nodes:
        console.print(f"{node}  → {node.name}'s machine")
    console.print(f"The certificates end on {until}; server and clients warn in the last 30 days.")


@roster.command("key")
def key_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of this machine: its client's --state-dir.")],
    as_json: Json = False,
) -> None:
    """Make this client's own key, on its own machine, and print the public one for the others' rosters.

    The private key stays in the folder, which its owner alone can read. It is never replaced: for a new one, choose
    another folder, and give the others its public key.
    """
    path = rosters.write_mask_key(folder.expanduser())
    public = rosters.read_mask_key(path).public.hex()
    said = f"{public}\nthe public key of {path}, for the rosters of the other sites; the private one stays there"
    if as_json:
        echo_json({"file": str(path), "public": public})
    else:
        echo(said)


@roster.command("add")
def add_command(
    file: File,
    name: Annotated[str, typer.Option(help="What the site is known by.")],
    key: Annotated[str, typer.Option(metavar="PUBLIC", help="Its public key, from its operator's own hands.")],
    clients: Annotated[int, typer.Option(min=1, help="How many clients it answers for.")] = 1,
) -> None:
    """Add a site's public key to a roster, which is made if there is none.

    To remove a site, or change its key, edit the file; every operator does, and all compare the digest again.
    """
    if not re.fullmatch("[0-9a-f]{64}", key := key.strip().lower()):
        raise typer.BadParameter(
            f"--key {key!r} is no public key: 64 hexadecimal digits, which `fedsw certs roster key` prints at the site"
        )
    member = settings_models.validated(rosters.RosterSite, {"name": name, "key": key, "clients": clients})
    known = rosters.read_roster(file) if file.exists() else rosters.Roster()
    updated = known.with_member(member)
    file.write_text(updated.text(), encoding="utf-8")
    echo(f"{file}: {len(updated.member)} sites, digest {rosters.grouped(updated.digest)}")


@roster.command("show")
def show_command(file: File, as_json: Json = False) -> None:
    """Show the sites of a roster, and its digest, which all operators compare by voice."""
    sites = rosters.read_roster(file)
    if as_json:
        echo_json({"digest": sites.digest, "members": [member.model_dump() for member in sites.member]})
        return
    for member in sites.member:
        echo(f"{member.key}  {member.name}{f', {member.clients} clients' if member.clients > 1 else ''}")
    echo(f"digest {rosters.grouped(sites.digest)}")


@roster.command("digest")
def digest_command(file: File) -> None:
    """Print a roster's digest: SHA-256 of its names, keys and numbers of clients, in whatever order they are."""
    echo(rosters.grouped(rosters.read_roster(file).digest))
