"""Cost of the ledgers' rows, by fedsw's accountant (`replay`) and by another composition (`independent`).

The replay takes the rows through the ledger's own accountant. The independent composition takes the profiles of the
same steps through dp_accounting, and for sampling that it knows the library's own steps; it shares with the replay what
one step is (`fedsw.privacy.accounting.Step`) and its exact profile, which the tests compare with other formulas.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.later import imported_later
from fedsw._tools.text import downward, upward
from fedsw.audit.finding import Check, Faults, square_of
from fedsw.audit.record._folder import HELD_OUT, Book, Folder, Row, real, without_ledgers
from fedsw.privacy.accountants import accountant_named
from fedsw.privacy.accounting import Slicing, Step, epsilon_by, lower_epsilon, step_profile
from fedsw.privacy.accounting.ledger import mu_of
from fedsw.privacy.accounting.selection import Selection, renyi_of_best
from fedsw.runs.report.figures import colour, house_style, marker, new_panels

if TYPE_CHECKING:
    from dp_accounting import dp_event as dp_event
    from dp_accounting.pld import pld_pmf as pld_pmf
    from dp_accounting.pld import pld_privacy_accountant as pld_privacy_accountant
    from matplotlib.figure import Figure

globals().update(imported_later(__spec__))  # of the extra `compare`: without it the checks that take it say so

REPLAY = "replay"
INDEPENDENT = "independent accountant"

SAME = 1e-6  # relative: rounding of the same numbers elsewhere
_ELSEWHERE = 0.02
"""What the round-off that another device sets aside adds, at most: `fedsw.privacy.accounting.pld.ROUND_OFF`."""
_GRID = 1e-3  # what fedsw says its own grid may add to epsilon, at most: docs/guarantees/accounting.md
_CLOSE = 5e-3  # relative: from here on what is above the independent ε is worth a note
_LINES = 8  # of metrics.jsonl, each of which takes a composition of its own

Steps = Counter[Step]


def steps_of(book: Book, group: str, rows: Iterable[Row] | None = None) -> Steps:
    """The steps of a group by the rows of a ledger, all of them unless some are given; what costs nothing is none."""
    counts: Steps = Counter()
    for row in book.rows if rows is None else rows:
        for charge in row.charges:
            if charge["group"] == group and charge["sampling_rate"] > 0 and charge["sensitivity"] > 0:
                slicing = charge.get("slicing")
                mu, slices = mu_of(charge["sensitivity"], row.sigma), slicing and Slicing(**slicing)
                counts[Step(charge["sampling_rate"], mu, charge["sampling"], slices)] += 1
    return counts


def square(book: Book, group: str, rows: Sequence[Row]) -> float:
    """Return mu^2 of the one Gaussian release that costs a group as much as some rows of a ledger."""
    known = steps_of(book, group, rows)
    if any(math.isinf(step.mu) for step in known):
        return math.inf
    return square_of(known, book.delta) if known else 0.0


# By fedsw's accountant


def replay(book: Book, rows: int | None = None) -> float:
    """Compute epsilon of the worst group of a ledger's first rows, by its accountant; of a selected run's plans."""
    groups = [steps_of(book, group, book.rows[:rows]) for group in book.groups]
    if book.promise.get("selection") is not None:
        return _selected(book, groups)
    return max((epsilon_by(book.accountant, steps, book.delta) for steps in groups if steps), default=0.0)


def _selected(book: Book, groups: Sequence[Steps]) -> float:
    """Cost of a selected run's rows: that of the whole selection, or infinite if the rows cost more than it planned."""
    if not any(groups):
        return 0.0
    selection = Selection.of(book.promise["selection"])
    covered = all(selection.covers(steps) for steps in groups)
    return _of_best(selection.law, selection.plans, book.delta) if covered else math.inf


@lru_cache(maxsize=16)
def _of_best(law: Any, plans: tuple[tuple[Step, int], ...], delta: float) -> float:
    return renyi_of_best(law, plans).epsilon(delta)


def check_replay(folder: Folder) -> Check:
    """Account for the rows by fedsw's own accountant: the summary's epsilon, and within the budget."""
    if not folder.books:
        return _no_rows(REPLAY, folder)
    faults, spent_by_book = Faults(), {}
    reported = {str(client): real(value) for client, value in folder.summary.get("epsilon_spent_by_client", {}).items()}
    for book in folder.books:
        spent, budget = replay(book), book.budget
        spent_by_book[book.name] = spent
        room = accountant_named(book.accountant).may_differ(book.delta)
        within = spent <= budget or spent <= budget * (1 + room)
        faults.require(within, f"{book.name} spent {upward(spent, 6)} of a budget of {upward(budget, 6)}")
        covered = spent <= folder.claimed * (1 + SAME)
        faults.require(covered, f"{book.name} spent {upward(spent, 6)}, and {upward(folder.claimed, 6)} is claimed")
        said = reported.get(book.client or "", 0.0)
        no_less = spent == said or spent > said * (1 - SAME)
        faults.require(no_less, f"{book.name} reported {upward(said, 6)}, its rows cost {upward(spent, 6)}")
    worst = max(spent_by_book.values())
    if folder.summary:
        said = real(folder.summary["epsilon_spent"])
        heard = [spent_by_book[book.name] for book in folder.books if not folder.local or book.client in reported]
        known = max(heard, default=said)
        # A client that was charged and then lost has spent more than it reported.
        close = _said(folder, said, known) or (folder.local and said < known)
        faults.require(close, f"the summary says {upward(said, 6)} was spent, the rows cost {upward(known, 6)}")
        least, words = real(folder.summary["epsilon"]), f"less than {upward(said, 6)}, which it says was spent"
        faults.require(least >= said, f"the summary claims {upward(least, 6)}, {words}")
    if not folder.local:
        _along(folder, folder.books[0], faults)
    well = f"the rows cost ε = {upward(worst, 6)}" + (", as reported" if folder.summary else "; no summary reports it")
    return faults.check(REPLAY, well, epsilon_by_ledger=spent_by_book)


def _along(folder: Folder, book: Book, faults: Faults) -> None:
    """A few lines of metrics.jsonl, the last among them: epsilon there is that of the rows up to its attempt's."""
    positions = {(row.round, row.attempt): position for position, row in enumerate(book.rows, start=1)}
    steps = folder.written.training.rounds if folder.sketch else 1  # of a stage: its row has the stage's number

    def row(line: Mapping[str, Any]) -> int | None:
        return positions.get((-(-int(line.get("round") or 0) // steps), int(line.get("attempt") or 0)))

    lines = [(line, rows) for line in folder.metrics if (rows := row(line)) is not None]
    for line, rows in lines[:: -max(1, len(lines) // _LINES)]:
        cost, said = replay(book, rows), real(line.get("epsilon"))
        fault = f"round {line['round']} of metrics.jsonl says ε = {upward(said, 6)}, its rows cost {upward(cost, 6)}"
        faults.require(_said(folder, said, cost), fault)


def _said(folder: Folder, said: float, cost: float) -> bool:
    """Say whether a run states what its rows cost here; where it accounted on a device, a little more is right too."""
    device = folder.written.privacy.device or folder.written.training.device
    most = SAME if folder.local or device == "cpu" else _ELSEWHERE
    return said == cost or cost * (1 - SAME) <= said <= cost * (1 + most)


def _no_rows(name: str, folder: Folder) -> Check:
    if folder.noisy and folder.local:
        return without_ledgers(name)
    open_ = not folder.noisy and folder.claimed == math.inf
    return Check(name, open_, f"no ledger, and ε = {upward(folder.claimed, 6)} is claimed")


# By another composition


@dataclass(frozen=True)
class Recomputed:
    """Epsilon of the steps, how it was computed, and what its grid may have added to it."""

    epsilon: float
    error: float
    how: str


def check_independent(folder: Folder) -> Check:
    """Account for the rows by dp_accounting; a claim may not be less than that by more than the grids account for."""
    if not folder.books:
        return _no_rows(INDEPENDENT, folder)
    faults, details, notes = Faults(), [], []
    worst, lowest, how = 0.0, 0.0, ""
    for book in folder.books:
        other, replayed, least = independent(book), replay(book), floor(book)
        worst, lowest, how = max((worst, lowest, how), (other.epsilon, least, other.how))
        enough, shown = other.epsilon - other.error - _GRID * min(1.0, replayed), upward(other.epsilon, 6)
        short = f"{book.name}: fedsw's ε of {upward(replayed, 6)} is below"
        faults.require(replayed >= enough, f"{short} the independent {shown}")
        bound = f"{downward(least, 6)}, which no account of these rows can be"
        faults.require(replayed >= least - SAME, f"{short} {bound}")
        claim = f"{book.name}: the claim of {upward(folder.claimed, 6)} is below the independent {shown}"
        faults.require(folder.claimed >= enough, claim)
        if replayed - other.epsilon > max(_GRID, _CLOSE * other.epsilon):
            notes.append(f"{book.name}: fedsw's {upward(replayed, 6)} is well above it, which is safe")
        details.append({
            "ledger": book.name, "epsilon": other.epsilon, "grid_error": other.error, "lower_bound": least,
            "fedsw": replayed, "by": other.how,
        })  # fmt: skip
    bound = f", no account can be below {downward(lowest, 4)}" if lowest else ""
    well = "; ".join([f"ε = {upward(worst, 6)} by {how or 'nothing'}{bound}", *notes])
    return faults.check(INDEPENDENT, well, ledgers=details)


def independent(book: Book, rows: int | None = None) -> Recomputed:
    """Compute epsilon of the worst group of a ledger's first rows, by `recomputed`; or the selection's."""
    groups = [steps_of(book, group, book.rows[:rows]) for group in book.groups]
    if book.promise.get("selection") is not None:
        return Recomputed(_selected(book, groups), 0.0, "the theorem of private selection")
    costs = [recomputed(steps, book.delta, book.accountant) for steps in groups]
    return max(costs, key=lambda cost: cost.epsilon)


def floor(book: Book) -> float:
    """Compute the largest lower bound of a ledger's groups; 0 for accountants without one, and for a selected run."""
    if book.accountant not in ("pld", "rdp-wor") or book.promise.get("selection") is not None:
        return 0.0
    return max(lower_bound(steps_of(book, group), book.delta) for group in book.groups)


def planned_cost(folder: Folder, book: Book) -> Recomputed | None:
    """Compute what a ledger's planned releases cost: all rounds at its last row, and others; None before any round."""
    if not book.rounds:
        return None
    costs = []
    for group in book.groups:
        if group == HELD_OUT:
            continue
        planned = Steps({step: folder.written.releases for step in steps_of(book, group, book.rounds[-1:])})
        planned.update(steps_of(book, group, book.released_once))
        costs.append(recomputed(planned, book.delta, book.accountant))
    return max(costs, key=lambda cost: cost.epsilon)


_ITSELF = frozenset(
    ("laplace", "gdp-clt-uniform", "gdp-clt-poisson", "rdp-wor", "bernstein", "bernstein-published", "clt")
)
"""Accountants of other papers, closed forms of their own: the tests compare them with their libraries'."""


def recomputed(steps: Steps, delta: float, accountant: str = "pld") -> Recomputed:
    """Epsilon of the steps at delta.

    For "pld" it is an upper bound, at most `error` above what an infinitely fine grid would give. For the accountants
    of other papers it is what they say themselves; for a user's own it is a lower bound.

    What was computed is kept: groups of a ledger mostly have the same steps. ModuleNotFoundError without dp_accounting.
    """
    return _recomputed(frozenset(steps.items()), delta, accountant)


@lru_cache(maxsize=512)
def _recomputed(different: frozenset[tuple[Step, int]], delta: float, accountant: str) -> Recomputed:
    steps = Steps(dict(different))
    if not steps:
        return Recomputed(0.0, 0.0, "nothing was released")
    if any(math.isinf(step.mu) for step in steps):
        return Recomputed(math.inf, 0.0, "no noise")
    if accountant in _ITSELF:
        return Recomputed(epsilon_by(accountant, steps, delta), 0.0, f"the accountant {accountant} itself")
    if accountant != "pld":
        return Recomputed(lower_bound(steps, delta), 0.0, f"what no account can be below: {accountant} is a user's own")
    reduced = Steps()
    for step, times in steps.items():
        reduced[step.reduced] += times
    if {step.sampling for step in reduced} == {"poisson"}:
        events = [
            (dp_event.PoissonSampledDpEvent(step.sampling_rate, dp_event.GaussianDpEvent(1 / step.mu)), times)
            for step, times in few(reduced).items()
        ]
        return _of_events(events, delta, max(1e-4, _width(few(reduced), delta) / 4), "Poisson")
    if all(step.sampling_rate == 1.0 and step.slicing is None for step in reduced):  # squares of mu add up
        mu = math.sqrt(sum(times * step.mu**2 for step, times in reduced.items()))
        width = _width(Steps({Step(1.0, mu): 1}), delta) / 4
        return _of_events([(dp_event.GaussianDpEvent(1 / mu), 1)], delta, width, "Gaussian")
    width = _width(few(reduced), delta)
    coarse, fine = (_composed(few(reduced), delta, grid) for grid in (2 * width, width))
    return Recomputed(
        fine,
        max(0.0, coarse - fine),
        f"dp_accounting's connect-the-dots and composition of {sum(reduced.values())} profiles, grid {width:.2g}",
    )


def _of_events(events: Sequence[tuple[Any, int]], delta: float, width: float, kind: str) -> Recomputed:
    """By the library's own accountant, on a grid of that width; its error by one twice as wide.

    The library asks the points of a grid one by one: a quarter of `_width` takes it a tenth of a second, and is off by
    some 1e-5 of epsilon; a hundredth took it up to half a minute.
    """
    coarse, fine = (
        pld_privacy_accountant.PLDAccountant(value_discretization_interval=grid) for grid in (2 * width, width)
    )
    for event, times in events:
        coarse.compose(event, times)
        fine.compose(event, times)
    epsilon = float(fine.get_epsilon(delta))
    return Recomputed(
        epsilon,
        abs(float(coarse.get_epsilon(delta)) - epsilon),
        f"dp_accounting's PLD accountant of the {kind} event",
    )


def lower_bound(steps: Steps, delta: float) -> float:
    """An epsilon that no account of (p, mu) alone can go below: that of a pair that real neighbours meet.

    The pair is ((1-p) N(0,1) + p N(mu,1), N(0,1)); 0 for slices, and without noise.

    Source: docs/guarantees/accounting.md, Theorem A6.
    """
    if not steps or any(step.slicing is not None or math.isinf(step.mu) for step in steps):
        return 0.0
    return lower_epsilon(steps, delta)


_MOST_DIFFERENT = 24  # steps, each of which takes a composition of its own
_ROUNDED = 1e-5  # relative, and up, so that ε never falls


def few(steps: Steps) -> Steps:
    """The steps with rates and mu rounded up, by 1e-5 of themselves at most, where very many differ."""
    if len(steps) <= _MOST_DIFFERENT:
        return steps

    def rounded(value: float) -> float:
        return math.exp(_ROUNDED * math.ceil(math.log(value) / _ROUNDED))

    fewer: Steps = Steps()
    for step, times in steps.items():
        fewer[replace(step, mu=rounded(step.mu), sampling_rate=min(1.0, rounded(step.sampling_rate)))] += times
    return fewer


_NODES = 2**20  # of a grid, at most


def profile(step: Step, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
    """delta(epsilon) (k,) of a step's profile at epsilons (k,) of any sign.

    At -x it is 1 - e^-x + e^-x delta(x). Source: docs/guarantees/accounting.md.
    """
    size = np.abs(epsilon)
    above = step_profile(step, size)
    return np.where(epsilon >= 0, above, -np.expm1(-size) + np.exp(-size) * above)


def _composed(steps: Steps, delta: float, width: float) -> float:
    total: Any = None
    for step, times in steps.items():
        highest = math.ceil(_reach(step, 1e-6 * delta / sum(steps.values())) / width)
        grid = np.arange(-highest, highest + 1, dtype=np.float64) * width
        one = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(width, -highest, highest, profile(step, grid))
        many = one.to_dense_pmf().self_compose(times, 1e-15) if times > 1 else one.to_dense_pmf()
        total = many if total is None else total.compose(many, 1e-15)
    return float(total.get_epsilon_for_delta(delta))


def _width(steps: Steps, delta: float) -> float:
    """A grid on which the spread of all losses grows by some 1e-4: each step adds width^2 / 6 to the variance."""
    count, variance = sum(steps.values()), 0.0
    for step, times in steps.items():  # about p^2 (e^(mu^2) - 1), a normal law's mu^2 at p = 1 at the most
        square_ = step.typical_mu**2
        sampled = step.sampling_rate**2 * math.expm1(min(square_, 50.0))
        variance += times * max(min(sampled, square_), 1e-12)
    wanted = math.sqrt(6 * 1e-4 * min(variance, math.sqrt(variance), 1.0) / count)
    widest = max(_reach(step, 1e-6 * delta / count) for step in steps)
    # Neither the longest step nor the composition (some 2 x 8 deviations and its mean) may need too many nodes.
    return max(wanted, 2 * widest / _NODES, (16 * math.sqrt(variance) + variance) / _NODES)


def _reach(step: Step, least: float) -> float:
    """A loss at which the profile is at most `least` (never below what double precision can tell)."""
    low, high, least = 0.0, 1.0, max(least, 1e-16)

    def at(loss: float) -> float:
        return float(step_profile(step, np.array([loss]))[0])

    while high < 1e4 and at(high) > least:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) > least else (low, middle)
    return high


_REPLAYED, _RECOMPUTED = 40, 8  # points of the two curves


@house_style()
def draw(folder: Folder, book: Book) -> Figure:
    """Draw what the rows of a ledger cost after each release: above as a curve, below as the difference of the two."""
    count = len(book.rows)
    some = sorted({round(point) for point in np.linspace(1, count, _REPLAYED)})
    points = sorted({round(point) for point in np.linspace(1, count, _RECOMPUTED)})
    by_replay = {rows: replay(book, rows) for rows in {*some, *points}}
    by_others = {rows: independent(book, rows).epsilon for rows in points}
    figure, (axes, gap) = new_panels(2, 1, size=(6.4, 5.2), sharex=True, height_ratios=(3, 1))
    axes.plot(some, [by_replay[rows] for rows in some], color=colour(0), label="replayed by fedsw")
    shown = list(by_others.values())
    axes.plot(points, shown, marker(0), color=colour(1), markerfacecolor="none", label="independent accountant")
    axes.axhline(
        folder.claimed, color="black", linestyle="--", linewidth=1, label=f"claimed ε = {upward(folder.claimed, 4)}"
    )
    axes.set(ylabel="ε spent", ylim=(0, None))
    subject = f"ε of the recorded rows at δ = {upward(book.promise['delta'])}"
    axes.set_title(f"{folder.experiment['name']}, {book.name}: {subject}")
    axes.legend(loc="lower right")
    relative = [by_replay[rows] / by_others[rows] - 1 if by_others[rows] else 0.0 for rows in points]
    gap.plot(points, relative, marker(0), color=colour(1), markerfacecolor="none")
    most = max(1e-6, *(abs(value) for value in relative))
    gap.axhline(0, color="black", linewidth=0.8)
    gap.set(xlabel="releases", ylabel="fedsw / other − 1", ylim=(-1.4 * most, 1.4 * most))
    gap.locator_params(axis="x", integer=True)
    gap.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    return figure
