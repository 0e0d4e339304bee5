"""A whole run over a grid: greet, plan, rounds, releases, and what stays on disk whatever happens."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import pkgutil
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor

from fedsw._tools.settings import Unaccounted
from fedsw._tools.text import upward
from fedsw.data.sources import load_class_names, require_one_client_each
from fedsw.experiment import Experiment
from fedsw.experiment.compatibility import relation_of
from fedsw.experiment.preset_rules import left_open
from fedsw.experiment.trust import TrustModel
from fedsw.federation import NODE_KEYS
from fedsw.federation.exchange.availability import Availability, ReportedEpsilons
from fedsw.federation.exchange.exchange import Traffic
from fedsw.federation.exchange.participants import gather
from fedsw.federation.exchange.roll import Roll
from fedsw.federation.node.own_ledger import with_held_out
from fedsw.federation.origin import signing
from fedsw.federation.server.owed import budgeted, take_up
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
from fedsw.federation.trust.budget_shares import BEFORE_TRAINING
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
from fedsw.runs.commands import ELSEWHERE
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation.evaluator import Evaluator, HeldOutMetrics, Metric
from fedsw.runs.group_names import Names, names_of
from fedsw.runs.loop import TrainingLoop
from fedsw.runs.observer import Ending, NoObserver, Observer, Outcome, Witness
from fedsw.runs.optimizer import Trainer, signal_to_noise
from fedsw.runs.releases import Releases
from fedsw.runs.run_files import ALONE, total_seconds
from fedsw.runs.shapes_of_model import keep_shapes

__all__ = ["Job", "federate"]


_WITH_KEYS = ("deployed", *ELSEWHERE)
"""Engines with clients in processes of their own, each with a key."""


@dataclass(frozen=True)
class Job:
    """The experiment to run and its folder; `selection` is the cost of showing only the best of several runs."""

    experiment: Experiment
    directory: Path
    engine: str = "inprocess"
    observer: Observer = field(default_factory=NoObserver)
    resume: bool = False
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    selection: Selection | None = None


@dataclass
class FederatedRun(ABC):
    """A run after clients have joined and its plan is made; nothing of it is spent yet.

    What differs between kinds of run are methods; `TrustModel.runs` names the kind of a trust model.

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
    log: logging.Logger
    seconds: float = 0.0
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def clients(self) -> int:
        return sum(len(site.clients) for site in self.context.sites)

    @property
    def ledger(self) -> Ledger | None:
        return self.context.ledger

    @abstractmethod
    def made(self) -> set[int]:
        """Rounds, or stages of a sketch, that are on file."""

    def require_no_gap(self, state: checkpoint.Checkpoint | None) -> None:  # noqa: B027  of rounds alone
        """Refuse a folder if its files lack what its ledger has: LedgerReplaced."""

    def restore(self, state: checkpoint.Checkpoint | None) -> None:  # noqa: B027  of rounds alone
        """Go on from what was released before."""

    @abstractmethod
    def carried_on(self) -> tuple[str, HeldOutMetrics]:
        """Make all that is left of it; returns why it stopped, and held-out metrics."""


def federate(grid: Grid, job: Job) -> dict[str, Any]:
    """Run (or resume) a job on a grid; returns the summary, which is also in the job's directory.

    Everything that can be refused is refused before the ledger exists. Afterwards a failure keeps the checkpoint,
    the ledger and the metrics, writes a summary that names the fault, and is raised.

    FederationError when clients are missing or refuse; ValueError for a bad experiment or bad records; LedgerReplaced
    if the folder is older than what the clients, or the account of the data set, remember of it.
    """
    require_one_client_each(job.experiment.data, job.experiment.federation.clients)
    with telemetry.logging_to(job.directory) as log:  # from the roll call on
        run = _joined(grid, job, log)
        job, path = run.job, run.directory.path
        with (
            recovery.explaining_storage(path),
            recovery.held(path),
            budgeted(run.plan, path, run.name, resume=job.resume) as budget,
        ):
            state = _taken_up(run, budget)
            with run.side:
                _begin(run, state)
                try:
                    stopped, held_out = run.carried_on()
                except BaseException as failure:
                    why = describe_failure(failure)
                    with contextlib.suppress(OSError, sqlite3.Error):  # a full disk would hide the failure
                        _conclude(run, why, HeldOutMetrics(), accounted=not isinstance(failure, Unaccounted))
                    if isinstance(job.observer, Ending):
                        with contextlib.suppress(Exception):  # as would an observer's own
                            job.observer.broke_off(why)
                    raise
                if (account := budget.settle()) is not None:
                    run.about["account"] = account
                summary = _conclude(run, stopped, held_out)
        job.observer.finished(summary)
    return summary


def _joined(grid: Grid, job: Job, log: logging.Logger) -> FederatedRun:
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
    # One place says what a guarantee is for (the trust model): a plan that differs would be accounted for as another.
    require_relation("this run's plan", plan.relation, relation_of(job.experiment))
    for what, planned, said in (
        ("accountant", plan.accountant, job.experiment.accountant),
        ("mechanism", plan.mechanism, job.experiment.mechanism),
    ):
        if planned != said:
            raise ValueError(
                f"the plan of trust {job.experiment.privacy.trust!r} has the {what} {planned!r}, and the trust model "
                f"says {said!r}: one place says it (TrustModel.{what}). Nothing was spent"
            )
    selection = directory.read_selection() if job.resume else job.selection
    if selection is not None:
        plan = replace(plan, epsilon=selection.epsilon)
    availability = Availability(grid, task, sites, name, traffic, ReportedEpsilons(), roll)
    context = Context(grid, plan, sites, availability, traffic, directory.begin_attempt, directory.releases)
    kind: type[FederatedRun] = pkgutil.resolve_name(trust.runs)
    return kind(
        job, name, directory, task, trust, plan, context, trust.sides.server(context), trainer,
        Evaluator(task, job.metrics), selection, lost, new, started, log,
    )  # fmt: skip


def _roll(grid: Grid, name: str, job: Job) -> Roll:
    """The run's roll call; it is reported where clients are processes, each with a key."""
    keys = os.environ.get(NODE_KEYS)
    folder = job.directory if job.engine in _WITH_KEYS else None
    return Roll(grid, name, folder, Path(keys) if keys else None)


def _taken_up(run: FederatedRun, budget: Budgeted) -> checkpoint.Checkpoint | None:
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
    open_ledger = functools.partial(_ledger, directory, run.plan, state, run.selection, resume=job.resume)
    context.ledger = run.side.ledger_of(open_ledger)
    directory.clients_in_process = run.ledger is not None and job.engine == "inprocess"
    budget.limit(run.ledger)
    if job.resume:
        # What each client has reported, by all files that have it: the summary covers failed attempts, too.
        tables = [record.get("epsilon_by_client", {}) for record in directory.read_metrics()]
        tables.append(directory.read_summary().get("epsilon_spent_by_client", {}))
        reported = [{int(client): float(epsilon) for client, epsilon in table.items()} for table in tables]
        context.availability.spending.recall([*reported, Releases(directory.releases).epsilons()])
    context.availability.hear_clients()
    with contextlib.ExitStack() as refused:  # lets go of the ledger of a run that does not go on
        if run.ledger is not None:
            refused.callback(run.ledger.close)
        if job.resume:
            run.require_no_gap(state)
        take_up(directory, run.plan, run.ledger, context.sites, budget, resume=job.resume)
        refused.pop_all()
    if run.ledger is not None:
        # The log of attempts may be lost or cut: what is charged counts as begun, and is numbered after.
        directory.know_attempts({(entry.round, entry.attempt) for entry in run.ledger.entries()})
        return state
    # Rounds of which something had arrived before. One that failed after its release left no line of metrics.
    done = range(1, 1 + (0 if state is None else state.last.round))
    context.earlier = frozenset((context.releases.rounds() - {BEFORE_TRAINING}) or run.made().union(done))
    return state


def _begin(run: FederatedRun, state: checkpoint.Checkpoint | None) -> None:
    """Store the guarantee that was promised, and tell the observer that the run begins, with its ledger open."""
    directory, plan, ledger = run.directory, run.plan, run.ledger
    if not (run.job.resume and directory.plan.exists()):
        groups = dict(zip(plan.task.objective.cells, plan.sizes, strict=True))
        columns = plan.task.experiment.data.columns
        named = Names(plan.task.groups, load_class_names(plan.task.experiment.record_source), plan.task.positive)
        names = named if columns is None else names_of(columns)
        content = {"epsilon": plan.epsilon, "delta": plan.delta, "groups": groups, "names": names.plain()}
        directory.write_plan(content)
    # Rounds that were paid for at one (epsilon, delta) are not followed by rounds at another.
    if ledger is not None:
        promised, by = (ledger.budget, ledger.delta), directory.ledger
    else:
        promised, by = directory.read_promise(), directory.plan
    recovery.require_promised(promised, (plan.epsilon, plan.delta), records=plan.records, by=by)
    described = {**describe_plan(plan, members=run.clients), "directory": str(run.job.directory)}
    run.job.observer.started(described)  # with its ledger open: before, there is nothing to go on with
    known = {name: described[name] for name in ("rounds", "clients", "epsilon", "delta")}
    about = {"run": described["name"], "engine": run.job.engine, "resumed": run.job.resume, **known}
    run.log.info("run begins", extra=telemetry.event("run begins", **about))
    for who in run.lost:
        run.log.warning("%s; the run begins without it", who, extra=telemetry.event("client lost"))
    if run.job.resume:
        run.restore(state)


def _conclude(run: FederatedRun, stopped: str, held_out: HeldOutMetrics, *, accounted: bool = True) -> dict[str, Any]:
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
    word = str(summary["status"]).split(":")[0].split(" ")[0]  # one of few words, which a monitor counts
    sequence = summary["ledger"] and summary["ledger"]["sequence"]
    ended = telemetry.event("run ended", status=word, epsilon=summary["epsilon_spent"], ledger=sequence)
    run.log.info("run ended", extra=ended)
    return summary


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


@dataclass
class RoundRun(FederatedRun, TrainingLoop):
    """A run of rounds, of each of which something is released that the model moves along."""

    def made(self) -> set[int]:
        """Rounds of which a resumed run has metrics."""
        return {int(record["round"]) for record in (self.directory.read_metrics() if self.job.resume else [])}

    def require_no_gap(self, state: checkpoint.Checkpoint | None) -> None:
        """See `recovery.require_no_gap`."""
        recovery.require_no_gap(self.directory, state, self.ledger, rounds=self.job.experiment.training.rounds)

    def restore(self, state: checkpoint.Checkpoint | None) -> None:
        """Let the training go on from the rounds that were released."""
        if state is not None:
            self.trainer.restore(state)
        self.directory.cut_metrics(through=self.trainer.steps)

    def carried_on(self) -> tuple[str, HeldOutMetrics]:
        """All rounds, and what comes before and after them; see `FederatedRun`."""
        stopped = self._bin_columns() or self._open() or self._train()
        job, task, directory = self.job, self.task, self.directory
        released = unprepared(self.plan.task, self.trainer.model)
        directory.write_model(task.prepared(task.build_model(), released))  # before scores are asked for: it stays
        if job.experiment.share_of_scores and stopped != ALONE:
            released = self._scored(released)
        model = task.prepared(task.build_model(), released)
        directory.write_model(model)
        why = self.divergence()
        if not why:
            try:
                keep_shapes(directory.path, job.experiment)
            except Exception as fault:  # they are made of what was released, and can be made again
                self.log.warning(
                    "the functions of the model are not stored (%s: %s); `fedsw show RUN shapes` makes them again",
                    type(fault).__name__,
                    fault,
                )
        held_out = self.evaluator.write_outputs(model, directory)
        if job.experiment.data.held_out_released and why:
            held_out = HeldOutMetrics(missing=f"nothing was asked of kept records: the model has diverged ({why})")
        elif job.experiment.data.held_out_released and stopped != ALONE:
            held_out, more = measure_kept(self.context, released, self.trainer.steps, directory, self.log)
            self.about |= more
        self.about |= at_thresholds(task, directory)
        return stopped, held_out

    def _bin_columns(self) -> str:
        """Release histograms if the run has them, and go on with the bins that they give; says why it stops, or ""."""
        experiment = self.job.experiment
        if not experiment.privacy.histograms:
            return ""
        try:
            histograms = release_histograms(self.context, self.directory, self.log)
        except BudgetExhausted as exhausted:
            return f"stopped before round 1: {exhausted}"
        refined = binned(self.task, histograms)
        self.about["histograms"] = {
            "share": experiment.privacy.histograms,
            "sigma": histograms.sigma,
            "records": histograms.records,
            "columns": [column.name for column in histograms.counts.columns],
            "bins": {column.column: len(column.edges) + 1 for column in refined.model.bins},
        }
        if refined != experiment:  # clients agree to it before they are asked for moments of it
            self.directory.write_experiment(refined)
            self.job, self.task = replace(self.job, experiment=refined), Problem.from_experiment(refined)
            self.plan = self.context.plan = replace(self.plan, task=self.task)
            self.side.prepare(self.plan)
            self.trainer = Trainer(flatten(self.task.build_model()), refined.training)
            self.evaluator = Evaluator(self.task, self.job.metrics)
            self.context.availability.agree_again(self.task)
        return ""

    def _open(self) -> str:
        """Release moments if the run has them, and continue from them; returns why the run stops there, or ""."""
        if not self.job.experiment.privacy.moments:
            return ""
        try:
            moments = release_moments(self.context, self.directory, self.log)
        except BudgetExhausted as exhausted:
            return f"stopped before round 1: {exhausted}"
        before, (ready, start) = self.plan, prepared(self.plan, moments)
        self.side.prepare(ready)
        alone = self.directory.stops_after_moments()
        if not self.trainer.steps:
            self.trainer = Trainer(start, self.job.experiment.training)
        self.plan, self.about["moments"] = ready, said_of(before, moments)
        return ALONE if alone else ""

    def _train(self) -> str:
        """Rounds from the trainer's next one to the planned last one; returns why it stopped."""
        ended = self.train(self.trainer, self.directory.path, self.job.experiment.training.rounds, self.ledger)
        if isinstance(ended, BudgetExhausted):
            return f"stopped before round {self.trainer.steps + 1}: {ended}"
        return ended or "completed"

    def _scored(self, released: Tensor) -> Tensor:
        """The model (r,) after its scores were counted: calibrated, if that is asked for. One that diverged is not."""
        if why := self.divergence():
            self.about |= without_scores(self.task, f"no scores were counted, for the model has diverged ({why})")
            return released
        calibrated, about = release_scores(self.context, released, self.directory, self.log)
        self.about |= about
        return calibrated

    def released(self, round_: int) -> Outcome:
        """See `TrainingLoop`: the trust model charges and releases; an observer may look before the model moves."""
        outcome = self.context.require_charged(round_, self.side.round(round_, self.trainer.theta))
        if isinstance(self.job.observer, Witness):
            self.job.observer.released(round_, self.trainer.theta.clone(), outcome)
        return outcome

    def barred(self, round_: int) -> str:
        """Reason why another attempt would cost the part reserved for counts of scores, after failed ones; or ""."""
        if not self.job.experiment.share_of_scores or math.isinf(self.plan.epsilon):
            return ""
        planned = self.job.experiment.training.rounds
        charged = self.directory.begun_attempts() if self.ledger is None else self.ledger.attempts()
        if sum(1 <= number <= planned for number, _ in charged) < self.side.attempts_planned(planned):
            return ""
        return (
            f"stopped before round {round_}: attempts that came to nothing count as charged, and what is left "
            "of the budget is for the counts of scores (calibration.share, thresholds.share)"
        )

    def divergence(self) -> str | None:
        """Reason why training has diverged, from released parameters and made-up inputs; None if it has not."""
        return self.plan.task.diverged(self.trainer.theta)

    def unsound(self) -> str:
        """Words for the end of a run with a diverged model; "" for any other.

        A candidate for the best of several runs goes on to its planned end: when it stopped would be one more release.
        """
        if self.selection is not None or (why := self.divergence()) is None:
            return ""
        spent = self.side.epsilon() if self.ledger is None else self.ledger.epsilon()
        words = {"spent": upward(spent, 5), "promised": upward(self.plan.epsilon, 6)}
        planned = self.job.experiment.training.rounds
        return stopped_diverged(why, round_=self.trainer.steps, planned=planned, **words)

    def report(self, round_: int, outcome: Outcome) -> None:
        """See `TrainingLoop`: with what held-out records say of the model, in the rounds that are evaluated."""
        experiment = self.job.experiment
        square = float(outcome.vector.square().sum())
        numbers = {
            "sigma": outcome.sigma,
            "snr": signal_to_noise(square, outcome.sigma, outcome.vector.numel()),
            "gradient_norm": math.sqrt(square),
        }
        attempt, spent, clients = outcome.attempt, outcome.spent, outcome.clients
        record = line_of(self.side, self.context.traffic, round_, attempt, spent, clients, numbers)
        if round_ % experiment.evaluate_every == 0 or round_ == experiment.training.rounds:
            record["held_out"] = self.evaluator.metrics(unprepared(self.plan.task, self.trainer.model))
        if experiment.unsafe_metrics and outcome.training_loss is not None:
            record["training_loss"] = outcome.training_loss
        self.directory.append_metrics(record)
        self.log.info("round released", extra=logged(record))
        self.job.observer.round_done(record)
