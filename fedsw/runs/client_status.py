"""A client's side of its runs: notes for its operator on each run, and its own ledgers, replayed.

A note is a small file for each run in the node's `state-dir`, and is never sent. It holds the server's request and the
numbers of rounds that this node answered: no count, no output, no time (the file's own time is that of the last
request).
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
"""Notes of a node, above which a further run that it refuses gets none: requests may never end."""


@dataclass(frozen=True)
class Participation:
    """A node's part in one run, under the server's name for it: the experiment's demands, and the node's progress.

    Attributes:
        epsilon: infinite without noise, and None if it follows from a noise multiplier.
        rounds, answered, last: planned rounds (stages of a sketch) that clients answer; the number that this node
            answered; the last of these, 0 before the first.
        agreed: the operator's limits on participation; empty on a node of the experiment's author.
        code, server: the digest of the installed fedsw here, and the server's as it reports it.
        waits: True from a greeting until the next request.
        refused: why this node refused the last greeting; empty if it did not.
        heard: time of the last request, in seconds since 1970, by the file system.
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
        """The state after an answer in a round (0: a release beside the rounds); attempts of one round count once."""
        part = replace(self, waits=False, refused="")
        if round_ in (0, self.last):
            return part
        return replace(part, answered=self.answered + 1, last=max(self.last, round_))

    def greeted(self, greeting: Participation) -> Participation:
        """The state after another greeting, which may be refused, or meet other limits."""
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
    """The part of a node that was just greeted, with its operator's limits in words, and its reason if it refused."""
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
    """Record that a node was greeted (None), or answered in a round (0: beside the rounds).

    A refused run gets no note beyond `MOST_REFUSED`.
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
    """The runs of a node, the one with the latest request last; damaged files are left out."""
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
    """A client's own ledger, replayed from its rows; `run` is the first part of the name in it."""

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
    """The runs and ledgers of a state folder."""

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
    """State of a run, as far as the node knows it: it takes part once a request follows the greeting."""
    if run.over:
        return "over"
    if run.refused:
        return "greeted, not taken"
    if time.time() - run.heard > _QUIET_SECONDS:
        return "quiet"
    return "greeted" if run.waits else "taking part"
