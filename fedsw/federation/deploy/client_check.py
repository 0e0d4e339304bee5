"""All that can fail later at a client, tried now, by the user who will run it: a line each, with the remedy."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import sqlite3
import ssl
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedsw._tools import files
from fedsw._tools.installed import code_digest
from fedsw._tools.text import installed_version
from fedsw.data import find_table, read_table
from fedsw.data.columns.declaration import read_columns
from fedsw.federation import flower
from fedsw.federation.deploy.bundle import bundle_hash
from fedsw.federation.deploy.certificates import valid_until, warn_of_expiry
from fedsw.federation.deploy.executor import words_about_clocks
from fedsw.federation.deploy.node_settings import NodeSettings, read_address
from fedsw.federation.deploy.serving import connection_to, probe
from fedsw.federation.node.limits import choice_of
from fedsw.federation.node.roster import read_mask_key, read_roster
from fedsw.privacy.accounting.lifetime import accounts_folder

_LEAST_FREE = 2**28
"""Bytes that a disk should have free for ledgers, logs and a bundle."""
_GIB = 2.0**30
_FAULTS = (OSError, ValueError, sqlite3.Error, RuntimeError, LookupError)


@dataclass(frozen=True)
class NodeCheck:
    """Something that a run needs: how it is, in words, and what to do where it is not as it must be."""

    what: str
    said: str
    remedy: str = ""

    @property
    def good(self) -> bool:
        """True if nothing is to be done."""
        return not self.remedy

    def line(self) -> str:
        """All of it in one line."""
        return (
            f"{'ok   ' if self.good else 'FAULT'}  {self.what}: {self.said}{f'. {self.remedy}' if self.remedy else ''}"
        )


def tried(settings: Callable[[], NodeSettings], *, stock: bool) -> Iterator[NodeCheck]:
    """Try all of it in turn; nothing is sent but a look at the server, no record leaves, nothing is charged."""
    user = f"uid {os.getuid()}, which has no name"
    with contextlib.suppress(KeyError):
        user = f"{pwd.getpwuid(os.getuid()).pw_name} (uid {os.getuid()})"
    yield NodeCheck("user", user)
    try:
        node = settings()
    except _FAULTS as fault:
        yield NodeCheck("settings", str(fault), "mend this first: nothing else can be tried")
        return
    yield NodeCheck("settings", f"it takes part in {choice_of(node.node_config)}")
    for what, remedy, attempt in _attempts(node, stock=stock):
        try:
            yield NodeCheck(what, attempt())
        except _FAULTS as fault:
            yield NodeCheck(what, " ".join(str(fault).split()), remedy)


def _attempts(node: NodeSettings, *, stock: bool) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """Attempts in turn: what is tried, the remedy if it raises, and the attempt, which says how it is."""
    mine = "let the user above own the folder, on a disk of this machine"
    state = node.state_dir or Path()
    yield "state", f"{mine}, or name another (state-dir)", lambda: _holds_ledgers(state)
    yield "disk", "make room, or name a folder on another disk (state-dir)", lambda: _has_room(state)
    if node.account is not None:
        remedy = f"{mine}, or name another (accounts, or FEDSW_ACCOUNTS in the unit)"
        yield "accounts", remedy, lambda: _holds_ledgers(files.new_folder(node.accounts or accounts_folder()))
    remedy = "give the user a home that it may write to (Environment=HOME=... in the unit), or name accounts"
    yield "HOME", remedy, lambda: _home(needed=node.account is not None and node.accounts is None)
    remedy = "mend the file or its declaration; `fedsw check` lists every fault of a file"
    yield "columns", remedy, lambda: _reads_records(node)
    remedy = "take the folder that `fedsw certs` made for this client, and let its user alone read node.key (mode 600)"
    yield "key", remedy, lambda: _key(node.key)
    if node.roster is not None:
        yield "roster", "add this site's own key at every site (`fedsw certs roster add`)", lambda: _in_roster(node)
    remedy = "`fedsw certs` makes a new one at the server; every client needs the new ca.crt (docs/security.md)"
    yield "certificate", remedy, lambda: _certificate(node.authority)
    remedy = "start the server, or have the way to its port opened (docs/deploy.md)"
    yield "server", remedy, lambda: _reachable(node)
    yield "clock", "set the clocks of both machines (NTP)", lambda: _clock(node)
    for module in node.modules or ():
        remedy = "install it for this Python, or leave it out of modules"
        yield f"module {module}", remedy, lambda module=module: _module(module)  # type: ignore[misc]
    yield "code", "install Flower of a tested version, or start with --stock", lambda: _code(node, stock=stock)


def _holds_ledgers(folder: Path) -> str:
    """Try what a ledger needs of a folder: files, locks that the kernel frees, a database that waits for the disk."""
    with tempfile.TemporaryDirectory(prefix="fedsw-check-", dir=folder) as trial_folder:
        with files.opened(Path(trial_folder) / "lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        database = sqlite3.connect(Path(trial_folder) / "tried.sqlite")
        try:
            if (mode := database.execute("PRAGMA journal_mode = WAL").fetchone()[0]) != "wal":
                raise OSError(f"{folder} takes no ledger: SQLite's log is {mode!r} there, as on a network's disk")
            database.execute("CREATE TABLE tried (number INTEGER)")
            database.commit()
        finally:
            database.close()
        files.sync(Path(trial_folder) / "tried.sqlite")
    for path in folder.glob("*.sqlite"):
        if not os.access(path, os.R_OK | os.W_OK):
            raise OSError(f"{path} is another user's")
    return f"{folder} takes files, locks and ledgers"


def _has_room(folder: Path) -> str:
    if (free := shutil.disk_usage(folder).free) < _LEAST_FREE:
        raise OSError(f"{free / _GIB:.2g} GiB are free in {folder}, less than {_LEAST_FREE / _GIB:.2g}")
    return f"{free / _GIB:.3g} GiB are free in {folder}"


def _home(*, needed: bool) -> str:
    """Try the home folder; where nothing is kept there, it may be out of reach, as in the shipped unit."""
    try:
        home = Path.home()
    except RuntimeError:
        home = Path(os.environ.get("HOME", "(no HOME)"))
    if os.access(home, os.W_OK | os.X_OK):
        return f"{home} can be written to"
    if needed:
        raise OSError(f"{home} cannot be written to, and accounts are kept there")
    return f"{home} is not there or closed to this user; nothing of a run is kept there"


def _reads_records(node: NodeSettings) -> str:
    """Read the client's own file by the columns it agreed to; without a schema, that it can be opened is all."""
    if node.data_path is None and node.data_dir is None:
        return (
            "no file of its own: records are those that an experiment's module gives (data-path or data-dir names one)"
        )
    columns = None if node.schema is None else read_columns(node.schema)
    paths = [node.data_path] if node.data_path is not None else _tables(node)
    for path in paths:
        with path.open("rb"):
            pass
        if columns is not None:
            read_table(path, columns)
    said = ", ".join(map(str, paths[:3])) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    by = "can be opened; which columns are read, the greeting says" if columns is None else f"fits {node.schema}"
    return f"{said} {by}"


def _tables(node: NodeSettings) -> list[Path]:
    """The file of each client that this node holds, as its data-dir has them."""
    folder, total = node.data_dir or Path(), node.num_clients or node.clients
    first, end = (part * total // node.clients for part in (node.client, node.client + 1))
    if total <= node.clients:
        return [find_table(folder)]
    return [find_table(folder / str(client)) for client in range(first, end)]


def _key(path: Path) -> str:
    load_ssh_private_key(path.read_bytes(), None)
    if path.stat().st_mode & 0o077:
        raise OSError(f"others may read {path}")
    return f"{path} can be read, by this user alone"


def _in_roster(node: NodeSettings) -> str:
    roster = read_roster(Path(str(node.roster)))
    own_key = read_mask_key(Path(str(node.node_config["mask-key"]))).public.hex()
    if own_key not in {member.key for member in roster.member}:
        raise ValueError(f"this site's key {own_key[:16]} is not among the {len(roster.member)} of {node.roster}")
    return f"{len(roster.member)} sites, this one among them"


def _certificate(authority: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            warn_of_expiry([authority])
        except UserWarning as soon:
            raise ValueError(str(soon)) from None
    return f"{authority} is valid until {valid_until(authority):%Y-%m-%d}"


def _reachable(node: NodeSettings) -> str:
    if fault := probe(node.superlink, node.authority):
        raise ConnectionError(f"{node.superlink} is out of reach ({fault})")
    return f"{node.superlink} answers with a certificate that {node.authority} vouches for"


def _clock(node: NodeSettings) -> str:
    """Compare this machine's clock with the time in an answer of the server, to the second that it is told in."""
    host, port = read_address(node.superlink)
    context = ssl.create_default_context(cafile=str(node.authority))
    try:
        with contextlib.closing(connection_to(host, port, context)) as connection:
            connection.request("GET", "/health")
            answer = connection.getresponse()
    except (OSError, http.client.HTTPException):
        return "not compared, while the server is out of reach"
    if why := words_about_clocks(answer):
        raise ValueError(why)
    return "as the server's, as far as requests need it"


def _module(name: str) -> str:
    if importlib.util.find_spec(name) is None:
        raise LookupError(f"{sys.executable} finds no module {name}")
    return "is installed"


def _code(node: NodeSettings, *, stock: bool) -> str:
    if not stock and (why := flower.refusal("SuperNode")):
        raise RuntimeError(why)
    version = importlib.metadata.version("flwr")
    demanded = "any bundle" if node.bundle is None else f"the bundle {node.bundle[:12]}"
    its_own = ", its own" if node.bundle == bundle_hash() else ""
    return f"fedsw {installed_version()} {code_digest()}, Flower {version}; it loads {demanded}{its_own}"
