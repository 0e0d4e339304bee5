"""The installed package as one digest, by which two machines tell whether they run the same code."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
_MADE = "__pycache__"


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
