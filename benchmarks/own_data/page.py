"""The tables of what records of one's own lose, from what is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.own_data import by_group, claims, lost, persons, verdicts
from benchmarks.own_data.store import Row, Subject, rows_of

SUBJECTS: Mapping[str, tuple[Callable[..., Subject], Callable[[Sequence[Row]], str]]] = {
    "accuracy": (lost.accuracy, lost.accuracy_table),
    "fairness": (lost.fairness, lost.fairness_table),
    "thresholds": (by_group.thresholds, by_group.thresholds_table),
    "drafted": (by_group.drafted, by_group.drafted_table),
    "claims": (claims.false_claims, claims.claims_table),
    "coverage": (claims.coverage, claims.coverage_table),
    "verdicts": (verdicts.verdicts, verdicts.verdicts_table),
    "sites": (verdicts.sites, verdicts.sites_table),
    "rates": (lost.rates, lost.rates_table),
    "persons": (persons.persons, persons.persons_table),
}
"""What is measured, and the table that is made of it."""
FROM_PACKAGES = ("thresholds", "drafted", "persons")
"""Subjects on sets that other packages ship; they take the interpreter that has these (`python`)."""


def table(name: str) -> str:
    """A subject's table, and where and when it was measured."""
    rows = rows_of(name)
    if not rows:
        return "Not measured yet."
    last = max(rows, key=lambda row: str(row["date"]))
    on = last["measured_on"]
    versions = ", ".join(f"{package} {version}" for package, version in on["versions"].items())
    return f"{SUBJECTS[name][1](rows)}\n\n*{on['processor']}, {on['cores']} cores; {versions}; {last['date'][:10]}*"
