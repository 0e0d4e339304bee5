"""A client's own side: notes for its operator on runs that it takes part in, and its own ledgers, replayed.

A note is a small file for each run in the node's `state-dir`, and is never sent. It holds what the server asked for and
the numbers of rounds that this node answered in: no count, no output, no time (the file system's own times say when a
node was last asked).
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedsw._tools import files
from fedsw._tools.installed import code_digest
from fedsw.experiment import Experiment
from fedsw.privacy.accounting import Ledger, LedgerDamaged

_PATTERN = "run-*.json"
MOST_REFUSED = 200
"""Runs on record from which on another one that this node refuses is not written down."""


@dataclass(frozen=True)
class Participation:
    """A node's part in one run, named as the server names it; what the experiment asks for, and how far it is.

    Attributes:
        epsilon: infinite without noise, and None if it follows from a noise multiplier.
        rounds, answered, last: how many rounds (stages of a sketch) with an answer of clients are planned; how many
            this node answered in; the number of the last of these, 0 before the first.
        agreed: what the node's operator chose to take part in; empty on a node of the experiment's author.
        code, server: the digest of the installed fedsw here, and that of the server's, in its own words.
        waits: it was greeted, and nothing was asked of it since.
        refused: why this node did not take part when it was greeted last; empty if it did.
        heard: when the node was last asked something, in seconds since 1970, by the file system.
    """

    run: str
    name: str
    clients: tuple[int, ...]
    trust: str
    epsilon: float | None
    delta: float | str
    nominal: bool
    rounds: int
    answered: int = 0
    last: int = 0
    agreed: str = ""
    code: str = ""
    server: str = ""
    waits: bool = False
    refused: str = ""
    heard: float = 0.0

    @property
    def over(self) -> bool:
        """True if this node has answered in the last planned round."""
        return self.last >= self.rounds

    def after(self, round_: int) -> Participation:
        """The state after an answer in a round, 0 for one beside them; a further attempt of a round counts once."""
        part = replace(self, waits=False, refused="")
        if round_ in (0, self.last):
            return part
        return replace(part, answered=self.answered + 1, last=max(self.last, round_))

    def greeted(self, greeting: Participation) -> Participation:
        """The state after another greeting, which may have been refused, or of another operator's choice."""
        agreed, code, server, refused = greeting.agreed, greeting.code, greeting.server, greeting.refused
        return replace(self, agreed=agreed, code=code, server=server, waits=True, refused=refused)


def begun(
    experiment: Experiment,
    run: str,
    clients: tuple[int, ...],
    agreed: str = "",
    *,
    server: str = "",
    refused: str = "",
) -> Participation:
    """The part of a node that was just greeted, with what its operator chose in words, and why it refused if it did."""
    privacy = experiment.privacy
    return Participation(
        run,
        experiment.name,
        clients,
        privacy.trust,
        privacy.epsilon,
        privacy.delta,
        experiment.seed is not None,
        max(experiment.releases, experiment.stages),
        agreed=agreed,
        code=code_digest(),
        server=server,
        waits=True,
        refused=refused,
    )


def note(folder: Path, part: Participation, round_: int | None) -> None:
    """Write down that a node was greeted, or answered in a round (0: beside the rounds).

    Of runs that it never took part in, it keeps no more than `MOST_REFUSED`: requests may never end.
    """
    path = folder / f"run-{part.run}.json"
    known = _read(path) if path.exists() else None
    if known is None and part.refused and len(list(folder.glob(_PATTERN))) >= MOST_REFUSED:
        return
    noted = part if known is None or known.run != part.run else known
    content = asdict(noted.greeted(part) if round_ is None else noted.after(round_))
    del content["heard"]
    files.new_folder(folder)
    files.replace(path, json.dumps(content).encode(), durable=False)


def participations(folder: Path) -> list[Participation]:
    """The runs that a node took part in, the one that was heard of last at the end; damaged files are left out."""
    parts = [part for path in folder.glob(_PATTERN) if (part := _read(path)) is not None]
    return sorted(parts, key=lambda part: part.heard)


def _read(path: Path) -> Participation | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        heard = path.stat().st_mtime
        return Participation(**{**content, "clients": tuple(content["clients"]), "heard": heard})
    except (OSError, ValueError, TypeError, KeyError):
        return None


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
