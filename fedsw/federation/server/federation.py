"""A whole run over a grid: greet, plan, rounds, releases, and what stays on disk whatever happens."""

from __future__ import annotations

import contextlib
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor

from fedsw.accounting import BudgetExhausted, Ledger
from fedsw.accounting.selection import Selection
from fedsw.experiment.preset import left_open
from fedsw.experiment.sources import load_class_names, require_one_client_each
from fedsw.federation.budgets.held_out import with_held_out
from fedsw.federation.budgets.moments import FIRST, require_moments
from fedsw.federation.exchange.availability import Availability
from fedsw.federation.exchange.cohort import Site, gather
from fedsw.federation.exchange.exchange import Traffic
from fedsw.federation.exchange.spending import Spending
from fedsw.federation.origin import signing
from fedsw.federation.server.held_out import measure_kept
from fedsw.federation.server.job import Job
from fedsw.federation.server.lifetime import budgeted
from fedsw.federation.server.lost import take_up
from fedsw.federation.server.moments import prepared, release_moments, said_of, unprepared
from fedsw.federation.server.preset import settled_among
from fedsw.federation.server.summary import describe_failure, describe_plan, summarise
from fedsw.federation.server.synthesis import synthesise
from fedsw.federation.trust.central.rounds import Rounds
from fedsw.federation.trust.held_out.server import LocalTallies, TallyMethod, TrustedTally
from fedsw.federation.trust.local_gradient import server as local_gradient
from fedsw.federation.trust.local_release import server as local_release
from fedsw.federation.trust.local_slices import server as local_slices
from fedsw.federation.trust.method import Method, Trusted
from fedsw.federation.trust.moments.server import LocalMoments, MomentsMethod, TrustedMoments
from fedsw.federation.trust.plan import Plan, make_plan
from fedsw.federation.trust.sketch import server as sketch
from fedsw.models import flatten
from fedsw.runs import recovery, telemetry
from fedsw.runs import trainer as checkpoint
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation import Evaluator, HeldOut
from fedsw.runs.files import Names, total_seconds
from fedsw.runs.observer import Ending, Witness
from fedsw.runs.releases import Releases
from fedsw.runs.trainer import Trainer, signal_to_noise
from fedsw.tasks.problem import Problem

_PLANS: Mapping[str, Callable[[Problem, Sequence[Site]], Plan]] = {
    "local-gradient": local_gradient.make_plan,
    "local-slices": local_slices.make_plan,
    "local-release": local_release.make_plan,
    "sketch": sketch.make_plan,
    "sketch-local": sketch.make_plan,
}


__all__ = ["Job", "federate"]

ALONE = "stopped after moments: `fedsw plan --after-moments RUN` says from them what the rounds can come to"
"""How a run ends that was to release its moments alone; the rest of its budget is not spent."""


def federate(grid: Grid, job: Job) -> dict[str, Any]:
    """Run (or resume) a job on a grid; returns the summary, which is also in the job's directory.

    Everything that can be refused is refused before the ledger exists. Afterwards a failure keeps the checkpoint,
    the ledger and the metrics, writes a summary that names the fault, and is raised.

    Raises:
        FederationError: when clients are missing or refuse; ValueError: for a bad experiment or bad records.
        LedgerReplaced: if the folder is older than what the clients, or the account of the data set, remember of it.
    """
    require_one_client_each(job.experiment)
    started = time.monotonic()
    directory = RunDirectory(job.directory)
    torch.set_num_threads(job.experiment.federation.threads)
    traffic, name, spending = Traffic(), directory.name(), Spending()
    grid = signing(grid, name)
    new = not job.resume or bool(left_open(job.experiment))  # a run that was stopped before it began begins here
    job = replace(job, experiment=settled_among(grid, job.experiment, name, traffic))
    task = Problem.from_experiment(job.experiment)
    require_moments(task, alone=directory.stops_after_moments(resumed=job.resume))
    trainer = Trainer(flatten(task.build_model()), job.experiment.training)
    sites, lost = gather(grid, task, name, traffic, known=directory.next_attempts() if job.resume else None)
    clients = sum(len(site.clients) for site in sites)
    plan = _PLANS.get(job.experiment.privacy.trust, make_plan)(task, sites)
    selection = directory.read_selection() if job.resume else job.selection
    if selection is not None:
        plan = replace(plan, epsilon=selection.epsilon)
    evaluator = Evaluator(task, job.metrics)
    trusted = not job.experiment.privacy.local
    availability = Availability(grid, task, sites, name, traffic, spending)
    shared = (grid, plan, sites, availability, traffic, directory.begin_attempt)
    rounds = Rounds(*shared) if trusted and not job.experiment.privacy.sketch else None
    with (
        recovery.explaining_storage(directory.path),
        recovery.held(directory.path),
        budgeted(plan, directory.path, name, resume=job.resume) as budget,
        telemetry.logging_to(directory.path) as log,
    ):
        state = _take_up(directory, traffic) if job.resume else None
        earlier = max(directory.seconds(), total_seconds(directory.path)) if job.resume else 0.0
        if new:
            directory.write_config(job.experiment, job.engine, selection)
        directory.keep_name(name)
        described = {**describe_plan(plan, members=clients), "directory": str(job.directory)}
        ledger = _ledger(directory, plan, state, selection, resume=job.resume) if trusted else None
        budget.limit(ledger)
        if job.resume:
            spending.recall(_reported_before(directory))
        availability.hear_clients()
        with _closed_if_refused(ledger):
            take_up(directory, plan, ledger, sites, budget, resume=job.resume)
        with _method(shared, plan, directory, rounds, ledger, resume=job.resume) as method:
            _keep_promise(directory, plan, ledger, resume=job.resume)
            job.observer.started(described)  # with its ledger open: before, there is nothing to go on with
            log.info("run begins", extra=_beginning(job, described))
            for who in lost:
                log.warning("%s; the run begins without it", who, extra=telemetry.event("client lost"))
            if job.resume and not job.experiment.privacy.sketch:
                _restore(trainer, directory, state)

            about: dict[str, Any] = {}

            def conclude(stopped: str, held_out: HeldOut) -> dict[str, Any]:
                summary = summarise(
                    job.experiment,
                    plan,
                    engine=job.engine,
                    clients=clients,
                    stopped=stopped,
                    released=method.released_rounds(),
                    spent=method.epsilon() if ledger is None else ledger.replay(),  # to the last digit what is on disk
                    spent_by_client=method.epsilon_by_client(),
                    held_out=held_out,
                    seconds=earlier + time.monotonic() - started,
                    begun=directory.begun(),
                    selection=selection,
                    traffic=traffic,
                    history=directory.read_metrics(),
                )
                summary |= about
                summary["ledger"] = None if ledger is None else asdict(ledger.head())
                directory.write_summary(summary)
                log.info("run ended", extra=_ending(summary))
                return summary

            try:
                if isinstance(method, sketch.TrustedSketch | sketch.LocalSketches):
                    found = synthesise(job, task, method, evaluator, directory, traffic, log)
                    stopped, held_out, about["sketch"] = found.stopped, found.held_out, found.sketch
                else:
                    plan, trainer, stopped, said = _open(job, plan, method, trainer, shared, ledger, directory, log)
                    about |= said
                    if not stopped:
                        stopped = _train(job, method, plan.task, trainer, evaluator, directory, ledger, traffic, log)
                    released = unprepared(plan.task, trainer.model)
                    held_out = _write_model(task, released, evaluator, directory)
                    if job.experiment.data.held_out_released and stopped != ALONE:
                        held_out, more = measure_kept(
                            task, lambda: _tallying(shared, ledger), released, trainer.steps, directory, log
                        )
                        about |= more
            except BaseException as failure:
                why = describe_failure(failure)
                with contextlib.suppress(OSError, sqlite3.Error):  # a full disk would hide the failure
                    conclude(why, HeldOut())
                if isinstance(job.observer, Ending):
                    with contextlib.suppress(Exception):  # as would an observer's own
                        job.observer.broke_off(why)
                raise
            if (account := budget.settle()) is not None:
                about["account"] = account
            summary = conclude(stopped, held_out)
    job.observer.finished(summary)
    return summary


def _train(
    job: Job,
    method: Method,
    task: Problem,
    trainer: Trainer,
    evaluator: Evaluator,
    directory: RunDirectory,
    ledger: Ledger | None,
    traffic: Traffic,
    log: logging.Logger,
) -> str:
    """Rounds from the trainer's next one to the planned last one; returns why it stopped."""
    planned = job.experiment.training.rounds
    checkpoints = checkpoint.Checkpoints(directory.path)
    for round_ in range(trainer.steps + 1, planned + 1):
        recovery.require_space(directory.path, checkpoints.size)
        try:
            released = method.round(round_, trainer.theta)
        except BudgetExhausted as exhausted:
            return f"stopped before round {round_}: {exhausted}"
        if isinstance(job.observer, Witness):
            job.observer.released(round_, trainer.theta.clone(), released)
        trainer.step(released.vector)
        checkpoints.save(replace(trainer.state(), ledger=None if ledger is None else ledger.head()))
        record: dict[str, Any] = {
            "round": round_,
            "attempt": released.attempt,
            "epsilon": released.spent,
            "sigma": released.sigma,
            "snr": signal_to_noise(released.vector, released.sigma),
            "gradient_norm": math.sqrt(float(released.vector.square().sum())),
            "clients": released.clients,
            "bytes_up": traffic.up,
            "bytes_down": traffic.down,
        }
        if by_client := method.epsilon_by_client():
            record["epsilon_by_client"] = {str(client): epsilon for client, epsilon in by_client.items()}
        if round_ % job.experiment.evaluate_every == 0 or round_ == planned:
            record["held_out"] = evaluator.metrics(unprepared(task, trainer.model))
        if job.experiment.unsafe_metrics and released.training_loss is not None:
            record["training_loss"] = released.training_loss
        directory.append_metrics(record)
        log.info("round released", extra=_round_line(record))
        job.observer.round_done(record)
    return "completed"


def _write_model(task: Problem, theta: Tensor, evaluator: Evaluator, directory: RunDirectory) -> HeldOut:
    """Store the released model (r,) and its held-out outputs; returns how good it is on held-out records."""
    model = task.prepared(task.build_model(), theta)
    directory.write_model(model)
    return evaluator.write_outputs(model, directory)


def _method(
    shared: tuple[Any, ...],
    plan: Plan,
    directory: RunDirectory,
    rounds: Rounds | None,
    ledger: Ledger | None,
    *,
    resume: bool,
) -> Method:
    """The trust model's method for a round. Under local trust every client keeps its own ledger.

    Args:
        shared: what every method asks clients with.
    """
    trust = plan.task.experiment.privacy.trust
    if ledger is None:
        releases = Releases(directory.releases)
        history = directory.read_metrics() if resume else []
        before = (releases.rounds() - {FIRST}) or {int(record["round"]) for record in history}
        own = (*shared, before)
        if trust == "local-gradient":
            return local_gradient.LocalGradient(*own)
        if trust == "local-slices":
            return local_slices.LocalSlices(releases, *own)
        if trust == "sketch-local":
            return sketch.LocalSketches(releases, *own)
        return local_release.LocalRelease(releases, *own)
    directory.know_attempts({(entry.round, entry.attempt) for entry in ledger.entries()})
    if rounds is not None:
        return Trusted(rounds, plan, ledger)
    charged: tuple[Any, ...] = (*shared, ledger)
    return sketch.TrustedSketch(*charged)


def _open(
    job: Job,
    plan: Plan,
    method: Method,
    trainer: Trainer,
    shared: tuple[Any, ...],
    ledger: Ledger | None,
    directory: RunDirectory,
    log: logging.Logger,
) -> tuple[Plan, Trainer, str, dict[str, Any]]:
    """Release moments where the run does, and let plan, method and trainer go on from them; or why it stops there.

    The last is what the summary says of them.
    """
    if not job.experiment.privacy.moments:
        return plan, trainer, "", {}
    try:
        moments = release_moments(plan, lambda: _opening(shared, ledger, directory), directory, log)
    except BudgetExhausted as exhausted:
        return plan, trainer, f"stopped before round 1: {exhausted}", {}
    ready, start = prepared(plan, moments)
    assert isinstance(method, Trusted | local_gradient.LocalGradient)  # no other has rounds that follow moments
    method.prepare(ready)
    alone = directory.stops_after_moments(resumed=job.resume)
    begun = trainer if trainer.steps else Trainer(start, job.experiment.training)
    return ready, begun, ALONE if alone else "", {"moments": said_of(plan, moments)}


def _opening(shared: tuple[Any, ...], ledger: Ledger | None, directory: RunDirectory) -> MomentsMethod:
    """How the moments of all records are released: by whoever has the ledgers."""
    if ledger is None:
        return LocalMoments(Releases(directory.releases), *shared, ())
    charged: tuple[Any, ...] = (*shared, ledger)
    return TrustedMoments(*charged)


def _tallying(shared: tuple[Any, ...], ledger: Ledger | None) -> TallyMethod:
    """How records that were kept out of training are measured: by whoever has the ledgers."""
    if ledger is None:
        return LocalTallies(*shared, ())
    charged: tuple[Any, ...] = (*shared, ledger)
    return TrustedTally(*charged)


def _keep_promise(directory: RunDirectory, plan: Plan, ledger: Ledger | None, *, resume: bool) -> None:
    """Refuse to go on with another (epsilon, delta) than the run began with: its ledger's or, without one, its plan's.

    Raises:
        FederationError: naming both.
    """
    if not (resume and directory.plan.exists()):
        groups = dict(zip(plan.task.objective.cells, plan.sizes, strict=True))
        names = Names(plan.task.groups, load_class_names(plan.task.experiment))
        content = {"epsilon": plan.epsilon, "delta": plan.delta, "groups": groups, "names": names.plain()}
        directory.write_plan(content)
    if ledger is not None:
        promised, by = (ledger.budget, ledger.delta), directory.ledger
    else:
        promised, by = directory.read_promise(), directory.plan
    recovery.require_promised(promised, (plan.epsilon, plan.delta), records=plan.records, by=by)


def _ledger(
    directory: RunDirectory,
    plan: Plan,
    state: checkpoint.Checkpoint | None,
    selection: Selection | None,
    *,
    resume: bool,
) -> Ledger:
    """The run's ledger: a new one, or the one it had, if that holds every row that the run's files remember."""
    device = plan.task.accounting_device
    if resume and (found := recovery.reopened(directory.ledger, directory.summary, state, device=device)):
        return found
    privacy = plan.task.experiment.privacy
    return Ledger.create(
        directory.ledger,
        groups=with_held_out(plan.task.objective.cells, plan.task.experiment),
        delta=plan.delta,
        epsilon=plan.epsilon,
        accountant=privacy.accountant,
        nominal=plan.task.experiment.seed is not None,
        selection=selection,
        device=device,
    )


@contextlib.contextmanager
def _closed_if_refused(ledger: Ledger | None) -> Iterator[None]:
    """Let go of the ledger of a run that does not go on."""
    try:
        yield
    except BaseException:
        if ledger is not None:
            ledger.close()
        raise


def _restore(trainer: Trainer, directory: RunDirectory, state: checkpoint.Checkpoint | None) -> None:
    if state is not None:
        trainer.restore(state)
    directory.read_metrics(through=trainer.steps)


def _reported_before(directory: RunDirectory) -> list[dict[int, float]]:
    """The epsilon that each client has reported, from all files with it: the summary covers failed attempts too."""
    tables = [record.get("epsilon_by_client", {}) for record in directory.read_metrics()]
    tables.append(directory.read_summary().get("epsilon_spent_by_client", {}))
    reported = [{int(client): float(epsilon) for client, epsilon in table.items()} for table in tables]
    return [*reported, Releases(directory.releases).epsilons()]


def _take_up(directory: RunDirectory, traffic: Traffic) -> checkpoint.Checkpoint | None:
    """The state to go on from; the bytes of the run up to its last round on record are added to the traffic.

    Read with the run's lock held: another process that ran it until then has changed both.
    """
    state, history = checkpoint.load(directory.path), directory.read_metrics()
    last = history[-1] if history else {}
    traffic.down += int(last.get("bytes_down", 0))
    traffic.up += int(last.get("bytes_up", 0))
    return state


def _beginning(job: Job, plan: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: plan[name] for name in ("rounds", "clients", "epsilon", "delta")}
    return telemetry.event("run begins", run=plan["name"], engine=job.engine, resumed=job.resume, **known)


def _round_line(record: Mapping[str, Any]) -> dict[str, Any]:
    names = ("round", "attempt", "epsilon", "snr", "clients", "bytes_up", "bytes_down")
    return telemetry.event("round released", **{name: record[name] for name in names})


def _ending(summary: Mapping[str, Any]) -> dict[str, Any]:
    """How it ended, in one word: the words of the summary may quote a client."""
    word = str(summary["status"]).split(":")[0].split(" ")[0]
    ledger = summary["ledger"] and summary["ledger"]["sequence"]
    return telemetry.event("run ended", status=word, epsilon=summary["epsilon_spent"], ledger=ledger)
