"""Other records in place of a node's own, for audits of runs in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedsw.data import Records

_substitutes: Records | None = None


@contextmanager
def substituted(records: Records) -> Iterator[None]:
    """Nodes that this process loads inside the context hold these records in place of those with the same ids.

    Sampling, clipping, ledgers and noise are those of any run. Only code that runs in the client's own process gets
    here: no message of a server, no setting of an experiment and no configuration of a node leads to it. One at a
    time.

    Raises:
        RuntimeError: within another substitution.
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
    """A node's records with the substitutes in place; the same object outside a substitution.

    Raises:
        ValueError: if a substitute has another group than the record that it takes the place of: groups are public.
    """
    if _substitutes is None:
        return records
    return exchanged(records, _substitutes)


def exchanged(records: Records, substitutes: Records) -> Records:
    """The records with those whose ids occur among the substitutes replaced by them, in their places.

    Raises:
        ValueError: if a substitute has another group than the record in its place.
    """
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
