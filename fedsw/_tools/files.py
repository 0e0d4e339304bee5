"""Files that are whole or not there, and locks that the kernel frees: for everything that must outlive its process.

POSIX only. No library is used for the locks: `filelock` has none that only looks (a file must be opened for writing,
and made, to be tried), and where a file system has no flock it goes on with marker files, which outlive a killed
process.
"""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

PRIVATE = 0o600
"""The mode of what is written here, whatever the umask: only its owner reads and writes it."""
PRIVATE_FOLDER = 0o700
PART = ".part"
"""End of a file's name while it is written."""
AT_ONCE = 32
"""Files that wait for the disk together: it takes hardly longer for many than for one."""
LEDGER_OF_A_RUN, ACCOUNT_OF_A_RUN = "ledger.sqlite", "account.json"
"""In a run's folder: its ledger, and the last row of its data set's account that it saw."""
_LOOK_SECONDS = 0.002  # between two looks at whether another process still holds a lock
_TRIES = 1000  # names for a new folder; another process may take each first


def replace(path: Path, *content: bytes | memoryview, durable: bool = True) -> None:
    """Replace a file atomically: a reader of `path`, at any time or after a crash, finds the old content or the new.

    Its folder must exist. If it is ``durable``, content and name are on the disk on return; otherwise they survive the
    death of the process, and that of the machine may leave the old file or the new one, whole or damaged. OSError if
    the disk does not take it; `path` is then what it was.
    """
    draft = path.with_name(path.name + PART)
    with opened(draft) as file:
        for part in content:
            file.write(part)
    if durable:
        settle(draft, path)
    else:
        os.replace(draft, path)


def same_file(one: Path, other: Path) -> bool:
    """Say whether two paths lead to one file, by whatever links; False where either cannot be looked at."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def same_content(one: Path, other: Path) -> bool:
    """Say whether two files are one, or a copy of the other."""
    return same_file(one, other) or filecmp.cmp(one, other, shallow=False)


def opened(path: Path, mode: str = "wb") -> IO[Any]:
    """A private file, open to be written; one that is there is made private, unless it is a device or a pipe."""

    def opener(name: str, flags: int) -> int:
        handle = os.open(name, flags, PRIVATE)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            os.fchmod(handle, PRIVATE)
        return handle

    encoding = None if "b" in mode else "utf-8"
    return open(path, mode, encoding=encoding, opener=opener)


def private(path: Path) -> Path:
    """Make a file that is there private: one that a library wrote; returns its path."""
    path.chmod(PRIVATE)
    return path


def kept_folder(named: object, setting: str) -> Path:
    """A folder whose files must be found by a later process; ValueError for a relative path, `setting` names it.

    Guarantee: it is the same folder wherever a process is started, so that none begins a ledger that is there.
    """
    if not (folder := Path(str(named))).is_absolute():
        raise ValueError(
            f"{setting} is {str(folder)!r}, which is another folder wherever a process is started, and there it would "
            "forget what was spent; write the whole path"
        )
    return folder


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner can enter, as `new_folder`; one that is there is closed to others."""
    new_folder(path).chmod(PRIVATE_FOLDER)
    return path


def new_folder(path: Path) -> Path:
    """Make a folder and what is missing above it, each for its owner only; those that are there stay as they are.

    `Path.mkdir` gives its mode to the last folder only; the umask decides on access to the others.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    if dangling := next((folder for folder in missing if folder.is_symlink()), None):
        target = dangling.readlink()
        raise FileNotFoundError(
            f"{dangling} is a link to {target}, which is not there: make that folder, or name another"
        )
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True, mode=PRIVATE_FOLDER)
    if not missing:
        path.mkdir(exist_ok=True)  # which refuses a file
    return path


def fresh_folder(parent: Path) -> Path:
    """Make a new folder in `parent`, named for its number there, one above all others, and the time in UTC.

    The number says what came after what: clocks are set back, and zones and summer time move them.
    """
    new_folder(parent)
    for _ in range(_TRIES):
        number = 1 + max((number_of(folder) for folder in parent.iterdir()), default=0)
        folder = parent / f"{number:04d}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        with contextlib.suppress(FileExistsError):  # another process was as fast
            folder.mkdir(mode=PRIVATE_FOLDER)
            return folder
    raise FileExistsError(f"no free folder name in {parent}")


def number_of(folder: Path) -> int:
    """The number in the name of a folder that `fresh_folder` made; 0 for any other."""
    numbered = re.fullmatch(r"(\d{4,})-\d{8}T\d{6}Z", folder.name)
    return int(numbered[1]) if numbered else 0


def settle(draft: Path, path: Path) -> None:
    """Give a finished file its name: first its content is on the disk, then its name, in the same folder."""
    sync(draft)
    os.replace(draft, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Put on the disk what was written to a file, or which names a folder holds."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_all(paths: Sequence[Path]) -> list[OSError | None]:
    """`sync` of many files, and of the folders that name them; all wait for the disk at the same time.

    It returns what the disk said of each file, in their order: None if its content and its name are on it.
    """
    folders = sorted({path.parent for path in paths})
    with ThreadPoolExecutor(min(AT_ONCE, len(paths) + len(folders)) or 1) as waiting:
        contents = list(waiting.map(_synced, paths))
        named = dict(zip(folders, waiting.map(_synced, folders), strict=True))
    return [fault or named[path.parent] for path, fault in zip(paths, contents, strict=True)]


def overwrite(path: Path, content: bytes) -> None:
    """Put short content in place in one write, without waiting for the disk; much cheaper than `replace`.

    The death of the process leaves the old content or the new. That of the machine may leave either, whole or damaged,
    and so may a reader find a mixture: for what its reader checks. The content must not get shorter. OSError if the
    disk does not take it.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        os.pwrite(handle, content, 0)
    finally:
        os.close(handle)


def appending(path: Path) -> int:
    """A handle of a private file, emptied if it is there, for `append`."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, PRIVATE)
    os.fchmod(handle, PRIVATE)
    return handle


def append(handle: int, content: bytes) -> None:
    """Write at the end of a file, without waiting for the disk; a crash meanwhile leaves a beginning of it."""
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def lock(path: Path) -> int:
    """Take an exclusive lock, without waiting; the file is made if it is missing, and is left as it is otherwise.

    The kernel frees it when the last process that has the handle closes it or dies, whatever killed it. A second
    handle of the same process does not get it either. The handle that is returned can be read and written; closing it
    frees the lock. BlockingIOError if it is taken, OSError if the file cannot be opened, or its file system has no
    locks.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold a lock that others hold for moments only; waits for it. Errors are those of `lock`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            handle = lock(path)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Say whether a process on this machine has the lock; the file is neither made nor changed by looking."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _synced(path: Path) -> OSError | None:
    try:
        sync(path)
    except OSError as fault:
        return fault
    return None
