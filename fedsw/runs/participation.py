"""A node's notes for its operator on the runs that it takes part in: a small file a run, in the node's `state-dir`.

It is for the operator and is never sent. It holds what the server asked for and the numbers of rounds that this node
answered in: no count, no output, no time (the file system's own times say when a node was last asked).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedsw._tools import files
from fedsw._tools.installed import code_digest
from fedsw.experiment import Experiment

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
