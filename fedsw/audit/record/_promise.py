"""The cost of a run that is the best of a random number of runs, written again from theory, and where it must be said.

Source: docs/guarantees/selection.md.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import special

from fedsw._tools.text import upward
from fedsw.audit.finding import Check, Faults
from fedsw.audit.record._folder import HELD_OUT, LAPLACE, Book, Folder, real
from fedsw.audit.record._steps import Array, Recorded, Steps, steps_of
from fedsw.audit.record._steps import recomputed as recomputed_steps
from fedsw.privacy.accountants import ACCOUNTANTS
from fedsw.privacy.accounting.selection import Selection, renyi_of_best

Stored = dict[str, Any]
"""A selection as a file of the run states it."""

_ORDERS = np.concatenate([1 + np.geomspace(0.02, 1.0, 60), np.geomspace(2.0, 300.0, 360)[1:]])
_NODES = 3001


def require_said(folder: Folder, faults: Faults) -> None:
    """Require that configuration, ledger, summary and sentence speak of the same selection, or all of them of none."""
    said = {"config.json": folder.selection}
    said |= {f"{book.name}'s header": book.promise.get("selection") for book in folder.books}
    said |= {"summary.json": folder.summary.get("selection")} if folder.summary else {}
    known = next((selection for selection in said.values() if selection is not None), None)
    for where, selection_there in said.items():
        faults.require(
            selection_there == known, f"{where} does not say what run it was selected among, as another file does"
        )
    if folder.summary and folder.noisy:
        words = str(folder.summary["guarantee"]["statement"])
        spoken = "best of a random number of runs" in words
        faults.require(spoken == (known is not None), f"the sentence says that the run was selected: {spoken}")


def covers(stored: Stored, steps: Steps) -> bool:
    """Say whether one of the plans that the selection was charged for is no smaller than these steps."""
    plain = all(step.sampling == "without-replacement" and step.slices is None for step in steps)
    rate, mu = max((step.rate for step in steps), default=0.0), max((step.mu for step in steps), default=0.0)
    times = sum(steps.values())
    return plain and any(times <= p["times"] and rate <= p["rate"] and mu <= p["mu"] for p in stored["plans"])


@lru_cache(maxsize=16)
def replayed(stored: str, delta: float) -> float:
    """Compute epsilon of the selection, as JSON, by fedsw's own code."""
    selection = Selection.of(json.loads(stored))
    return renyi_of_best(selection.law, selection.plans).epsilon(delta)


@lru_cache(maxsize=16)
def recomputed(stored: str, delta: float) -> float:
    """Compute epsilon of the selection, as JSON, by the theorem, from divergences that are integrated here."""
    content = json.loads(stored)
    eta, gamma = real(content["eta"]), real(content["gamma"])
    odds = (1 - gamma) / gamma
    mean = odds / math.log(1 / gamma) if eta == 0 else eta * odds / (1 - gamma**eta)
    runs = [_divergences(Recorded(p["rate"], p["mu"], "without-replacement")) * p["times"] for p in content["plans"]]
    run, a = np.max(runs, axis=0), _ORDERS
    second = np.min((1 - 1 / a) * run + math.log(1 / gamma) / a)
    best = run + (1 + eta) * second + math.log(mean) / (a - 1)
    return float(np.min(best + (math.log(1 / delta) + a * np.log1p(-1 / a) - np.log(a - 1)) / (a - 1)))


def _divergences(step: Recorded) -> Array:
    """Renyi divergences of one step at the orders: ln(1 + the integral of a(a-1)(e^((a-1)e) + e^(-ae)) h(e)) / (a-1).

    By x, where e = ln(1 + p(e^x - 1)), h is p times the profile of two normal laws at x.
    """
    p, mu = step.rate, step.mu
    divergences = []
    for a in _ORDERS:
        x = np.linspace(0.0, mu * mu / 2 + a * mu * mu + 12 * mu, _NODES)
        e = np.log1p(p * np.expm1(x))
        first = special.log_ndtr(-x / mu + mu / 2)
        log_h = math.log(p) + first + np.log(-np.expm1(np.minimum(x + special.log_ndtr(-x / mu - mu / 2) - first, 0)))
        logs = np.logaddexp((a - 1) * e, -a * e) + log_h + math.log(p) + x - e
        weights = np.full(_NODES, x[1])
        weights[[0, -1]] /= 2
        divergences.append(np.logaddexp(0.0, math.log(a * (a - 1)) + special.logsumexp(logs, b=weights)) / (a - 1))
    return np.array(divergences)


NAME = "guarantee's words"

ANY_REPLACEMENT = "replace-one, label and group included"
ADDITION = "add-or-remove-one"
_SAME = 1e-6
_CLOSE = 1e-3  # what the two accountants' grids may differ by
_DIGITS = 1.1e-2  # what three digits add to a number at most, rounded up


def check(folder: Folder) -> Check:
    """Check epsilon, delta, accountant, nominal, trust and sampling, wherever each of them is written down."""
    if not folder.plan:
        return Check(NAME, not folder.metrics, "no plan.json: the run was refused before anything was spent")
    faults, records = Faults(), sum(folder.sizes.values())
    delta = resolved(folder.privacy["delta"], records)
    epsilon_asked = real(folder.privacy.get("epsilon"))
    epsilon = real(folder.plan["epsilon"])
    planned = float(folder.plan["delta"])
    faults.require(
        planned == delta,
        f"plan.json has δ = {upward(planned, 6)}, the settings {upward(delta, 6)} for {records} records",
    )
    paper = folder.experiment.get("local", {}).get("diameter") == "paper"
    same = (
        epsilon_asked == math.inf
        or math.isclose(epsilon, epsilon_asked, rel_tol=_SAME)
        or (paper and epsilon > epsilon_asked)
    )
    # A release states the epsilon that its noise truly has; by RCO's equation (4) that is less than what was asked.
    same = same or (folder.model.law == "whole records" and epsilon <= epsilon_asked)
    faults.require(same, f"plan.json has ε = {upward(epsilon, 6)}, the settings {upward(epsilon_asked, 6)}")
    for book in folder.books:
        _header(folder, book, epsilon, delta, faults)
    if folder.summary:
        _summary(folder, epsilon, delta, faults)
    require_said(folder, faults)
    warning = f"; δ is not below 1/n = {1 / records:.3g}" if delta * records >= 1 else ""
    kind = "nominal " if folder.seeded else ""
    if not folder.noisy:
        return faults.check(NAME, "no privacy is claimed: ε = ∞", delta_times_records=delta * records)
    claim = f"{kind}({upward(folder.claimed, 6)}, {upward(delta, 6)}) by {folder.accountant}, trust {folder.trust}"
    return faults.check(NAME, f"{claim}, wherever it is written{warning}", delta_times_records=delta * records)


def resolved(delta: float | str, records: int) -> float:
    """Compute the number behind "c/n^k", or "auto": 1/n^2, at least 1e-9 and at most 1e-3."""
    if not isinstance(delta, str):
        return float(delta)
    if delta == "auto":
        return min(1e-3, max(1e-9, 1 / math.pow(records, 2)))
    match = re.fullmatch(r"\s*([0-9.eE+-]+)\s*/\s*n\s*(?:\^\s*([0-9.]+))?\s*", delta)
    return float(match[1]) / math.pow(records, float(match[2] or 1)) if match else float(delta)


def _header(folder: Folder, book: Book, epsilon: float, delta: float, faults: Faults) -> None:
    promise, seeded = book.promise, folder.seeded
    where = f"{book.name}'s header"
    budget = book.budget
    # Where epsilon follows from a noise multiplier, each client's follows from its own sampling rate.
    free = folder.local and folder.privacy.get("noise_multiplier") is not None
    equal = budget == epsilon or math.isclose(budget, epsilon, rel_tol=_SAME)
    same = budget <= epsilon * (1 + _SAME) if free else equal
    faults.require(same, f"{where} has a budget of {upward(budget, 6)}, plan.json {upward(epsilon, 6)}")
    faults.require(
        float(promise["delta"]) == delta,
        f"{where} has δ = {upward(promise['delta'], 6)}, the settings {upward(delta, 6)}",
    )
    accountant = folder.accountant
    faults.require(
        promise["accountant"] == accountant,
        f"{where} is kept by {promise['accountant']}, the settings ask for {accountant}",
    )
    noise = promise.get("mechanism")
    faults.require(noise == folder.mechanism, f"{where} takes {noise} noise, the settings ask for {folder.mechanism}")
    relation = promise.get("relation")
    wider = () if folder.declared else (ANY_REPLACEMENT,)  # of replacements, this is the wider one
    covers = relation in (_relation(folder), *wider)
    faults.require(covers, f"{where} is for {relation} neighbours, not {_relation(folder)}")
    faults.require(promise["nominal"] == seeded, f"{where} says nominal = {promise['nominal']}, the seed {seeded}")
    name = folder.directory / "run.name"
    if folder.local and name.is_file():
        known = name.read_text(encoding="ascii").strip()
        faults.require(str(promise.get("run")).partition(".")[0] == known, f"{where} is of another run")
    groups = {"records"} if folder.local else set(folder.sizes)
    groups |= {HELD_OUT} if folder.releases_kept else set()
    faults.require(
        set(promise["groups"]) == groups, f"{where} accounts for {promise['groups']}, the plan for {sorted(groups)}"
    )


def _summary(folder: Folder, epsilon: float, delta: float, faults: Faults) -> None:
    reported: dict[str, Any] = folder.summary
    guarantee: dict[str, Any] = reported["guarantee"]
    seeded = folder.seeded
    expected = {
        "trust": folder.trust,
        "accountant": folder.accountant,
        "accountant_is_guarantee": _proven(folder),
        "mechanism": folder.mechanism,
        "word": folder.word,
        "sampling": _sampling(folder),
        "relation": _relation(folder),
    }
    unit = guarantee.get("unit", "record")
    faults.require(unit == (_unit(folder) or "record"), f"summary: the unit of privacy is {unit!r}, not the settings'")
    for name, value in expected.items():
        faults.require(guarantee.get(name) == value, f"summary: {name} is {guarantee.get(name)!r}, and is {value!r}")
    expected_delta = 0.0 if folder.accountant == LAPLACE else delta
    faults.require(
        float(reported["delta"]) == expected_delta,
        f"summary: δ is {upward(reported['delta'], 6)}, the settings' {upward(expected_delta, 6)}",
    )
    faults.require(reported["nominal"] == seeded, f"summary: nominal is {reported['nominal']}, the seed {seeded}")
    faults.require(reported["seed"] == folder.experiment.get("seed"), "summary: its seed is not the settings'")
    claim, spent = real(reported["epsilon"]), real(reported["epsilon_spent"])
    least = max(epsilon, spent) if folder.noisy else math.inf
    same = claim == least or math.isclose(claim, least, rel_tol=_SAME)
    faults.require(same, f"summary: ε is {upward(claim, 6)}, planned or spent {upward(least, 6)}")
    by_client = [real(value) for value in reported.get("epsilon_spent_by_client", {}).values()]
    faults.require(max(by_client, default=0.0) <= claim * (1 + _SAME), "summary: a client spent more than is claimed")
    private = folder.experiment.get("data", {}).get("held_out_overlap") == "allow"
    reader = math.inf if folder.experiment.get("unsafe_metrics") or private else claim
    faults.require(
        real(reported["epsilon_of_reader"]) == reader, f"summary: ε of the reader is not {upward(reader, 6)}"
    )
    _sentence(str(guarantee["statement"]), folder, claim, seeded, faults)


def _sampling(folder: Folder) -> str:
    if folder.sketch:
        return "none: all records, once" + (" a stage" if folder.experiment["sketch"]["stages"] else "")
    return "each client's own" if folder.local else str(folder.privacy["sampling"])


def _fixed(folder: Folder) -> list[str]:
    """Parts of a record that no guarantee of this run replaces: they decide its stratum, and which client it is at."""
    dealt, any_other = folder.experiment["partition"], folder.sketch or folder.declared is not None
    fixed = set() if any_other else {"group"}
    if not any_other and "equality-of-odds" in (penalty["penalty"] for penalty in folder.penalties):
        fixed.add("label")
    if dealt["scheme"] != "iid":
        fixed.add("label" if dealt["scheme"] == "dirichlet" and dealt["by"] == "target" else "group")
    return sorted(fixed)


def _relation(folder: Folder) -> str:
    """The neighbours that a run's guarantee is for."""
    if folder.declared is not None:
        return ADDITION
    return "replace-one" if _fixed(folder) else ANY_REPLACEMENT


def _replaced(folder: Folder, faults: Faults) -> float:
    """Epsilon for a replacement that the summary states; a fault if the planned noise has more by another accountant.

    A replaced record is in a batch with the same probability, and moves a sum twice as far (docs/guarantees/ledger.md).
    """
    said, book = real(folder.summary["guarantee"].get("epsilon_of_replacement")), folder.books[0]
    rows = [row for row in book.rounds[-1:] for _ in range(folder.planned_releases)]
    rows += [*book.moments[-1:], *book.scores[-1:]]
    steps = steps_of(book, book.groups[0], rows)
    twice = Steps()
    for step, times in steps.items():
        twice[Recorded(step.rate, 2 * step.mu, "without-replacement")] += times
    cost = recomputed_steps(twice, book.delta)
    enough = said >= (cost.epsilon - cost.error) * (1 - _CLOSE)
    faults.require(
        enough, f"summary: ε for a replacement is {upward(said, 6)}, its rows have {upward(cost.epsilon, 6)}"
    )
    return said


def _proven(folder: Folder) -> bool:
    """Say whether the accountant's epsilon is a proven bound for the run's noise; no user's own is."""
    if folder.accountant not in ACCOUNTANTS:
        return False
    known = ACCOUNTANTS.get(folder.accountant)
    return known.guarantee and known.takes.get(folder.mechanism) == "proven"


def _unit(folder: Folder) -> str | None:
    """The column that says whose a record is, where all records of a person are one unit."""
    unit = folder.experiment.get("data", {}).get("unit")
    return None if unit is None else str(unit)


def _sentence(words: str, folder: Folder, claim: float, seeded: bool, faults: Faults) -> None:
    if not folder.noisy:
        faults.require(words.startswith("No privacy"), "the sentence does not say that there is no privacy")
        return
    said = "nominal" in words
    faults.require(said == seeded, f"the sentence says nominal: {said}, the seed {seeded}")
    unit = _unit(folder)
    replaced = "replacement of one record" if unit is None else f"replacement of all records of one {unit!r}"
    if folder.declared is not None:
        replaced = "addition or removal of one record"
        divided = f"divided by a declared number of records, {folder.declared}, which is public"
        faults.require(divided in words, f"the sentence does not say {divided!r}")
        other = f"for that the same noise has epsilon = {upward(_replaced(folder, faults), 4)}."
        faults.require(other in words, f"the sentence does not say {other!r}")
    faults.require(replaced in words, f"the sentence does not say {replaced}")
    whose = "rests on a bound that the user stated" in words
    faults.require(whose == (folder.word == "stated"), "the sentence does not say whose word the penalties' bound is")
    others = folder.experiment.get("data", {}).get("held_out_overlap") == "other-people"
    said_others = "of other people is the word of whoever ran this" in words
    faults.require(said_others == others, "the sentence does not say whose word it is that equal rows are others'")
    weak = not _proven(folder)
    faults.require(("No guarantee" in words) == weak, f"the sentence does not fit the accountant {folder.accountant}")
    pure = folder.accountant == LAPLACE
    delta = float(folder.summary["delta"])
    written = re.search(r"pure (\S+)-differential" if pure else r"\((\S+), (\S+)\)-differential", words)
    said_of = written.groups() if written else ()
    stated = zip(said_of, (claim,) if pure else (claim, delta), strict=False)
    close = bool(said_of) and all(true <= float(text) <= true * (1 + _DIGITS) for text, true in stated)
    faults.require(close, f"the sentence does not say {upward(claim, 4)} and {upward(delta)}, rounded up")
    fixed = _fixed(folder)
    within = f"within its {' and '.join(fixed)}" if fixed else "its label and group included"
    within += ")" if unit is None else ", at each client by itself)"
    faults.require(within in words, f"the sentence does not say {within[:-1]!r}")
    for column in folder.experiment.get("data", {}).get("read_off", ()):
        told = f"read off the records: which {' and '.join(sorted(folder.experiment['data']['read_off']))} occur."
        faults.require(told in words, f"the sentence does not say that it is public which {column} occur")
    ratio = f"{float(folder.summary['guarantee']['noise_multiplier']):.4g}"
    stages = folder.stages if folder.sketch else 1
    attempts = math.ceil(1 + folder.experiment["local"]["failing"]) if folder.sketch and folder.masked else 1
    whole = f"= {ratio} of one release that costs as much." if stages * attempts > 1 else f"= {ratio}."
    faults.require(whole in words, f"the sentence does not say the noise multiplier {ratio}")
    all_of_them = f"of all {stages} stages of the sketch together"
    faults.require(stages == 1 or all_of_them in words, f"the sentence does not say {all_of_them!r}")
