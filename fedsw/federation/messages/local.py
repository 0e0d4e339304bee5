"""Messages of the local trust models: a client sends noised values only, with the epsilon that it has spent."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Broadcast, BroadcastValues, Values
from fedsw.federation.messages.codec import Exchange, Message
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
from fedsw.federation.messages.fields import NOISED, PUBLIC, Wholes
from fedsw.federation.messages.terms import OWN_DIRECTIONS, WITH_TABLES

BatchSizes = Annotated[
    tuple[int, ...],
    Wholes(
        "sizes",
        PUBLIC,
        "records by cell of the whole federation's batch; a client counts at least its own",
        limits=FROM_ZERO,
        length="c",
    ),
]
SlotMeans = Annotated[
    Broadcast | None,
    BroadcastValues(
        "tables",
        NOISED,
        "slot means that the server made of the summed noised histograms; a client clamps them",
        record="arrays",
        shape=("c", "k", "B"),
        when=WITH_TABLES,
    ),
]


class Release(Message):
    """The fields that every release of a client has: what it cost. The base of the classes below."""

    nonce = "metrics"

    epsilon: Spent


class Noised(Release):
    """One array that a client has noised itself; what it holds is said by the classes derived from this."""

    values: Tensor
    sigma: Sigma


class TableAsked(Message):
    """`local-gradient`, first exchange of an attempt."""

    theta: Theta
    round: Round
    attempt: Attempt
    sizes: BatchSizes
    records: Federation
    prepared: Prepared = None


class NoisedTable(Noised):
    """Noised histograms of a fresh secret batch's outputs."""

    values: Annotated[
        Tensor,
        Values(
            "noised",
            NOISED,
            "histograms of the batch's outputs along every direction; 0 in cells without a record (public)",
            shape=("c", "k", "B"),
            finite=True,
        ),
    ]


TABLES = Exchange(
    "train.tables",
    TableAsked,
    NoisedTable,
    "first of an attempt: noised histograms of a fresh sample; there is none without a penalty",
)


class LocalGradientAsked(Message):
    """`local-gradient`, second exchange of an attempt; the only one without a penalty."""

    theta: Theta
    tables: SlotMeans
    round: Round
    attempt: Attempt
    sizes: BatchSizes
    records: Federation
    prepared: Prepared = None


class NoisedContribution(Noised):
    """The same batch's noised contribution."""

    values: Annotated[Tensor, Values("noised", NOISED, "clipped contribution of the batch", shape=("r",), finite=True)]


LOCAL_GRADIENTS = Exchange(
    "train.local_gradients",
    LocalGradientAsked,
    NoisedContribution,
    "second of an attempt: the noised contribution of the same sample",
)


class SlicesAsked(Message):
    """`local-slices`: slices of a fresh secret batch, or once of all records."""

    round: Round
    attempt: Attempt
    records: Federation
    theta: ThetaIfUsed


class NoisedSlices(Release):
    """Noised random projections of features."""

    projections: Annotated[
        Tensor,
        Values(
            "projections",
            NOISED,
            "projections of the batch's features on the directions, in random order",
            shape=("n", "k"),
            finite=True,
        ),
    ]
    directions: Annotated[
        Tensor | None,
        Values(
            "directions",
            PUBLIC,
            "the client's own draw of directions; elsewhere they are the attempt's public ones",
            shape=("d", "k"),
            precision="float64",
            finite=True,
            when=OWN_DIRECTIONS,
        ),
    ]
    sigma: Sigma


SLICES = Exchange("train.slices", SlicesAsked, NoisedSlices, "every round, or once: noised random slices of features")


class ReleaseAsked(Message):
    """`local-release`: all records, once."""

    round: Round
    attempt: Attempt
    records: Federation


class ReleasedRecords(Release):
    """All of a client's records, privatised."""

    released: Annotated[
        Tensor, Values("released", NOISED, "privatised records, in the released space", shape=("N", "d"), finite=True)
    ]


RELEASE = Exchange("train.release", ReleaseAsked, ReleasedRecords, "once: privatised records")
