"""The account of a data set as tables: its runs, how they compose, what they cost together, and what still fits."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from fedsw._tools.text import downward, number, upward
from fedsw.experiment.trust import trust_model
from fedsw.privacy.accounting import Ledger, LedgerDamaged
from fedsw.privacy.accounting.lifetime import DatasetAccount, TakenRun, room, total_epsilon
from fedsw.privacy.accounting.lifetime.state import State
from fedsw.privacy.accounting.profiles import Step
from fedsw.privacy.accounting.stated import Pure
from fedsw.runs.participation import Participation, participations
from fedsw.runs.report.console import table_of

_SHAPES = 3
"""Runs, the latest ones, that what still fits may be like."""
USUAL_DELTA = 1e-6
"""At which epsilon is shown where neither a limit nor the reader names a delta."""

_AT_DELTA = (
    "δ = {}, --delta shows another; a run's own screen has its ε at the δ of its experiment, so that the two differ"
)


def account_record(account: DatasetAccount, delta: float | None = None) -> dict[str, Any]:
    """An account as plain values: limit, spent, left, and a row for every run.

    `epsilon` is of all runs together, as if all had been planned before the first, and infinite for whoever saw one
    that has no guarantee; `epsilon_of_others` is that of the runs that have one. `epsilon_however_chosen` is the latter
    where each run may follow from what the ones before released: by it a limit is kept, None without one. `left` is
    the epsilon of a run that the account lets in: of the shapes of its runs and of one release of all records the one
    that fits least.

    Epsilon is shown at the limit's delta by default, else at 1e-6.
    """
    state = account.state()
    at, limit, guarded = (
        delta or state.delta or USUAL_DELTA,
        state.limit,
        [run.use for run in _guarded(state.runs.values())],
    )
    return {
        "data": state.data,
        "file": str(account.path),
        "delta": at,
        **_together([state], at),
        "epsilon_however_chosen": limit.chosen(guarded) if limit and len(guarded) > 1 else None,
        "limit": _limit(state),
        "within": None
        if account.around is None
        else {"data": account.around.data, "limit": _limit(account.around.state())},
        "left": _left(state),
        "runs": [_run_record(run, at) for run in state.runs.values()],
    }


def _limit(state: State) -> dict[str, float] | None:
    return None if state.limit is None else {"epsilon": state.limit.epsilon, "delta": state.limit.delta}


def account_view(record: Mapping[str, Any]) -> RenderableType:
    """One account on a screen."""
    delta, rows = upward(record["delta"]), []
    for run in record["runs"]:
        state = "spent" if run["settled"] else "set aside: has not ended, or stopped"
        note = f"; {run['unprotected']}" if run["unprotected"] else ""
        began = str(run["begun"])[:16].replace("T", " ")
        rows.append((run["label"], began, run["kind"], run["composes"], upward(run["epsilon"], 4), f"{state}{note}"))
    headings = ("run", "began", "kind", "composes as", f"ε at δ = {delta}", "")
    table = table_of(headings, rows, left=(*headings[:4], ""))
    at = Text(f"every ε is shown at {_AT_DELTA.format(delta)}", style="dim")
    return Group(Text(f"data set {record['data']}", style="bold"), table, at, _total(record))


def together_record(accounts: Sequence[DatasetAccount], delta: float | None = None) -> dict[str, Any]:
    """Several accounts, and what a record in all of their data sets spent; at the smallest of their limits' deltas."""
    states = [account.state() for account in accounts]
    at = delta or min((state.delta for state in states if state.delta), default=USUAL_DELTA)
    return {
        "accounts": [account_record(account, at) for account in accounts],
        "delta": at,
        **_together(states, at),
        "runs": len(_runs_of(states, at)),
    }


def together_view(record: Mapping[str, Any]) -> RenderableType:
    """The same on a screen."""
    names = ", ".join(account["data"] for account in record["accounts"])
    total = Text.assemble("together: ", _sum(record, f"for a record that is in each of {names}"), style="bold")
    return Group(*(account_view(account) for account in record["accounts"]), total)


def accounts_view(records: Sequence[Mapping[str, Any]]) -> RenderableType:
    """All accounts of a folder, one a row."""
    headings = ("data set", "runs", "ε of all together", "of those with a guarantee", "δ", "limit", "still fits")
    rows = []
    for record in records:
        limit, left = record["limit"], record["left"]
        spent = (upward(record["epsilon"], 4), upward(record["epsilon_of_others"], 4), upward(record["delta"]))
        most = "none" if limit is None else f"{upward(limit['epsilon'])} at {upward(limit['delta'])}"
        fits = "–" if left is None else f"ε = {downward(left)}"
        rows.append((record["data"], str(len(record["runs"])), *spent, most, fits))
    at = ", ".join(dict.fromkeys(upward(record["delta"]) for record in records))
    return Group(table_of(headings, rows), Text(f"ε of all together is shown at {_AT_DELTA.format(at)}", style="dim"))


def _runs_of(states: Sequence[State], delta: float) -> list[TakenRun]:
    """All runs, each once: one that stands in a data set's account and in its client's costs what it cost that one."""
    runs: dict[str, TakenRun] = {}
    for state in states:
        for name, run in state.runs.items():
            if name in runs:
                run = min(runs[name], run, key=lambda taken: total_epsilon([taken.cost], delta))
            runs[name] = run
    return list(runs.values())


def _guarded(runs: Iterable[TakenRun]) -> list[TakenRun]:
    """The runs whose readers have a guarantee."""
    return [run for run in runs if run.noisy and run.unprotected is None]


def _together(states: Sequence[State], delta: float) -> dict[str, Any]:
    """Epsilon of all runs, infinite where one has no guarantee for whoever saw it, and of those that have one."""
    runs = _runs_of(states, delta)
    guarded = _guarded(runs)
    others, without = total_epsilon((run.cost for run in guarded), delta), len(runs) - len(guarded)
    epsilon = math.inf if without else others
    return {"epsilon": epsilon, "epsilon_of_others": others, "runs_without_guarantee": without}


def _left(state: State) -> float | None:
    """The epsilon of a run that still fits, by the function that lets runs in; None without a limit."""
    limit = state.limit
    if limit is None:
        return None
    noisy = [run for run in state.runs.values() if run.steps and run.noisy]  # a run like them could have other noise
    shapes = [run.cost for run in noisy if all(step.stated is None for step in run.steps)][-_SHAPES:]
    return min(room(limit, state.uses(), like) for like in [None, *shapes])


def _sum(record: Mapping[str, Any], whose: str) -> Text:
    """Say what all runs cost: infinite in the first place where that is so, and the others beside it."""
    at, without = f" at δ = {upward(record['delta'])}", record["runs_without_guarantee"]
    if not without:
        return Text.assemble((f"ε = {upward(record['epsilon'], 4)}{at}", "bold"), f" {whose}")
    runs = record["runs"] if isinstance(record["runs"], int) else len(record["runs"])
    return Text.assemble(
        ("ε = ∞", "bold red"),
        f" for whoever saw a run without a guarantee ({without} of {runs}); ",
        f"the others: ε = {upward(record['epsilon_of_others'], 4)}{at} {whose}",
    )


def _total(record: Mapping[str, Any]) -> Text:
    text = _sum(record, "of all together, as if planned ahead, for the replacement of one record within its groups")
    text.append(" (in runs with a unit, of all records of one at a client)")
    if around := record["within"]:
        most = "no limit" if around["limit"] is None else f"limit ε = {upward(around['limit']['epsilon'])}"
        text.append(f"\ncounts in data set {around['data']}, too: {most} (`fedsw account show {around['data']}`)")
    if limit := record["limit"]:
        text.append(f"\nlimit: ε = {upward(limit['epsilon'])} at δ = {upward(limit['delta'])}; ")
        left, chosen = record["left"], record["epsilon_however_chosen"]
        if chosen is not None:
            text.append(f"ε = {upward(chosen, 4)} of it is taken, whatever each run was chosen by; ")
        shape = (
            "like one of these, or one release of all records" if record["runs"] else "of one release of all records"
        )
        text.append(f"a run {shape}, of ε = {downward(left)} still fits" if left else "nothing more fits")
    elif not record["within"]:
        text.append(f"\nno limit: `fedsw account limit {record['data']} --epsilon E --delta D` sets one")
    return text


def _run_record(run: TakenRun, delta: float) -> dict[str, Any]:
    # The releases that a record pays for: 60 × (rate 0.1, μ 0.4).
    composed = (" + ".join(f"{times} × {_step(step)}" for step, times in part.items()) for part in run.cost.parts)
    return {
        "run": run.run,
        "label": run.label,
        "kind": run.kind,
        "begun": run.begun,
        "place": run.location,
        "settled": run.settled,
        "unprotected": run.unprotected,
        "releases": max(sum(part.values()) for part in run.cost.parts),
        "composes": " or ".join(dict.fromkeys(words or "nothing" for words in composed)),
        "epsilon": total_epsilon([run.cost], delta),
    }


def _step(step: Step) -> str:
    if isinstance(step.stated, Pure):
        return f"(ε {upward(step.stated.epsilon)}, δ 0)"
    if step.stated is not None:
        return "(a selection)"
    if math.isinf(step.mu):
        return "(no noise)"
    rate = "all records" if step.sampling_rate == 1 else f"rate {number(step.sampling_rate)}"
    return f"({rate}, μ {upward(step.mu)})"


NodeState = Literal["taking part", "quiet", "over"]

_LEDGERS = "client-*.sqlite"
_QUIET_SECONDS = 300.0


@dataclass(frozen=True)
class OwnLedger:
    """A client's own ledger, replayed from its rows; `run` is the beginning of the name that it accounts for."""

    client: int
    run: str
    epsilon: float
    budget: float
    delta: float
    accountant: str
    nominal: bool
    rounds: int
    file: str


@dataclass(frozen=True)
class ClientStatus:
    """All that a state folder says."""

    folder: str
    runs: tuple[Participation, ...]
    ledgers: tuple[OwnLedger, ...]

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON; the times are in `operator_only`."""
        runs = [{**asdict(run), "over": run.over, "state": state_of(run)} for run in self.runs]
        heard = {run["run"]: run.pop("heard") for run in runs}
        ledgers = [asdict(ledger) for ledger in self.ledgers]
        return {"folder": self.folder, "runs": runs, "ledgers": ledgers, "operator_only": {"heard": heard}}


def read_client_status(folder: Path) -> ClientStatus:
    """Read a node's `--state-dir`; reads only, so that it works while the client runs."""
    runs, paths = tuple(participations(folder)), sorted(folder.glob(_LEDGERS))
    if not runs and not paths:
        what = "has no run yet" if folder.is_dir() else "is not there"
        raise ValueError(f"{folder} {what}; give the --state-dir of `fedsw client` on this machine, after a run began")
    return ClientStatus(str(folder), runs, tuple(own_ledger(path) for path in paths))


def own_ledger(path: Path) -> OwnLedger:
    """Read a client's ledger."""
    try:
        with Ledger.open(path, read_only=True) as ledger:
            return OwnLedger(
                int(path.stem.removeprefix("client-")),
                ledger.run.partition(".")[0],
                ledger.replay(),
                ledger.budget,
                ledger.delta,
                ledger.accountant,
                ledger.nominal,
                ledger.released_rounds(),
                str(path),
            )
    except LedgerDamaged as fault:
        raise ValueError(str(fault)) from None


def state_of(run: Participation) -> NodeState:
    """State of a run at a node: over, quiet or taking part, as far as this side can see."""
    if run.over:
        return "over"
    return "quiet" if time.time() - run.heard > _QUIET_SECONDS else "taking part"


def words_of_run(run: Participation, ledgers: Sequence[OwnLedger]) -> Iterator[str]:
    """A run in sentences, with those of the ledgers that account for it."""
    epsilon = "as its noise multiplier gives" if run.epsilon is None else upward(run.epsilon)
    nominal = ", nominal: reproducible from a seed" if run.nominal else ""
    yield f"trust {run.trust}, ε = {epsilon} at δ = {run.delta}{nominal}"
    yield f"answered in {run.answered} of {run.rounds} rounds"
    charged = [own for client in run.clients for own in ledgers if (own.client, own.run) == (client, run.run)]
    for ledger in charged:
        yield (
            f"client {ledger.client}'s own ledger: ε = {upward(ledger.epsilon, 4)} spent of "
            f"{upward(ledger.budget, 4)} at δ = {upward(ledger.delta)}"
        )
    if not charged and run.epsilon is not None and math.isinf(run.epsilon):
        yield "no noise was asked for: nothing is accounted for"
    elif not charged and not trust_model(run.trust).local:
        yield f"the server's ledger accounts for it: under {run.trust!r} the noise is the server's"
    if run.agreed:
        yield f"this client takes part in {run.agreed}"
