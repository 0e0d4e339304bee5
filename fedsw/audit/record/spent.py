"""Do the ledgers' rows cost what the run says, by fedsw's accountant and by another one?"""

from __future__ import annotations

import math
from functools import lru_cache

from fedsw.audit.record.accountant import Recomputed, lower_bound, recomputed
from fedsw.audit.record.check import Check, Faults
from fedsw.audit.record.folder import HELD_OUT, Book, Folder, real
from fedsw.audit.record.steps import Steps, groups_of, steps_of

REPLAY = "replay"
INDEPENDENT = "independent accountant"

_SAME = 1e-6
_GRID = 1e-3  # what fedsw says its own grid may add to epsilon, at most: docs/guarantees.md, "Accuracy"
_CLOSE = 5e-3
_LINES = 8


def check_replay(folder: Folder) -> Check:
    """The rows, by fedsw's own accountant: the summary's epsilon, and within the budget."""
    if not folder.books:
        return _no_rows(REPLAY, folder)
    faults, found = Faults(), {}
    reported = {str(client): real(value) for client, value in folder.summary.get("epsilon_spent_by_client", {}).items()}
    for book in folder.books:
        spent, budget = replay(book), real(book.promise["epsilon"])
        found[book.name] = spent
        faults.require(spent <= budget * (1 + 1e-9), f"{book.name} spent {spent:.6g} of a budget of {budget:.6g}")
        faults.require(
            spent <= folder.claimed * (1 + _SAME), f"{book.name} spent {spent:.6g}, and {folder.claimed:.6g} is claimed"
        )
        said = reported.get(book.client or "", 0.0)
        faults.require(
            spent == said or spent > said * (1 - _SAME), f"{book.name} reported {said:.6g}, its rows cost {spent:.6g}"
        )
    worst = max(found.values())
    if folder.summary:
        said = real(folder.summary["epsilon_spent"])
        heard = [found[book.name] for book in folder.books if not folder.local or book.client in reported]
        known = max(heard, default=said)
        # A client that was charged and then lost has spent more than it reported.
        close = said == known or math.isclose(said, known, rel_tol=_SAME) or (folder.local and said < known)
        faults.require(close, f"the summary says {said:.6g} was spent, the rows cost {known:.6g}")
        least = real(folder.summary["epsilon"])
        faults.require(least >= said, f"the summary claims {least:.6g}, less than {said:.6g}, which it says was spent")
    if not folder.local:
        _along(folder, folder.books[0], faults)
    well = f"the rows cost ε = {worst:.6g}" + (", as reported" if folder.summary else "; no summary reports it")
    return faults.check(REPLAY, well, epsilon_by_ledger=found)


def _along(folder: Folder, book: Book, faults: Faults) -> None:
    """A few lines of metrics.jsonl, the last among them: epsilon there is that of the rows up to its attempt's."""
    place = {(row.round, row.attempt): position for position, row in enumerate(book.rows, start=1)}
    lines = [line for line in folder.metrics if (line.get("round"), line.get("attempt")) in place]
    for line in lines[:: -max(1, len(lines) // _LINES)]:
        cost, said = replay(book, place[line["round"], line["attempt"]]), real(line.get("epsilon"))
        fault = f"round {line['round']} of metrics.jsonl says ε = {said:.6g}, its rows cost {cost:.6g}"
        faults.require(cost == said or math.isclose(cost, said, rel_tol=_SAME), fault)


def check_independent(folder: Folder) -> Check:
    """The rows, by dp_accounting; what is claimed may not be less than that by more than the grids account for."""
    if not folder.books:
        return _no_rows(INDEPENDENT, folder)
    faults, details, notes = Faults(), [], []
    worst, lowest, how = 0.0, 0.0, ""
    for book in folder.books:
        own, replayed = independent(book), replay(book)
        least = floor(book)
        worst, lowest, how = max((worst, lowest, how), (own.epsilon, least, own.how))
        slack = own.error + _GRID * min(1.0, replayed)
        short = f"{book.name}: fedsw's ε of {replayed:.6g} is below"
        faults.require(replayed >= own.epsilon - slack, f"{short} the independent {own.epsilon:.6g}")
        faults.require(replayed >= least - _SAME, f"{short} {least:.6g}, which no account of these rows can be")
        faults.require(
            folder.claimed >= own.epsilon - slack,
            f"{book.name}: the claim of {folder.claimed:.6g} is below the independent {own.epsilon:.6g}",
        )
        if replayed - own.epsilon > max(_GRID, _CLOSE * own.epsilon):
            notes.append(f"{book.name}: fedsw's {replayed:.6g} is well above it, which is safe")
        details.append({
            "ledger": book.name, "epsilon": own.epsilon, "grid_error": own.error, "lower_bound": least,
            "fedsw": replayed, "by": own.how,
        })  # fmt: skip
    bound = f", no account can be below {lowest:.4g}" if lowest else ""
    well = "; ".join([f"ε = {worst:.6g} by {how or 'nothing'}{bound}", *notes])
    return faults.check(INDEPENDENT, well, ledgers=details)


def planned_cost(folder: Folder, book: Book) -> Recomputed | None:
    """What a ledger's planned releases cost, all at its last row; None if nothing was released."""
    if not book.rounds:
        return None
    found = []
    for group in groups_of(book):
        if group == HELD_OUT:
            continue
        last = steps_of(book, group, book.rounds[-1:])
        planned = Steps({step: folder.planned_releases for step in last})
        found.append(_by(frozenset(planned.items()), float(book.promise["delta"]), str(book.promise["accountant"])))
    return max(found, key=lambda each: each.epsilon)


def independent(book: Book, rows: int | None = None) -> Recomputed:
    """Epsilon of the worst group of a ledger's first rows (all of them if not given), by `accountant.recomputed`."""
    found = [
        _by(frozenset(steps_of(book, group, book.rows[:rows]).items()), float(book.promise["delta"]), _accountant(book))
        for group in groups_of(book)
    ]
    return max(found, key=lambda each: each.epsilon)


def floor(book: Book) -> float:
    """The largest lower bound of a ledger's groups; 0 for the accountants that have none."""
    if _accountant(book) not in ("pld", "rdp-wor"):
        return 0.0
    delta = float(book.promise["delta"])
    return max(_lower(frozenset(steps_of(book, group).items()), delta) for group in groups_of(book))


def replay(book: Book, rows: int | None = None) -> float:
    """Epsilon of the worst group of a ledger's first rows, by the accountant of fedsw that it names."""
    from fedsw.accounting import Slicing, Step, epsilon_by

    found = [0.0]
    for group in groups_of(book):
        steps = {
            Step(
                step.rate, step.mu, step.sampling,  # type: ignore[arg-type]
                None if step.slices is None else Slicing(step.slices.d, step.slices.k, step.slices.scheme),  # type: ignore[arg-type]
            ): times
            for step, times in steps_of(book, group, book.rows[:rows]).items()
        }  # fmt: skip
        if steps:
            found.append(epsilon_by(_accountant(book), steps, float(book.promise["delta"])))
    return max(found)


def _accountant(book: Book) -> str:
    return str(book.promise["accountant"])


def _no_rows(name: str, folder: Folder) -> Check:
    if folder.noisy and folder.local:
        return Check(name, None, "the clients' ledgers are not in the folder; audit them where they are")
    open_ = not folder.noisy and folder.claimed == math.inf
    return Check(name, open_, f"no ledger, and ε = {folder.claimed:g} is claimed")


@lru_cache(maxsize=512)
def _by(steps: frozenset[tuple[object, int]], delta: float, accountant: str) -> Recomputed:
    return recomputed(Steps(dict(steps)), delta, accountant)  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _lower(steps: frozenset[tuple[object, int]], delta: float) -> float:
    found = Steps(dict(steps))  # type: ignore[arg-type]
    return lower_bound(found, delta) if found and all(math.isfinite(step.mu) for step in found) else 0.0
