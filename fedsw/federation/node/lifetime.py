"""The account of a client's data set: what all runs that its ledgers ever paid for spent on its records together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsw.accounting import Ledger
from fedsw.accounting.journal import remembered
from fedsw.accounting.lifetime import (
    About,
    Cost,
    Counts,
    DatasetAccount,
    Reservation,
    accounts_folder,
    bind,
    bound_in,
    bound_to,
    settle,
    unbind,
)
from fedsw.experiment import Experiment
from fedsw.experiment.load import unprotected
from fedsw.federation.node.simulated import is_simulated

ACCOUNT = "account"
"""The key of a node's configuration that names the data set, and whose account is then kept on its machine."""
ACCOUNTS = "accounts"
"""The key that names the folder of accounts."""
SHARED = "*"
"""The data set's name on nodes that whoever wrote the experiment started: the one that the experiment gives."""


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


def reserve(account: DatasetAccount, place: Path, run: str, experiment: Experiment, steps: Counts | Cost) -> None:
    """Set aside what a run will cost this client's records at most, at the greeting: nothing is spent yet.

    Args:
        place: of the client's ledger; the account that it belongs to is written beside it.

    Raises:
        LimitReached: if there is no room. LedgerReplaced: for an older copy of the account, or of the ledger.
    """
    account.require_newest(run, place)
    about = About(
        experiment.name, f"{experiment.privacy.trust}, own ledger", str(place.resolve()), unprotected(experiment)
    )
    account.reserve(run, steps, about)
    if not experiment.privacy.noisy:  # there is no ledger, and whatever leaves has cost that much
        account.settle(run, steps, None)
        return
    bind(place, account, run)


def limited(place: Path, ledger: Ledger) -> Ledger:
    """The ledger, which asks its data set's account before it charges what was not set aside."""
    bound = bound_to(place)
    if bound is not None:
        ledger.limiter = Reservation(bound.account, bound.run)
    return ledger


def give_back(folder: Path) -> None:
    """Give back what was set aside for ledgers in a folder that were never begun: the run was refused."""
    for place in bound_in(folder):
        if not place.exists() and remembered(place) is None:
            settle(place)
            unbind(place)
