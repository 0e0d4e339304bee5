"""A server's job, and the amount that it reserves in a data set's account before the run's ledger exists."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from fedsw.experiment import Experiment
from fedsw.experiment.load import unprotected
from fedsw.federation.trust.budget_shares import covering
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.privacy.accounting.lifetime import (
    NO_NOISE,
    About,
    Cost,
    Counts,
    DatasetAccount,
    accounts_folder,
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
    reserved: AbstractContextManager[Budgeted] = pkgutil.resolve_name(experiment.privacy.model.reserves)(
        plan, directory, DatasetAccount(accounts_folder(), data), run, resume=resume
    )
    return reserved


def reserved_by_server(
    plan: FederationPlan, directory: Path, account: DatasetAccount, run: str, *, resume: bool
) -> AbstractContextManager[Budgeted]:
    """Reserve the largest cost of a run; see `TrustModel.reserves`."""
    experiment = plan.task.experiment
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


def reserved_by_clients(
    plan: FederationPlan, directory: Path, account: DatasetAccount, run: str, *, resume: bool
) -> AbstractContextManager[Budgeted]:
    """Take up what clients have reserved at the greeting; see `TrustModel.reserves`."""
    return nullcontext(counted_by_clients(directory, account, run, plan.delta, resumed=resume))


def planned_cost(plan: FederationPlan) -> Cost:
    """The largest cost of a run to any record: of all rounds, or of the one release of held-out records."""
    experiment = plan.task.experiment
    privacy = experiment.privacy
    beside = sum(map(bool, (privacy.histograms, privacy.moments, experiment.share_of_scores)))
    training: Counts = {step: plan.rounds + beside for step in NO_NOISE}
    if plan.multiplier:
        training = privacy.model.reserved(plan)
    return Cost.one(covering(plan.task, training, plan.epsilon, plan.delta))
