"""Costs of a run before its first round: its reservation in an account, and attempts that its folder lacks."""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedsw.experiment.compatibility import sampling_of
from fedsw.experiment.load import unprotected
from fedsw.federation.exchange.participants import Site
from fedsw.federation.node.own_ledger import LAST
from fedsw.federation.trust.budget_shares import BEFORE_TRAINING, covering, idle
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.federation.trust.sums_once import beside_training
from fedsw.privacy.accounting import Charge, Ledger, LedgerReplaced
from fedsw.privacy.accounting.lifetime import (
    NO_NOISE,
    About,
    Cost,
    Counts,
    DatasetAccount,
    accounts_folder,
)
from fedsw.runs.accounts import Budgeted, counted_by_clients, reserving
from fedsw.runs.commands import command_to_charge
from fedsw.runs.directory import RunDirectory
from fedsw.runs.run_files import RunFile
from fedsw.runs.telemetry import event

_log = logging.getLogger("fedsw.server")

Attempt = tuple[int, int]


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
    training: Counts = {step: plan.rounds + beside for step in NO_NOISE}  # of one step, at an infinite cost
    if plan.multiplier:
        training = privacy.model.reserved(plan)
    return Cost.one(covering(plan.task, training, plan.epsilon, plan.delta))


def take_up(
    directory: RunDirectory,
    plan: FederationPlan,
    ledger: Ledger | None,
    sites: Sequence[Site],
    budget: Budgeted,
    *,
    resume: bool,
) -> None:
    """Number attempts after all that clients answered, and account for those that this folder does not know.

    Under local trust there is no ledger here: clients charged what they answered to their own. LedgerReplaced if the
    folder is older than what clients answered, and its operator did not agree that this is charged
    (`RunDirectory.agree_to_charge`); nothing was charged.
    """
    remembered = Remembered.of(sites)
    begun = directory.begun_attempts()
    directory.know_attempts(remembered.begun)
    if ledger is None or not resume:
        return
    charged = {(entry.round, entry.attempt) for entry in ledger.entries()}
    experiment = plan.task.experiment
    first = BEFORE_TRAINING if experiment.privacy.moments else 1
    lost = lost_attempts(remembered, charged, begun, experiment.training.rounds, first)
    agreed = directory.agreed_to_charge
    if lost and not agreed:
        raise LedgerReplaced(_refusal(directory, lost, remembered, len(sites)))
    for attempt in lost:
        charge_lost_attempt(plan, ledger, sites, attempt)
        directory.keep_attempt(*attempt)  # once it is charged: what the log has and clients answered counts as given up
    if lost:
        directory.accept_gap(max(round_ for round_, _ in lost))  # whose rounds are made again
        _log.warning("%d attempts that this folder did not know are charged", len(lost), extra=event("lost charged"))
    if agreed:
        budget.take_over(ledger)
        directory.forget_agreement()


@dataclass(frozen=True)
class Remembered:
    """The attempts that a run's nodes say they have answered before.

    An attempt was begun if some exchange of it was answered, and finished if its last one was: only then can it have
    been released. For each attempt, `by` has the first client of every node that says so.
    """

    begun: frozenset[Attempt]
    finished: frozenset[Attempt]
    by: Mapping[Attempt, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, sites: Sequence[Site]) -> Remembered:
        """The union over all nodes."""
        rows = np.concatenate([site.answered for site in sites]).tolist()
        by: dict[Attempt, tuple[int, ...]] = {}
        for site in sites:
            for attempt in {(round_, attempt) for round_, attempt, _ in site.answered.tolist()}:
                by[attempt] = (*by.get(attempt, ()), int(site.clients[0]))
        return cls(
            frozenset((round_, attempt) for round_, attempt, _ in rows),
            frozenset((round_, attempt) for round_, attempt, stage in rows if stage == LAST),
            by,
        )


def lost_attempts(
    remembered: Remembered, charged: Iterable[Attempt], begun: Sequence[Attempt], rounds: int, first: int = 1
) -> list[Attempt]:
    """Attempts that may have been released, and that a run's folder neither charged nor gave up.

    Guarantee: every attempt that released something is among those charged or those returned, if the folder is a
    snapshot of one instant and some node remembers the attempt; but for one in which the snapshot was taken, after
    which clients answered nothing.

    Those `begun` are in the run's log, which has each attempt before it is asked for; `first` is 0 if moments are
    released before the rounds.

    Source: docs/guarantees/attempts.md, Theorem R1.
    """
    charged = set(charged)
    unpaid, numbers = remembered.finished - charged, sorted(remembered.begun.union(begun))
    last = dict(numbers)  # the last attempt of every round: what was released is not attempted again
    newest = max((round_ for round_, _ in numbers if round_ <= rounds), default=0)
    lost = unpaid.difference(begun) | {of for of in last.items() if first <= of[0] < newest} & unpaid
    # Where clients answered later attempts than the log has, the folder may have been copied within the last one of it,
    # which was charged and released afterwards. A later attempt of its round shows that it was given up, but not before
    # the rounds: histograms and moments are of one round.
    logged = dict(sorted(begun))
    if any(attempt > logged.get(round_, -1) for round_, attempt in remembered.begun - charged):
        lost |= {of for of in begun[-1:] if of[0] == BEFORE_TRAINING or last[of[0]] == of[1]} & unpaid
    # A round below the newest was released. Where no attempt of it is known to have been, one more is charged.
    known = {round_ for round_, _ in charged | lost}
    lost |= {(missing, 1 + last.get(missing, -1)) for missing in set(range(first, newest)) - known}
    return sorted(lost)


def _refusal(directory: RunDirectory, lost: Sequence[Attempt], remembered: Remembered, nodes: int) -> str:
    round_, attempt = lost[-1]
    more = f" and {len(lost) - 1} more attempts" if len(lost) > 1 else ""
    # Clients that report them are named, unless all do: one that reports alone may be wrong, or lie.
    by = sorted({client for attempt in lost for client in remembered.by.get(attempt, ())})
    who = f"client {by[0]}" if len(by) == 1 else f"clients {', '.join(map(str, by))}"
    said = f", as {who} of {nodes} nodes say{'s' if len(by) == 1 else ''} (to go on without, take its key away first)"
    return (
        f"the folder {directory.path} is older than what the clients of its run answered: round {round_}, attempt "
        f"{attempt}{more} are not in its ledger{said if 0 < len(by) < nodes else ''}. A backup was restored, or a copy "
        "of the run is resumed, and these rounds may have been released. Go on in the folder that was used last; if it "
        f"is lost, `{command_to_charge(directory.path)}` charges them at the plan's full cost, and goes on with what "
        "is left"
    )


def charge_lost_attempt(plan: FederationPlan, ledger: Ledger, sites: Sequence[Site], attempt: Attempt) -> None:
    """Charge an attempt for the most that it may have cost: its batch, and who was in it, are not known."""
    experiment, cells = plan.task.experiment, plan.task.objective.cells
    if sums := beside_training(plan.task, attempt[0]):  # of several the one that costs most: nobody knows which it was
        budget = min((total.budget(plan.delta, plan.shares) for total in sums), key=lambda one: one.multiplier)
        ledger.charge_lost(*attempt, budget.charges(cells, experiment), budget.sigma)
        return
    rates, sensitivity = largest_rates(plan, sites), 1.0
    for entry in ledger.entries():  # rounds before may have had other clients, or other records
        if entry.round > BEFORE_TRAINING and entry.group in rates and entry.sensitivity > 0:
            rates[entry.group] = max(rates[entry.group], entry.sampling_rate)
            if entry.sigma > 0:
                sensitivity = max(sensitivity, plan.multiplier * entry.sensitivity / entry.sigma)
    charges = [Charge(cell, rate, sensitivity, sampling_of(experiment)) for cell, rate in rates.items()]
    ledger.charge_lost(*attempt, [*charges, *idle(experiment)], plan.multiplier)


def largest_rates(plan: FederationPlan, sites: Sequence[Site]) -> dict[str, float]:
    """The largest sampling rate of each cell in an attempt of the plan, with any of its clients away."""
    experiment, cells = plan.task.experiment, plan.task.objective.cells
    if set(plan.rates) == {1.0}:  # every record is in it, whoever was away
        return dict.fromkeys(cells, 1.0)
    if experiment.privacy.hides_sizes:  # a record's own probability, whoever else is there
        return dict(zip(cells, plan.rates, strict=True))
    training, federation = experiment.training, experiment.federation
    sizes = np.concatenate([site.sizes for site in sites])
    least = np.sort(sizes, axis=0)[: federation.min_clients or federation.clients].sum(axis=0)
    largest = {}
    for cell, rate, size in zip(cells, plan.rates, least.tolist(), strict=True):
        if training.batch_size is not None:
            largest[cell] = max(rate, training.batch_size / max(size, training.batch_size))
            continue
        alone = 1 / max(size, 1)  # one record of the cell is drawn where the fraction of it is less
        largest[cell] = max(rate, training.batch_fraction, alone if size * training.batch_fraction < 1 else 0.0)
    return largest
