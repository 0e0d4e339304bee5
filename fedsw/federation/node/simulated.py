"""Nodes of who wrote the experiment, not of somebody with limits of his own; other records for audits of their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from fedsw.data import Records

ANY_MODULE = "*"
"""The `modules` of a node of `fedsw deploy local`."""
_OF_A_SIMULATION = frozenset({"partition-id", "num-partitions", "state-dir"})


def is_simulated(node_config: Mapping[str, Any]) -> bool:
    """Whether a node is one of a simulation: its configuration says its number and no more."""
    return set(node_config) <= _OF_A_SIMULATION


def of_one_person(node_config: Mapping[str, Any]) -> bool:
    """Whether whoever wrote the experiment started this node: in a simulation, or by `fedsw deploy local`."""
    return is_simulated(node_config) or node_config.get("modules") == ANY_MODULE


_substitutes: Records | None = None


@contextmanager
def substituted(records: Records) -> Iterator[None]:
    """Nodes that this process loads inside the context hold these records in place of those with the same ids.

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
    """The records with those whose ids are among the substitutes replaced by them, each by one of its group."""
    order = torch.argsort(substitutes.ids)
    ids = substitutes.ids[order]
    place = torch.searchsorted(ids, records.ids).clamp(max=len(ids) - 1)
    hit = ids[place] == records.ids
    rows = order[place[hit]]
    if not torch.equal(records.sensitive[hit], substitutes.sensitive[rows]):
        raise ValueError("a substitute is of another group than the record in its place; groups are public and fixed")
    features, target = records.features.clone(), records.target.clone()
    features[hit], target[hit] = substitutes.features[rows], substitutes.target[rows]
    return Records(features, records.sensitive, target, records.ids, unit=records.unit)
