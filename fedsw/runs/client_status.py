"""A client's own side: the runs that a state folder knows of, and its own ledgers, replayed."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedsw.privacy.accounting import Ledger, LedgerDamaged
from fedsw.runs.participation import Participation, participations

NodeState = Literal["greeted", "greeted, not taken", "taking part", "quiet", "over"]

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
    """State of a run at a node, as far as this side can see: only who was asked since its greeting takes part."""
    if run.over:
        return "over"
    if run.refused:
        return "greeted, not taken"
    if time.time() - run.heard > _QUIET_SECONDS:
        return "quiet"
    return "greeted" if run.waits else "taking part"
