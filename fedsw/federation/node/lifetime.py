"""The account of a client's data set: what all runs that its ledgers ever paid for spent on its records together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsw import files
from fedsw.accounting import Ledger
from fedsw.accounting.lifetime import (
    About,
    Counts,
    DatasetAccount,
    Reservation,
    accounts_folder,
    counts_of_ledger,
)
from fedsw.accounting.memory import memory_of, remembered
from fedsw.experiment import Experiment
from fedsw.experiment.protection import unprotected
from fedsw.federation.node.simulated import is_simulated

ACCOUNT = "account"
"""The key of a node's configuration that names the data set, and whose account is then kept on its machine."""
ACCOUNTS = "accounts"
"""The key that names the folder of accounts."""
SHARED = "*"
"""The data set's name on nodes that whoever wrote the experiment started: the one that the experiment gives."""

_BOUND = ".account.json"


@dataclass(frozen=True)
class Bound:
    """Which account a client's ledger belongs to, and as which run."""

    account: DatasetAccount
    run: str


def account_of(experiment: Experiment, node_config: Mapping[str, Any], client: int) -> DatasetAccount | None:
    """The account of a client's data set; None where its owner named none.

    On a machine of the client's own its operator names the data set, and what the experiment says is the server's word.
    In a simulation, and on a node of several clients, every client has an account of its own, with its number.
    """
    if is_simulated(node_config) or node_config.get(ACCOUNT) == SHARED:
        data = experiment.data.account
        return None if data is None else DatasetAccount(accounts_folder(), f"{data}.client-{client}")
    if (named := node_config.get(ACCOUNT)) is None:
        return None
    folder = node_config.get(ACCOUNTS)
    data = f"{named}.client-{client}" if "num-clients" in node_config else str(named)
    return DatasetAccount(accounts_folder() if folder is None else Path(str(folder)), data)


def reserve(account: DatasetAccount, place: Path, run: str, experiment: Experiment, steps: Counts) -> None:
    """Set aside what a run will cost this client's records at most, at the greeting: nothing is spent yet.

    Args:
        place: of the client's ledger; the account that it belongs to is written beside it.

    Raises:
        LimitReached: if there is no room. LedgerReplaced: for an older copy of the account.
    """
    about = About(
        experiment.name, f"{experiment.privacy.trust}, own ledger", str(place.resolve()), unprotected(experiment)
    )
    account.reserve(run, steps, about)
    if not experiment.privacy.noisy:  # there is no ledger, and whatever leaves has cost that much
        account.settle(run, steps, None)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    kept = {"data": account.data, "folder": str(account.folder.resolve()), "run": run}
    files.replace(_beside(place), json.dumps(kept).encode())


def bound_to(place: Path) -> Bound | None:
    """The account that a client's ledger belongs to; None if it belongs to none."""
    try:
        kept = json.loads(_beside(place).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Bound(DatasetAccount(Path(kept["folder"]), kept["data"]), kept["run"])


def limited(place: Path, ledger: Ledger) -> Ledger:
    """The ledger, which asks its data set's account before it charges what was not set aside."""
    bound = bound_to(place)
    if bound is not None:
        ledger.limiter = Reservation(bound.account, bound.run)
    return ledger


def settle(place: Path) -> bool:
    """Let the run of a client's ledger count with what it spent; False if the ledger belongs to no account.

    Raises:
        LedgerReplaced: if the ledger is gone, or an older copy. LedgerBusy: while a process writes to it.
    """
    bound = bound_to(place)
    if bound is None:
        return False
    head = remembered(place)
    if not place.exists() and head is None:
        bound.account.settle(bound.run, {}, None)
        return True
    with Ledger.open(place) as ledger:
        if head is not None:
            ledger.require(head, memory_of(place).name)
        bound.account.settle(bound.run, counts_of_ledger(ledger), ledger.head())
    return True


def bound_in(folder: Path) -> list[Path]:
    """The ledgers of a folder that belong to an account, whether they were begun or not."""
    found = sorted(folder.glob(f"client-*{_BOUND}"))
    return [beside.with_name(beside.name.removesuffix(_BOUND) + ".sqlite") for beside in found]


def give_back(folder: Path) -> None:
    """Give back what was set aside for ledgers in a folder that were never begun: the run was refused."""
    for place in bound_in(folder):
        if not place.exists() and remembered(place) is None:
            settle(place)
            _beside(place).unlink()


def _beside(place: Path) -> Path:
    return place.with_suffix(_BOUND)
