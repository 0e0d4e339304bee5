"""Settling a run in the accounts of its data sets from what its files say, after it has stopped."""

from __future__ import annotations

from pathlib import Path

from fedsw.accounting.lifetime import DatasetAccount, counts_of_ledger
from fedsw.federation.node.lifetime import bound_in, bound_to, settle
from fedsw.runs import checkpoint, recovery
from fedsw.runs.directory import RunDirectory
from fedsw.runs.files import ACCOUNT, read_json


def settle_run(place: Path) -> list[str]:
    """Let a run count with what its ledgers say, and give back the rest of what was set aside for it.

    Args:
        place: the folder of a run under a trusted server, or one with ledgers of clients: a run's, or a state folder.

    Returns:
        Names of the data sets whose accounts were settled.

    Raises:
        FileNotFoundError: if nothing in the folder belongs to an account.
        RunBusy, LedgerBusy: while the run goes on. LedgerReplaced: if a ledger is older than what remembers it.
    """
    found = []
    kept = read_json(place / ACCOUNT)
    if kept is not None:
        account = DatasetAccount(Path(kept["file"]).parent, str(kept["data"]))
        with recovery.held(place):
            _settle_server(place, account)
        found.append(account.data)
    for folder in (place, place / "clients", *sorted(place.glob("nodes/*"))):
        for ledger in bound_in(folder):
            bound = bound_to(ledger)
            if bound is not None and settle(ledger):
                found.append(bound.account.data)
    if not found:
        raise FileNotFoundError(
            f"nothing in {place} belongs to an account; give the folder of a run whose experiment has data.account, or "
            "a client's state folder"
        )
    return found


def _settle_server(place: Path, account: DatasetAccount) -> None:
    directory = RunDirectory(place)
    ledger = recovery.reopened(directory.ledger, directory.summary, checkpoint.load(place))
    if ledger is None:
        account.settle(directory.name(), {}, None)
        return
    with ledger:
        account.settle(directory.name(), counts_of_ledger(ledger), ledger.head())
