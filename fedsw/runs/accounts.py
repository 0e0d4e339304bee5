"""What a run has spent, replayed from its ledger's rows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedsw.runs.files import CONFIG, LEDGER, client_ledgers, read_json
from fedsw.runs.names import Names, names_in


def read_ledger(directory: Path) -> dict[str, Any]:
    """The account of a run: budget, what its rows cost when replayed, by group (named as declared), and every row.

    Where every client has a ledger of its own the groups are the clients', the totals those of the worst client, and
    `clients` has each one's. `unit` says whose epsilon it is: a record's, or the column whose values are units.
    Opened for reading only, so it works while the run goes on.

    Raises:
        FileNotFoundError: if the run spent nothing yet.
        LedgerDamaged: if a row does not follow from the one before.
    """
    own = client_ledgers(directory)
    if not own or (directory / LEDGER).exists():
        account = _named(_read(directory / LEDGER), names_in(directory))
        return {"directory": str(directory), "unit": _unit(directory), **account}
    accounts = {path.stem.replace("-", " "): _read(path) for path in own}
    worst = max(accounts.values(), key=lambda account: float(account["epsilon"]))
    return {
        **worst,
        "directory": str(directory),
        "unit": _unit(directory),
        "clients": {
            client: {name: account[name] for name in ("epsilon", "budget", "delta", "released_rounds")}
            for client, account in accounts.items()
        },
        "budget": max(account["budget"] for account in accounts.values()),
        "epsilon_by_group": {client: account["epsilon"] for client, account in accounts.items()},
        "released_rounds": max(account["released_rounds"] for account in accounts.values()),
        "head": {client: account["head"] for client, account in accounts.items()},
        "entries": [
            {**entry, "group": f"{client}, {entry['group']}"}
            for client, account in accounts.items()
            for entry in account["entries"]
        ],
    }


def _named(account: dict[str, Any], names: Names) -> dict[str, Any]:
    """An account whose strata have the names that people declared."""
    spent = {names.cell(group): epsilon for group, epsilon in account["epsilon_by_group"].items()}
    entries = [{**entry, "group": names.cell(entry["group"])} for entry in account["entries"]]
    return {**account, "epsilon_by_group": spent, "entries": entries}


def _unit(directory: Path) -> str:
    config = read_json(directory / CONFIG) or {}
    return config.get("experiment", {}).get("data", {}).get("unit") or "record"


def _read(path: Path) -> dict[str, Any]:
    from fedsw.accounting import Ledger

    with Ledger.open(path, read_only=True) as ledger:
        return {
            "epsilon": ledger.replay(),
            "epsilon_by_group": ledger.epsilon_by_group(),
            "delta": ledger.delta,
            "budget": ledger.budget,
            "accountant": ledger.accountant,
            "guarantee": ledger.guarantee,
            "nominal": ledger.nominal,
            "released_rounds": ledger.released_rounds(),
            "head": asdict(ledger.head()),
            "entries": [asdict(entry) for entry in ledger.entries()],
        }
