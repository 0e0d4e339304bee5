"""The account of a data set at a trusted server: a run reserves before its ledger exists, and is settled at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedsw.accounting import Head, Ledger, Step
from fedsw.accounting.lifetime import (
    NO_NOISE,
    About,
    Counts,
    DatasetAccount,
    Reservation,
    accounts_folder,
    counts_of_ledger,
    planned,
)
from fedsw.experiment.protection import unprotected
from fedsw.federation.budgets.held_out import covering, held_out_budget, tally_of
from fedsw.federation.trust.plan import Plan
from fedsw.runs.files import ACCOUNT, found_json, write_json


class Budgeted:
    """A run that counts in the account of its data set, or in none."""

    def __init__(self, directory: Path, account: DatasetAccount | None, run: str, *, resumed: bool) -> None:
        self._directory, self._account, self._run, self._resumed = directory, account, run, resumed
        self._ledger: Ledger | None = None
        self._reservation: Reservation | None = None

    def limit(self, ledger: Ledger | None) -> None:
        """Let a ledger ask the account before it charges what was not set aside."""
        self._ledger = ledger
        if self._account is not None and ledger is not None:
            ledger.limiter = self._reservation = Reservation(self._account, self._run)

    def settle(self) -> dict[str, Any] | None:
        """Count with what the ledger says from now on; what the summary says of the account, None without one."""
        if self._account is None:
            return None
        ledger = self._ledger
        if ledger is None:
            head = self._account.settle(self._run, {}, None)
        else:
            head = self._account.settle(self._run, counts_of_ledger(ledger), ledger.head())
        _keep(self._directory, self._account, head)
        state, delta = self._account.state(), None if ledger is None else ledger.delta
        at = state.delta or delta
        return {
            "data": self._account.data,
            "runs": len(state.runs),
            "delta": at,
            "epsilon": None if at is None else state.spent(at),
            "limit": state.epsilon,
        }

    def give_back(self) -> None:
        """Give the reservation of a new run back if nothing was charged; one that broke off keeps it, to go on."""
        charged = self._reservation is not None and self._reservation.asked
        if not self._resumed and self._account is not None and not charged:
            self._account.settle(self._run, {}, None)


@contextmanager
def budgeted(plan: Plan, directory: Path, run: str, *, resume: bool) -> Iterator[Budgeted]:
    """Reserve for a run under a trusted server in the account that data.account names, before anything is spent.

    A new run that fails before its first release gives everything back. One that is resumed may have spent before, even
    where its ledger cannot be read: it gives nothing back.

    Raises:
        LimitReached: if it does not fit below the limit of its data set.
        LedgerReplaced: if the account is older than a run beside this one remembers.
    """
    experiment = plan.task.experiment
    data = None if experiment.privacy.local else experiment.data.account
    account = None if data is None else DatasetAccount(accounts_folder(), data)
    if account is not None:
        about = About(experiment.name, experiment.privacy.trust, str(directory.resolve()), unprotected(experiment))
        head = account.reserve(run, planned_steps(plan), about, witnesses=list(_witnesses(directory, account)))
        _keep(directory, account, head)
    found = Budgeted(directory, account, run, resumed=resume)
    try:
        yield found
    except BaseException:
        found.give_back()
        raise


def planned_steps(plan: Plan) -> Counts:
    """What a run costs at most: all rounds, or for records that are kept out of training what is released of them."""
    tally = tally_of(plan.task)
    if tally is None:
        return _of_rounds(plan)
    return covering(_of_rounds(plan), held_out_budget(plan.task.experiment, tally, plan.epsilon, plan.delta))


def _of_rounds(plan: Plan) -> Counts:
    """All rounds, at the largest rate that an attempt of the plan may have."""
    if not plan.multiplier:
        return {step: plan.rounds for step in NO_NOISE}
    training = plan.task.experiment.training
    largest = 0.0 if training.batch_size or plan.rounds == 1 else training.batch_fraction
    return planned(Step(max(largest, *plan.rates), 1 / plan.multiplier), plan.rounds)


def _keep(directory: Path, account: DatasetAccount, head: Head) -> None:
    """Remember the account's last row in the run's folder: an older copy of the account is then seen to be one."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / ACCOUNT, {"data": account.data, "file": str(account.path.resolve()), **asdict(head)})


def _witnesses(directory: Path, account: DatasetAccount) -> Iterator[tuple[Head, str]]:
    """What this run and those beside it remember of the account: `runs/<name>/<time>/`."""
    for path in sorted(directory.resolve().parent.parent.glob(f"*/*/{ACCOUNT}")):
        kept = found_json(path)
        if kept.get("file") == str(account.path.resolve()):
            yield Head(int(kept["sequence"]), str(kept["digest"])), str(path)
