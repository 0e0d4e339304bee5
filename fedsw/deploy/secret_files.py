"""Files and folders that only their owner can read."""

from __future__ import annotations

import os
from pathlib import Path


def private_folder(path: Path) -> Path:
    """Make a folder (mode 0700) with its parents; an existing one is closed to others."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_secret(path: Path, content: bytes) -> Path:
    """Write a new file (mode 0600 from its first byte on).

    Raises:
        FileExistsError: if there is one already; a key is never replaced.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FileExistsError(f"{path} exists; remove it, or choose another folder") from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return path
