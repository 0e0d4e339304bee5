"""The account of a data set on a screen: its runs, how they compose, what they cost together, and what still fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedsw._tools.installed import short
from fedsw._tools.text import downward, upward
from fedsw.experiment.trust import trust_model
from fedsw.runs.client_status import OwnLedger
from fedsw.runs.participation import Participation
from fedsw.runs.report.console import table_of

_AT_DELTA = (
    "δ = {}, --delta shows another; a run's own screen has its ε at the δ of its experiment, so that the two differ"
)


def account_view(record: Mapping[str, Any]) -> RenderableType:
    """One account on a screen."""
    delta, rows = upward(record["delta"]), []
    for run in record["runs"]:
        state = "spent" if run["settled"] else "set aside: has not ended, or stopped"
        note = f"; {run['unprotected']}" if run["unprotected"] else ""
        began = str(run["begun"])[:16].replace("T", " ")
        rows.append((run["label"], began, run["kind"], run["composes"], upward(run["epsilon"], 4), f"{state}{note}"))
    headings = ("run", "began", "kind", "composes as", f"ε at δ = {delta}", "")
    table = table_of(headings, rows, left=(*headings[:4], ""))
    at = Text(f"every ε is shown at {_AT_DELTA.format(delta)}", style="dim")
    return Group(Text(f"data set {record['data']}", style="bold"), table, at, _total(record))


def together_view(record: Mapping[str, Any]) -> RenderableType:
    """The same on a screen."""
    names = ", ".join(account["data"] for account in record["accounts"])
    total = Text.assemble("together: ", _sum(record, f"for a record that is in each of {names}"), style="bold")
    return Group(*(account_view(account) for account in record["accounts"]), total)


def accounts_view(records: Sequence[Mapping[str, Any]]) -> RenderableType:
    """All accounts of a folder, one a row."""
    headings = ("data set", "runs", "ε of all together", "of those with a guarantee", "δ", "limit", "still fits")
    rows = []
    for record in records:
        limit, left = record["limit"], record["left"]
        spent = (upward(record["epsilon"], 4), upward(record["epsilon_of_others"], 4), upward(record["delta"]))
        most = "none" if limit is None else f"{upward(limit['epsilon'])} at {upward(limit['delta'])}"
        fits = "–" if left is None else f"ε = {downward(left)}"
        rows.append((record["data"], str(len(record["runs"])), *spent, most, fits))
    at = ", ".join(dict.fromkeys(upward(record["delta"]) for record in records))
    return Group(table_of(headings, rows), Text(f"ε of all together is shown at {_AT_DELTA.format(at)}", style="dim"))


def _sum(record: Mapping[str, Any], whose: str) -> Text:
    """Say what all runs cost: infinite in the first place where that is so, and the others beside it."""
    at, without = f" at δ = {upward(record['delta'])}", record["runs_without_guarantee"]
    if not without:
        return Text.assemble((f"ε = {upward(record['epsilon'], 4)}{at}", "bold"), f" {whose}")
    runs = record["runs"] if isinstance(record["runs"], int) else len(record["runs"])
    return Text.assemble(
        ("ε = ∞", "bold red"),
        f" for whoever saw a run without a guarantee ({without} of {runs}); ",
        f"the others: ε = {upward(record['epsilon_of_others'], 4)}{at} {whose}",
    )


def _total(record: Mapping[str, Any]) -> Text:
    text = _sum(record, "of all together, as if planned ahead, for the replacement of one record within its groups")
    text.append(" (in runs with a unit, of all records of one at a client)")
    if around := record["within"]:
        most = "no limit" if around["limit"] is None else f"limit ε = {upward(around['limit']['epsilon'])}"
        text.append(f"\ncounts in data set {around['data']}, too: {most} (`fedsw account show {around['data']}`)")
    if limit := record["limit"]:
        text.append(f"\nlimit: ε = {upward(limit['epsilon'])} at δ = {upward(limit['delta'])}; ")
        left, chosen = record["left"], record["epsilon_however_chosen"]
        if chosen is not None:
            text.append(f"ε = {upward(chosen, 4)} of it is taken, whatever each run was chosen by; ")
        shape = (
            "like one of these, or one release of all records" if record["runs"] else "of one release of all records"
        )
        text.append(f"a run {shape}, of ε = {downward(left)} still fits" if left else "nothing more fits")
    elif not record["within"]:
        text.append(f"\nno limit: `fedsw account limit {record['data']} --epsilon E --delta D` sets one")
    return text


def words_of_run(run: Participation, ledgers: Sequence[OwnLedger]) -> Iterator[str]:
    """A run in sentences, with those of the ledgers that account for it."""
    epsilon = "as its noise multiplier gives" if run.epsilon is None else upward(run.epsilon)
    nominal = ", nominal: reproducible from a seed" if run.nominal else ""
    yield f"trust {run.trust}, ε = {epsilon} at δ = {run.delta}{nominal}"
    yield f"answered in {run.answered} of {run.rounds} rounds"
    charged = [book for client in run.clients for book in ledgers if (book.client, book.run) == (client, run.run)]
    for ledger in charged:
        yield (
            f"client {ledger.client}'s own ledger: ε = {upward(ledger.epsilon, 4)} spent of "
            f"{upward(ledger.budget, 4)} at δ = {upward(ledger.delta)}"
        )
    if not charged and run.epsilon is not None and math.isinf(run.epsilon):
        yield "no noise was asked for: nothing is accounted for"
    elif not charged:
        at_server = f"the server's ledger accounts for it: under {run.trust!r} the noise is the server's"
        yield from trust_model(run.trust).by_ledgers(server=[at_server], clients=[])
    if run.server:
        same = "as here" if run.server == run.code else f"here {short(run.code)}"
        yield f"the server's fedsw has the code {short(run.server)}, {same}"
    if run.agreed:
        yield f"this client takes part in {run.agreed}"
