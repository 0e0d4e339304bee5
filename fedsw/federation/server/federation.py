"""A whole run over a grid: greet, plan, rounds, releases, and what stays on disk whatever happens."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor

from fedsw._tools.settings import Unaccounted
from fedsw._tools.text import upward
from fedsw.data.sources import load_class_names, require_one_client_each
from fedsw.experiment.compatibility import relation_of
from fedsw.experiment.preset_rules import left_open
from fedsw.experiment.trust import TrustModel
from fedsw.federation.exchange.availability import Availability, ReportedEpsilons
from fedsw.federation.exchange.exchange import Traffic
from fedsw.federation.exchange.participants import gather
from fedsw.federation.exchange.roll import NODE_KEYS, Roll
from fedsw.federation.node.own_ledger import with_held_out
from fedsw.federation.origin import signing
from fedsw.federation.server.from_sketch import Synthesiser
from fedsw.federation.server.job import Job, budgeted
from fedsw.federation.server.lost import take_up
from fedsw.federation.server.releases_once import (
    at_thresholds,
    measure_kept,
    prepared,
    release_histograms,
    release_moments,
    release_scores,
    said_of,
    unprepared,
    without_scores,
)
from fedsw.federation.server.settling import settled_among
from fedsw.federation.server.summary import describe_failure, describe_plan, line_of, logged, summarise
from fedsw.federation.trust.budget_shares import FIRST
from fedsw.federation.trust.context import Context, ServerSide
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.learning.models import flatten
from fedsw.learning.moments.beside_rounds import binned, require_histograms, require_moments, require_scorable
from fedsw.learning.tasks.divergence import stopped_diverged
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import BudgetExhausted, Ledger
from fedsw.privacy.accounting.selection import Selection
from fedsw.privacy.relations import require_relation
from fedsw.runs import checkpoint, recovery, telemetry
from fedsw.runs.accounts import Budgeted
from fedsw.runs.additive_shapes import keep_shapes
from fedsw.runs.commands import ELSEWHERE
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation.evaluator import Evaluator, HeldOutMetrics
from fedsw.runs.group_names import Names, names_of
from fedsw.runs.observer import Ending, Witness
from fedsw.runs.optimizer import Trainer, signal_to_noise
from fedsw.runs.releases import Releases, of_stage
from fedsw.runs.run_files import ALONE, RunFile, total_seconds

__all__ = ["Job", "federate"]


_WITH_KEYS = ("deployed", *ELSEWHERE)
"""Engines whose clients are processes of their own, each with a key."""


@dataclass
class _Run:
    """A run whose clients have joined and whose plan is made; nothing of it is spent yet.

    `lost` says who could not be understood at the greeting, `new` that its folder has no settings yet. The `seconds`
    are of processes before this one, and `about` is what the summary says beside the rounds.
    """

    job: Job
    name: str
    directory: RunDirectory
    task: Problem
    trust: TrustModel
    plan: FederationPlan
    context: Context
    side: ServerSide
    trainer: Trainer
    evaluator: Evaluator
    selection: Selection | None
    lost: Sequence[str]
    new: bool
    started: float
    seconds: float = 0.0
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def clients(self) -> int:
        return sum(len(site.clients) for site in self.context.sites)

    @property
    def ledger(self) -> Ledger | None:
        return self.context.ledger


def federate(grid: Grid, job: Job) -> dict[str, Any]:
    """Run (or resume) a job on a grid; returns the summary, which is also in the job's directory.

    Everything that can be refused is refused before the ledger exists. Afterwards a failure keeps the checkpoint,
    the ledger and the metrics, writes a summary that names the fault, and is raised.

    FederationError when clients are missing or refuse; ValueError for a bad experiment or bad records; LedgerReplaced
    if the folder is older than what the clients, or the account of the data set, remember of it.
    """
    require_one_client_each(job.experiment.data, job.experiment.federation.clients)
    with telemetry.logging_to(job.directory) as log:  # from the roll call on
        return _federated(_joined(grid, job), log)


def _federated(run: _Run, log: logging.Logger) -> dict[str, Any]:
    """Run what clients have joined, or go on with it; see `federate`."""
    job, path = run.job, run.directory.path
    with (
        recovery.explaining_storage(path),
        recovery.held(path),
        budgeted(run.plan, path, run.name, resume=job.resume) as budget,
    ):
        state = _taken_up(run, budget)
        with run.side:
            _begin(run, state, log)
            try:
                stopped, held_out = _carried_on(run, log)
            except BaseException as failure:
                why = describe_failure(failure)
                with contextlib.suppress(OSError, sqlite3.Error):  # a full disk would hide the failure
                    _conclude(run, why, HeldOutMetrics(), log, accounted=not isinstance(failure, Unaccounted))
                if isinstance(job.observer, Ending):
                    with contextlib.suppress(Exception):  # as would an observer's own
                        job.observer.broke_off(why)
                raise
            if (account := budget.settle()) is not None:
                run.about["account"] = account
            summary = _conclude(run, stopped, held_out, log)
    job.observer.finished(summary)
    return summary


def _joined(grid: Grid, job: Job) -> _Run:
    """Greet the clients and make the plan: all that is refused before anything is spent is refused here."""
    started, directory, traffic = time.monotonic(), RunDirectory(job.directory), Traffic()
    torch.set_num_threads(job.experiment.federation.cores)
    directory.make()
    name = directory.name()
    grid = signing(grid, name)
    roll = _roll(grid, name, job)
    new = not job.resume or bool(left_open(job.experiment))  # a run that was stopped before it began begins here
    job = replace(job, experiment=settled_among(grid, job.experiment, name, traffic, roll))
    task = Problem.from_experiment(job.experiment)
    require_histograms(task)
    require_moments(task, alone=directory.stops_after_moments())
    require_scorable(task)
    trainer = Trainer(flatten(task.build_model()), job.experiment.training)
    known = directory.next_attempts() if job.resume else None
    sites, lost = gather(grid, task, name, traffic, known=known, roll=roll)
    trust = job.experiment.privacy.model
    plan: FederationPlan = trust.plan(task, sites)
    _require_said(plan)
    selection = directory.read_selection() if job.resume else job.selection
    if selection is not None:
        plan = replace(plan, epsilon=selection.epsilon)
    availability = Availability(grid, task, sites, name, traffic, ReportedEpsilons(), roll)
    context = Context(grid, plan, sites, availability, traffic, directory.begin_attempt, directory.releases)
    return _Run(
        job, name, directory, task, trust, plan, context, trust.sides.server(context), trainer,
        Evaluator(task, job.metrics), selection, lost, new, started,
    )  # fmt: skip


def _roll(grid: Grid, name: str, job: Job) -> Roll:
    """The run's roll call; one that is told where clients are processes with keys of their own."""
    keys = os.environ.get(NODE_KEYS)
    folder = job.directory if job.engine in _WITH_KEYS else None
    return Roll(grid, name, folder, Path(keys) if keys else None)


def _require_said(plan: FederationPlan) -> None:
    """Refuse a plan whose accountant, mechanism or relation differs from the run's stated one: ValueError."""
    experiment = plan.task.experiment
    require_relation("this run's plan", plan.relation, relation_of(experiment))
    for what, planned, said in (
        ("accountant", plan.accountant, experiment.accountant),
        ("mechanism", plan.mechanism, experiment.mechanism),
    ):
        if planned != said:
            raise ValueError(
                f"the plan of trust {experiment.privacy.trust!r} has the {what} {planned!r}, and the trust model says "
                f"{said!r}: one place says it (TrustModel.{what}). Nothing was spent"
            )


def _taken_up(run: _Run, budget: Budgeted) -> checkpoint.Checkpoint | None:
    """The state to go on from, with the run's lock held; its ledger is there afterwards, under a trusted server."""
    job, directory, context = run.job, run.directory, run.context
    state = None
    if job.resume:
        directory.go_on_after_moments()
        state, history = checkpoint.load(directory.path), directory.read_metrics()
        last = history[-1] if history else {}
        context.traffic.down += int(last.get("bytes_down", 0))
        context.traffic.up += int(last.get("bytes_up", 0))
        run.seconds = max(directory.seconds(), total_seconds(directory.path))
    if run.new:
        directory.write_config(job.experiment, job.engine, run.selection)
    directory.keep_name(run.name)
    open_ledger = run.trust.by_ledgers(server=_ledger, clients=None)
    if open_ledger is not None:
        context.ledger = open_ledger(directory, run.plan, state, run.selection, resume=job.resume)
        directory.forgotten = job.engine == "inprocess"
    budget.limit(run.ledger)
    if job.resume:
        context.availability.spending.recall(_reported_before(directory))
    context.availability.hear_clients()
    with contextlib.ExitStack() as refused:  # lets go of the ledger of a run that does not go on
        if run.ledger is not None:
            refused.callback(run.ledger.close)
        require_no_gap = run.trust.by_release(rounds=recovery.require_no_gap, once=None)
        if job.resume and require_no_gap is not None:
            require_no_gap(directory, state, run.ledger, rounds=job.experiment.training.rounds)
        take_up(directory, run.plan, run.ledger, context.sites, budget, resume=job.resume)
        refused.pop_all()
    context.earlier = _earlier(run, state)
    return state


def _earlier(run: _Run, state: checkpoint.Checkpoint | None) -> frozenset[int]:
    """Rounds of which something had arrived before; attempts of a ledger are numbered after."""
    if run.ledger is not None:
        run.directory.know_attempts({(entry.round, entry.attempt) for entry in run.ledger.entries()})
        return frozenset()
    known = run.trust.by_release(rounds=_rounds_known, once=_stages_known)(run)
    done = range(1, 1 + (0 if state is None else state.last.round))  # one that failed then left no line
    return frozenset((run.context.releases.rounds() - {FIRST}) or known.union(done))


def _rounds_known(run: _Run) -> set[int]:
    """Rounds of which a resumed run has metrics."""
    return {int(record["round"]) for record in (run.directory.read_metrics() if run.job.resume else [])}


def _stages_known(run: _Run) -> set[int]:
    """Stages of a sketch that were released."""
    stages = range(1, 1 + len(run.job.experiment.sketch.shares))
    return {number for number in stages if (run.directory.path / of_stage(RunFile.SKETCH, number)).exists()}


def _begin(run: _Run, state: checkpoint.Checkpoint | None, log: logging.Logger) -> None:
    """Store the guarantee that was promised, and tell the observer that the run begins, with its ledger open."""
    _keep_promise(run.directory, run.plan, run.ledger, resume=run.job.resume)
    described = {**describe_plan(run.plan, members=run.clients), "directory": str(run.job.directory)}
    run.job.observer.started(described)  # with its ledger open: before, there is nothing to go on with
    known = {name: described[name] for name in ("rounds", "clients", "epsilon", "delta")}
    about = {"run": described["name"], "engine": run.job.engine, "resumed": run.job.resume, **known}
    log.info("run begins", extra=telemetry.event("run begins", **about))
    for who in run.lost:
        log.warning("%s; the run begins without it", who, extra=telemetry.event("client lost"))
    restore = run.trust.by_release(rounds=_restore, once=None)
    if run.job.resume and restore is not None:
        restore(run, state)


def _restore(run: _Run, state: checkpoint.Checkpoint | None) -> None:
    """Let the training go on from the rounds that were released."""
    if state is not None:
        run.trainer.restore(state)
    run.directory.cut_metrics(through=run.trainer.steps)


def _carried_on(run: _Run, log: logging.Logger) -> tuple[str, HeldOutMetrics]:
    """Run the rounds, or the one release that a generator learns from; returns why it stopped, and held-out metrics."""
    return run.trust.by_release(rounds=_rounds, once=_synthesis)(run, log)


def _synthesis(run: _Run, log: logging.Logger) -> tuple[str, HeldOutMetrics]:
    """One release, and a generator that learns from it; see `_carried_on`."""
    synthesiser = Synthesiser(run.job, run.task, run.side, run.evaluator, run.directory, run.context, log)
    stopped, held_out, run.about["sketch"] = synthesiser.run()
    return stopped, held_out


def _rounds(run: _Run, log: logging.Logger) -> tuple[str, HeldOutMetrics]:
    """All rounds, and what comes before and after them; see `_carried_on`."""
    stopped = _bin_columns(run, log) or _open(run, log) or _train(run, log)
    job, task, directory = run.job, run.task, run.directory
    released = unprepared(run.plan.task, run.trainer.model)
    directory.write_model(task.prepared(task.build_model(), released))  # before scores are asked for: it stays
    if job.experiment.share_of_scores and stopped != ALONE:
        released = _scored(run, released, log)
    model = task.prepared(task.build_model(), released)
    directory.write_model(model)
    if not _diverged(run):
        _keep_shapes(run, log)
    held_out = run.evaluator.write_outputs(model, directory)
    if job.experiment.data.held_out_released and (why := _diverged(run)):
        held_out = HeldOutMetrics(missing=f"nothing was asked of kept records: the model has diverged ({why})")
    elif job.experiment.data.held_out_released and stopped != ALONE:
        held_out, more = measure_kept(
            run.context, lambda: run.trust.sides.tally(run.context), released, run.trainer.steps, directory, log
        )
        run.about |= more
    run.about |= at_thresholds(task, directory)
    return stopped, held_out


def _keep_shapes(run: _Run, log: logging.Logger) -> None:
    """Store an additive model's functions; without them a reader makes them anew, and the run goes on."""
    try:
        keep_shapes(run.directory.path, run.job.experiment)
    except Exception as fault:
        log.warning(
            "the functions of the model are not stored (%s: %s); who shows them makes them anew",
            type(fault).__name__,
            fault,
        )


def _scored(run: _Run, released: Tensor, log: logging.Logger) -> Tensor:
    """The model (r,) after its scores were counted: calibrated, where that is asked for. One that diverged is not."""
    if why := _diverged(run):
        run.about |= without_scores(run.task, f"no scores were counted, for the model has diverged ({why})")
        return released
    side = functools.partial(run.trust.sides.scores, run.context)
    calibrated, about = release_scores(run.context, side, released, run.directory, log)
    run.about |= about
    return calibrated


def _conclude(
    run: _Run, stopped: str, held_out: HeldOutMetrics, log: logging.Logger, *, accounted: bool = True
) -> dict[str, Any]:
    side, ledger, directory = run.side, run.ledger, run.directory
    summary = summarise(
        run.job.experiment,
        run.plan,
        engine=run.job.engine,
        clients=run.clients,
        stopped=stopped,
        released=side.released_rounds(),
        spent=side.epsilon() if ledger is None else ledger.replay(),  # to the last digit what is on disk
        spent_by_client=side.epsilon_by_client(),
        held_out=held_out,
        seconds=run.seconds + time.monotonic() - run.started,
        begun=directory.begun(),
        selection=run.selection,
        traffic=run.context.traffic,
        history=directory.read_metrics(),
        calibration=run.about.get("calibration"),
        accounted=accounted,
    )
    summary |= run.about
    summary["ledger"] = None if ledger is None else asdict(ledger.head())
    directory.write_summary(summary)
    word = str(summary["status"]).split(":")[0].split(" ")[0]  # the others may quote a client
    sequence = summary["ledger"] and summary["ledger"]["sequence"]
    ended = telemetry.event("run ended", status=word, epsilon=summary["epsilon_spent"], ledger=sequence)
    log.info("run ended", extra=ended)
    return summary


def _train(run: _Run, log: logging.Logger) -> str:
    """Rounds from the trainer's next one to the planned last one; returns why it stopped."""
    job, task, trainer, directory, ledger = run.job, run.plan.task, run.trainer, run.directory, run.ledger
    planned = job.experiment.training.rounds
    if stopped := _stopped(run):
        return stopped
    witness = job.observer if isinstance(job.observer, Witness) else None  # a look at a protocol takes its time
    with checkpoint.Checkpoints(
        directory.path, trainer.step, trainer.state, lambda: None if ledger is None else ledger.head()
    ) as checkpoints:
        for round_ in range(trainer.steps + 1, planned + 1):
            recovery.require_space(directory.path, checkpoints.size)
            if _scores_alone_are_left(run):
                return (
                    f"stopped before round {round_}: attempts that came to nothing count as charged, and what is left "
                    "of the budget is for the counts of scores (calibration.share, thresholds.share)"
                )
            try:
                released = run.context.require_charged(round_, run.side.round(round_, trainer.theta))
            except BudgetExhausted as exhausted:
                return f"stopped before round {round_}: {exhausted}"
            if witness is not None:
                witness.released(round_, trainer.theta.clone(), released)
            checkpoints.take(round_, released.vector)
            square = float(released.vector.square().sum())
            numbers = {
                "sigma": released.sigma,
                "snr": signal_to_noise(square, released.sigma, released.vector.numel()),
                "gradient_norm": math.sqrt(square),
            }
            attempt, spent, clients = released.attempt, released.spent, released.clients
            record = line_of(run.side, run.context.traffic, round_, attempt, spent, clients, numbers)
            if round_ % job.experiment.evaluate_every == 0 or round_ == planned:
                record["held_out"] = run.evaluator.metrics(unprepared(task, trainer.model))
            if job.experiment.unsafe_metrics and released.training_loss is not None:
                record["training_loss"] = released.training_loss
            directory.append_metrics(record)
            log.info("round released", extra=logged(record))
            job.observer.round_done(record)
            if stopped := _stopped(run):
                return stopped
    return "completed"


def _scores_alone_are_left(run: _Run) -> bool:
    """True if another attempt at a round would cost what counts of scores are to cost, since others came to nothing."""
    if not run.job.experiment.share_of_scores or math.isinf(run.plan.epsilon):
        return False
    planned = run.job.experiment.training.rounds
    charged = run.directory.begun_attempts() if run.ledger is None else run.ledger.attempts()
    return sum(1 <= round_ <= planned for round_, _ in charged) >= run.side.attempts_planned(planned)


def _diverged(run: _Run) -> str | None:
    """Reason why training has diverged, from released parameters and made-up inputs; None if it has not."""
    return run.plan.task.diverged(run.trainer.theta)


def _stopped(run: _Run) -> str:
    """Words for the end of a run whose model has diverged; "" for any other.

    A candidate for the best of several runs goes on to its planned end: when it stopped would be one more release.
    """
    trainer, planned = run.trainer, run.job.experiment.training.rounds
    if run.selection is not None or (why := _diverged(run)) is None:
        return ""
    spent = run.side.epsilon() if run.ledger is None else run.ledger.epsilon()
    words = {"spent": upward(spent, 5), "promised": upward(run.plan.epsilon, 6)}
    return stopped_diverged(why, round_=trainer.steps, planned=planned, **words)


def _bin_columns(run: _Run, log: logging.Logger) -> str:
    """Release histograms if the run has them, and go on with the bins that they give; returns why it stops, or ""."""
    experiment = run.job.experiment
    if not experiment.privacy.histograms:
        return ""
    try:
        side = functools.partial(run.trust.sides.histograms, run.context)
        histograms = release_histograms(run.context, side, run.directory, log)
    except BudgetExhausted as exhausted:
        return f"stopped before round 1: {exhausted}"
    refined = binned(run.task, histograms)
    run.about["histograms"] = {
        "share": experiment.privacy.histograms,
        "sigma": histograms.sigma,
        "records": histograms.records,
        "columns": [column.name for column in histograms.counts.columns],
        "bins": {column.column: len(column.edges) + 1 for column in refined.model.bins},
    }
    if refined != experiment:  # clients agree to it before they are asked for moments of it
        run.directory.write_experiment(refined)
        run.job, run.task = replace(run.job, experiment=refined), Problem.from_experiment(refined)
        run.plan = run.context.plan = replace(run.plan, task=run.task)
        run.side.prepare(run.plan)
        run.trainer = Trainer(flatten(run.task.build_model()), refined.training)
        run.evaluator = Evaluator(run.task, run.job.metrics)
        run.context.availability.agree_again(run.task)
    return ""


def _open(run: _Run, log: logging.Logger) -> str:
    """Release moments if the run has them, and continue from them; returns why the run stops there, or ""."""
    if not run.job.experiment.privacy.moments:
        return ""
    try:
        moments = release_moments(run.context, lambda: run.trust.sides.moments(run.context), run.directory, log)
    except BudgetExhausted as exhausted:
        return f"stopped before round 1: {exhausted}"
    before, (ready, start) = run.plan, prepared(run.plan, moments)
    run.side.prepare(ready)
    alone = run.directory.stops_after_moments()
    if not run.trainer.steps:
        run.trainer = Trainer(start, run.job.experiment.training)
    run.plan, run.about["moments"] = ready, said_of(before, moments)
    return ALONE if alone else ""


def _keep_promise(directory: RunDirectory, plan: FederationPlan, ledger: Ledger | None, *, resume: bool) -> None:
    """Refuse to go on with another (epsilon, delta) than the run began with: its ledger's, else its plan's."""
    if not (resume and directory.plan.exists()):
        groups = dict(zip(plan.task.objective.cells, plan.sizes, strict=True))
        columns = plan.task.experiment.data.columns
        named = Names(plan.task.groups, load_class_names(plan.task.experiment.record_source), plan.task.positive)
        names = named if columns is None else names_of(columns)
        content = {"epsilon": plan.epsilon, "delta": plan.delta, "groups": groups, "names": names.plain()}
        directory.write_plan(content)
    if ledger is not None:
        promised, by = (ledger.budget, ledger.delta), directory.ledger
    else:
        promised, by = directory.read_promise(), directory.plan
    recovery.require_promised(promised, (plan.epsilon, plan.delta), records=plan.records, by=by)


def _ledger(
    directory: RunDirectory,
    plan: FederationPlan,
    state: checkpoint.Checkpoint | None,
    selection: Selection | None,
    *,
    resume: bool,
) -> Ledger:
    """The run's ledger: a new one, or the one it had, if that holds every row that the run's files remember."""
    device = plan.task.accounting_device
    if resume and (ledger := recovery.reopened(directory.ledger, directory.summary, state, device=device)):
        return ledger
    return Ledger.create(
        directory.ledger,
        groups=with_held_out(plan.task.objective.cells, plan.task.experiment),
        delta=plan.delta,
        epsilon=plan.epsilon,
        accountant=plan.accountant,
        mechanism=plan.mechanism,
        relation=plan.relation,
        nominal=plan.nominal,
        selection=selection,
        device=device,
    )


def _reported_before(directory: RunDirectory) -> list[dict[int, float]]:
    """The epsilon that each client has reported, from all files with it: the summary covers failed attempts too."""
    tables = [record.get("epsilon_by_client", {}) for record in directory.read_metrics()]
    tables.append(directory.read_summary().get("epsilon_spent_by_client", {}))
    reported = [{int(client): float(epsilon) for client, epsilon in table.items()} for table in tables]
    return [*reported, Releases(directory.releases).epsilons()]
