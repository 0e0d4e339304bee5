"""Check that settings, plan, ledgers and summary of a run promise the same, in the words of the server's function."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from fedsw._tools.text import upward
from fedsw.audit.finding import Check, Faults
from fedsw.audit.record._folder import HELD_OUT, Book, Folder, Unchecked, real
from fedsw.audit.record.cost import SAME, recomputed, steps_of
from fedsw.experiment import read_delta
from fedsw.experiment.compatibility import relation_of
from fedsw.federation.server.summary import epsilon_of_reader, guarantee_of, versions
from fedsw.federation.trust.local_release.released_records import release_epsilon
from fedsw.privacy.accountants import accountant_named
from fedsw.privacy.accounting import Step
from fedsw.privacy.accounting.selection import Selection
from fedsw.privacy.relations import holds_for
from fedsw.runs.run_files import RunFile

NAME = "guarantee's words"

_CLOSE = 1e-3  # what the two accountants' grids may differ by


def check(folder: Folder) -> Check:
    """Check epsilon, delta, accountant, nominal, trust and sampling, wherever each of them is written down."""
    if not folder.plan:
        return Check(NAME, not folder.metrics, "no plan.json: the run was refused before anything was spent")
    faults, privacy, records = Faults(), folder.written.privacy, sum(folder.sizes.values())
    delta, planned = read_delta(privacy.delta, records=records), float(folder.plan["delta"])
    fault = f"plan.json has δ = {upward(planned, 6)}, the settings {upward(delta, 6)} for {records} records"
    faults.require(planned == delta, fault)
    epsilon, wanted = real(folder.plan["epsilon"]), real(privacy.epsilon)
    if folder.noisy and privacy.model.law == "whole records":
        wanted = release_epsilon(folder.written, delta)  # what the noise truly costs
    same = wanted == math.inf or math.isclose(epsilon, wanted, rel_tol=SAME)
    faults.require(same, f"plan.json has ε = {upward(epsilon, 6)}, the settings {upward(wanted, 6)}")
    for book in folder.books:
        _header(folder, book, epsilon, delta, faults)
    _selection(folder, faults)
    if folder.summary:
        _summary(folder, epsilon, delta, faults)
    warning = f"; δ is not below 1/n = {1 / records:.3g}" if delta * records >= 1 else ""
    if not folder.noisy:
        return faults.check(NAME, "no privacy is claimed: ε = ∞", delta_times_records=delta * records)
    kind, settings = "nominal " if folder.seeded else "", folder.written
    claim = f"{kind}({upward(folder.claimed, 6)}, {upward(delta, 6)}) by {settings.accountant}, trust {privacy.trust}"
    return faults.check(NAME, f"{claim}, wherever it is written{warning}", delta_times_records=delta * records)


def _header(folder: Folder, book: Book, epsilon: float, delta: float, faults: Faults) -> None:
    """Require that a ledger accounts for the settings' guarantee, of this run and for all of its groups."""
    promise, settings, where = book.promise, folder.written, f"{book.name}'s header"
    # Where epsilon follows from a noise multiplier, each client's follows from its own sampling rate.
    free = folder.local and settings.privacy.noise_multiplier is not None
    same = (
        book.budget == epsilon or math.isclose(book.budget, epsilon, rel_tol=SAME) or (free and book.budget < epsilon)
    )
    faults.require(same, f"{where} has a budget of {upward(book.budget, 6)}, plan.json {upward(epsilon, 6)}")
    expected = {
        "delta": delta,
        "accountant": settings.accountant,
        "mechanism": settings.mechanism,
        "nominal": folder.seeded,
    }
    for name, value in expected.items():
        faults.require(promise.get(name) == value, f"{where} has {name} {promise.get(name)}, and it is {value}")
    relation = relation_of(settings)
    covers = holds_for(promise["relation"], relation)
    faults.require(covers, f"{where} is for {promise['relation']} neighbours, not {relation}")
    named = folder.directory / RunFile.NAME
    if folder.local and named.is_file():
        known = named.read_text(encoding="ascii").strip()
        faults.require(str(promise.get("run")).partition(".")[0] == known, f"{where} is of another run")
    groups = {"records"} if folder.local else set(folder.sizes)
    groups |= {HELD_OUT} if settings.data.held_out_released else set()
    covered = set(promise["groups"]) == groups
    faults.require(covered, f"{where} accounts for {promise['groups']}, the plan for {sorted(groups)}")


def _selection(folder: Folder, faults: Faults) -> None:
    """Require that configuration, ledgers and summary speak of the same selection, or all of them of none."""
    said = {
        "config.json": folder.selection,
        **({"summary.json": folder.summary.get("selection")} if folder.summary else {}),
    }
    said |= {f"{book.name}'s header": book.promise.get("selection") for book in folder.books}
    known = next((selection for selection in said.values() if selection is not None), None)
    for where, selection in said.items():
        fault = f"{where} does not say what run it was selected among, as another file does"
        faults.require(selection == known, fault)


def _summary(folder: Folder, epsilon: float, delta: float, faults: Faults) -> None:
    """Require that the summary claims what was planned or spent, in the words that the server has for it."""
    settings, summary = folder.written, folder.summary
    guarantee: dict[str, Any] = summary["guarantee"]
    claim, spent = real(summary["epsilon"]), real(summary["epsilon_spent"])
    least = max(epsilon, spent) if folder.noisy else math.inf
    same = claim == least or math.isclose(claim, least, rel_tol=SAME)
    faults.require(same, f"summary: ε is {upward(claim, 6)}, planned or spent {upward(least, 6)}")
    by_client = [real(value) for value in summary.get("epsilon_spent_by_client", {}).values()]
    faults.require(max(by_client, default=0.0) <= claim * (1 + SAME), "summary: a client spent more than is claimed")
    reader = epsilon_of_reader(settings, claim)
    same = real(summary["epsilon_of_reader"]) == reader
    faults.require(same, f"summary: ε of the reader is not {upward(reader, 6)}")
    pure = accountant_named(settings.accountant).pure
    for name, value in {"delta": 0.0 if pure else delta, "nominal": folder.seeded, "seed": settings.seed}.items():
        faults.require(summary[name] == value, f"summary: {name} is {summary[name]}, and is {value}")
    replaced = {}
    if settings.privacy.hides_sizes and folder.noisy:
        replaced = {"epsilon_of_replacement": _replaced(folder, faults)}
    try:
        task = folder.task
    except Unchecked as reason:
        faults.left = f"whether the summary's words fit the settings: {reason}"
        return
    selection = None if folder.selection is None else Selection.of(folder.selection)
    multiplier = float(guarantee["noise_multiplier"])
    expected = guarantee_of(
        task, epsilon=claim, delta=delta, multiplier=multiplier, selection=selection, replaced=replaced
    )
    wrote, reads = summary["versions"].get("fedsw"), versions()["fedsw"]
    if wrote != reads:  # the same promise, in words that may have changed since
        expected.pop("statement")
        faults.left = f"whether the summary's sentence is the settings': fedsw {wrote} wrote it, and this is {reads}"
    for name, value in expected.items():
        said = guarantee.get(name)
        faults.require(said == value or name in replaced, f"summary: {name} is {said!r}, and is {value!r}")


def _replaced(folder: Folder, faults: Faults) -> float:
    """Epsilon for a replacement that the summary states; a fault if the planned noise has more by another accountant.

    A replaced record is in a batch with the same probability, and moves a sum twice as far (docs/guarantees/ledger.md).
    """
    said, book = real(folder.summary["guarantee"].get("epsilon_of_replacement")), folder.books[0]
    rows = [row for row in book.rounds[-1:] for _ in range(folder.written.releases)]
    rows += book.released_once
    trained, held_out = (
        steps_of(book, group, taken)
        for group, taken in ((book.groups[0], rows), (HELD_OUT, book.kinds["kept records"]))
    )
    # A record and the one in its place are both trained on, both kept, or one of each: then either moves a part once.
    for steps, times in ((trained, 2), (held_out, 2), (trained + held_out, 1)):
        moved = Counter({Step(step.sampling_rate, times * step.mu): many for step, many in steps.items()})
        if not moved or times == 1 and not held_out:
            continue
        cost = recomputed(moved, book.delta)
        enough = said >= (cost.epsilon - cost.error) * (1 - _CLOSE)
        faults.require(
            enough, f"summary: ε for a replacement is {upward(said, 6)}, its rows have {upward(cost.epsilon, 6)}"
        )
    return said
