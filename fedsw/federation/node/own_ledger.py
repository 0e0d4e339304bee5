"""A client's disk: its ledger, the attempts that it has answered, the records that a run began with."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
import resource
import secrets
import tempfile
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools import files
from fedsw._tools.text import upward
from fedsw.experiment import Experiment
from fedsw.experiment.compatibility import relation_of
from fedsw.experiment.load import unprotected
from fedsw.federation.messages import AnyExchange
from fedsw.federation.node.node import Node
from fedsw.federation.node.simulated import SHARED, is_simulated
from fedsw.privacy.accountants import GAUSSIAN
from fedsw.privacy.accounting import BudgetExhausted, Charge, Head, Ledger, LedgerReplaced
from fedsw.privacy.accounting.lifetime import (
    About,
    Binding,
    Cost,
    Counts,
    DatasetAccount,
    Reservation,
    accounts_folder,
)
from fedsw.privacy.relations import REPLACE_ONE

GROUP = "records"
"""The one group of a client's ledger: all of its records, at the largest rate and sensitivity of its cells."""


HELD_OUT = "held out"
"""The group of a ledger that holds the records which were kept out of training; no record is in another, too."""

ACCOUNT = "account"
"""The key of a node's configuration that names the data set; its account is then kept on the node's machine."""
ACCOUNTS = "accounts"
"""The key that names the folder of accounts."""


def account_of(experiment: Experiment, node_config: Mapping[str, Any], client: int) -> DatasetAccount | None:
    """The account of a client's data set; None if its owner named none.

    On a machine of the client's own its operator names the data set; the experiment's name for it, which the server
    wrote, is ignored. In a simulation, and on a node of several clients, every client has an account of its own, with
    its number, within that of the data set; this one's limit holds for all of them.
    """
    if is_simulated(node_config) or node_config.get(ACCOUNT) == SHARED:
        data = experiment.data.account
        return None if data is None else DatasetAccount.of_client(accounts_folder(), data, client)
    if (named := node_config.get(ACCOUNT)) is None:
        return None
    chosen = node_config.get(ACCOUNTS)
    folder = accounts_folder() if chosen is None else files.kept_folder(chosen, ACCOUNTS)
    several = "num-clients" in node_config
    return DatasetAccount.of_client(folder, str(named), client) if several else DatasetAccount(folder, str(named))


@dataclass(frozen=True)
class PlannedCost:
    """The largest cost of a run to one client's records, the account that they count in, and their ledger's file.

    The run has begun when the file ``begins`` appears: the ledger, or without noise that of the first answer. It is
    None if a simulated node keeps its answers in memory; the run then counts from its greeting on.
    """

    account: DatasetAccount
    ledger: Path
    cost: Counts | Cost
    begins: Path | None

    @property
    def answers(self) -> Path | None:
        """Answered-attempts file, or None if a ledger is used."""
        return None if self.begins == self.ledger else self.begins


def with_held_out(groups: Sequence[str], experiment: Experiment) -> tuple[str, ...]:
    """The groups of a run's ledger."""
    return (*groups, HELD_OUT) if experiment.data.held_out_released else tuple(groups)


_DECIDING = frozenset(("privacy", "training", "clip", "local", "slicing", "sketch", "calibration", "thresholds"))
_SPLITTING = frozenset(("data", "objective", "partition", "federation"))


def run_with_settings(run: str, experiment: Experiment) -> str:
    """The run's name in a client's ledger, with a digest of the sections that decide on what its releases cost.

    An untrusted server could otherwise go on with the run under other settings of the same epsilon, chosen by what it
    has seen, which no epsilon of a fixed set of releases covers; or under another split of kept records, if something
    of these is released: each part would stay within its epsilon, but one record would pay for both.
    """
    sections = _DECIDING | (_SPLITTING if experiment.data.held_out_released else set())
    deciding = experiment.model_dump_json(include=set(sections))
    return f"{run}.{hashlib.sha256(deciding.encode()).hexdigest()[:16]}"


def reserve(clients: Sequence[PlannedCost], run: str, experiment: Experiment) -> None:
    """Set aside what a run will cost the records of this node's clients at most, at the greeting: nothing is spent yet.

    The amount is set aside once in the account of all clients' records, then in each client's own. The account and run
    of each ledger are written beside it first, so that `fedsw account settle` finds them however the process ends.
    What an earlier greeting set aside is given back if its ledger never began: a greeting alone costs nothing. If one
    client has no room, nothing stays set aside for any.

    Raises:
        LimitReached: if there is no room. LedgerReplaced: for an older copy of the account, or of a ledger.
        ValueError: if a ledger is that of another run.
    """
    kind = f"{experiment.privacy.trust}, own ledger"
    why = unprotected(experiment)
    for client in clients:
        client.account.require_newest(run, client.ledger)
        if client.begins is not None:
            Binding(client.account, run, client.answers).write_alone(client.ledger)
    try:
        if (within := clients[0].account.within) is not None:
            together = Cost.of(part for client in clients for part in Cost.one(client.cost).counted().parts)
            folder = str(clients[0].ledger.parent.resolve())
            within.reserve(run, together, About(experiment.name, kind, folder, why), among=True)
        for client in clients:
            about = About(experiment.name, kind, str(client.ledger.resolve()), why)
            client.account.reserve(run, client.cost, about)
            if client.begins is None:  # there is no ledger, and whatever leaves has cost that much
                client.account.settle(run, client.cost, None)
    except BaseException:
        if clients[0].begins is not None:
            Binding.give_back_in(clients[0].ledger.parent)
        raise


def require_planned(ledger: Ledger, most: Counts | Cost | None, charges: Sequence[Charge], sigma: float) -> None:
    """Raise BudgetExhausted for a release beyond what a run was planned to release, although epsilon may allow it.

    Epsilon is computed for a fixed set of releases. A server that could ask for more of one kind instead of another
    would choose by what it had seen, which that computation does not cover; it may choose the order only.
    """
    group = None if most is None else Cost.one(most).exceeded_by(ledger, charges, sigma)
    if group is not None:
        raise BudgetExhausted(
            f"a run is charged for what it was planned to release, and it was not for this, or not once more, of "
            f"{group}; nothing was charged"
        )


STATE_VARIABLE = "FEDSW_STATE"
REMEDY = f"start the node with --node-config 'state-dir=\"/a/writable/folder\"' or set {STATE_VARIABLE}"
_SAME_EPSILON = 1e-6  # relative: an epsilon that follows from a noise multiplier differs in its last digits by machine

_HANDLES = 4
"""Open files of an open ledger: the database, its log, the log's index and the lock."""
_OTHER_HANDLES = 224  # for sockets, logs and libraries: 200 ledgers are left of the usual limit of 1024
_MOST_LEDGERS = 2000
_holding = threading.Lock()


class _OpenLedgers:
    """Ledgers of a folder that stay open between messages, least recently used first."""

    def __init__(self) -> None:
        self.ledgers: OrderedDict[Path, Ledger] = OrderedDict()
        self._used = Counter[Path]()
        self._places = 0

    def take(self, path: Path) -> Ledger | None:
        """A ledger that is open, for use until it is given back."""
        with _holding:
            ledger = self.ledgers.get(path)
            if ledger is None or not ledger.is_open:  # one that the disk failed is closed
                return None
            self.ledgers.move_to_end(path)
            self._used[path] += 1
            return ledger

    def give_back(self, path: Path) -> None:
        """End the use of a ledger that was taken."""
        with _holding:
            self._used[path] -= 1

    def make_room(self) -> None:
        """Close the ledgers that were not used for longest, none that is in use, until one more may be open."""
        with _holding:
            self._places += 1
            spare = len(self.ledgers) + self._places - most_open()
            idle = [path for path in self.ledgers if not self._used[path]] if spare > 0 else []
            closed = [self.ledgers.pop(path) for path in idle[:spare]]
        for ledger in closed:
            ledger.close()

    def fill(self, path: Path, ledger: Ledger | None) -> None:
        """Keep a ledger open in the room that was made for it; with None, nothing was opened."""
        with _holding:
            self._places -= 1
            if ledger is not None:
                self.ledgers[path] = ledger


_held: dict[Path, _OpenLedgers] = {}


def most_open() -> int:
    """Number of ledgers that a process holds open: as its limit of open files allows, 200 where that is 1024."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    allowed = _MOST_LEDGERS if limit == resource.RLIM_INFINITY else (limit - _OTHER_HANDLES) // _HANDLES
    return max(8, min(allowed, _MOST_LEDGERS))


@dataclass(frozen=True)
class Promise:
    """The run that a client's ledger accounts for, and the guarantee that the records have in it."""

    run: str
    epsilon: float
    delta: float
    accountant: str
    nominal: bool
    groups: tuple[str, ...] = (GROUP,)
    mechanism: str = GAUSSIAN
    relation: str = REPLACE_ONE

    @classmethod
    def of(cls, experiment: Experiment, run: str, epsilon: float, delta: float) -> Promise:
        """The promise to a client's records in a run, at this epsilon and delta."""
        return cls(
            run_with_settings(run, experiment),
            epsilon,
            delta,
            experiment.accountant,
            experiment.seed is not None,
            with_held_out((GROUP,), experiment),
            experiment.mechanism,
            relation_of(experiment),
        )

    def __str__(self) -> str:
        guarantee = f"({upward(self.epsilon, 6)}, {upward(self.delta, 6)}) by {self.accountant} for {self.relation!r}"
        return f"run {self.run[:12]!r} at {guarantee}{', nominal' if self.nominal else ''}"


def state_folder(node_config: Mapping[str, Any], client: int, use: str) -> Path:
    """Folder of a node for what must outlive its process: `state-dir`, else $FEDSW_STATE; an error without either.

    ValueError for a relative path.
    """
    if configured := node_config.get("state-dir"):
        return files.kept_folder(configured, "state-dir")
    if named := os.environ.get(STATE_VARIABLE):
        return files.kept_folder(named, STATE_VARIABLE)
    raise RuntimeError(f"client {client} has no folder {use}; {REMEDY}, and keep it until this run is over")


def ledger_path(node_config: Mapping[str, Any], client: int) -> Path:
    """The file of a client's ledger; refused without a folder: after a start it would forget what was spent."""
    return state_folder(node_config, client, "for its privacy ledger") / f"client-{client}.sqlite"


def spent_epsilon(path: Path, promised: Callable[[float], Promise]) -> float:
    """Epsilon that a client's ledger has spent; 0 if there is no ledger yet. Read at the greeting.

    A delta such as "0.1/n" is known with the first request, which states n: `promised` is asked at the ledger's own.

    Raises:
        RuntimeError: if it could not be written. LedgerDamaged, LedgerReplaced: if it is not a newest copy of itself.
        ValueError: if it accounts for something else.
    """
    try:
        files.new_folder(path.parent)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as fault:
        raise RuntimeError(
            f"client {path.stem.removeprefix('client-')} cannot keep its privacy ledger in {path.parent} "
            f"({fault.strerror}); {REMEDY}"
        ) from None
    with Ledger.open(path, read_only=True) if path.exists() else nullcontext() as ledger:
        _require_remembered(path, ledger)
        if ledger is None:
            return 0.0
        _require_same(path, ledger, promised(ledger.delta))
        return ledger.epsilon()


@contextmanager
def held_open(folder: Path) -> Iterator[None]:
    """Hold the ledgers of a folder open from one message to the next: opening one replays all of its rows.

    Only if this process answers every message of the folder's clients: no other can write meanwhile. At most
    `most_open` of them are held; beyond, those that were not used for longest are closed, and opened again when needed.
    """
    folder = folder.resolve()
    _held[folder] = _OpenLedgers()
    try:
        yield
    finally:
        with _holding:
            held = _held.pop(folder)
        for ledger in held.ledgers.values():
            ledger.close()


@contextmanager
def opened(path: Path, promise: Promise) -> Iterator[Ledger]:
    """A client's ledger, made if there is none: one writer at a time, by the file's lock.

    Raises:
        ValueError: if the file accounts for another run, or for another guarantee.
        LedgerBusy: if another process holds it.
    """
    cache = _held.get(path.parent)
    if cache is not None and (held := cache.take(path)) is not None:
        try:
            _require_same(path, held, promise)
            yield held
            held.head().remember(path)
        finally:
            cache.give_back(path)
        return
    if cache is not None:
        cache.make_room()
    ledger = None
    try:
        ledger = _open(path, promise)
        _require_same(path, ledger, promise)
        yield ledger
        ledger.head().remember(path)
    except BaseException:
        if ledger is not None:
            ledger.close()
        if cache is not None:
            cache.fill(path, None)
        raise
    if cache is not None and _held.get(path.parent) is cache:
        cache.fill(path, ledger)
    else:
        ledger.close()


def _open(path: Path, promise: Promise) -> Ledger:
    """Open or make a client's ledger; refuse one that lacks the row remembered beside it.

    The ledger asks its data set's account before it charges more than was set aside.
    """
    if path.exists():
        ledger = Ledger.open(path)
    else:
        _require_remembered(path, None)
        files.new_folder(path.parent)
        ledger = Ledger.create(path, **asdict(promise))
    try:
        _require_remembered(path, ledger)
        bound = Binding.of(path)
    except BaseException:
        ledger.close()
        raise
    if bound is None:
        return ledger
    if bound.run != promise.run.partition(".")[0]:
        ledger.close()
        raise ValueError(
            f"{path} counts in the account of data set {bound.account.data!r} as run {bound.run[:12]!r}, which was "
            f"greeted here since, and this is {promise}; start the run again, each in a folder of its own: {REMEDY}"
        )
    ledger.limiter = Reservation(bound.account, bound.run)
    return ledger


def _require_same(path: Path, ledger: Ledger, promise: Promise) -> None:
    """Refuse a ledger that accounts for something else than this run's guarantee."""
    stored = Promise(
        ledger.run,
        ledger.budget,
        ledger.delta,
        ledger.accountant,
        ledger.nominal,
        ledger.groups,
        ledger.mechanism,
        ledger.relation,
    )
    close = math.isclose(stored.epsilon, promise.epsilon, rel_tol=_SAME_EPSILON)
    if not close or replace(stored, epsilon=promise.epsilon) != promise:
        raise ValueError(
            f"{path} accounts for another run, or this one under other settings: it holds {stored} for "
            f"{', '.join(ledger.groups)}, and this is {promise} for {', '.join(promise.groups)}. "
            f"Give every run a folder of its own: {REMEDY}"
        )


def _require_remembered(path: Path, ledger: Ledger | None) -> None:
    """Refuse a ledger that lacks the row remembered beside it, or is gone."""
    head, beside = Head.remembered(path), Head.file_beside(path).name
    if head is None:
        return
    if ledger is None:
        raise LedgerReplaced(
            f"{path} is gone, but {beside} remembers its release {head.sequence}; put the ledger back, nothing "
            "more may be released without it"
        )
    ledger.require(head, beside)


FIRST, LAST = 1, 2
"""The first of an attempt's two exchanges, after which nothing can be released yet; and the last, or the only one."""

_KEY = "attempts"
_PATIENCE = 60.0  # seconds that a process of a node waits for another that writes the same log


class AlreadyAnswered(ValueError):
    """This attempt was answered before: a server that asks again has forgotten what it released."""


class Answered:
    """The attempts of one run that a node has answered: in a file, or in what the node keeps between messages."""

    def __init__(self, path: Path | None, memory: MutableMapping[str, Any]) -> None:
        self._path, self._memory = path, memory

    @classmethod
    def of(cls, node_config: Mapping[str, Any], client: int, run: str, memory: MutableMapping[str, Any]) -> Answered:
        """The attempts answered by a node (named by its first client) in a run; a real node needs a folder for them."""
        if is_simulated(node_config):
            return cls(None, memory)
        twice = "and after its next start would answer a restored server for a second time"
        folder = state_folder(node_config, client, f"to write down what it answers, {twice}")
        name = f"answered-{client}-{hashlib.sha256(run.encode()).hexdigest()[:16]}.log"
        return cls(folder / name, memory)

    @property
    def file(self) -> Path | None:
        """The file that is there from the first answer on; None for a simulated node."""
        return self._path

    def note(self, exchange: AnyExchange, round_: int, attempt: int) -> None:
        """Write down, once, that an exchange of an attempt is answered; on the disk before the answer leaves."""
        if self._path is None:
            before = bytes(self._memory.get(_KEY, b""))
            self._memory[_KEY] = before + _line(before, exchange, round_, attempt)
            return
        try:
            files.new_folder(self._path.parent)
            with files.locked(self._path.with_suffix(".lock"), _PATIENCE), files.opened(self._path, "a+b") as file:
                file.seek(0)
                file.write(_line(file.read(), exchange, round_, attempt))
                file.flush()
                files.sync(self._path)
        except OSError as fault:
            raise RuntimeError(
                f"this node cannot write down what it has answered ({fault.strerror}), and answers nothing without; "
                "its operator must make its state folder writable"
            ) from None

    def all(self) -> NDArray[np.int64]:
        """All answered exchanges, (A, 3): round, attempt, and `FIRST` or `LAST`."""
        lines = re.findall(rb"^(\d+) (\d+) ([12])$", self._content(), flags=re.MULTILINE)
        return np.array(lines, dtype=np.int64).reshape(-1, 3)

    def _content(self) -> bytes:
        if self._path is None:
            return bytes(self._memory.get(_KEY, b""))
        return self._path.read_bytes() if self._path.exists() else b""


def _line(before: bytes, exchange: AnyExchange, round_: int, attempt: int) -> bytes:
    """The line to append for an exchange; raises `AlreadyAnswered` if it, or a later one of the attempt, is there."""
    stage = FIRST if exchange.followed else LAST
    for other in range(stage, LAST + 1):
        line = b"%d %d %d\n" % (round_, attempt, other)
        if before.startswith(line) or b"\n" + line in before:
            raise AlreadyAnswered(
                f"round {round_}, attempt {attempt} was answered by this node before; it answers every attempt once. A "
                "server whose folder was put back from a backup must be resumed with what clients remember"
            )
    cut_short = b"\n" if before and not before.endswith(b"\n") else b""  # by a machine that died
    return cut_short + b"%d %d %d\n" % (round_, attempt, stage)


KEY_FILE = "records.key"
"""The key of the digests in a state folder: drawn there, for this folder only; neither it nor a digest ever leaves."""
_KEY_BYTES = 32


class OtherRecords(ValueError):
    """A client came back to a run with other records than those that it has answered with."""


def require_same_records(node: Node, node_config: Mapping[str, Any], *, answered: bool) -> None:
    """Refuse records that are not those which this node has `answered` with in its run, row for row and in order.

    Before its first answer they are taken note of instead: what was greeted with, and mended since, is no other file.
    Nothing else detects a file of other persons in groups of the same sizes. The order counts: by it
    `data.held_out_fraction` chooses the records kept out of training. A simulated node reads its records once.

    The digest is written to the state folder, under a key of that folder: a reader of a copy of it without the key
    learns nothing of a record.

    Raises:
        OtherRecords: saying what to do; nothing was charged.
        RuntimeError: if the folder does not take key or digest.
    """
    if is_simulated(node_config):
        return
    client = int(node.clients[0])
    folder = state_folder(node_config, client, "to recognise its records by, after it was started again")
    path = folder / f"records-{client}-{hashlib.sha256(node.run.encode()).hexdigest()[:16]}.digest"
    try:
        files.new_folder(folder)
        digest = keyed_digest(node, _key_in(folder))
        if answered and path.exists():
            if not hmac.compare_digest(path.read_bytes(), digest):
                raise OtherRecords(
                    "this file is not the one that this run began with: other records, other values or another order. "
                    "Put back the file as it was (an export may have replaced it since) and start this client again, "
                    "or take part in the next run; nothing was charged"
                )
        elif not path.exists() or path.read_bytes() != digest:
            files.replace(path, digest)
    except OSError as fault:
        raise RuntimeError(
            f"this node cannot write down by what it will recognise its records ({fault.strerror}); its operator must "
            "make its state folder writable"
        ) from None


def keyed_digest(node: Node, key: bytes) -> bytes:
    """BLAKE2b under a key of all that a node read: every value of every record, those kept out of training, too."""
    if node.digest is None:
        total = hashlib.blake2b(key=key, digest_size=_KEY_BYTES)
        held_out = None if node.held_out is None else node.held_out.records
        for records in (node.records, held_out):
            parts: tuple[Tensor | None, ...] = (None,)
            if records is not None:
                parts = (records.features, records.sensitive, records.target, records.ids, records.unit)
            for values in parts:
                about = b"-" if values is None else f"{values.dtype} {tuple(values.shape)}".encode()
                total.update(len(about).to_bytes(8) + about)
                if values is not None:
                    total.update(values.contiguous().numpy().data.cast("B"))
        node.digest = total.digest()
    return node.digest


def _key_in(folder: Path) -> bytes:
    """The folder's key, drawn now if it has none; one that is there is never replaced."""
    path = folder / KEY_FILE
    if not path.exists():
        draft = path.with_name(f"{KEY_FILE}-{secrets.token_hex(8)}")
        with files.opened(draft, "xb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        files.sync(draft)
        try:
            path.hardlink_to(draft)  # whole or not there; of two processes one is first
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_bytes()
