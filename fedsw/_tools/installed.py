"""A machine's memory, and its installed package as one digest, which two machines can compare."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
GIB = 2.0**30
_MADE = "__pycache__"
_CONTROL_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@functools.cache
def machine_memory() -> float:
    """Bytes of memory that this machine has, or that its container may take."""
    texts = [Path(path).read_text(encoding="ascii").strip() for path in _CONTROL_GROUPS if Path(path).is_file()]
    whole = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min([whole, *(float(text) for text in texts if text.isdigit())])


@functools.cache
def code_digest() -> str:
    """SHA-256 of the names and contents of the installed package's files, in 64 hexadecimal digits.

    It is that of the code which runs: taken once, when it is first asked for. Nothing else is in it: no record, no
    setting, no path, date or mode of this machine.
    """
    return digest_of(PACKAGE)


def digest_of(package: Path) -> str:
    """The digest of the files below a folder; what Python makes of them, and hidden files, are left out."""
    total = hashlib.sha256()
    files = {path.relative_to(package): path for path in package.rglob("*") if path.is_file()}
    for name in sorted(files):
        if not any(part == _MADE or part.startswith(".") for part in name.parts):
            for part in (name.as_posix().encode(), files[name].read_bytes()):
                total.update(len(part).to_bytes(8))
                total.update(part)
    return total.hexdigest()


def short(digest: str) -> str:
    """The first twelve digits, for a line that a person reads; a dash where none was stated."""
    return digest[:12] or "–"
