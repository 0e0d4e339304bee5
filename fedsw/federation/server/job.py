"""A server's job, and the amount that it reserves in a data set's account before the run's ledger exists."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from fedsw.experiment import Experiment
from fedsw.experiment.compatibility import sampling_of
from fedsw.experiment.load import unprotected
from fedsw.federation.trust.budget_shares import covering, planned_once
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.federation.trust.sketch.sketch_costs import planned_stages
from fedsw.privacy.accounting import Step
from fedsw.privacy.accounting.charges import counted_as
from fedsw.privacy.accounting.lifetime import (
    NO_NOISE,
    About,
    Cost,
    Counts,
    DatasetAccount,
    accounts_folder,
    added,
    planned,
)
from fedsw.privacy.accounting.selection import Selection
from fedsw.runs.accounts import Budgeted, counted_by_clients, reserving
from fedsw.runs.evaluation.evaluator import Metric
from fedsw.runs.observer import NoObserver, Observer
from fedsw.runs.run_files import RunFile


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


def budgeted(plan: FederationPlan, directory: Path, run: str, *, resume: bool) -> AbstractContextManager[Budgeted]:
    """Reserve for a run under a trusted server in the account that data.account names, before anything is spent.

    This run and those beside it in `runs/<name>/` remember the account. Clients with ledgers of their own have
    reserved at the greeting: in a simulation in the same account.

    Raises:
        LimitReached: as `reserving`; or if the account has a limit, and clients count elsewhere.
    """
    experiment, data = plan.task.experiment, plan.task.experiment.data.account
    if data is None:
        return nullcontext(Budgeted(directory, None, run, resumed=resume))
    account = DatasetAccount(accounts_folder(), data)

    def reserved() -> AbstractContextManager[Budgeted]:
        return reserving(
            directory,
            account,
            run,
            planned_cost(plan),
            About(experiment.name, experiment.privacy.trust, str(directory.resolve()), unprotected(experiment)),
            resumed=resume,
            agreed=resume and (directory / RunFile.AGREED).exists(),
            remembered=sorted(directory.resolve().parent.parent.glob(f"*/*/{RunFile.ACCOUNT}")),
        )

    def counted() -> AbstractContextManager[Budgeted]:
        return nullcontext(counted_by_clients(directory, account, run, plan.delta, resumed=resume))

    return experiment.privacy.model.by_ledgers(server=reserved, clients=counted)()


def planned_cost(plan: FederationPlan) -> Cost:
    """The largest cost of a run to any record: of all rounds, or of the one release of held-out records."""
    experiment = plan.task.experiment
    privacy = experiment.privacy
    beside = sum(map(bool, (privacy.histograms, privacy.moments, experiment.share_of_scores)))
    training: Counts = {step: plan.rounds + beside for step in NO_NOISE}
    if plan.multiplier:
        stages = functools.partial(planned_stages, plan.task, plan.delta)
        training = experiment.privacy.model.by_release(rounds=functools.partial(_of_rounds, plan), once=stages)()
    return Cost.one(covering(plan.task, training, plan.epsilon, plan.delta))


def _of_rounds(plan: FederationPlan) -> Counts:
    """All rounds, at the largest rate that an attempt may have, and what is released once beside them."""
    training = plan.task.experiment.training
    largest = 0.0 if training.batch_size or plan.rounds == 1 else training.batch_fraction
    sampling = sampling_of(plan.task.experiment)
    step = counted_as(plan.mechanism)(Step(max(largest, *plan.rates), 1 / plan.multiplier, sampling))
    rounds = planned(step, plan.rounds)
    once = [planned_once(multiplier, sampling=sampling) for multiplier in plan.shares().once]
    return functools.reduce(added, once, rounds)
