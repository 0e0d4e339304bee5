"""How far a run has come, from the files it leaves: while it goes on, after it ended, and after it was killed."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedsw.runs.files import ATTEMPTS, CONFIG, LEDGER, LOCK, LOG, METRICS, PLAN, found_json
from fedsw.runs.record import RunRecord, read_run

State = Literal["starting", "running", "stalled", "stopped", "finished"]

_RECENT = 20  # rounds that the time of a round is the median of
_SPARE_SECONDS = 30.0
_TIMES = ("seconds_per_round", "seconds_left", "seconds_since")
_SIGNS = (ATTEMPTS, METRICS, LOG, LEDGER, f"{LEDGER}-wal", CONFIG, LOCK)


@dataclass(frozen=True)
class Status:
    """Releasable numbers of one run, and three times, which are for its operator only and not for publication.

    Attributes:
        state: `running` while a process holds the run and writes to its files; `stalled` if it holds it and wrote
            nothing for longer than two time limits and ten rounds; `stopped` if nothing holds it any more before its
            last round; `finished`.
        why: what it stopped for, in its own words; empty otherwise.
        round, rounds: the last released round, and the planned ones.
        epsilon_spent: of everything that was charged; where clients have their own ledgers, the worst client's.
        epsilon: asked for.
        epsilon_by_client: under local trust, what each client's ledger says, or what it last reported to the server.
        snr: of the last round, estimated from its noisy gradient; None without noise.
        clients_alive, clients: in the last round, and in the federation.
        bytes_up, bytes_down: of arrays, all clients together; see docs/guarantees/attempts.md.
        seconds_per_round: median of the last rounds, by the times of the log.
        seconds_left: until the last round, at that pace; None unless it runs.
        seconds_since: it last wrote to its files.
        unit: whose records epsilon is for, at each client by itself; "record" where each record is one.
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

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON; the times are in `operator_only`."""
        found = asdict(self)
        times = {name: found.pop(name) for name in _TIMES}
        return {**found, "operator_only": times}


def read_status(directory: Path) -> Status:
    """How far the run in `directory` has come; reads only.

    Raises:
        ValueError: if it is no run, or a file is damaged.
    """
    from fedsw.runs.files import round_seconds
    from fedsw.runs.recovery import is_running

    record = read_run(directory)
    experiment, last = record.experiment, record.history[-1] if record.history else {}
    times = round_seconds(directory)[-_RECENT:]
    pace = statistics.median(times) if times else None
    since = max(0.0, time.time() - max(_touched(directory)))
    patience = 2 * experiment.federation.timeout + 10 * (pace or 0.0) + _SPARE_SECONDS
    state, why = _state(record, held=is_running(directory), quiet=since > patience)
    done, rounds = int(last.get("round", 0)), experiment.training.rounds
    spent, by_client = _spent(directory, last)
    snr = last.get("snr")
    return Status(
        directory=str(directory),
        name=experiment.name,
        state=state,
        why=why,
        round=done,
        rounds=rounds,
        epsilon_spent=spent,
        epsilon=_asked(record),
        epsilon_by_client=by_client,
        snr=None if snr is None else float(snr),
        clients_alive=last.get("clients"),
        clients=experiment.federation.clients,
        bytes_up=last.get("bytes_up"),
        bytes_down=last.get("bytes_down"),
        seconds_per_round=pace,
        seconds_left=None if pace is None or state != "running" else (rounds - done) * pace,
        seconds_since=since,
        unit=experiment.data.unit or "record",
    )


def _state(record: RunRecord, *, held: bool, quiet: bool) -> tuple[State, str]:
    if held:
        if quiet:
            return "stalled", "nothing was written for longer than two time limits and ten rounds"
        return ("running" if record.history else "starting"), ""
    status = str(record.summary.get("status", ""))
    if status == "completed":
        return "finished", ""
    if status:
        return "stopped", status
    if not (record.directory / LOCK).exists() and not quiet:
        return "starting", ""
    return "stopped", "its process ended without a word (killed, or its machine went down)"


def _spent(directory: Path, last: dict[str, Any]) -> tuple[float, dict[str, float]]:
    """Epsilon by the ledgers that are here; a round that was charged and not finished is in them."""
    from fedsw.accounting import LedgerDamaged
    from fedsw.runs.accounts import read_ledger

    reported = {str(client): float(value) for client, value in last.get("epsilon_by_client", {}).items()}
    try:
        account = read_ledger(directory)
    except FileNotFoundError:
        return max((float(last.get("epsilon", 0.0)), *reported.values())), reported
    except LedgerDamaged as fault:
        raise ValueError(str(fault)) from None
    own = {} if "sequence" in account["head"] else account["epsilon_by_group"]
    by_client = {**reported, **{name.removeprefix("client "): float(value) for name, value in own.items()}}
    return max((float(account["epsilon"]), *by_client.values())), by_client


def _asked(record: RunRecord) -> float:
    """The summary's epsilon; else that of the plan, which is written before the first round; else the settings'."""
    privacy = record.experiment.privacy
    stated = {**found_json(record.directory / PLAN), **record.summary}.get("epsilon")
    if stated is not None:
        return float(stated)
    return privacy.epsilon if privacy.noisy and privacy.epsilon is not None else float("inf")


def _touched(directory: Path) -> list[float]:
    return [os.stat(path).st_mtime for name in _SIGNS if (path := directory / name).exists()]
