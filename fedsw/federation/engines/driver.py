"""Run an experiment, or go on with one: the Python call behind `fedsw run` and `fedsw resume`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from fedsw._tools.files import fresh_folder
from fedsw._tools.text import Short, run_facts
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.choices import modules_of
from fedsw.experiment.load import experiment_of
from fedsw.experiment.preset_rules import left_open
from fedsw.federation.client import app as client_app
from fedsw.federation.engines import Engine, inprocess
from fedsw.federation.engines.pool import environment
from fedsw.federation.engines.records_at_hand import at_hand, handed_again, handed_over, require_at_hand
from fedsw.federation.node.own_ledger import STATE_VARIABLE, held_open
from fedsw.federation.server.app import app_for
from fedsw.federation.server.federation import Job
from fedsw.learning.tasks.needs import require_possible
from fedsw.learning.tasks.own_task import task_of
from fedsw.privacy.accounting.lifetime import Binding, account_named, accounts_folder
from fedsw.privacy.accounting.selection import Selection
from fedsw.runs.commands import ELSEWHERE, SERVED, command_for
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation.evaluator import Metric
from fedsw.runs.observer import NoObserver, Observer
from fedsw.runs.progress import watching
from fedsw.runs.recovery import is_running, require_free
from fedsw.runs.run_files import RunFile, has_ended, read_json, read_lines
from fedsw.runs.view import read_whole_run

if TYPE_CHECKING:
    from fedsw.federation.deploy.flower_processes import SuperLink
    from fedsw.federation.engines.records_at_hand import ModelObject, TaskObject
    from fedsw.runs.report.render import Page

_SUBMITTED = ("flwr", "deployed")
"""Engines with the server in another process, which reads what to run from the folder."""


@dataclass(frozen=True, repr=False)
class RunResult(Short):
    """A finished run: its folder, what ran, the summary and the round records."""

    directory: Path
    experiment: Experiment
    summary: dict[str, Any]
    history: list[dict[str, Any]]

    def _facts(self) -> Mapping[str, object]:
        return run_facts(self.experiment.name, self.directory, self.summary)

    def page(self, *others: RunResult) -> Page:
        """Make the page of the run, or of several side by side, as `fedsw report` writes it; a notebook shows it."""
        from fedsw.runs.report.run_documents import page

        return page([read_whole_run(result.directory) for result in (self, *others)])


def run(
    experiment: Experiment | str | Path | Mapping[str, Any],
    *settings: str,
    engine: Engine = "inprocess",
    runs: Path | str = "runs",
    observer: Observer | None = None,
    data: object = None,
    held_out: object = None,
    model: ModelObject | None = None,
    task: TaskObject | None = None,
    metrics: Mapping[str, Metric] | None = None,
    account: str | Path | None = None,
    moments_alone: bool = False,
) -> RunResult:
    """Run an experiment in a fresh folder `runs/<name>/<number>-<time>/`.

    Args:
        experiment: an `Experiment`, the name of a shipped one, a TOML file, or the sections as a mapping.
        settings: changes to it, as on the command line: "objective.alpha=0.75".
        observer: called after every round; without one a notebook draws a bar, and nothing else is shown.
        data: the clients' records where they are Python objects, for the engine "inprocess": one object, which is split
            among the clients as [partition] says, a list with one object for each, or a function of the client's number
            and the number of clients. An object is what `fedsw.data.as_records` returns, or whatever it takes where the
            experiment declares data.columns.
        held_out: records to measure on, outside the guarantee, in the same form; read under the same declaration.
        model: an nn.Module, or a function or class that makes one, in place of model.kind; engine "inprocess" only.
        task: a `fedsw.Task`, or a class of one, in place of objective.task; engine "inprocess" only.
        metrics: functions of your own by name, for the held-out outputs beside the shipped ones
            (`fedsw.runs.evaluation.evaluator.Metric`); tried before anything is spent.
        account: the data set of the account to count in, in place of data.account: its name, or the `Path` of the
            account's file in $FEDSW_ACCOUNTS. Under local trust it counts there and in an account of each client's.
        moments_alone: stop once moments are released, which costs `privacy.moments` of the budget; `resume` of a run
            that has stopped there goes on.

    Raises:
        LimitReached: if the run does not fit below the account's limit; nothing was spent.
        ExperimentError, BadRecords, ValueError: for records that cannot be used, before anything is spent.
        ValueError, FederationError: see `fedsw.federation.server.federation.federate`; what was released is kept.
    """
    _require_known(engine)
    _require_reachable(engine, metrics)
    with handed_over(_counted(experiment_of(experiment, settings), account), model, task) as named:
        require_at_hand(named, engine)
        with at_hand(named, data, held_out, engine=engine) as ready:
            directory = fresh_folder(Path(runs) / ready.name)
            watched = observer or watching()
            return _drive(ready, directory, engine, watched, metrics, resume=False, moments_alone=moments_alone)


def run_among(experiment: Experiment, selection: Selection, *, runs: Path) -> RunResult:
    """Run an experiment in a fresh folder of `runs/<name>/` as one of several, of which only the best is shown.

    What the `selection` costs was charged before; a run that would spend more than was planned is stopped.
    """
    with at_hand(experiment, None, None, engine="inprocess") as ready:
        directory = fresh_folder(runs / ready.name)
        return _drive(ready, directory, "inprocess", None, None, resume=False, selection=selection)


def resume(
    directory: Path | str,
    *,
    observer: Observer | None = None,
    data: object = None,
    held_out: object = None,
    model: ModelObject | None = None,
    task: TaskObject | None = None,
    metrics: Mapping[str, Metric] | None = None,
    allow_modules: Collection[str] = (),
    charge_lost: bool = False,
    go_on: bool = False,
) -> RunResult:
    """Go on with a run that stopped: same experiment and engine, fresh attempts, the same ledger.

    Of one that has ended the result is what it left, with a warning: no client is asked.

    Args:
        data, held_out, model, task: the same again, where the run began with Python objects, which are on no disk.
        allow_modules: modules that the stored settings may name as `module:name`; their code runs.
        charge_lost: of a folder that is older than what the clients of its run answered, or than what an account
            remembers of it: charge all that is missing at the plan's full cost, and go on with what is left.
        go_on: of a folder with a checkpoint that lacks released rounds: release and charge them once more.

    Guarantee: the ledger keeps every round that was ever charged, so the epsilon at the end covers all of what was
    released, before and after.

    Raises:
        FileNotFoundError: if there is no run in the folder. RunBusy: if it is going on; nothing of it is touched.
        CodeRefused: if the stored settings name another module; none of its code has run.
        ExperimentError: if the run needs its objects again, or these are others by type or size.
        LedgerReplaced: if the folder is such an older one, without `charge_lost`.
        CheckpointDamaged: if such rounds are missing, without `go_on`.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"no run at {directory}; give the folder `fedsw run` printed")
    experiment, stored = RunDirectory(directory).read_config(allow_modules)
    require_free(directory)
    if charge_lost:
        RunDirectory(directory).agree_to_charge()
    if go_on:
        RunDirectory(directory).agree_to_go_on()
    if stored in ELSEWHERE:
        command = command_for(directory)
        raise ValueError(f"this run's clients are on other machines; `{command}` goes on (docs/deploy.md)")
    _require_known(stored)
    engine = cast(Engine, stored)
    _require_reachable(engine, metrics)
    with handed_again(experiment, model, task), at_hand(experiment, data, held_out, engine=engine) as ready:
        if not (charge_lost or go_on) and (whole := ended(directory, ready)):
            return whole
        return _drive(ready, directory, engine, observer or watching(), metrics, resume=True)


def _drive(
    experiment: Experiment,
    directory: Path,
    engine: Engine,
    observer: Observer | None,
    metrics: Mapping[str, Metric] | None,
    *,
    resume: bool,
    selection: Selection | None = None,
    moments_alone: bool = False,
) -> RunResult:
    require_possible(experiment, task_of(experiment))
    ledgers = directory / "clients"
    if moments_alone:
        RunDirectory(directory).stop_after_moments()
    observer = observer or NoObserver()
    try:
        experiment = _with_sites(experiment, engine)
        nodes = experiment.federation.sites or experiment.federation.clients
        hosted = app_for(Job(experiment, directory, engine, observer, resume, metrics or {}, selection))
        if engine in _SUBMITTED and not resume:
            RunDirectory(directory).write_config(experiment, engine)
        if engine == "inprocess":
            with held_open(ledgers):
                inprocess.run(hosted, client_app, nodes, ledgers)
        elif engine == "ray":
            with environment({STATE_VARIABLE: str(ledgers.resolve())}):
                inprocess.run_on_ray(hosted, client_app, nodes, device=experiment.training.device)
        else:
            from fedsw.federation.engines import deployed  # here, for it takes a second to import

            if engine == "flwr":
                with environment({STATE_VARIABLE: str(ledgers.resolve())}):
                    deployed.run_submitted(directory, nodes, modules_of(experiment), resume=resume)
            else:
                deployed.run(directory, experiment, observer, resume=resume)
    except BaseException as fault:
        Binding.give_back_in(ledgers)
        _remove_refused(directory, prepared=engine in _SUBMITTED and not resume)
        if isinstance(fault, KeyboardInterrupt) and directory.is_dir():
            fault.add_note(f"what was released is kept: fedsw.resume({str(directory)!r}) goes on")
        raise
    _settle_clients(directory)
    return _result(directory, experiment)


def _settle_clients(directory: Path) -> None:
    """Give back what clients of this machine had set aside for a run that has ended."""
    for folder in (directory / "clients", *directory.glob("nodes/*")):
        Binding.settle_in(folder)


def ended(directory: Path, experiment: Experiment) -> RunResult | None:
    """The result of a run that has ended and is all there, with a warning that nothing is left to go on with."""
    if not has_ended(directory) or not (directory / RunFile.MODEL).is_file():
        return None
    warnings.warn(f"{directory} has ended: nothing is left to go on with, and nothing is spent", stacklevel=3)
    _settle_clients(directory)
    return _result(directory, experiment)


def _remove_refused(directory: Path, *, prepared: bool) -> None:
    """Remove the folder of a run that was refused: only one that nothing but its lock was written to.

    One that was ``prepared`` for another process has its settings, too, which are no run until something has begun.
    """
    names = {RunFile.LOCK, RunFile.MOMENTS_ALONE, *([RunFile.CONFIG] if prepared else [])}
    with contextlib.suppress(OSError):
        if (ledgers := directory / "clients").is_dir():
            ledgers.rmdir()
        if {path.name for path in directory.iterdir()} <= names:
            for name in names:
                (directory / name).unlink(missing_ok=True)
        directory.rmdir()


def _with_sites(experiment: Experiment, engine: Engine) -> Experiment:
    """The experiment with the number of processes that hold the clients, where the engine settles it.

    In process one site holds all clients, or each its own where masks are real; Ray and Flower's simulation spread them
    over one site for each core. Real processes are one for each client, unless the experiment says otherwise.
    """
    settings = experiment.federation
    if settings.masks == "simulated" and engine != "inprocess":
        raise ExperimentError(
            f"federation.masks is 'simulated', and the engine {engine!r} has several processes, which always have "
            "masks; leave it out, or run in process"
        )
    if settings.sites is not None or engine == "deployed":
        return experiment
    in_process = settings.clients if settings.masks == "real" else 1
    sites = in_process if engine == "inprocess" else min(settings.clients, inprocess.places())
    return experiment.with_sections(federation={"sites": sites})


def _counted(experiment: Experiment, named: str | Path | None) -> Experiment:
    """The experiment, which counts in the account of that name."""
    if named is None:
        return experiment
    account = account_named(named)
    if account.folder.resolve() != accounts_folder().resolve():
        raise ValueError(
            f"{account.path} is not in {accounts_folder()}, where runs keep their accounts; set FEDSW_ACCOUNTS to "
            f"{account.folder}"
        )
    return experiment.with_sections(data={"account": account.data})


def _result(directory: Path, experiment: Experiment) -> RunResult:
    """The result in a finished run's folder; its history is empty if it stopped before its first round."""
    if left_open(experiment):  # with what `training.preset` chose
        experiment, _ = RunDirectory(directory).read_config(modules_of(experiment))
    summary = read_json(directory / RunFile.SUMMARY)
    if summary is None:
        raise FileNotFoundError(
            f"the run left no {RunFile.SUMMARY} in {directory}; `fedsw show {directory} progress` shows how it is"
        )
    return RunResult(directory, experiment, summary, read_lines(directory / RunFile.METRICS))


def _require_reachable(engine: Engine, metrics: Mapping[str, Metric] | None) -> None:
    """Refuse functions for a server that is another process."""
    if metrics and engine in _SUBMITTED:
        raise ExperimentError(
            f"metrics {sorted(metrics)} are functions of this process, and engine {engine!r} runs the server in "
            "another; name them in the experiment, metrics = ['module:name'], or use the engine 'inprocess' or 'ray'"
        )


def _require_known(engine: str) -> None:
    if engine not in get_args(Engine):
        raise ValueError(f"engine {engine!r} is unknown; choose one of {', '.join(get_args(Engine))}")


def prepare_served(experiment: Experiment, runs: Path) -> Path:
    """Make a fresh folder `runs/<name>/<number>-<time>/` that says what will run on clients of other machines."""
    directory = fresh_folder(runs / experiment.name)
    RunDirectory(directory).write_config(experiment, SERVED)
    return directory


def run_served(
    link: SuperLink, directory: Path, observer: Observer, *, resume: bool, allow_modules: Collection[str] = ()
) -> RunResult:
    """Run the job of a folder on the clients that connect to the SuperLink of `fedsw server`, or go on with it."""
    from fedsw.federation.engines.deployed import follow

    experiment, _ = RunDirectory(directory).read_config(allow_modules)
    require_free(directory)
    try:
        follow(link, directory, experiment, observer, resume=resume)
    except BaseException:
        if not is_running(directory):
            _remove_refused(directory, prepared=not resume)
        raise
    return _result(directory, experiment)
