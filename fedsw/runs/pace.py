"""How fast a run goes, by the times of its log: for its operator, never for publication.

How long a round took can depend on what the records hold, a little, whatever is done against it. So no file that may be
published has the time of a round: of a run, the summary has the total.
"""

from __future__ import annotations

import datetime
import json
from itertools import pairwise
from pathlib import Path

from fedsw.runs.files import LOG

_BEGINS, _RELEASED = "run begins", "round released"


def round_seconds(directory: Path) -> list[float]:
    """Seconds between the releases of a run, of the processes before a resume too; the first of each from its start."""
    return [
        later - earlier
        for process in _processes(directory)
        for earlier, later in pairwise(at for at, event in process if event)
    ]


def total_seconds(directory: Path) -> float:
    """Seconds of all processes of a run, each from its first line to its last."""
    return sum(process[-1][0] - process[0][0] for process in _processes(directory))


def _processes(directory: Path) -> list[list[tuple[float, bool]]]:
    """For every process of the run, its lines: when, and whether it begins or releases then."""
    path = directory / LOG
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    processes: list[list[tuple[float, bool]]] = []
    for line in text.splitlines():
        try:
            found = json.loads(line)
            at, event = datetime.datetime.fromisoformat(found["time"]).timestamp(), found["event"]
        except (ValueError, LookupError, TypeError):
            continue  # cut short by a crash
        if event == _BEGINS:
            processes.append([])
        if processes:
            processes[-1].append((at, event in (_BEGINS, _RELEASED)))
    return processes
