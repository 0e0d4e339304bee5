"""A run's roll call: an entry for each client on another machine, kept in a file that is for the operator only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fedsw._tools import files
from fedsw._tools.installed import code_digest, short
from fedsw._tools.text import json_text, shown
from fedsw.runs.run_files import RunFile, found_json

RollState = Literal["connected", "greeted", "refused", "silent", "not taken", "away", "back"]
TAKEN: frozenset[RollState] = frozenset({"greeted", "back"})
"""States of clients that take part."""
WAITED_FOR: frozenset[RollState] = TAKEN | {"connected"}
"""States with which nothing is wrong."""
_CLIENTS = "clients"


@dataclass(frozen=True)
class Called:
    """A node in the roll call: what it reported, and its state.

    Attributes:
        client: the node's number, which is its client's if every node holds one; None before it is reported.
        key: the file of its key in the server's folder; empty if no SuperLink of fedsw admitted it.
        code, flower: the digest of its installed fedsw, and Flower's version; empty before they are reported.
        clock: seconds by which its clock is ahead of the server's at least, below 0 behind.
        why: the reason for its state, as the client or the server reported it; a client's may quote a record.
    """

    node: int
    client: int | None = None
    key: str = ""
    code: str = ""
    flower: str = ""
    clock: float | None = None
    state: RollState = "connected"
    why: str = ""

    @property
    def name(self) -> str:
        """Client, node and key, as far as they are known."""
        who = "a client" if self.client is None else f"client {self.client}"
        return f"{who} (node {self.node}{f', key {self.key}' if self.key else ''})"

    def line(self) -> str:
        """All of it in one line for a terminal."""
        here = "" if self.code == code_digest() else f" (here {short(code_digest())})"
        said = [f"code {short(self.code)}{here}"] if self.code else []
        said += [f"Flower {self.flower}"] if self.flower else []
        said += [] if self.clock is None else [f"clock {self.clock:+.1f} s"]
        about = "".join(f", {part}" for part in said)
        return f"{self.name}: {self.state}{about}{f': {shown(self.why)}' if self.why else ''}"


def keep_roll(folder: Path, called: Iterable[Called]) -> None:
    """Write a run's roll call; a disk fault is ignored here, and reported where the run's own files are written."""
    content = json_text({_CLIENTS: [asdict(entry) for entry in called]}) + "\n"
    with contextlib.suppress(OSError):
        files.replace(folder / RunFile.ROLL, content.encode(), durable=False)


def read_roll(folder: Path) -> tuple[Called, ...]:
    """A run's roll call, by client; empty before the first, and for clients in processes of this machine."""
    try:
        called = [_read(entry) for entry in found_json(folder / RunFile.ROLL).get(_CLIENTS, ())]
    except (OSError, ValueError, TypeError, LookupError):
        return ()
    return tuple(sorted(called, key=lambda entry: (entry.client is None, entry.client or 0, entry.node)))


def _read(entry: Mapping[str, Any]) -> Called:
    """An entry of the file; its texts come from other machines."""
    if (state := entry["state"]) not in get_args(RollState):
        raise ValueError(f"no client of a roll call is {state!r}")
    client, clock = entry["client"], entry["clock"]
    return Called(
        int(entry["node"]),
        None if client is None else int(client),
        key=shown(entry["key"]),
        code=shown(entry["code"]),
        flower=shown(entry["flower"]),
        clock=None if clock is None else float(clock),
        state=state,
        why=shown(entry["why"]),
    )
