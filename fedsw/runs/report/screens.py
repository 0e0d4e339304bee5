"""Screens beside those of a run: the shipped experiments, a ledger, the demo."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedsw._tools.text import number, upward
from fedsw.experiment import Experiment
from fedsw.experiment.load import of_unit
from fedsw.runs.report.document import Conclusion, Document, Listed, Note, Part
from fedsw.runs.report.facts import target_epsilon


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
    """The demo's cells: what is weighed, what is guaranteed, what came out on held-out data."""
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
