"""What a client releases when it is asked by nobody else: paid for from a ledger of its own, then released."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsw.federation.messages.table import ReleaseAsked, ReleasedRecords, SlicesAsked
from fedsw.federation.node.node import Node
from fedsw.federation.node.replies import Due, paid_together
from fedsw.federation.trust.local_gradient import noising as gradients
from fedsw.federation.trust.local_release.released_records import release_due, released_records
from fedsw.federation.trust.local_slices.noised_slices import noised_slices, slices_due
from fedsw.federation.trust.sums_once import Sum, own_due, own_release
from fedsw.mathematics.transport.flow import Slices
from fedsw.privacy.release import Paid, Released


def paid(due: Due) -> Paid:
    """The payment, or what keeps a client from it."""
    (found,) = paid_together([due])
    if isinstance(found, Exception):
        raise found
    return found


def summed(total: Sum, node: Node, place: Path, round_: int, attempt: int, federation: int) -> Released:
    """A sum of a client's own."""
    payment = paid(own_due(total, node, place, round_, attempt, federation))
    return own_release(total, node, round_, attempt, federation, payment)


def records(node: Node, place: Path, round_: int, attempt: int, federation: int) -> ReleasedRecords:
    """All of a client's records, privatised."""
    asked = ReleaseAsked(round_, attempt, federation)
    return released_records(node, asked, paid(release_due(node, asked, place)))


def slices(node: Node, place: Path, theta: Tensor, round_: int, attempt: int, federation: int) -> Slices:
    """Slices of a batch."""
    payment = paid(slices_due(node, SlicesAsked(round_, attempt, federation, None), place))
    return noised_slices(node, theta, round_, attempt, node.delta(federation), payment)


def table(
    node: Node, place: Path, theta: Tensor, request: gradients.Request, state: MutableMapping[str, Any]
) -> Released:
    """A client's noised table."""
    return _only(gradients.noised_tables(node, {0: place}, theta, request, state))


def contribution(
    node: Node,
    place: Path,
    theta: Tensor,
    request: gradients.Request,
    means: Tensor | None,
    state: MutableMapping[str, Any],
) -> Released:
    """Its noised contribution."""
    return _only(gradients.noised_contributions(node, {0: place}, theta, request, means, state))


def _only(found: gradients.Found) -> Released:
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]
