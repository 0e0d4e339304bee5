"""Screens beside those of a run: the shipped experiments, a ledger, the demo, the accounts of data sets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedsw._tools.installed import short
from fedsw._tools.text import at_delta, downward, number, upward
from fedsw.experiment import Experiment
from fedsw.experiment.load import of_unit
from fedsw.experiment.trust import trust_model
from fedsw.runs.report.document import Conclusion, Document, Listed, Note, Part, Strong
from fedsw.runs.report.facts import target_epsilon

if TYPE_CHECKING:
    from fedsw.runs.client_status import OwnLedger, Participation


def experiments_table(experiments: Iterable[Experiment]) -> Document:
    """The shipped experiments, one a row."""
    rows = [
        (
            one.name,
            one.title,
            number(one.objective.alpha),
            target_epsilon(one),
            one.training.rounds,
            one.federation.clients,
        )
        for one in experiments
    ]
    numbers = ("α", "ε", "rounds", "clients")
    words = ("name", "what")
    return Document("", begins=(Listed.of("", (*words, *numbers), rows, left=words, whole=("name", *numbers)),))


def ledger_report(account: Mapping[str, Any]) -> Document:
    """A ledger's total and its rows; runs of rounds that cost the same share one line."""
    same: dict[tuple[str, float, float, float], list[int]] = {}
    for entry in account["entries"]:
        cost = (entry["group"], entry["sampling_rate"], entry["sensitivity"], entry["sigma"])
        same.setdefault(cost, []).append(entry["round"])
    rows = [
        (
            f"{min(rounds)} – {max(rounds)}" if len(rounds) > 1 else rounds[0],
            len(rounds),
            group,
            *(number(value, 4) for value in numbers),
        )
        for (group, *numbers), rounds in same.items()
    ]
    headings = ("rounds", "releases", "group", "sampling rate", "sensitivity", "σ")
    kind = f"accountant {account['accountant']}" + ("" if account["guarantee"] else ", which is not a guarantee")
    nominal = "; nominal: sampling and noise are reproducible" if account["nominal"] else ""
    total = f"{spent_of(account['epsilon'], account['budget'], account['delta'])} ({kind}{nominal})"
    words: list[Part] = [Listed.of("", headings, rows, left=("rounds", "group")), Conclusion(total)]
    protected = "a record" if (unit := account.get("unit", "record")) == "record" else of_unit(unit)
    if any(entry.get("sampling") == "poisson" for entry in account["entries"]):
        words.append(f"for the addition or removal of {protected}, a weaker promise than the same ε for a replacement")
    elif unit != "record":
        words.append(f"for the replacement of {protected}")
    if account.get("selection"):
        words.append("which is the selection's: the run is the best of a random number of runs")
    if clients := account.get("clients"):
        words.append("every client has a ledger of its own; that is the one that spent most")
        for client, ledger in clients.items():
            spent = spent_of(ledger["epsilon"], ledger["budget"], ledger["delta"])
            words.append(f"{client}: {spent}, {ledger['released_rounds']} rounds taken part in")
    return Document("", begins=tuple(words))


def spent_of(epsilon: float, budget: float, delta: float) -> str:
    """The spent part of a ledger's budget."""
    return f"ε = {upward(epsilon, 4)} of {upward(budget, 4)} spent at δ = {upward(delta)}"


def demo_table(rows: Iterable[Mapping[str, Any]], *, caption: str) -> Document:
    """The demo's cells: α, ε, noise, and metrics on held-out records."""
    cells = [
        (
            number(row["alpha"]),
            upward(row["target_epsilon"]),
            upward(row["epsilon"]),
            number(row["noise_multiplier"]) if row["noise_multiplier"] else "–",
            number(row["accuracy"]),
            number(row["disparate_impact"], 2),
            number(row["seconds"], 2),
        )
        for row in rows
    ]
    headings = ("α", "target ε", "ε", "σ/Δ", "accuracy", "DI", "seconds")
    return Document("", begins=(Listed.of("", headings, cells, left=()), Note(caption)))


_AT_DELTA = (
    "{} is shown at δ = {}, --delta shows another; a run's own screen has its ε at the δ of its experiment, so that "
    "the two differ"
)
"""What is shown, and the delta at which it is."""


def account_view(record: Mapping[str, Any]) -> Document:
    """One account: its runs, then their joint cost."""
    delta, rows = upward(record["delta"]), []
    for run in record["runs"]:
        state = "spent" if run["settled"] else "set aside: has not ended, or stopped"
        note = f"; {run['unprotected']}" if run["unprotected"] else ""
        began = str(run["begun"])[:16].replace("T", " ")
        rows.append((run["label"], began, run["kind"], run["composes"], upward(run["epsilon"], 4), f"{state}{note}"))
    headings = ("run", "began", "kind", "composes as", f"ε at δ = {delta}", "")
    listed = Listed.of("Runs", headings, rows, left=(*headings[:4], ""))
    note = Note(_AT_DELTA.format("every ε", delta))
    return Document(f"data set {record['data']}", begins=(listed, note, *_total(record)))


def together_view(record: Mapping[str, Any]) -> Document:
    """Several accounts, and the joint cost of their runs to a record that is in each."""
    names = ", ".join(account["data"] for account in record["accounts"])
    total = f"together: {_sum(record, f'for a record that is in each of {names}')}"
    return Document("", total, parts=tuple(map(account_view, record["accounts"])))


def accounts_view(records: Sequence[Mapping[str, Any]]) -> Document:
    """All accounts of a folder, one a row."""
    headings = ("data set", "runs", "ε of all together", "of those with a guarantee", "δ", "limit", "still fits")
    rows = []
    for record in records:
        limit, left = record["limit"], record["left"]
        spent = (upward(record["epsilon"], 4), upward(record["epsilon_of_others"], 4), upward(record["delta"]))
        most = "none" if limit is None else f"{upward(limit['epsilon'])} at {upward(limit['delta'])}"
        fits = "–" if left is None else f"ε = {downward(left)}"
        rows.append((record["data"], len(record["runs"]), *spent, most, fits))
    at = ", ".join(dict.fromkeys(upward(record["delta"]) for record in records))
    note = Note(_AT_DELTA.format("ε of all together", at))
    return Document("", begins=(Listed.of("Accounts", headings, rows), note))


def _sum(record: Mapping[str, Any], subject: str) -> str:
    """The joint cost of all runs; infinite if one has no guarantee, with that of the others beside it."""
    without = record["runs_without_guarantee"]
    if not without:
        return f"{at_delta(record['epsilon'], record['delta'])} {subject}"
    runs = record["runs"] if isinstance(record["runs"], int) else len(record["runs"])
    return (
        f"ε = ∞ for readers of a run without a guarantee ({without} of {runs}); the others: "
        f"{at_delta(record['epsilon_of_others'], record['delta'])} {subject}"
    )


def _total(record: Mapping[str, Any]) -> Iterator[Part]:
    subject = "of all together, as if planned ahead, for the replacement of one record within its groups"
    kind = Strong if record["runs_without_guarantee"] else Conclusion
    yield kind(f"{_sum(record, subject)} (in runs with a unit, of all records of one at a client)")
    if around := record["within"]:
        most = "no limit" if around["limit"] is None else f"limit ε = {upward(around['limit']['epsilon'])}"
        yield f"counts in data set {around['data']}, too: {most} (`fedsw account show {around['data']}`)"
    if limit := record["limit"]:
        left, chosen = record["left"], record["epsilon_however_chosen"]
        taken = "" if chosen is None else f"ε = {upward(chosen, 4)} of it is taken, whatever each run was chosen by; "
        shape = "like one of these, or one release" if record["runs"] else "of one release"
        fits = f"a run {shape} of all records, of ε = {downward(left)} still fits" if left else "nothing more fits"
        yield f"limit: ε = {upward(limit['epsilon'])} at δ = {upward(limit['delta'])}; {taken}{fits}"
    elif not record["within"]:
        yield f"no limit: `fedsw account limit {record['data']} --epsilon E --delta D` sets one"


def words_of_run(run: Participation, ledgers: Sequence[OwnLedger]) -> Iterator[str]:
    """A client's run in sentences, with those of its own ledgers."""
    epsilon = "as its noise multiplier gives" if run.epsilon is None else upward(run.epsilon)
    nominal = ", nominal: reproducible from a seed" if run.nominal else ""
    yield f"trust {run.trust}, ε = {epsilon} at δ = {run.delta}{nominal}"
    yield f"answered in {run.answered} of {run.rounds} rounds"
    charged = [book for client in run.clients for book in ledgers if (book.client, book.run) == (client, run.run)]
    for ledger in charged:
        yield f"client {ledger.client}'s own ledger: {spent_of(ledger.epsilon, ledger.budget, ledger.delta)}"
    if not charged and run.epsilon is not None and math.isinf(run.epsilon):
        yield "no noise was asked for: nothing is accounted for"
    elif not charged:
        yield from filter(None, [trust_model(run.trust).accounted()])
    if run.server:
        same = "as here" if run.server == run.code else f"here {short(run.code)}"
        yield f"the server's fedsw has the code {short(run.server)}, {same}"
    if run.agreed:
        yield f"this client takes part in {run.agreed}"
