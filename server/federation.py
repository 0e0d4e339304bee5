"""A whole run over a grid: greet, plan, rounds, releases, and what stays on disk whatever happens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid

from fedsw.accounting import BudgetExhausted, Ledger
from fedsw.experiment import Experiment
from fedsw.models import flatten
from fedsw.task import Task
from server import checkpoint, local_gradient, local_release, local_slices
from server.cohort import Member, gather
from server.evaluation import Evaluator
from server.exchange import Traffic
from server.method import Method, Trusted
from server.observer import Observer, Silent
from server.plan import Plan, make_plan
from server.rounds import Rounds
from server.run_directory import RunDirectory
from server.summary import describe_plan, summarise
from server.training import Trainer, signal_to_noise

_PLANS: Mapping[str, Callable[[Task, Sequence[Member]], Plan]] = {
    "local-gradient": local_gradient.make_plan,
    "local-slices": local_slices.make_plan,
    "local-release": local_release.make_plan,
}


@dataclass(frozen=True)
class Job:
    """What to run and where to keep it."""

    experiment: Experiment
    directory: Path
    engine: str = "inprocess"
    observer: Observer = field(default_factory=Silent)
    resume: bool = False


def federate(grid: Grid, job: Job) -> dict[str, Any]:
    """Run (or resume) a job on a grid; returns the summary, which is also in the job's directory.

    Everything that can be refused is refused before the ledger exists. Afterwards a failure keeps the checkpoint,
    the ledger and the metrics, writes a summary that names the fault, and is raised.

    Raises:
        FederationError: when clients are missing or refuse; ValueError: for a bad experiment or bad records.
    """
    started = time.monotonic()
    directory = RunDirectory(job.directory)
    task = Task.from_experiment(job.experiment)
    torch.set_num_threads(job.experiment.federation.threads)
    traffic = Traffic()
    members = gather(grid, task, traffic)
    plan = _PLANS.get(job.experiment.privacy.trust, make_plan)(task, members)
    evaluator = Evaluator(task)
    if not job.resume:
        directory.write_config(job.experiment, job.engine)
    trainer = Trainer(flatten(task.build_model()), job.experiment.training)
    job.observer.started(describe_plan(plan, members=len(members)))
    with _method(grid, plan, members, traffic, directory, resume=job.resume) as method:
        if job.resume:
            _restore(trainer, directory)
        stopped, held_out = "interrupted", dict[str, float]()
        try:
            stopped = _train(job, method, trainer, evaluator, directory)
            held_out = _write_model(task, trainer, evaluator, directory)
        except Exception as failure:
            stopped = f"failed: {failure}"
            raise
        finally:
            summary = summarise(
                job.experiment,
                plan,
                engine=job.engine,
                clients=len(members),
                stopped=stopped,
                released=method.released_rounds(),
                spent=method.epsilon(),
                spent_by_client=method.epsilon_by_client(),
                held_out=held_out,
                seconds=time.monotonic() - started,
                traffic=traffic,
            )
            directory.write_summary(summary)
    job.observer.finished(summary)
    return summary


def _train(
    job: Job,
    method: Method,
    trainer: Trainer,
    evaluator: Evaluator,
    directory: RunDirectory,
) -> str:
    """Rounds from where the trainer stands to the planned last one; returns why it stopped."""
    planned = job.experiment.training.rounds
    checkpoints = checkpoint.Checkpoints(directory.path)
    for round_ in range(trainer.steps + 1, planned + 1):
        began = time.monotonic()
        try:
            released = method.round(round_, trainer.theta)
        except BudgetExhausted as exhausted:
            return f"stopped before round {round_}: {exhausted}"
        trainer.step(released.vector)
        checkpoints.save(trainer.state())
        record: dict[str, Any] = {
            "round": round_,
            "attempt": released.attempt,
            "epsilon": released.spent,
            "sigma": released.sigma,
            "snr": signal_to_noise(released.vector, released.sigma),
            "gradient_norm": math.sqrt(float(released.vector.square().sum())),
            "clients": released.clients,
        }
        if round_ % job.experiment.evaluate_every == 0 or round_ == planned:
            record["held_out"] = evaluator.metrics(trainer.model)
        if job.experiment.unsafe_metrics and released.training_loss is not None:
            record["training_loss"] = released.training_loss
        record["seconds"] = time.monotonic() - began
        directory.append_metrics(record)
        job.observer.round_done(record)
    return "completed"


def _write_model(task: Task, trainer: Trainer, evaluator: Evaluator, directory: RunDirectory) -> dict[str, float]:
    """Store the released model and its held-out outputs; returns its held-out metrics."""
    model = task.prepared(task.build_model(), trainer.model)
    directory.write_model(model)
    return evaluator.write_outputs(model, directory)


def _method(
    grid: Grid, plan: Plan, members: Sequence[Member], traffic: Traffic, directory: RunDirectory, *, resume: bool
) -> Method:
    """What the trust model does in a round. Under local trust the clients account, each for itself."""
    trust = plan.task.experiment.privacy.trust
    if plan.task.experiment.privacy.local:
        history = directory.read_metrics() if resume else []
        shared = (grid, plan, members, traffic, directory.begin_attempt, history)
        if trust == "local-gradient":
            return local_gradient.LocalGradient(*shared)
        if trust == "local-slices":
            return local_slices.LocalSlices(directory.path / "slices.safetensors", *shared)
        return local_release.LocalRelease(directory.path / "released.safetensors", *shared)
    rounds = Rounds(grid, plan, members, traffic, directory.begin_attempt)
    return Trusted(rounds, plan, _ledger(directory, plan, resume=resume))


def _ledger(directory: RunDirectory, plan: Plan, *, resume: bool) -> Ledger:
    if resume and directory.ledger.exists():
        return Ledger.open(directory.ledger)
    privacy = plan.task.experiment.privacy
    return Ledger.create(
        directory.ledger,
        groups=plan.task.objective.cells,
        delta=plan.delta,
        epsilon=plan.epsilon,
        accountant=privacy.accountant,
        nominal=plan.task.experiment.seed is not None,
    )


def _restore(trainer: Trainer, directory: RunDirectory) -> None:
    state = checkpoint.load(directory.path)
    if state is not None:
        trainer.restore(state)
    directory.read_metrics(through=trainer.steps)
