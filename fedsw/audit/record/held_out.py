"""Runs that release counts and sums over records kept out of training: their one row, its sensitivity, its noise."""

from __future__ import annotations

import json
import math

from fedsw.audit.record.check import Faults
from fedsw.audit.record.folder import HELD_OUT, Folder
from fedsw.audit.record.sensitivity import SLACK

FILE = "held_out.json"
KEYS = frozenset({"values", "sigma", "records", "clients", "attempt", "epsilon", "round"})

_EXACT = 1e-9


def _least_sensitivity(folder: Folder) -> float:
    """How far a replaced record moves the sums (docs/guarantees.md, "Records kept out of training").

    Counts of a classifier: one less, one more. Of a regression: squared error, squared target and target are in units
    of 1 each, and the counts of one prediction besides.
    """
    if folder.experiment["objective"]["task"] != "regression":  # a task of one's own names one of both
        return SLACK * math.sqrt(2)
    return SLACK * math.sqrt(5 if folder.task.dimension == 1 else 3)


def require(folder: Folder, faults: Faults) -> str:
    """Look at the row of every ledger, and at what was stored; in words what is well, empty where nothing is released.

    That rows cost no more than epsilon is checked with all others: the records are a group of every ledger.
    """
    path = folder.directory / FILE
    rows = [(book, row) for book in folder.books for row in book.rows]
    if not folder.releases_kept:
        faults.require(not path.exists(), f"{FILE} is there, and the settings release nothing of kept records")
        charged = [book.name for book, row in rows if any(c["group"] == HELD_OUT for c in row.charges)]
        faults.require(not charged, f"{charged[:1]} charges kept records, of which nothing is released")
        return ""
    least = _least_sensitivity(folder)
    for book in folder.books:
        many = len(book.tallies)
        faults.require(many <= 1, f"{book.name} has {many} rows of kept records; they are released once")
    for book, row in rows:
        where, said = f"{book.name}, row {row.sequence}", [c for c in row.charges if c["group"] == HELD_OUT]
        faults.require(len(said) == 1, f"{where} does not say what it costs kept records")
        if (charge := row.kept) is None:
            continue
        faults.require(charge["sampling_rate"] == 1.0, f"{where}: kept records are all released, at a rate below 1")
        has = float(charge["sensitivity"])
        short = f"{where}: Δ = {has:.6g} of kept records is less than {least:.6g}"
        faults.require(has >= least * (1 - _EXACT), short)
        others = [c["group"] for c in row.trained if c["sampling_rate"] > 0]
        faults.require(not others, f"{where} releases kept records and charges {others}, which are trained on")
    if not path.is_file():
        said_so = folder.summary.get("held_out_release") is None
        faults.require(said_so, f"the summary has a release of kept records, and there is no {FILE}")
        return "; nothing of kept records was released"
    return _stored(folder, faults)


def _stored(folder: Folder, faults: Faults) -> str:
    stored = json.loads((folder.directory / FILE).read_text(encoding="utf-8"))
    more = sorted(stored.keys() - KEYS)
    faults.require(not more, f"{FILE} holds {more}")
    rows = [row for book in folder.books for row in book.tallies]
    if folder.books:
        faults.require(bool(rows), f"{FILE} is in no ledger")
        total, sigma = math.hypot(*(row.sigma for row in rows)), float(stored["sigma"])
        several = folder.local and stored["clients"] != len(rows)  # who was lost is charged and not in the sums
        same = several or math.isclose(sigma, total, rel_tol=1e-6)
        faults.require(not rows or same, f"{FILE} has noise of σ = {sigma:.6g}, its rows {total:.6g}")
    whole = all(float(value).is_integer() for row in stored["values"] for value in row)
    faults.require(not folder.noisy or not whole, f"{FILE} holds whole numbers, as counts without noise are")
    return f"; {sum(stored['records'])} kept records released once"
