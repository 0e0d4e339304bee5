"""Messages of the local trust models: a client sends noised values only, with the epsilon that it has spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Broadcast, BroadcastValues, Values
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.common import (
    FROM_ZERO,
    Attempt,
    Federation,
    Prepared,
    Round,
    Sigma,
    Spent,
    Theta,
    ThetaIfUsed,
)
from fedsw.federation.messages.fields import Seen, Wholes
from fedsw.federation.messages.terms import OWN_DIRECTIONS, WITH_TABLES

BatchSizes = Annotated[
    tuple[int, ...],
    Wholes(
        record="config",
        name="sizes",
        seen=Seen.PUBLIC,
        about="records by cell of the whole federation's batch; a client counts at least its own",
        limits=FROM_ZERO,
        length="c",
    ),
]


SlotMeans = Annotated[
    Broadcast | None,
    BroadcastValues(
        record="arrays",
        name="tables",
        seen=Seen.NOISED,
        about="slot means that the server made of the summed noised histograms; a client clamps them",
        shape=("c", "k", "B"),
        when=WITH_TABLES,
    ),
]


@dataclass(frozen=True, eq=False)
class TableAsked(Message):
    """`local-gradient`, first exchange of an attempt."""

    theta: Theta
    round: Round
    attempt: Attempt
    sizes: BatchSizes
    records: Federation
    prepared: Prepared = None


@dataclass(frozen=True, eq=False)
class LocalGradientAsked(Message):
    """`local-gradient`, second exchange of an attempt; the only one without a penalty."""

    theta: Theta
    tables: SlotMeans
    round: Round
    attempt: Attempt
    sizes: BatchSizes
    records: Federation
    prepared: Prepared = None


@dataclass(frozen=True, eq=False)
class Release(Message):
    """The fields that every release of a client has: what it cost. The base of the classes below."""

    nonce = "metrics"

    epsilon: Spent


@dataclass(frozen=True, eq=False)
class NoisedTable(Release):
    """Noised histograms of a fresh secret batch's outputs."""

    values: Annotated[
        Tensor,
        Values(
            record="arrays",
            name="noised",
            seen=Seen.NOISED,
            about="histograms of the batch's outputs along every direction; 0 in cells without a record (public)",
            shape=("c", "k", "B"),
            finite=True,
        ),
    ]
    sigma: Sigma


@dataclass(frozen=True, eq=False)
class NoisedContribution(Release):
    """The same batch's noised contribution."""

    values: Annotated[
        Tensor,
        Values(
            record="arrays",
            name="noised",
            seen=Seen.NOISED,
            about="clipped contribution of the batch",
            shape=("r",),
            finite=True,
        ),
    ]
    sigma: Sigma


@dataclass(frozen=True, eq=False)
class SlicesAsked(Message):
    """`local-slices`: slices of a fresh secret batch, or once of all records."""

    round: Round
    attempt: Attempt
    records: Federation
    theta: ThetaIfUsed


@dataclass(frozen=True, eq=False)
class NoisedSlices(Release):
    """Noised random projections of features."""

    projections: Annotated[
        Tensor,
        Values(
            record="arrays",
            name="projections",
            seen=Seen.NOISED,
            about="projections of the batch's features on the directions, in random order",
            shape=("n", "k"),
            finite=True,
        ),
    ]
    directions: Annotated[
        Tensor | None,
        Values(
            record="arrays",
            name="directions",
            seen=Seen.PUBLIC,
            about="the client's own draw of directions; elsewhere they are the attempt's public ones",
            shape=("d", "k"),
            precision="float64",
            finite=True,
            when=OWN_DIRECTIONS,
        ),
    ]
    sigma: Sigma


@dataclass(frozen=True, eq=False)
class ReleaseAsked(Message):
    """`local-release`: all records, once."""

    round: Round
    attempt: Attempt
    records: Federation


@dataclass(frozen=True, eq=False)
class ReleasedRecords(Release):
    """All of a client's records, privatised."""

    released: Annotated[
        Tensor,
        Values(
            record="arrays",
            name="released",
            seen=Seen.NOISED,
            about="privatised records, in the released space",
            shape=("N", "d"),
            finite=True,
        ),
    ]
