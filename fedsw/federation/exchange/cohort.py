"""Who takes part: nodes, their public group sizes, and who is online when a round begins."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedsw.errors import FederationError
from fedsw.federation import messages
from fedsw.federation.exchange.exchange import Fault, Request, Traffic, exchange
from fedsw.federation.messages import MOST_RECORDS, Joined, Malformed, Terms
from fedsw.tasks.problem import Problem

_POLL_SECONDS = 0.2


@dataclass(frozen=True, eq=False)
class Member:
    """One client: its node, its place in the client order, its records per cell, and (seeded runs) their ids.

    `spent` is the epsilon that its own ledger had spent at the greeting; None where it has no ledger.
    """

    node: int
    client: int
    sizes: tuple[int, ...]
    ids: tuple[NDArray[np.int64], ...] | None
    spent: float | None


def gather(grid: Grid, task: Problem, run: str, traffic: Traffic) -> tuple[Member, ...]:
    """Wait for the asked number of nodes, greet them, and return them in client order.

    Every client loads and validates its records here, before anything is spent.

    Raises:
        FederationError: if too few nodes come within the time limit, or a client refuses (with its reason).
    """
    settings = task.experiment.federation
    nodes = _wait_for_nodes(grid, settings.clients, settings.timeout)
    requests = [Request(node, greeting(task, run)) for node in nodes]
    replies = exchange(grid, messages.HELLO.kind, requests, group="hello", timeout=settings.timeout, traffic=traffic)
    members = []
    for node, reply in replies.items():
        if isinstance(reply, Fault):
            raise FederationError(f"a client could not join: {reply.reason}")
        members.append(member_of(node, reply, task))
    members.sort(key=lambda member: member.client)
    clients = [member.client for member in members]
    if len(set(clients)) != len(clients):
        raise FederationError(f"two nodes claim the same partition-id: {clients}; give each node its own")
    _refuse_empty(task, members)
    _refuse_crowds(task, members)
    return tuple(members)


def greeting(task: Problem, run: str) -> RecordDict:
    """The first message to every client: the experiment, and the run's name, which stays when it is resumed."""
    experiment = task.experiment.model_dump_json(exclude={"metrics"})  # the server's own, which no client imports
    return messages.encode(messages.Greeting(experiment, run), Terms.of(task))


def online(grid: Grid, members: Sequence[Member]) -> tuple[Member, ...]:
    """The members that are available now; settled before a round's counts are drawn."""
    present = set(grid.get_node_ids())
    return tuple(member for member in members if member.node in present)


def too_few(round_: int, left: int, members: int, least: int) -> str:
    """The message of a round with too few clients; it is safe to write down."""
    return f"round {round_}: {left} of {members} clients are left, fewer than the {least} of federation.min_clients"


def _wait_for_nodes(grid: Grid, wanted: int, timeout: float) -> list[int]:
    deadline = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < wanted:
        if time.monotonic() >= deadline:
            raise FederationError(
                f"{len(nodes)} of {wanted} clients are online after {timeout:g} s; start the others, "
                "or lower federation.clients"
            )
        time.sleep(_POLL_SECONDS)
    return nodes[:wanted]


def member_of(node: int, reply: RecordDict, task: Problem) -> Member:
    """The client behind a greeting's reply.

    Raises:
        FederationError: if the reply is no client's of this experiment, by the client's number if it has one.
    """
    terms = Terms.of(task)
    try:
        joined = messages.decode(Joined, reply, terms)
    except Malformed as fault:
        raise FederationError(_unreadable(reply, task, terms, fault)) from None
    ids = None if joined.ids is None else tuple(cell.numpy() for cell in joined.ids)
    return Member(node, joined.client, joined.sizes, ids, joined.epsilon)


def _unreadable(reply: RecordDict, task: Problem, terms: Terms, fault: Malformed) -> str:
    """What is wrong with a greeting's reply, and what to do."""
    try:
        client = messages.decode_one(Joined, "client", reply, terms)
    except Malformed:
        return f"a client's greeting is unreadable: {fault}"
    cells, value = task.objective.cells, fault.value
    if fault.name == "sizes" and isinstance(value, list):
        if len(value) != len(cells):
            return f"client {client} reports sizes {tuple(value)} for the groups {cells}"
        for cell, size in zip(cells, value, strict=True):
            if isinstance(size, int) and size > MOST_RECORDS:
                return (
                    f"client {client} states {size} records of group {cell}; a federation holds at most {MOST_RECORDS} "
                    "of one, for each of which a round draws a key. Remove this client, or mend what it states"
                )
    if fault.name == "record ids" and isinstance(value, int):
        return (
            f"client {client} has a record id {value}; a seeded run draws a key for every id up to the largest, and "
            f"takes ids from 0 to {MOST_RECORDS - 1}. Mend them, or leave seed out"
        )
    if fault.name == "epsilon":
        return f"client {client} does not say what its ledger has spent: {fault}"
    return f"client {client}'s greeting is unreadable: {fault}"


def _refuse_crowds(task: Problem, members: Sequence[Member]) -> None:
    for cell, name in enumerate(task.objective.cells):
        total = sum(member.sizes[cell] for member in members)
        if total > MOST_RECORDS:
            most = max(members, key=lambda member: member.sizes[cell])
            raise FederationError(
                f"{len(members)} clients state {total} records of group {name} together, client {most.client} the most "
                f"({most.sizes[cell]}); a federation holds at most {MOST_RECORDS} of one, for each of which a round "
                "draws a key. Give it fewer clients or records"
            )


def _refuse_empty(task: Problem, members: Sequence[Member]) -> None:
    for cell, name in enumerate(task.objective.cells):
        if sum(member.sizes[cell] for member in members) == 0:
            raise FederationError(
                f"group {name} is empty: none of the {len(members)} clients holds a record of it; "
                "a distance between groups needs both. Add clients that hold it, or choose other groups"
            )
    for member in members:
        if sum(member.sizes) == 0:
            raise FederationError(f"client {member.client} holds no record at all; remove it or give it data")
