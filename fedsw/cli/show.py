"""Verbs that look at what there is: `fedsw list`, `show`, `report`, `audit`, `account`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.live import Live

from fedsw._tools import files
from fedsw._tools.files import fresh_folder
from fedsw._tools.text import number, upward
from fedsw.cli import options
from fedsw.cli._modules import (
    additive_shapes,
    audited,
    client_states,
    comparison,
    comparison_page,
    execution,
    experiment_files,
    experiments,
    figures,
    lifetime,
    model_shapes,
    pool,
    public_rows,
    roll_call,
    run_accounts,
    run_commands,
    run_documents,
    run_facts,
    run_files,
    run_pages,
    run_plan,
    run_status,
    run_view,
    screens,
    shape_figures,
    verbs,
)
from fedsw.cli.options import (
    RUNS,
    Accounts,
    AllowModule,
    Force,
    Json,
    Run,
    Runs,
    Verbs,
    answer,
    answer_made,
    changes_of,
    echo,
    echo_json,
    files_of_run,
    found,
    require_format,
    require_writable,
    say,
)
from fedsw.runs.report.console import Screen
from fedsw.runs.report.document import Code, Document, Part, Strong, named, sections

if TYPE_CHECKING:
    from fedsw.runs.client_status import ClientStatus
    from fedsw.runs.status import Status


Watch = Annotated[bool, typer.Option("--watch", help="progress: look until the run ends; Ctrl-C stops looking only.")]
Every = Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="How often --watch looks.")]


def show_command(
    run: Run,
    what: Annotated[
        Literal["summary", "progress", "ledger", "card", "shapes", "client"],
        typer.Argument(metavar="[summary|progress|ledger|card|shapes|client]"),
    ] = "summary",
    watch: Watch = False,
    every: Every = 2.0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="card, shapes: where to write it; of a card the run's card.md."
        ),
    ] = None,
    coded: Annotated[
        bool, typer.Option("--coded", help="summary: errors of a number as training has them, of 0 to 1.")
    ] = False,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Show a run: its summary, progress, ledger or card.

    RUN is the run's directory, or an experiment's name for its latest run. Its summary is what it printed when it
    ended; progress has rounds, ε spent, signal to noise, clients, bytes, pace and the time left; ledger replays what
    it spent; card writes its model card again; shapes are an additive model's functions, one of each column, drawn
    into -o FILE.png where that is given. With client, RUN is the --state-dir of `fedsw client`: the runs that
    this machine takes part in, and what its own ledgers have spent.
    """
    if watch and what != "progress":
        raise typer.BadParameter("--watch follows a run at its server: fedsw show RUN progress --watch")
    if output is not None and what not in ("card", "shapes"):
        raise typer.BadParameter("--output is where a card or shapes are written: fedsw show RUN card -o FILE")
    if what == "client":
        status = client_states.read_client_status(Path(run).expanduser())
        answer(status.as_dict(), lambda: _client_screen(status), as_json=as_json, highlight=True)
        return
    directory = found(run, runs)
    if what == "progress":
        _show_progress(directory, watch=watch, every=every, as_json=as_json)
    elif what == "ledger":
        account = run_accounts.read_ledger(directory)
        answer(account, lambda: screens.ledger_report(account), as_json=as_json, highlight=True)
    elif what == "card":
        if output is not None:
            require_writable(output, force=force, read=files_of_run(directory))
            require_format(output, "the card")
            files.new_folder(output.parent)
        _answer_path("card", run_pages.write_card(directory, output), as_json=as_json)
    elif what == "shapes":
        _show_shapes(directory, output, force=force, as_json=as_json)
    else:
        execution.print_run(directory, as_json=as_json, coded=coded)


def _show_shapes(directory: Path, output: Path | None, *, force: bool, as_json: bool) -> None:
    experiment = run_view.read_run(directory).experiment
    shapes = additive_shapes.read_shapes(directory) or model_shapes.keep_shapes(directory, experiment)
    if not shapes and not (directory / run_files.RunFile.MODEL).is_file():
        raise experiments.ExperimentError(
            f"{directory} has no shapes: the run has released no model; `fedsw show {directory} progress` shows how "
            "far it is"
        )
    if not shapes:
        raise experiments.ExperimentError(
            f"{directory} has no shapes: a model of model.kind 'additive' has them; this one is "
            f"{experiment.model.kind!r}"
        )
    if output is not None:
        require_writable(output, force=force, read=files_of_run(directory))
        require_format(output, "the picture")
        figure = shape_figures.draw_shapes(shapes, experiment.name)
        assert figure is not None
        _answer_path("shapes", figures.save(figure, output), as_json=as_json)
        return
    answer(
        [shape.as_dict() for shape in shapes],
        lambda: Document("", begins=(named(shape_figures.rows_of_shapes(shapes)),)),
        as_json=as_json,
    )


def _show_progress(directory: Path, *, watch: bool, every: float, as_json: bool) -> None:
    if not watch:
        status = run_status.read_status(directory)
        answer(status.as_dict(), lambda: status_view(status), as_json=as_json, highlight=True)
        return
    with contextlib.suppress(KeyboardInterrupt):
        if as_json:
            _follow(directory, every, lambda status: echo_json(status.as_dict(), indent=None))
        else:
            with Live(console=Screen(), auto_refresh=False) as live:
                _follow(directory, every, lambda status: live.update(status_view(status), refresh=True))


def _client_screen(status: ClientStatus) -> Document:
    """A client's own side: each run, the last at the end, and ledgers of other runs."""
    known, rows = {run.run for run in status.runs}, list[tuple[str, Iterable[Part]]]()
    for run in status.runs:
        why = f": {run.refused}" if run.refused else ""
        about = f"{client_states.state_of(run)}{why}, last asked {_duration(max(0.0, time.time() - run.heard))} ago"
        rows.append((f"run {run.name}", [Strong(about) if why else about, *screens.words_of_run(run, status.ledgers)]))
    for ledger in status.ledgers:
        if ledger.run not in known:
            said = f"{screens.spent_of(ledger.epsilon, ledger.budget, ledger.delta)}, {ledger.rounds} rounds"
            rows.append((f"client {ledger.client}", [f"{said}, of the run {ledger.run[:12]}"]))
    return Document("", sections=sections([*rows, ("folder", [Code(status.folder)])]))


def status_view(status: Status) -> Document:
    """The status as a small table."""
    return Document("", sections=sections(_status_rows(status)))


def _status_rows(status: Status) -> Iterator[tuple[str, list[Part]]]:
    yield "state", [f"{status.state}  {status.why}" if status.why else status.state]
    done = 24 * status.round // max(1, status.rounds)
    yield "round", [f"{status.round} of {status.rounds}", Code("━" * done + "·" * (24 - done))]
    yield "ε spent", [f"{upward(status.epsilon_spent)} of {upward(status.epsilon)}"]
    yield "ε is for", [experiment_files.of_unit(status.unit)] if status.unit != "record" else []
    for client, spent in status.epsilon_by_client.items():
        yield f"  client {client}", [upward(spent)]
    if status.snr is not None:
        heard = f"{number(status.snr, 2)} in the last round: how well sums are heard, not what the model is worth"
        yield "SNR", [heard]
    if status.clients_alive is not None:
        yield "clients", [f"{status.clients_alive} of {status.clients} in the last round"]
    for entry in status.roll:
        yield "  roll call", [entry.line() if entry.state in roll_call.WAITED_FOR else Strong(entry.line())]
    if status.bytes_up is not None and status.bytes_down is not None:
        yield "traffic", [f"{status.bytes_up:,} bytes up, {status.bytes_down:,} down (arrays, all clients)"]
    if status.seconds_per_round is not None:
        left = "" if status.seconds_left is None else f", about {_duration(status.seconds_left)} left"
        yield "pace", [f"{status.seconds_per_round:.3g} s a round{left} (for the operator, not for publication)"]
    yield "last sign", [f"{_duration(status.seconds_since)} ago"]
    yield "folder", [Code(status.directory)]
    yield "go on", [Code(run_commands.command_for(Path(status.directory)))] if status.state == "stopped" else []


def _follow(directory: Path, every: float, show: Callable[[Status], None]) -> None:
    while True:
        status = run_status.read_status(directory)
        show(status)
        if status.state in ("finished", "stopped"):
            return
        time.sleep(every)


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


def list_command(as_json: Json = False) -> None:
    """List the shipped experiments."""
    shipped = experiment_files.shipped_experiments()
    listed = [
        {
            "name": experiment.name,
            "title": experiment.title,
            "task": experiment.objective.task,
            "penalty": experiment.objective.penalty,
            "alpha": experiment.objective.alpha,
            "epsilon": experiment.privacy.epsilon,
            "target": run_facts.target_epsilon(experiment),
            "rounds": experiment.training.rounds,
            "clients": experiment.federation.clients,
        }
        for experiment in shipped
    ]
    answer(listed, lambda: screens.experiments_table(shipped), as_json=as_json, highlight=True)


def report_command(
    run: Annotated[list[str], typer.Argument(metavar="PATH...")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; the first run's folder.")
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="Times, traffic and all metrics, too: not for publication.")
    ] = False,
    what_ifs: Annotated[
        bool, typer.Option("--what-ifs", help="Forecast other ε and numbers of records, on public twins: a minute.")
    ] = False,
    registry: Annotated[
        bool, typer.Option("--registry", help="Write the entry for the OpenDP Deployments Registry (YAML) instead.")
    ] = False,
    force: Force = False,
    allow_module: AllowModule = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Write a page (HTML) of runs, a comparison or a plan.

    Several runs stand side by side. Verdict, guarantee, what ε means for a person, budget, metrics with intervals,
    settings, and how to verify it. It needs no network, and shows nothing that the run's guarantee does not cover. PATH
    is a run's directory, or an experiment's name for its latest run; the directory of a comparison; or what `fedsw plan
    --json` printed, as a file .json. A synthetic table has its page beside it.
    """
    if document_of := next(filter(None, map(_document, run)), None):
        if len(run) > 1 or registry or operator or what_ifs:
            raise typer.BadParameter("a comparison or a plan has a page of its own: give it alone, with -o at most")
        document, target, read = document_of
        require_writable(*([output] if output else []), force=force, read=read)
        if output is not None:
            require_format(output, "the page")
            files.new_folder(output.parent)
        files.replace(output or target, document.page().encode(), durable=False)
        _answer_path("report", output or target, as_json=as_json)
        return
    folders = [found(name, runs) for name in run]
    if output is not None:
        require_writable(output, force=force, read=[path for folder in folders for path in files_of_run(folder)])
        if not registry:
            require_format(output, "the page")
        files.new_folder(output.parent)
    if registry and (len(folders) > 1 or operator or what_ifs):
        raise typer.BadParameter("--registry is for one run, by itself")
    if registry:
        _answer_path("entry", run_pages.write_entry(folders[0], output), as_json=as_json)
    else:
        sizes = (public_rows.sizes_of(folder, tuple(allow_module or ())) for folder in folders if what_ifs)
        plans = (run_plan.as_plain(run_plan.planned(*known)) for known in sizes)
        forecast = [run_documents.WhatIfs.of_plan(plan) for plan in plans]
        path = run_pages.write_page(folders, output, operator=operator, what_ifs=forecast)
        _answer_path("report", path, as_json=as_json)


def _answer_path(what: str, path: Path, *, as_json: bool) -> None:
    if as_json:
        echo_json({what: str(path)})
    else:
        echo(path)


def _document(name: str) -> tuple[Document, Path, list[Path]] | None:
    """Return the page of a comparison's folder or a plan's file, where it goes, and which files were read.

    None for the name of a run.
    """
    path = Path(name)
    if (path / comparison.GRID).is_file():
        return comparison_page.read_comparison(path).document(), path / run_files.RunFile.REPORT, files_of_run(path)
    if path.suffix == ".json" and path.is_file():
        return run_plan.plan_document(run_files.read_json(path) or {}), path.with_suffix(".html"), [path]
    return None


Trials = Annotated[int | None, typer.Option(min=100, help="Releases that --canary draws, of each neighbour.")]
Folder = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where findings are kept.")]


def audit_command(
    target: Annotated[str, typer.Argument(metavar="EXPERIMENT|RUN")],
    settings: options.Settings = None,
    canary: Annotated[
        bool,
        typer.Option(
            "--canary", help="Attack the releases on the worst neighbours of the experiment's bound (empirical ε)."
        ),
    ] = False,
    one_run: Annotated[
        int | None,
        typer.Option(
            "--one-run", min=1, metavar="K", help="Membership inference on one real training run with K canaries."
        ),
    ] = None,
    trials: Trials = None,
    unsafe_finding: Annotated[
        bool,
        typer.Option(
            "--unsafe-finding", help="Let --one-run attack your records: the finding's ε is then ∞ for readers."
        ),
    ] = False,
    epsilon: options.Epsilon = None,
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    output: Folder = Path("audits"),
    allow_module: options.AllowModule = None,
    runs: options.Runs = options.RUNS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Attack a guarantee by membership inference, or check a run.

    With --canary or --one-run the target is an experiment (settings may follow it), or a run's folder: its settings
    are attacked; without either it is a run's folder, or an experiment's name for its latest run: its files are
    checked by recomputation.
    """
    attacked = canary or one_run is not None
    answered = audited.audit(
        target if attacked else found(target, runs),
        *changes_of(settings, overrides, epsilon=epsilon),
        canary=canary,
        one_run=one_run,
        trials=trials,
        unsafe_finding=unsafe_finding,
        data_dir=data_dir,
        allow_modules=allow_module or (),
        show=not (quiet or as_json),
    )
    finding = answered.about
    name = Path(target).stem if attacked else Path(finding.subject).name
    files = finding.write(fresh_folder(output / f"{name}-{finding.kind}"))
    content = {**answered.content, "files": [str(path) for path in files]}
    answer_made(content, answered.view, files[0].parent, files, as_json=as_json, quiet=quiet)
    if finding.exit_code:
        raise typer.Exit(finding.exit_code)


account = Verbs(help="Show and limit the joint budget of runs on one data set.", invoke_without_command=True)

Data = Annotated[str, typer.Argument(metavar="DATA", help="The data set's name, as data.account gives it.")]
Delta = Annotated[float | None, typer.Option(help="δ at which ε is shown; the limit's by default.")]


@account.callback()
def account_command(
    context: typer.Context, accounts: Accounts = None, delta: Delta = None, as_json: Json = False
) -> None:
    """Show what all runs on one data set spent together, and how much is left.

    Without a command: all data sets that have an account on this machine.
    """
    if context.invoked_subcommand is not None:
        return
    answered = verbs.account(delta=delta, accounts=accounts)
    if not (answered["accounts"] or as_json):
        echo(f"no accounts in {answered['folder']}; an experiment with data.account = 'NAME' keeps one")
        return
    say(answered, as_json=as_json, highlight=True)


@account.command("show")
def account_show_command(
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help="Names of data sets.")],
    accounts: Accounts = None,
    delta: Delta = None,
    as_json: Json = False,
) -> None:
    """Show the runs on a data set, what they cost together, and what is left.

    Of several names, also what the runs of all these accounts cost a record that is in each: `people people.client-0`
    is a record of client 0 in a simulation.
    """
    _show(*data, accounts=accounts, delta=delta, as_json=as_json)


@account.command("limit")
def limit_command(
    data: Data,
    epsilon: Annotated[float, typer.Option(help="ε that all runs together may spend.")],
    delta: Annotated[float, typer.Option(help="δ of that ε, well below 1 / records.")],
    accounts: Accounts = None,
    as_json: Json = False,
) -> None:
    """Set how much all runs on a data set may spend together; runs beyond it are refused before they begin."""
    folder = lifetime.accounts_folder() if accounts is None else accounts.expanduser()
    lifetime.DatasetAccount(folder, data).limit(epsilon, delta)
    _show(data, accounts=accounts, delta=None, as_json=as_json)


@account.command("settle")
def settle_command(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The folder of a run, a training or a ledger, or a client's state folder."),
    ],
    as_json: Json = False,
) -> None:
    """Let a run or training that stopped count with what it spent, and give back the rest of what was set aside.

    It may be resumed later, if there is room for it then.
    """
    settled = pool.settle_run(run)
    if as_json:
        echo_json({"settled": settled})
    else:
        echo("\n".join(f"{name}: settled" for name in settled))


def _show(*data: str, accounts: Path | None, delta: float | None, as_json: bool) -> None:
    say(verbs.account(*data, delta=delta, accounts=accounts), as_json=as_json, highlight=True)
