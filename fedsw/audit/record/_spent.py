"""Checks that the ledgers' rows cost what the run says, by fedsw's accountant and by another one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsw._tools.text import downward, upward
from fedsw.audit._parts import square_of
from fedsw.audit.finding import Check, Faults
from fedsw.audit.record import _promise as promise
from fedsw.audit.record._folder import HELD_OUT, Book, Folder, Row, real, without_ledgers
from fedsw.audit.record._steps import Recomputed, Recorded, Steps, lower_bound, recomputed, steps_of
from fedsw.privacy.accountants import accountant_named
from fedsw.privacy.accounting import Slicing, Step, epsilon_by
from fedsw.runs.report.figures import colour, house_style, marker, new_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPLAY = "replay"
INDEPENDENT = "independent accountant"

_SAME = 1e-6
_ELSEWHERE = (
    0.02  # what the round-off that another device sets aside adds, at most: `fedsw.privacy.accounting.pld.ROUND_OFF`
)
_GRID = 1e-3  # what fedsw says its own grid may add to epsilon, at most: docs/guarantees/accounting.md
_CLOSE = 5e-3
_LINES = 8


def check_replay(folder: Folder) -> Check:
    """Account for the rows by fedsw's own accountant: the summary's epsilon, and within the budget."""
    if not folder.books:
        return _no_rows(REPLAY, folder)
    faults, spent_by_book = Faults(), {}
    reported = {str(client): real(value) for client, value in folder.summary.get("epsilon_spent_by_client", {}).items()}
    for book in folder.books:
        spent, budget = replay(book), book.budget
        spent_by_book[book.name] = spent
        faults.require(
            spent <= budget or spent <= budget * (1 + accountant_named(book.accountant).may_differ(book.delta)),
            f"{book.name} spent {upward(spent, 6)} of a budget of {upward(budget, 6)}",
        )
        faults.require(
            spent <= folder.claimed * (1 + _SAME),
            f"{book.name} spent {upward(spent, 6)}, and {upward(folder.claimed, 6)} is claimed",
        )
        said = reported.get(book.client or "", 0.0)
        faults.require(
            spent == said or spent > said * (1 - _SAME),
            f"{book.name} reported {upward(said, 6)}, its rows cost {upward(spent, 6)}",
        )
    worst = max(spent_by_book.values())
    if folder.summary:
        said = real(folder.summary["epsilon_spent"])
        heard = [spent_by_book[book.name] for book in folder.books if not folder.local or book.client in reported]
        known = max(heard, default=said)
        # A client that was charged and then lost has spent more than it reported.
        close = _said(folder, said, known) or (folder.local and said < known)
        faults.require(close, f"the summary says {upward(said, 6)} was spent, the rows cost {upward(known, 6)}")
        least = real(folder.summary["epsilon"])
        faults.require(
            least >= said,
            f"the summary claims {upward(least, 6)}, less than {upward(said, 6)}, which it says was spent",
        )
    if not folder.local:
        _along(folder, folder.books[0], faults)
    well = f"the rows cost ε = {upward(worst, 6)}" + (", as reported" if folder.summary else "; no summary reports it")
    return faults.check(REPLAY, well, epsilon_by_ledger=spent_by_book)


def _along(folder: Folder, book: Book, faults: Faults) -> None:
    """A few lines of metrics.jsonl, the last among them: epsilon there is that of the rows up to its attempt's."""
    positions = {(row.round, row.attempt): position for position, row in enumerate(book.rows, start=1)}
    steps = int(folder.experiment["training"]["rounds"]) if folder.sketch else 1  # of a stage, whose row has its number

    def row(line: Mapping[str, Any]) -> int | None:
        return positions.get((-(-int(line.get("round") or 0) // steps), int(line.get("attempt") or 0)))

    lines = [(line, rows) for line in folder.metrics if (rows := row(line)) is not None]
    for line, rows in lines[:: -max(1, len(lines) // _LINES)]:
        cost, said = replay(book, rows), real(line.get("epsilon"))
        fault = f"round {line['round']} of metrics.jsonl says ε = {upward(said, 6)}, its rows cost {upward(cost, 6)}"
        faults.require(_said(folder, said, cost), fault)


def _said(folder: Folder, said: float, cost: float) -> bool:
    """Say whether a run states what its rows cost here; where it accounted on a device, a little more is right too."""
    device = folder.privacy.get("device") or folder.experiment["training"].get("device") or "cpu"
    most = _SAME if folder.local or device == "cpu" else _ELSEWHERE
    return said == cost or cost * (1 - _SAME) <= said <= cost * (1 + most)


def check_independent(folder: Folder) -> Check:
    """Account for the rows by dp_accounting; a claim may not be less than that by more than the grids account for."""
    if not folder.books:
        return _no_rows(INDEPENDENT, folder)
    faults, details, notes = Faults(), [], []
    worst, lowest, how = 0.0, 0.0, ""
    for book in folder.books:
        recomputed, replayed = independent(book), replay(book)
        least = floor(book)
        worst, lowest, how = max((worst, lowest, how), (recomputed.epsilon, least, recomputed.how))
        slack = recomputed.error + _GRID * min(1.0, replayed)
        short = f"{book.name}: fedsw's ε of {upward(replayed, 6)} is below"
        faults.require(
            replayed >= recomputed.epsilon - slack, f"{short} the independent {upward(recomputed.epsilon, 6)}"
        )
        faults.require(
            replayed >= least - _SAME, f"{short} {downward(least, 6)}, which no account of these rows can be"
        )
        faults.require(
            folder.claimed >= recomputed.epsilon - slack,
            f"{book.name}: the claim of {upward(folder.claimed, 6)} is below the independent "
            f"{upward(recomputed.epsilon, 6)}",
        )
        if replayed - recomputed.epsilon > max(_GRID, _CLOSE * recomputed.epsilon):
            notes.append(f"{book.name}: fedsw's {upward(replayed, 6)} is well above it, which is safe")
        details.append({
            "ledger": book.name, "epsilon": recomputed.epsilon, "grid_error": recomputed.error, "lower_bound": least,
            "fedsw": replayed, "by": recomputed.how,
        })  # fmt: skip
    bound = f", no account can be below {downward(lowest, 4)}" if lowest else ""
    well = "; ".join([f"ε = {upward(worst, 6)} by {how or 'nothing'}{bound}", *notes])
    return faults.check(INDEPENDENT, well, ledgers=details)


def planned_cost(folder: Folder, book: Book) -> Recomputed | None:
    """Compute what a ledger's planned releases cost: all rounds at its last row, and others; None before any round."""
    if not book.rounds:
        return None
    costs = []
    for group in book.groups:
        if group == HELD_OUT:
            continue
        last = steps_of(book, group, book.rounds[-1:])
        planned = Steps({step: folder.planned_releases for step in last})
        planned.update(steps_of(book, group, book.moments[-1:]))
        planned.update(steps_of(book, group, book.scores[-1:]))
        costs.append(_by(frozenset(planned.items()), book.delta, book.accountant))
    return max(costs, key=lambda cost: cost.epsilon)


def independent(book: Book, rows: int | None = None) -> Recomputed:
    """Compute epsilon of the worst group of a ledger's first rows, by `recomputed`; or the selection's."""
    if (stored := book.promise.get("selection")) is not None:
        how = "the theorem of private selection, its divergences integrated anew"
        return Recomputed(_selected(book, rows, promise.recomputed, stored), 0.0, how)
    costs = [
        _by(frozenset(steps_of(book, group, book.rows[:rows]).items()), book.delta, book.accountant)
        for group in book.groups
    ]
    return max(costs, key=lambda cost: cost.epsilon)


def floor(book: Book) -> float:
    """Compute the largest lower bound of a ledger's groups; 0 for accountants without one, and for a selected run."""
    if book.accountant not in ("pld", "rdp-wor") or book.promise.get("selection") is not None:
        return 0.0
    delta = book.delta
    return max(_lower(frozenset(steps_of(book, group).items()), delta) for group in book.groups)


def replay(book: Book, rows: int | None = None) -> float:
    """Compute epsilon of the worst group of a ledger's first rows, by its accountant; of a selected run's plans."""
    if (stored := book.promise.get("selection")) is not None:
        return _selected(book, rows, promise.replayed, stored)
    epsilons = [0.0]
    for group in book.groups:
        steps = {_step(step): times for step, times in steps_of(book, group, book.rows[:rows]).items()}
        if steps:
            epsilons.append(epsilon_by(book.accountant, steps, book.delta))
    return max(epsilons)


def square(book: Book, group: str, rows: Sequence[Row]) -> float:
    """Return mu^2 of the one Gaussian release that costs a group as much as some rows of a ledger."""
    known = steps_of(book, group, rows)
    if any(math.isinf(step.mu) for step in known):
        return math.inf
    return square_of({_step(step): times for step, times in known.items()}, book.delta) if known else 0.0


def _step(recorded: Recorded) -> Step:
    slicing = recorded.slices and Slicing(**asdict(recorded.slices))
    return Step(recorded.rate, recorded.mu, recorded.sampling, slicing)  # type: ignore[arg-type]


def _selected(book: Book, rows: int | None, computed: Callable[[str, float], float], stored: promise.Stored) -> float:
    """Cost of a selected run's rows: that of the whole selection, or infinite if the rows cost more than it planned."""
    groups = [steps_of(book, group, book.rows[:rows]) for group in book.groups]
    if not any(groups):
        return 0.0
    covered = all(promise.covers(stored, steps) for steps in groups)
    return computed(json.dumps(stored), book.delta) if covered else math.inf


def _no_rows(name: str, folder: Folder) -> Check:
    if folder.noisy and folder.local:
        return without_ledgers(name)
    open_ = not folder.noisy and folder.claimed == math.inf
    return Check(name, open_, f"no ledger, and ε = {upward(folder.claimed, 6)} is claimed")


@lru_cache(maxsize=512)
def _by(steps: frozenset[tuple[object, int]], delta: float, accountant: str) -> Recomputed:
    return recomputed(Steps(dict(steps)), delta, accountant)  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _lower(steps: frozenset[tuple[object, int]], delta: float) -> float:
    fewer = Steps(dict(steps))  # type: ignore[arg-type]
    return lower_bound(fewer, delta) if fewer and all(math.isfinite(step.mu) for step in fewer) else 0.0


_REPLAYED, _RECOMPUTED = 40, 8


@house_style()
def draw(folder: Folder, book: Book) -> Figure:
    """Draw what the rows of a ledger cost after each release: above as a curve, below as the difference of the two."""
    count = len(book.rows)
    some = sorted({round(point) for point in np.linspace(1, count, _REPLAYED)})
    few = sorted({round(point) for point in np.linspace(1, count, _RECOMPUTED)})
    by_replay = {rows: replay(book, rows) for rows in {*some, *few}}
    by_others = {rows: independent(book, rows).epsilon for rows in few}
    figure, (axes, gap) = new_panels(2, 1, size=(6.4, 5.2), sharex=True, height_ratios=(3, 1))
    axes.plot(some, [by_replay[rows] for rows in some], color=colour(0), label="replayed by fedsw")
    shown = list(by_others.values())
    axes.plot(few, shown, marker(0), color=colour(1), markerfacecolor="none", label="independent accountant")
    axes.axhline(
        folder.claimed, color="black", linestyle="--", linewidth=1, label=f"claimed ε = {upward(folder.claimed, 4)}"
    )
    axes.set(ylabel="ε spent", ylim=(0, None))
    subject = f"ε of the recorded rows at δ = {upward(book.promise['delta'])}"
    axes.set_title(f"{folder.experiment['name']}, {book.name}: {subject}")
    axes.legend(loc="lower right")
    relative = [by_replay[rows] / by_others[rows] - 1 if by_others[rows] else 0.0 for rows in few]
    gap.plot(few, relative, marker(0), color=colour(1), markerfacecolor="none")
    most = max(1e-6, *(abs(value) for value in relative))
    gap.axhline(0, color="black", linewidth=0.8)
    gap.set(xlabel="releases", ylabel="fedsw / other − 1", ylim=(-1.4 * most, 1.4 * most))
    gap.locator_params(axis="x", integer=True)
    gap.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    return figure
