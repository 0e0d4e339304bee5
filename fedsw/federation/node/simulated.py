"""Simulated nodes, told apart from nodes that an operator set up; and substitute records for audits."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fedsw._tools.later import torch
from fedsw.data import Records

ANY_MODULE = "*"
"""The `modules` of a node of `fedsw deploy local`; it counts where the engine that started the process says so, too."""
SHARED = "*"
"""The data set's name on nodes that the experiment's author started: the one that the experiment gives."""
ONE_PERSON = "FEDSW_ONE_PERSON"
"""The environment variable by which `fedsw deploy local` tells the processes of its nodes that it started them."""
_OF_A_SIMULATION = frozenset({"partition-id", "num-partitions", "state-dir"})
_simulating: ContextVar[bool] = ContextVar("simulating", default=False)


@contextmanager
def simulating() -> Iterator[None]:
    """Say, as an engine, that nodes which this thread answers for inside the block are simulated."""
    token = _simulating.set(True)
    try:
        yield
    finally:
        _simulating.reset(token)


def is_simulated(node_config: Mapping[str, Any]) -> bool:
    """True for a node of a simulation: an engine says so, and its configuration holds its number and no more.

    The configuration alone is not enough: that of a SuperNode that was started by hand may hold as little. Taken
    for a simulated one it would use masks that the server knows, and run any module that an experiment names.
    """
    return (_simulating.get() or _is_ray_worker()) and set(node_config) <= _OF_A_SIMULATION


def of_one_person(node_config: Mapping[str, Any]) -> bool:
    """True if the experiment's author started this node: in a simulation, or by `fedsw deploy local`."""
    local = node_config.get("modules") == ANY_MODULE and os.environ.get(ONE_PERSON) == "1"
    return local or is_simulated(node_config)


def _is_ray_worker() -> bool:
    """True in a worker process of Ray, where Flower's simulation engine runs its clients; no SuperNode runs in one.

    Ray is there already in such a process, and is not imported elsewhere.
    """
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


_substitutes: Records | None = None


@contextmanager
def substituted(records: Records) -> Iterator[None]:
    """Give nodes that are loaded inside the block these records in place of those with the same ids.

    Sampling, clipping, ledgers and noise are those of any run. Only code that runs in the client's own process gets
    here: no message of a server, no setting of an experiment and no configuration of a node leads to it.
    """
    global _substitutes
    if _substitutes is not None:
        raise RuntimeError("records are being substituted already; end that first")
    _substitutes = records
    try:
        yield
    finally:
        _substitutes = None


def with_substitutes(records: Records) -> Records:
    """A node's records with the substitutes in place; the same object outside a substitution."""
    if _substitutes is None:
        return records
    return exchanged(records, _substitutes)


def exchanged(records: Records, substitutes: Records) -> Records:
    """The records, with those of the substitutes' ids replaced by them, each by one of its group."""
    order = torch.argsort(substitutes.ids)
    ids = substitutes.ids[order]
    positions = torch.searchsorted(ids, records.ids).clamp(max=len(ids) - 1)
    hit = ids[positions] == records.ids
    rows = order[positions[hit]]
    if not torch.equal(records.sensitive[hit], substitutes.sensitive[rows]):
        raise ValueError("a substitute is of another group than the record in its place; groups are public and fixed")
    features, target = records.features.clone(), records.target.clone()
    features[hit], target[hit] = substitutes.features[rows], substitutes.target[rows]
    return Records(features, records.sensitive, target, records.ids, unit=records.unit)
