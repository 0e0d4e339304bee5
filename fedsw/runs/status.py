"""Progress of a run, by its files and its lock."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedsw._tools.text import to_float
from fedsw.privacy.accounting import LedgerDamaged
from fedsw.runs.accounts import read_ledger
from fedsw.runs.recovery import is_running
from fedsw.runs.roll_call import Called, read_roll
from fedsw.runs.run_files import RunFile, round_seconds
from fedsw.runs.view import RunView, read_run

State = Literal["starting", "running", "stalled", "stopped", "finished"]

_RECENT = 20  # rounds in the median time of a round
_SPARE_SECONDS = 30.0  # beyond its time limits, before a silent run is called stalled
_OPERATOR_ONLY = ("seconds_per_round", "seconds_left", "seconds_since", "roll")
_WRITTEN = (
    RunFile.ATTEMPTS,
    RunFile.METRICS,
    RunFile.LOG,
    RunFile.ROLL,
    RunFile.LEDGER,
    f"{RunFile.LEDGER}-wal",
    RunFile.CONFIG,
    RunFile.LOCK,
)


@dataclass(frozen=True)
class Status:
    """Releasable numbers of one run, and three times and the roll call, which are for its operator only.

    A run is `running` while a process holds it and writes to its files; `stalled` if the process wrote nothing for
    longer than two time limits and ten rounds; `stopped` (``why`` is the summary's status) if no process holds it
    before its last round; `finished`. Spent is everything that was charged, of the worst client if clients have their
    own ledgers. The signal to noise is estimated from the last noisy gradient; the pace is the median of the last
    rounds; ``seconds_since`` counts from the last writing. ``unit`` is the privacy unit of epsilon at each client.
    """

    directory: str
    name: str
    state: State
    why: str
    round: int
    rounds: int
    epsilon_spent: float
    epsilon: float
    epsilon_by_client: dict[str, float]
    snr: float | None
    clients_alive: int | None
    clients: int
    bytes_up: int | None
    bytes_down: int | None
    seconds_per_round: float | None
    seconds_left: float | None
    seconds_since: float
    unit: str = "record"
    roll: tuple[Called, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON; times and the roll call are in `operator_only`."""
        numbers = asdict(self)
        apart = {name: numbers.pop(name) for name in _OPERATOR_ONLY}
        return {**numbers, "operator_only": apart}


def read_status(directory: Path) -> Status:
    """Progress of the run in `directory`; reads only."""
    view = read_run(directory)
    experiment, last = view.experiment, view.last
    times = round_seconds(directory)[-_RECENT:]
    pace = statistics.median(times) if times else None
    touched = [os.stat(path).st_mtime for name in _WRITTEN if (path := directory / name).exists()]
    since = max(0.0, time.time() - max(touched))
    patience = 2 * experiment.federation.timeout + 10 * (pace or 0.0) + _SPARE_SECONDS
    roll = read_roll(directory)
    state, why = _state(view, roll, held=is_running(directory), quiet=since > patience)
    done, rounds = int(last.get("round", 0)), experiment.training.rounds
    spent, by_client = _spent(directory, last)
    # Promised by the summary; else by the plan, which is written before the first round; else by the settings.
    promised = {"epsilon": experiment.privacy.epsilon, **view.plan, **view.summary}["epsilon"]
    return Status(
        directory=str(directory),
        name=experiment.name,
        state=state,
        why=why,
        round=done,
        rounds=rounds,
        epsilon_spent=spent,
        epsilon=math.inf if promised is None else float(promised),
        epsilon_by_client=by_client,
        snr=to_float(last.get("snr")),
        clients_alive=last.get("clients"),
        clients=experiment.federation.clients,
        bytes_up=last.get("bytes_up"),
        bytes_down=last.get("bytes_down"),
        seconds_per_round=pace,
        seconds_left=None if pace is None or state != "running" else (rounds - done) * pace,
        seconds_since=since,
        unit=experiment.data.unit or "record",
        roll=roll,
    )


def _state(view: RunView, roll: Sequence[Called], *, held: bool, quiet: bool) -> tuple[State, str]:
    if held:
        if quiet:
            return "stalled", "nothing was written for longer than two time limits and ten rounds"
        return ("running" if view.history else "starting"), ""
    status = str(view.summary.get("status", ""))
    if status == "completed":
        return "finished", ""
    if status:
        return "stopped", status
    if not (view.directory / RunFile.LOCK).exists():
        if refused := ", ".join(entry.name for entry in roll if entry.state == "refused"):
            return "stopped", f"it did not begin: refused by {refused}"
        if not quiet:
            return "starting", ""
    return "stopped", "its process ended without a word (killed, or its machine went down)"


def _spent(directory: Path, last: dict[str, Any]) -> tuple[float, dict[str, float]]:
    """Epsilon by the run's ledgers, which include a charged round without metrics, and by client as reported."""
    reported = {str(client): float(value) for client, value in last.get("epsilon_by_client", {}).items()}
    try:
        account = read_ledger(directory)
    except FileNotFoundError:
        return max((float(last.get("epsilon", 0.0)), *reported.values())), reported
    except LedgerDamaged as fault:
        raise ValueError(str(fault)) from None
    charged = (
        {} if "sequence" in account["head"] else account["epsilon_by_group"]
    )  # one head a client: groups are these
    by_client = {**reported, **{name.removeprefix("client "): float(value) for name, value in charged.items()}}
    return max((float(account["epsilon"]), *by_client.values())), by_client
