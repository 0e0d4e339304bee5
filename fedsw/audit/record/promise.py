"""Is what the run says of its guarantee what its settings, its plan and its ledgers say?"""

from __future__ import annotations

import math
import re
from typing import Any

from fedsw.audit.record.check import Check, Faults
from fedsw.audit.record.folder import HELD_OUT, LAPLACE, Book, Folder, real

NAME = "guarantee's words"

_GUARANTEES = frozenset({"pld", "rdp-wor", "bernstein", LAPLACE})
_SAME = 1e-6


def check(folder: Folder) -> Check:
    """Epsilon, delta, accountant, nominal, trust and sampling, wherever each of them is written down."""
    if not folder.plan:
        return Check(NAME, not folder.metrics, "no plan.json: the run was refused before anything was spent")
    faults, records = Faults(), sum(folder.sizes.values())
    delta = resolved(folder.privacy["delta"], records)
    asked = real(folder.privacy.get("epsilon"))
    epsilon = real(folder.plan["epsilon"])
    planned = float(folder.plan["delta"])
    faults.require(planned == delta, f"plan.json has δ = {planned:.6g}, the settings {delta:.6g} for {records} records")
    paper = folder.trust == "local-release" and folder.experiment["local"]["diameter"] == "paper"
    same = asked == math.inf or math.isclose(epsilon, asked, rel_tol=_SAME) or (paper and epsilon > asked)
    # A release states the epsilon that its noise truly has; by RCO's equation (4) that is less than what was asked.
    same = same or (folder.trust == "local-release" and epsilon <= asked)
    faults.require(same, f"plan.json has ε = {epsilon:.6g}, the settings {asked:.6g}")
    for book in folder.books:
        _header(folder, book, epsilon, delta, faults)
    if folder.summary:
        _summary(folder, epsilon, delta, faults)
    warning = f"; δ is not below 1/n = {1 / records:.3g}" if delta * records >= 1 else ""
    seeded = folder.experiment.get("seed") is not None
    kind = "nominal " if seeded else ""
    if not folder.noisy:
        return faults.check(NAME, "no privacy is claimed: ε = ∞", delta_times_records=delta * records)
    found = f"{kind}({folder.claimed:.6g}, {delta:.3g}) by {folder.accountant}, trust {folder.trust}"
    return faults.check(NAME, f"{found}, wherever it is written{warning}", delta_times_records=delta * records)


def resolved(delta: float | str, records: int) -> float:
    """The number behind "c/n^k"."""
    if not isinstance(delta, str):
        return float(delta)
    found = re.fullmatch(r"\s*([0-9.eE+-]+)\s*/\s*n\s*(?:\^\s*([0-9.]+))?\s*", delta)
    return float(found[1]) / math.pow(records, float(found[2] or 1)) if found else float(delta)


def _header(folder: Folder, book: Book, epsilon: float, delta: float, faults: Faults) -> None:
    own, seeded = book.promise, folder.experiment.get("seed") is not None
    where = f"{book.name}'s header"
    budget = real(own["epsilon"])
    # Where epsilon follows from a noise multiplier, each client's follows from its own sampling rate.
    free = folder.local and folder.privacy.get("noise_multiplier") is not None
    equal = budget == epsilon or math.isclose(budget, epsilon, rel_tol=_SAME)
    same = budget <= epsilon * (1 + _SAME) if free else equal
    faults.require(same, f"{where} has a budget of {budget:.6g}, plan.json {epsilon:.6g}")
    faults.require(float(own["delta"]) == delta, f"{where} has δ = {own['delta']:.6g}, the settings {delta:.6g}")
    asked = folder.accountant
    faults.require(own["accountant"] == asked, f"{where} is kept by {own['accountant']}, the settings ask for {asked}")
    faults.require(own["nominal"] == seeded, f"{where} says nominal = {own['nominal']}, the seed {seeded}")
    name = folder.directory / "run.name"
    if folder.local and name.is_file():
        known = name.read_text(encoding="ascii").strip()
        faults.require(str(own.get("run")).partition(".")[0] == known, f"{where} is of another run")
    groups = {"records"} if folder.local else set(folder.sizes)
    groups |= {HELD_OUT} if folder.releases_kept else set()
    faults.require(set(own["groups"]) == groups, f"{where} accounts for {own['groups']}, the plan for {sorted(groups)}")


def _summary(folder: Folder, epsilon: float, delta: float, faults: Faults) -> None:
    reported: dict[str, Any] = folder.summary
    guarantee: dict[str, Any] = reported["guarantee"]
    seeded = folder.experiment.get("seed") is not None
    expected = {
        "trust": folder.trust,
        "accountant": folder.accountant,
        "accountant_is_guarantee": folder.accountant in _GUARANTEES,
        "sampling": _sampling(folder),
        "relation": "replace-one, label and group included" if folder.sketch else "replace-one",
    }
    unit = guarantee.get("unit", "record")
    faults.require(unit == (_unit(folder) or "record"), f"summary: the unit of privacy is {unit!r}, not the settings'")
    for name, value in expected.items():
        faults.require(guarantee.get(name) == value, f"summary: {name} is {guarantee.get(name)!r}, and is {value!r}")
    own = 0.0 if folder.accountant == LAPLACE else delta
    faults.require(float(reported["delta"]) == own, f"summary: δ is {reported['delta']:.6g}, the settings' {own:.6g}")
    faults.require(reported["nominal"] == seeded, f"summary: nominal is {reported['nominal']}, the seed {seeded}")
    faults.require(reported["seed"] == folder.experiment.get("seed"), "summary: its seed is not the settings'")
    claim, spent = real(reported["epsilon"]), real(reported["epsilon_spent"])
    least = max(epsilon, spent) if folder.noisy else math.inf
    same = claim == least or math.isclose(claim, least, rel_tol=_SAME)
    faults.require(same, f"summary: ε is {claim:.6g}, planned or spent {least:.6g}")
    by_client = [real(value) for value in reported.get("epsilon_spent_by_client", {}).values()]
    faults.require(max(by_client, default=0.0) <= claim * (1 + _SAME), "summary: a client spent more than is claimed")
    reader = math.inf if folder.experiment.get("unsafe_metrics") else claim
    faults.require(real(reported["epsilon_of_reader"]) == reader, f"summary: ε of the reader is not {reader:.6g}")
    _sentence(str(guarantee["statement"]), folder, claim, seeded, faults)


def _sampling(folder: Folder) -> str:
    if folder.sketch:
        return "none: all records, once"
    return "each client's own" if folder.local else str(folder.privacy["sampling"])


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
    faults.require(replaced in words, f"the sentence does not say {replaced}")
    weak = folder.accountant not in _GUARANTEES
    faults.require(("No guarantee" in words) == weak, f"the sentence does not fit the accountant {folder.accountant}")
    pure = folder.accountant == LAPLACE
    delta = float(folder.summary["delta"])
    written = f"pure {claim:.4g}-differential" if pure else f"({claim:.4g}, {delta:.3g})-differential"
    faults.require(written in words, f"the sentence does not say {written} privacy")
    wide = "label and group included" in words
    faults.require(wide == folder.sketch, f"the sentence says that labels are inside: {wide}")
    ratio = f"{float(folder.summary['guarantee']['noise_multiplier']):.4g}"
    faults.require(f"= {ratio}." in words, f"the sentence does not say the noise multiplier {ratio}")
