"""The last row of a journal, remembered in a file beside it: an older copy that is put back is then refused."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path

from fedsw import files
from fedsw.accounting.journal import Head

_BYTES = 128


def memory_of(path: Path) -> Path:
    """The file beside a journal."""
    return path.with_suffix(".head")


def remember(path: Path, head: Head) -> None:
    """Write the last row beside the journal, before anything that rests on it leaves."""
    files.overwrite(memory_of(path), json.dumps(asdict(head)).encode("ascii").ljust(_BYTES))


def remembered(path: Path) -> Head | None:
    """The row that is remembered; None without one, or where a machine that died emptied the file."""
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
        kept = json.loads(memory_of(path).read_text(encoding="ascii"))
        head = Head(int(kept["sequence"]), str(kept["digest"]))
        return head if head.sequence else None
    return None
