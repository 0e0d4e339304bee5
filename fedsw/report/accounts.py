"""The account of a data set as tables: its runs, what they cost together, and what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedsw.accounting.lifetime import DatasetAccount, TakenRun, composed_epsilon, room
from fedsw.text import number

USUAL_DELTA = 1e-6
"""At which epsilon is shown where neither a limit nor the reader names a delta."""


def account_record(account: DatasetAccount, delta: float | None = None) -> dict[str, Any]:
    """What an account says, as plain values: limit, spent, left, and a row for every run.

    Args:
        delta: at which epsilon is shown; that of the limit by default, else 1e-6.

    Raises:
        LedgerReplaced, LedgerDamaged: for an account that was put back, or is none.
    """
    state = account.state()
    at = delta or state.delta or USUAL_DELTA
    known = state.epsilon is not None and state.delta is not None
    noisy = [run.steps for run in state.runs.values() if run.noisy]
    return {
        "data": state.data,
        "file": str(account.path),
        "delta": at,
        "epsilon": state.spent_with_noise(at),
        "limit": {"epsilon": state.epsilon, "delta": state.delta} if known else None,
        "left": room(noisy, state.epsilon, state.delta) if state.epsilon and state.delta else None,
        "runs_without_noise": len(state.runs) - len(noisy),
        "runs": [_run_record(run, at) for run in state.runs.values()],
    }


def account_view(record: Mapping[str, Any]) -> RenderableType:
    """One account on a screen."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("run", "began", "kind", "releases", "ε alone", ""):
        table.add_column(column, justify="right" if column in ("releases", "ε alone") else "left")
    for run in record["runs"]:
        state = "spent" if run["settled"] else "set aside: has not ended, or stopped"
        note = f"; {run['unprotected']}" if run["unprotected"] else ""
        began = str(run["begun"])[:16].replace("T", " ")
        table.add_row(
            run["label"], began, run["kind"], str(run["releases"]), number(run["epsilon"], 4), f"{state}{note}"
        )
    return Group(Text(f"data set {record['data']}", style="bold"), table, _total(record))


def together_record(accounts: Sequence[DatasetAccount], delta: float | None = None) -> dict[str, Any]:
    """Several accounts, and what a record that is in the data sets of all of them spent.

    Args:
        delta: at which epsilon is shown; the smallest of the limits' by default, else 1e-6.
    """
    states = [account.state() for account in accounts]
    at = delta or min((state.delta for state in states if state.delta), default=USUAL_DELTA)
    noisy = [run.steps for state in states for run in state.runs.values() if run.noisy]
    return {
        "accounts": [account_record(account, at) for account in accounts],
        "delta": at,
        "epsilon": composed_epsilon(noisy, at),
    }


def together_view(record: Mapping[str, Any]) -> RenderableType:
    """The same on a screen."""
    names = ", ".join(each["data"] for each in record["accounts"])
    total = Text(f"together: ε = {number(record['epsilon'], 4)} at δ = {number(record['delta'])}", style="bold")
    total.append(f" for a record that is in each of {names}", style="not bold")
    return Group(*(account_view(each) for each in record["accounts"]), total)


def accounts_view(records: Sequence[Mapping[str, Any]]) -> RenderableType:
    """All accounts of a folder, one a row."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("data set", "runs", "ε of all together", "δ", "limit", "a run that still fits"):
        table.add_column(column, justify="left" if column == "data set" else "right")
    for record in records:
        limit, left = record["limit"], record["left"]
        table.add_row(
            record["data"],
            str(len(record["runs"])),
            number(record["epsilon"], 4),
            number(record["delta"]),
            "none" if limit is None else f"{number(limit['epsilon'])} at {number(limit['delta'])}",
            "–" if left is None else f"ε = {number(left)}",
        )
    return table


def _total(record: Mapping[str, Any]) -> Text:
    found = Text()
    found.append(f"ε = {number(record['epsilon'], 4)} at δ = {number(record['delta'])}", style="bold")
    found.append(" of all runs together, composed numerically, for the replacement of one record within its groups")
    if limit := record["limit"]:
        found.append(f"\nlimit: ε = {number(limit['epsilon'])} at δ = {number(limit['delta'])}; ")
        left = record["left"]
        found.append(f"a run of about ε = {number(left)} still fits" if left else "nothing more fits")
    else:
        found.append(f"\nno limit: `fedsw account limit {record['data']} --epsilon E --delta D` sets one")
    if without := record["runs_without_noise"]:
        found.append(f"\nruns without noise: {without}; for whoever saw one of them ε = ∞", style="bold red")
    return found


def _run_record(run: TakenRun, delta: float) -> dict[str, Any]:
    return {
        "run": run.run,
        "label": run.label,
        "kind": run.kind,
        "begun": run.begun,
        "place": run.place,
        "settled": run.settled,
        "unprotected": run.unprotected,
        "releases": sum(run.steps.values()),
        "epsilon": composed_epsilon([run.steps], delta),
    }
