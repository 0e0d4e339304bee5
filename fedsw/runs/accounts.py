"""A run and the account of its data set: reserved before it begins, settled when it ends, listed afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsw._tools import files
from fedsw._tools.text import number, upward
from fedsw.privacy.accounting import Head, Ledger, Step
from fedsw.privacy.accounting.lifetime import (
    About,
    Cost,
    Counts,
    DatasetAccount,
    LimitReached,
    Reservation,
    TakenRun,
    room,
    total_epsilon,
)
from fedsw.privacy.accounting.lifetime.dataset_account import State
from fedsw.privacy.accounting.meaning import Meaning
from fedsw.runs.group_names import UNNAMED, Names
from fedsw.runs.recovery import require_remembered
from fedsw.runs.run_files import (
    RunFile,
    client_ledgers,
    found_json,
    names_in,
    read_json,
    require_plain_files,
    write_json,
)


class Budgeted:
    """A run that counts in the account of its data set, or in none.

    If its clients count in an account that is kept here, ``said`` makes the summary's part about that.
    """

    def __init__(
        self,
        directory: Path,
        account: DatasetAccount | None,
        run: str,
        *,
        resumed: bool,
        said: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._said = said
        self._directory, self._account, self._run, self._resumed = directory, account, run, resumed
        self._ledger: Ledger | None = None
        self._reservation: Reservation | None = None

    def limit(self, ledger: Ledger | None) -> None:
        """Let a ledger ask the account before a charge beyond the reservation."""
        self._ledger = ledger
        if self._account is not None and ledger is not None:
            ledger.limiter = self._reservation = Reservation(self._account, self._run)

    def take_over(self, ledger: Ledger) -> None:
        """Resume with a ledger that was charged for the releases of another copy of the run's folder.

        Raises:
            LedgerReplaced: if nothing was charged for that, or fewer releases than the account remembers of the run.
            LimitReached: if what was charged does not fit below the limit.
        """
        if self._account is not None and any(entry.lost for entry in ledger.entries()):
            self._account.newest.take_over(self._run, ledger)
        elif self._account is not None:
            self._account.newest.follow(self._run, ledger)
        if self._reservation is not None:
            self._reservation.admit(ledger.steps_by_group())

    def settle(self) -> dict[str, Any] | None:
        """Count with the ledger's cost from now on; return the summary's part about the account, None without one."""
        if self._account is None:
            return None if self._said is None else self._said()
        ledger = self._ledger
        head = self._account.settle(self._run, {} if ledger is None else Cost.of_ledger(ledger), ledger)
        _keep(self._directory, self._account, head)
        return _said_of(self._account, None if ledger is None else ledger.delta)

    def give_back(self) -> None:
        """Give back the reservation of a new run without a charge; a run that broke off keeps it, to be resumed."""
        charged = self._reservation is not None and self._reservation.asked
        if not self._resumed and self._account is not None and not charged:
            self._account.settle(self._run, {}, None)


def counted_by_clients(directory: Path, account: DatasetAccount, run: str, delta: float, *, resumed: bool) -> Budgeted:
    """A run with clients that reserve and charge for themselves, in the data set's account or elsewhere.

    Raises:
        LimitReached: if the account has a limit, and they count elsewhere: the run is then composed with no others.
    """
    state = account.state()
    if run in state.runs:
        return Budgeted(directory, None, run, resumed=resumed, said=lambda: _said_of(account, delta))
    if state.limit is not None:
        raise LimitReached(
            f"the account of data set {account.data!r} has a limit, epsilon {upward(state.limit.epsilon, 6)}, and the "
            "clients of this run keep their accounts on other machines: what the limit leaves for their records is not "
            "known here. Nothing was spent. Leave data.account out, and let each client's operator set a limit "
            "(`fedsw client --account NAME`, `fedsw account limit NAME`)"
        )
    return Budgeted(directory, None, run, resumed=resumed)


def _said_of(account: DatasetAccount, delta: float | None) -> dict[str, Any]:
    """A summary's part about an account; its epsilon is at the limit's delta, else at the run's, else None."""
    state = account.state()
    at = state.delta or delta
    return {
        "data": account.data,
        "runs": len(state.runs),
        "delta": at,
        "epsilon": None if at is None else state.spent(at),
        "limit": state.epsilon,
    }


@contextmanager
def reserving(
    directory: Path,
    account: DatasetAccount,
    run: str,
    cost: Cost,
    about: About,
    *,
    resumed: bool,
    agreed: bool = False,
    remembered: Iterable[Path] = (),
) -> Iterator[Budgeted]:
    """Set aside the largest cost of a run, before anything is spent.

    A new run that fails before its first release gives everything back. A resumed one gives nothing back: it may have
    spent before, even if its ledger cannot be read.

    A folder that lacks releases which the account has of the run is refused unless the operator `agreed` to charge
    them. ``remembered`` are files in which runs recorded the account's last row (`ACCOUNT`).

    Raises:
        LimitReached: if it does not fit below the limit of its data set.
        LedgerReplaced: if the account lacks a recorded row, or the run's folder a release.
    """
    if not agreed:
        account.require_newest(run, directory / RunFile.LEDGER)
    account_file, witnesses = str(account.path.resolve()), []
    for path in remembered:
        if (content := found_json(path)).get("file") == account_file:
            witnesses.append((Head(int(content["sequence"]), str(content["digest"])), str(path)))
    _keep(directory, account, account.reserve(run, cost, about, witnesses=witnesses))
    budgeted = Budgeted(directory, account, run, resumed=resumed)
    try:
        yield budgeted
    except BaseException:
        budgeted.give_back()
        raise


def kept_account(directory: Path) -> DatasetAccount | None:
    """The account that a folder's run counts in; None if it counts in none."""
    content = read_json(directory / RunFile.ACCOUNT)
    return None if content is None else DatasetAccount(Path(content["file"]).parent, str(content["data"]))


def _keep(directory: Path, account: DatasetAccount, head: Head) -> None:
    """Record the account's last row in the run's folder, by which an older copy of the account is detected."""
    files.new_folder(directory)
    write_json(directory / RunFile.ACCOUNT, {"data": account.data, "file": str(account.path.resolve()), **asdict(head)})


_FEW = 8
"""Profiles that are composed one by one for a person's page."""


@dataclass(frozen=True)
class RunLedgers:
    """The ledgers of a run, each opened and replayed once.

    ``account`` has plain values: budget, epsilon of the replayed rows, also by group (named as declared), and every
    row. If clients have their own ledgers, groups are clients, totals are the worst client's, and `clients` has those
    of each. `unit` is the privacy unit of epsilon: a record, or the column of unit ids.

    ``cost`` is that of all releases to a record, by group and by client.
    """

    account: dict[str, Any]
    cost: Cost

    def meaning(self) -> Meaning:
        """Meaning of the releases so far for a person: bounds on guessing which of two records is theirs.

        Guarantee: they hold in every group, at every client, whose profiles may cross; also for a replacement where the
        run's guarantee is for additions and removals. They follow from the composed releases: of each part of the cost,
        or of what covers more than `_FEW`. Of the best of several runs they follow from its (epsilon, delta) only.
        """
        if self.account["selection"]:
            return Meaning.of_claim(self.account["epsilon"], self.account["delta"])
        parts = self.cost.parts if len(self.cost.parts) <= _FEW else (self.cost.steps,)
        return Meaning.of_any(map(Meaning.of_steps, parts))


def read_ledgers(directory: Path, names: Names = UNNAMED, unit: str | None = None) -> RunLedgers:
    """Replay the ledgers of a run, opened for reading only, which also works during the run.

    Groups are called by ``names``, ``unit`` is the column of privacy-unit ids.

    Raises:
        FileNotFoundError: if the run spent nothing yet. ValueError: if the folder holds links.
        LedgerDamaged: if a row does not follow from the one before.
        LedgerReplaced: if the ledger is older than the run's summary, of another run, or gone.
    """
    require_plain_files(directory)
    require_remembered(directory)
    path = directory / RunFile.LEDGER
    by_client = {} if path.exists() else {client.stem.replace("-", " "): client for client in client_ledgers(directory)}
    accounts: dict[str, dict[str, Any]] = {}
    parts = list[Counts]()
    for client, of in (by_client or {"": path}).items():
        called = UNNAMED if client else names
        with Ledger.open(of, read_only=True) as ledger:
            by_group = ledger.epsilon_by_group()
            parts += Cost.beside_others(ledger).parts
            accounts[client] = {
                "epsilon": ledger.replay(),
                "epsilon_by_group": {called.cell(group): epsilon for group, epsilon in by_group.items()},
                "delta": ledger.delta,
                "budget": ledger.budget,
                "accountant": ledger.accountant,
                "guarantee": ledger.guarantee,
                "nominal": ledger.nominal,
                "selection": ledger.selection and ledger.selection.as_dict(),
                "released_rounds": ledger.released_rounds(),
                "head": asdict(ledger.head()),
                "entries": [{**asdict(entry), "group": called.cell(entry.group)} for entry in ledger.entries()],
            }
    worst = max(accounts, key=lambda client: float(accounts[client]["epsilon"]))
    account = {**accounts[worst], "directory": str(directory), "unit": unit or "record"}
    if by_client:
        account |= {
            "clients": {
                client: {name: one[name] for name in ("epsilon", "budget", "delta", "released_rounds")}
                for client, one in accounts.items()
            },
            "budget": max(one["budget"] for one in accounts.values()),
            "epsilon_by_group": {client: one["epsilon"] for client, one in accounts.items()},
            "released_rounds": max(one["released_rounds"] for one in accounts.values()),
            "head": {client: one["head"] for client, one in accounts.items()},
            "entries": [
                {**entry, "group": f"{client}, {entry['group']}"}
                for client, one in accounts.items()
                for entry in one["entries"]
            ],
        }
    return RunLedgers(account, Cost.of(parts))


def read_ledger(directory: Path) -> dict[str, Any]:
    """The account of a run, with the names and the unit in its folder; raises as `read_ledgers`."""
    config = read_json(directory / RunFile.CONFIG) or {}
    unit = config.get("experiment", {}).get("data", {}).get("unit")
    return read_ledgers(directory, names_in(directory), unit).account


_SHAPES = 3
"""Latest runs that a further run may be like: what still fits depends on how its budget is spread over releases."""
USUAL_DELTA = 1e-6
"""Delta at which epsilon is shown if neither a limit nor the reader names one."""


def account_record(account: DatasetAccount, delta: float | None = None) -> dict[str, Any]:
    """An account as plain values: limit, spent, left, and a row for every run.

    `epsilon` is of all runs together, as if all had been planned before the first; infinite if one has no guarantee.
    `epsilon_of_others` is that of the runs with a guarantee. `epsilon_however_chosen` is the same if each run may
    depend on earlier releases: a limit is kept by it; None without a limit. `left` is the epsilon of a run that the
    account still admits: the least over the shapes of its latest runs and one release of all records.

    Epsilon is shown at the limit's delta by default, else at 1e-6.
    """
    state = account.state()
    at, limit = delta or state.delta or USUAL_DELTA, state.limit
    guarded = [run.use for run in _guarded(state.runs.values())]
    return {
        "data": state.data,
        "file": str(account.path),
        "delta": at,
        **_together([*state.runs.values()], at),
        "epsilon_however_chosen": limit.chosen(guarded) if limit and len(guarded) > 1 else None,
        "limit": _limit(state),
        "within": None
        if account.around is None
        else {"data": account.around.data, "limit": _limit(account.around.state())},
        "left": _left(state),
        "runs": [_run_record(run, at) for run in state.runs.values()],
    }


def _limit(state: State) -> dict[str, float] | None:
    return None if state.limit is None else {"epsilon": state.limit.epsilon, "delta": state.limit.delta}


def together_record(accounts: Sequence[DatasetAccount], delta: float | None = None) -> dict[str, Any]:
    """Several accounts, and what a record in all of their data sets spent; at the smallest of their limits' deltas."""
    states = {account: account.state() for account in accounts}
    at = delta or min((state.delta for state in states.values() if state.delta), default=USUAL_DELTA)
    entries = {(account.path, name): run for account, state in states.items() for name, run in state.runs.items()}
    # A run of clients with their own ledgers is in the account of each client and in the one around it: of these two it
    # counts once, with what it cost this client. In the accounts of two clients it cost a record of both each part.
    inner = {
        (around.path, name) for account, state in states.items() if (around := account.around) for name in state.runs
    }
    runs = [run for entry, run in entries.items() if entry not in inner]
    return {
        "accounts": [account_record(account, at) for account in accounts],
        "delta": at,
        **_together(runs, at),
        "runs": len(runs),
    }


def _guarded(runs: Iterable[TakenRun]) -> list[TakenRun]:
    """The runs with a guarantee for their readers."""
    return [run for run in runs if not run.unnoised and run.unprotected is None]


def _together(runs: Sequence[TakenRun], delta: float) -> dict[str, Any]:
    """Epsilon of all runs, infinite if one has no guarantee for its readers, and of those that have one."""
    guarded = _guarded(runs)
    others, without = total_epsilon((run.cost for run in guarded), delta), len(runs) - len(guarded)
    epsilon = math.inf if without else others
    return {"epsilon": epsilon, "epsilon_of_others": others, "runs_without_guarantee": without}


def _left(state: State) -> float | None:
    """The epsilon of a run that still fits, by the function that admits runs; None without a limit."""
    limit = state.limit
    if limit is None:
        return None
    # A shape is a run's releases, at any noise; runs without noise, or with a stated cost, have none.
    noised = [run for run in state.runs.values() if run.steps and not run.unnoised]
    shapes = [run.cost for run in noised if all(step.stated is None for step in run.steps)][-_SHAPES:]
    return min(room(limit, state.uses(), like) for like in [None, *shapes])


def _run_record(run: TakenRun, delta: float) -> dict[str, Any]:
    # A record pays for the releases of its group: 60 × (rate 0.1, μ 0.4).
    composed = (" + ".join(f"{times} × {_step(step)}" for step, times in part.items()) for part in run.cost.parts)
    return {
        "run": run.run,
        "label": run.label,
        "kind": run.kind,
        "begun": run.begun,
        "place": run.location,
        "settled": run.settled,
        "unprotected": run.unprotected,
        "releases": max(sum(part.values()) for part in run.cost.parts),
        "composes": " or ".join(dict.fromkeys(words or "nothing" for words in composed)),
        "epsilon": total_epsilon([run.cost], delta),
    }


def _step(step: Step) -> str:
    if step.stated is not None:
        return step.stated.words
    if math.isinf(step.mu):
        return "(no noise)"
    rate = "all records" if step.sampling_rate == 1 else f"rate {number(step.sampling_rate)}"
    return f"({rate}, μ {upward(step.mu)})"
