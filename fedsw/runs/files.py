"""The names of the files in a run's folder, and how its JSON is read and written.

Checkpoints have names and a form of their own (`fedsw.runs.checkpoint`). `fedsw.audit.record` reads the folder apart
from this on purpose: what checks a record shares no reader with what wrote it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fedsw import files
from fedsw.text import json_text

CONFIG = "config.json"
"""The experiment as it runs, its engine, and when it began."""
PLAN = "plan.json"
"""The guarantee that the run began with, and for how many records."""
LEDGER = "ledger.sqlite"
"""The privacy ledger of the server; clients' own are in `CLIENT_LEDGERS`."""
ACCOUNT = "account.json"
"""The last row of its data set's account that the run saw."""
CLIENT_LEDGERS = ("clients/client-*.sqlite", "nodes/*/client-*.sqlite")
METRICS = "metrics.jsonl"
"""A line for every released round."""
SUMMARY = "summary.json"
"""How the run ended, the last time it ended in order."""
MODEL = "model.safetensors"
"""The released model."""
OUTPUTS = "outputs.npz"
"""Held-out outputs of the released model, and what else the plots need."""
HELD_OUT = "held_out.json"
"""Noised counts and sums over records that clients kept out of training."""
CARD = "card.md"
"""The model card."""
LOG = "log.jsonl"
"""When each round was released: for the operator only, not for publication."""
ATTEMPTS = "attempts.log"
"""Every attempt that was begun: round and number."""
NAME = "run.name"
"""The name by which the clients know the run."""
SKETCH = "sketch.safetensors"
"""The released sketch, under trust models with one."""
GENERATOR = "generator.pt"
"""Where the training of a generator on the released sketch is."""
RELEASES = "releases"
"""The folder of what clients released once."""
LOCK = "run.lock"
"""Held by the server of the run."""


def client_ledgers(directory: Path) -> list[Path]:
    """The ledgers that clients keep in a run's folder, as far as they are there."""
    return sorted(path for pattern in CLIENT_LEDGERS for path in directory.glob(pattern))


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of one of a run's JSON files; None if there is none.

    Raises:
        ValueError: naming the file, if it is damaged.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as fault:  # no JSON, or no UTF-8
        raise ValueError(f"{path} is damaged: {fault}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it holds a {type(value).__name__} and not an object")
    return value


def found_json(path: Path) -> dict[str, Any]:
    """The content of one of a run's JSON files; empty if there is none or it is damaged."""
    try:
        return read_json(path) or {}
    except ValueError:
        return {}


def jsonable(value: Any) -> Any:
    """The same content in strict JSON: infinities and NaN become the strings "inf", "-inf", "nan"."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_json(path: Path, value: Any) -> None:
    """Put JSON in place whole, on the disk on return; infinities become "inf" or "-inf", and NaN becomes null."""
    files.replace(path, (json_text(value) + "\n").encode())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's JSONL file; a last line cut short by a crash is left out. Empty if there is no file.

    Raises:
        ValueError: naming the line, if any other is not JSON.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = []
    for position, line in enumerate(lines, start=1):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as fault:
            if position < len(lines):
                raise ValueError(f"{path}, line {position}: {fault}") from None
    return found
