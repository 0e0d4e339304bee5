"""What a client's operator sees of its own side: the runs it takes part in, and what its own ledgers have spent."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedsw.experiment.sections.privacy import is_local
from fedsw.federation.node.participation import Participation, participations
from fedsw.text import number

State = Literal["taking part", "quiet", "over"]

_LEDGERS = "client-*.sqlite"
_QUIET_SECONDS = 300.0


@dataclass(frozen=True)
class OwnLedger:
    """A client's own ledger, replayed from its rows.

    Attributes:
        run: the beginning of the run's name that it accounts for.
        rounds: how many rounds it was charged for.
    """

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
    """What a node's `--state-dir` holds; reads only, so that it works while the client runs.

    Raises:
        ValueError: if the folder is no client's, or a ledger is damaged.
    """
    runs, paths = tuple(participations(folder)), sorted(folder.glob(_LEDGERS))
    if not runs and not paths:
        what = "has no run yet" if folder.is_dir() else "is not there"
        raise ValueError(f"{folder} {what}; give the --state-dir of `fedsw client` on this machine, after a run began")
    return ClientStatus(str(folder), runs, tuple(own_ledger(path) for path in paths))


def own_ledger(path: Path) -> OwnLedger:
    """What a client's ledger says.

    Raises:
        ValueError: if it is damaged.
    """
    from fedsw.accounting import Ledger, LedgerDamaged

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


def state_of(run: Participation) -> State:
    """Whether a run goes on here, as far as this side can see."""
    if run.over:
        return "over"
    return "quiet" if time.time() - run.heard > _QUIET_SECONDS else "taking part"


def words_of_run(run: Participation, folder: Path) -> Iterator[str]:
    """A run in sentences, with the ledgers that account for it."""
    epsilon = "as its noise multiplier gives" if run.epsilon is None else number(run.epsilon)
    nominal = ", nominal: reproducible from a seed" if run.nominal else ""
    yield f"trust {run.trust}, ε = {epsilon} at δ = {run.delta}{nominal}"
    yield f"answered in {run.answered} of {run.rounds} rounds"
    own = [each for client in run.clients if (each := _ledger_of(folder, client, run.run)) is not None]
    for ledger in own:
        yield (
            f"client {ledger.client}'s own ledger: ε = {number(ledger.epsilon, 4)} spent of "
            f"{number(ledger.budget, 4)} at δ = {number(ledger.delta)}"
        )
    if not own and run.epsilon is not None and math.isinf(run.epsilon):
        yield "no noise was asked for: nothing is accounted for"
    elif not own and not is_local(run.trust):
        yield f"the server's ledger accounts for it: under {run.trust!r} the noise is the server's"


def _ledger_of(folder: Path, client: int, run: str) -> OwnLedger | None:
    path = folder / f"client-{client}.sqlite"
    found = own_ledger(path) if path.exists() else None
    return found if found is not None and found.run == run else None
