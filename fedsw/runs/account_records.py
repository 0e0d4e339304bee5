"""Accounts of data sets as plain values: their runs, how they compose, what they cost together, and what still fits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from fedsw._tools.text import number, upward
from fedsw.privacy.accounting import Step
from fedsw.privacy.accounting.lifetime import DatasetAccount, TakenRun, room, total_epsilon
from fedsw.privacy.accounting.lifetime.state import State

_SHAPES = 3
"""Runs, the latest ones, that what still fits may be like."""
USUAL_DELTA = 1e-6
"""At which epsilon is shown where neither a limit nor the reader names a delta."""


def account_record(account: DatasetAccount, delta: float | None = None) -> dict[str, Any]:
    """An account as plain values: limit, spent, left, and a row for every run.

    `epsilon` is of all runs together, as if all had been planned before the first, and infinite for a reader of one
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
    """The runs with a guarantee for their readers."""
    return [run for run in runs if not run.unnoised and run.unprotected is None]


def _together(states: Sequence[State], delta: float) -> dict[str, Any]:
    """Epsilon of all runs, infinite if one has no guarantee for its readers, and of those that have one."""
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
    # A run like one with noise could have other noise.
    alike = [run for run in state.runs.values() if run.steps and not run.unnoised]
    shapes = [run.cost for run in alike if all(step.stated is None for step in run.steps)][-_SHAPES:]
    return min(room(limit, state.uses(), like) for like in [None, *shapes])


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
    if step.stated is not None:
        return step.stated.words
    if math.isinf(step.mu):
        return "(no noise)"
    rate = "all records" if step.sampling_rate == 1 else f"rate {number(step.sampling_rate)}"
    return f"({rate}, μ {upward(step.mu)})"
