"""Participants: nodes, their clients, the public group sizes of these, and which are online when a round begins."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedsw._tools.installed import code_digest
from fedsw._tools.settings import FederationError
from fedsw.experiment.sections import Federation
from fedsw.federation import messages, wire
from fedsw.federation.exchange.exchange import Traffic, exchange
from fedsw.federation.exchange.roll import Roll
from fedsw.federation.messages import MOST_RECORDS, Fault, Malformed, Message, Terms
from fedsw.federation.messages.table import Greeting, Joined, Sizes, SizesAsked
from fedsw.learning.tasks.problem import Problem

Counts = NDArray[np.int64]
_Read = TypeVar("_Read")
_POLL_SECONDS = 0.2
_REMEDY = (
    "ask the others' operators, or take their keys away; with federation.refusals='lost' a run begins without them "
    "once federation.min_clients are there"
)
_MOST_FORGOTTEN = 10_000
"""Attempts of a round that a folder put back from a backup may have forgotten."""


@dataclass(frozen=True, eq=False)
class Site:
    """A node and its clients, one or many: places in the client order (S,), ascending, and records by cell (S, c).

    Attributes:
        ids: of all records by cell, client after client (seeded runs only).
        spent: the epsilon that each client's own ledger had spent at the greeting, (S,); None if they have none.
        held_out: records per group that are kept out of training, (S, groups); None if nothing of them is released.
        answered: what the node has answered in this run before (`Joined`), (A, 3).
    """

    node: int
    clients: Counts
    sizes: Counts
    ids: tuple[Counts, ...] | None
    spent: NDArray[np.float64] | None
    held_out: Counts | None = None
    answered: Counts = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))

    @property
    def members(self) -> tuple[Member, ...]:
        """Its clients one by one."""
        return tuple(self.member(position) for position in range(len(self.clients)))

    def member(self, position: int) -> Member:
        """The client at a position."""
        return Member(self.node, int(self.clients[position]), position, tuple(self.sizes[position].tolist()))


@dataclass(frozen=True)
class Member:
    """One client: its node, its place in the client order and among its node's clients, its records per cell."""

    node: int
    client: int
    position: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Present:
    """A site in a round, and which of its clients can be asked, (S,)."""

    site: Site
    here: NDArray[np.bool_]

    @functools.cached_property
    def sizes(self) -> Counts:
        """Records per cell of each client that is here, 0 of the others, (S, c)."""
        return self.site.sizes if bool(self.here.all()) else self.site.sizes * self.here[:, None]

    @property
    def count(self) -> int:
        """Number of its clients that can be asked."""
        return int(self.here.sum())

    def ids(self, cell: int) -> Counts:
        """Ids of the cell's records, client after client, of the clients that are here; for a seeded run."""
        assert self.site.ids is not None
        return self.site.ids[cell][np.repeat(self.here, self.site.sizes[:, cell])]


def whole(sites: Sequence[Site]) -> tuple[Present, ...]:
    """Sites with all of their clients."""
    return tuple(Present(site, np.ones(len(site.clients), dtype=bool)) for site in sites)


def clients_of(present: Sequence[Present]) -> int:
    """Number of clients that can be asked."""
    return sum(site.count for site in present)


def totals(present: Sequence[Present]) -> tuple[int, ...]:
    """Records per cell of all clients that are here."""
    return tuple(int(total) for total in sum(site.sizes.sum(axis=0) for site in present))


def gather(
    grid: Grid,
    task: Problem,
    run: str,
    traffic: Traffic,
    *,
    known: Mapping[int, int] | None = None,
    roll: Roll | None = None,
) -> tuple[tuple[Site, ...], list[str]]:
    """Wait for the asked number of nodes, greet them, and return them in client order.

    Every node loads and validates the records of its clients here, before anything is spent. All are asked before
    anything is raised. One with an unreadable answer, or that does not answer, or that claims to have answered what it
    cannot have, is lost for the run, by name; the run begins with the others if they are enough. One that refuses is
    lost so, too, where `federation.refusals` says it.

    For a resumed run, `known` has the next attempt of each round; `roll` is the run's roll call. Returns the sites, and
    sentences on those lost.

    Raises:
        FederationError: if too few nodes come within the time limit, fewer clients than `federation.min_clients` are
            left, or clients refuse (all of them, with their reasons).
    """
    settings, roll = task.experiment.federation, roll or Roll(grid, run)
    requests = {node: greeting(task, run) for node in _wait_for_nodes(grid, settings, roll)}
    replies = exchange(grid, messages.HELLO.kind, requests, group="hello", timeout=settings.timeout, traffic=traffic)

    def read(node: int, reply: RecordDict) -> Site:
        site = site_of(node, reply, task)
        _refuse_invented(site, task, known)
        return site

    sites, lost = _understood(replies, read, settings, roll)
    sites, lost = _without_rivals(sites, lost, roll)
    _require_enough(sum(len(site.clients) for site in sites), settings, lost)
    sites.sort(key=lambda site: int(site.clients[0]))
    count, wanted = sum(len(site.clients) for site in sites), task.experiment.federation.clients
    if count > wanted or (not lost and count < wanted):
        raise FederationError(
            f"{len(sites)} nodes hold {count} clients together; federation.clients is {wanted}. Start every "
            "node with the same num-partitions, which is the number of nodes (federation.sites)"
        )
    _refuse_sizes(task, sites)
    for site in sites:
        roll.mark(site.node, "greeted")
    return tuple(sites), lost


def public_sizes(grid: Grid, task: Problem, run: str, traffic: Traffic, roll: Roll | None = None) -> dict[str, int]:
    """Wait for the asked number of nodes and ask them how many records of every group they train on, all together.

    Every node loads and validates the records of its clients here; nothing is spent. Raises as `gather`.
    """
    settings, terms = task.experiment.federation, Terms.of(task, g=len(task.groups))
    roll = roll or Roll(grid, run)
    request = messages.encode(SizesAsked(_as_sent(task), run), terms)
    requests = dict.fromkeys(_wait_for_nodes(grid, settings, roll), request)
    replies = exchange(grid, messages.SIZES.kind, requests, group="sizes", timeout=settings.timeout, traffic=traffic)

    def read(node: int, reply: RecordDict) -> Sizes:
        try:
            return messages.decode(Sizes, reply, terms)
        except Malformed as fault:
            raise FederationError(f"{_who(Sizes, reply, terms)}'s sizes are unreadable: {fault}") from None

    sizes, lost = _understood(replies, read, settings, roll)
    _require_enough(sum(len(answer.clients) for answer in sizes), settings, lost)
    by_group = sum(
        (answer.by_group.numpy().sum(axis=0) for answer in sizes), np.zeros(len(task.groups), dtype=np.int64)
    )
    if not by_group.any():
        raise FederationError("the clients hold no record at all; give them data")
    return dict(zip(task.groups, by_group.tolist(), strict=True))


def _understood(
    replies: Mapping[int, RecordDict | Fault],
    read: Callable[[int, RecordDict], _Read],
    settings: Federation,
    roll: Roll,
) -> tuple[list[_Read], list[str]]:
    """Split replies into those that can be read and reasons why others cannot, each by its client's name.

    Refusals are raised, all in one error with other lost clients, unless `settings` count them as lost.
    """
    answers, lost, refused, alone = list[_Read](), list[str](), list[str](), len(replies) == 1
    for node, reply in replies.items():
        if isinstance(reply, Fault):
            refuses = reply.code in (wire.APP_ABSENT, wire.APP_RAISED)
            why = f"{roll.name(node, alone=alone, answers=refuses)} could not join: {reply.reason}"
            (refused if refuses else lost).append(why)
            roll.mark(node, "refused" if refuses else "silent", reply.reason)
            continue
        try:
            answers.append(read(node, reply))
        except FederationError as fault:
            lost.append(str(fault))
            roll.mark(node, "not taken", str(fault))
    if refused and settings.refusals == "stop":
        remedy = "" if alone else f". {len(answers)} of {len(replies)} did not refuse; {_REMEDY}"
        raise FederationError("; ".join([*refused, *lost]) + remedy)
    return answers, [*refused, *lost]


def _require_enough(clients: int, settings: Federation, lost: Sequence[str]) -> None:
    """Refuse to begin if a client was lost and too few are left."""
    least = settings.min_clients or settings.clients
    if lost and clients < least:
        left = f"{clients} of {settings.clients} clients are left, fewer than the {least} of federation.min_clients"
        raise FederationError("; ".join(lost) if settings.min_clients is None else f"{left}: {'; '.join(lost)}")


def greeting(task: Problem, run: str) -> RecordDict:
    """The first message to every node: the experiment, and the run's name, which stays when it is resumed."""
    return messages.encode(Greeting(_as_sent(task), run), Terms.of(task))


def _as_sent(task: Problem) -> str:
    """The experiment as clients get it: without the server's own metrics, which no client imports."""
    return task.experiment.model_dump_json(exclude={"metrics"})


def _wait_for_nodes(grid: Grid, settings: Federation, roll: Roll) -> list[int]:
    """The nodes to greet, once as many as are asked for are online; each is called as it comes."""
    wanted, what = (settings.sites, "sites") if settings.sites else (settings.clients, "clients")
    deadline = time.monotonic() + settings.timeout
    while True:
        nodes = sorted(grid.get_node_ids())
        roll.see(nodes)
        if len(nodes) >= wanted:
            break
        if time.monotonic() >= deadline:
            keys = roll.keys()
            absent = sorted(set(keys.values()) - {keys.get(node) for node in nodes})
            missing = f" (not there: {', '.join(absent)})" if absent else ""
            raise FederationError(
                f"{len(nodes)} of {wanted} {what} are online after {settings.timeout:g} s; start the others{missing}, "
                f"or lower federation.{what}"
            )
        time.sleep(_POLL_SECONDS)
    roll.settle()
    return nodes[:wanted]


def site_of(node: int, reply: RecordDict, task: Problem) -> Site:
    """The site behind a greeting's reply; FederationError if it is not a node's of this experiment."""
    terms = Terms.of(task)
    try:
        joined = messages.decode(Joined, reply, terms)
    except Malformed as fault:
        who = _who(Joined, reply, terms)
        why = f"{who}'s greeting is unreadable: {fault}"
        if fault.name == "epsilon":
            why = f"{who} does not say what its ledger has spent: {fault}"
        elif fault.name == "record ids" and isinstance(fault.value, int):
            why = (
                f"{who} has a record id {fault.value}; a seeded run draws a key for every id up to the largest, and "
                f"takes ids from 0 to {MOST_RECORDS - 1}. Mend them, or leave seed out"
            )
        raise FederationError(why) from None
    clients, sizes = joined.clients.numpy(), joined.sizes.numpy()
    if len(clients) == 0 or bool((np.diff(clients) <= 0).any()):
        raise FederationError("a node's greeting names its clients not once each, in ascending order")
    if bool((beyond := sizes > MOST_RECORDS).any()):
        position, cell = (int(index) for index in np.argwhere(beyond)[0])
        raise FederationError(
            f"client {clients[position]} states {sizes[position, cell]} records of group {task.objective.cells[cell]}; "
            f"a federation holds at most {MOST_RECORDS} of one, for each of which a round draws a key. Remove this "
            "client, or mend what it states"
        )
    ids = None if joined.ids is None else tuple(cell.numpy() for cell in joined.ids)
    spent = None if joined.epsilon is None else joined.epsilon.numpy()
    held_out = None if joined.kept is None else joined.kept.numpy()
    federation, model = task.experiment.federation, task.experiment.privacy.model
    if (federation.code or model.sites_code) == "same" and joined.code != code_digest():
        raise FederationError(
            f"client {clients[0]}'s fedsw has the code {joined.code or '(it states none)'}, and this server's has "
            f"{code_digest()}: install the same on both, or set federation.code to 'any' and have the clients' "
            "operators allow it (--code)"
        )
    return Site(node, clients, sizes, ids, spent, held_out, joined.answered.numpy())


def _refuse_invented(site: Site, task: Problem, known: Mapping[int, int] | None) -> None:
    """Refuse a node that claims to have answered attempts which were never asked: it would exhaust their numbers."""
    who = f"client {site.clients[0]}" if len(site.clients) == 1 else f"the node of client {site.clients[0]}"
    if known is None and len(site.answered):
        raise FederationError(f"{who} says that it has answered in this run before, and this run is new")
    planned = max(task.experiment.training.rounds, task.experiment.stages)
    last = planned + 2  # after them come kept records, and then scores
    for round_, attempt, _ in site.answered.tolist():
        if round_ > last:
            raise FederationError(f"{who} says that it has answered in round {round_} of a run of {planned}")
        if attempt >= (known or {}).get(round_, 0) + _MOST_FORGOTTEN:
            raise FederationError(
                f"{who} says that it has answered attempt {attempt} of round {round_}, {_MOST_FORGOTTEN} or more "
                "beyond the last one that this run's folder has"
            )


def _who(kind: type[Message], reply: RecordDict, terms: Terms) -> str:
    """Sender of a reply that cannot be read, as far as the reply says."""
    try:
        clients = messages.decode_one(kind, "clients", reply, terms)
        return f"client {int(clients[0])}" if len(clients) == 1 else f"the node of client {int(clients[0])}"
    except (Malformed, IndexError):
        return "a client"


def _without_rivals(sites: Sequence[Site], lost: Sequence[str], roll: Roll) -> tuple[list[Site], list[str]]:
    """Drop all sites that claim the same client as another one: it is unknown which of them has it."""
    times = Counter(int(client) for site in sites for client in site.clients)
    twice = sorted(client for client, count in times.items() if count > 1)
    if not twice:
        return list(sites), list(lost)
    why = f"two nodes claim the same partition-id: clients {twice[:10]}; give each node its own"
    alone = list[Site]()
    for site in sites:
        if np.isin(site.clients, twice).any():
            roll.mark(site.node, "not taken", why)
        else:
            alone.append(site)
    return alone, [*lost, why]


def _refuse_sizes(task: Problem, sites: Sequence[Site]) -> None:
    """Refuse groups without a record, or with more than a federation holds, and clients without one."""
    clients, sizes = (np.concatenate(parts) for parts in zip(*((s.clients, s.sizes) for s in sites), strict=True))
    # Where each record is kept out by itself, and how many are is secret, a client's may all be: none may tell.
    all_kept = task.experiment.privacy.hides_sizes and task.experiment.data.held_out_fraction > 0
    for name, held in zip(task.objective.cells, sizes.T, strict=True):
        total = int(held.sum())
        if total == 0 and not all_kept:
            raise FederationError(
                f"group {name} is empty: none of the {len(clients)} clients holds a record "
                "of it; a distance between groups needs both. Add clients that hold it, or choose other groups"
            )
        if total > MOST_RECORDS:
            raise FederationError(
                f"{len(clients)} clients state {total} records of group {name} together, "
                f"client {clients[held.argmax()]} the most ({held.max()}); a federation holds at most "
                f"{MOST_RECORDS} of one, for each of which a round draws a key. Give it fewer clients or records"
            )
    if not all_kept and bool((without := sizes.sum(axis=1) == 0).any()):
        raise FederationError(f"client {clients[without.argmax()]} holds no record at all; remove it or give it data")
