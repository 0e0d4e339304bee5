"""What an account's rows say: its limit, and what every run counts with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedsw.accounting.journal import Head
from fedsw.accounting.lifetime.composing import composed_epsilon
from fedsw.accounting.lifetime.cover import Counts, added, from_row


@dataclass(frozen=True)
class TakenRun:
    """One run on the records.

    Attributes:
        run: its name.
        label: that of its experiment.
        kind: trust model and what it releases.
        place: where its files are.
        begun: when it was reserved for, ISO 8601.
        unprotected: why its reader has no guarantee, whatever it cost; None if there is one.
        steps: what counts: the plan's until the run is settled, then what it spent.
        settled: whether it ended, and counts with what it spent.
        ledger: of the run's ledger, when it was settled.
    """

    run: str
    label: str
    kind: str
    place: str
    begun: str
    unprotected: str | None
    steps: Counts
    settled: bool = False
    ledger: Head | None = None

    @property
    def noisy(self) -> bool:
        """Whether every release of it had noise."""
        return not any(math.isinf(step.mu) for step in self.steps)


@dataclass(frozen=True)
class State:
    """An account as its rows leave it.

    Attributes:
        data: name of the data set.
        epsilon, delta: the limit; None without one.
        runs: by name, in the order in which they began.
    """

    data: str
    epsilon: float | None = None
    delta: float | None = None
    runs: Mapping[str, TakenRun] = field(default_factory=dict)

    def spent(self, delta: float) -> float:
        """Epsilon of all runs together, reservations included; inf if one of them added no noise."""
        return composed_epsilon((run.steps for run in self.runs.values()), delta)

    def spent_with_noise(self, delta: float) -> float:
        """The same of the runs that added noise."""
        return composed_epsilon((run.steps for run in self.runs.values() if run.noisy), delta)

    def without(self, run: str) -> list[Counts]:
        """The steps of all other runs."""
        return [each.steps for name, each in self.runs.items() if name != run]

    def after(self, row: Mapping[str, Any]) -> State:
        """The state that one more row leaves."""
        if row["kind"] == "limit":
            return replace(self, epsilon=float(row["epsilon"]), delta=float(row["delta"]))
        name = str(row["run"])
        known = self.runs.get(name)
        steps = from_row(row["steps"])
        if row["kind"] == "reserved":
            about = {key: row[key] for key in ("label", "doing", "place", "begun", "unprotected")}
            about["kind"] = about.pop("doing")
            run = TakenRun(run=name, steps=steps, **about)
        elif known is None:
            raise ValueError(f"a row of the account is about run {name!r}, which was not reserved for")
        elif row["kind"] == "extended":
            run = replace(known, steps=added(known.steps, steps))
        else:
            head = row["ledger"]
            run = replace(known, steps=steps, settled=True, ledger=head and Head(int(head[0]), str(head[1])))
        return replace(self, runs={**self.runs, name: run})


def state_of(data: str, rows: Iterable[Mapping[str, Any]]) -> State:
    """The state that all rows leave, in their order."""
    state = State(data)
    for row in rows:
        state = state.after(row)
    return state
