"""The first message to a client, and its answer: the same under every trust model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import RecordIds
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.common import FROM_ZERO, MOST_RECORDS, SpentBefore
from fedsw.federation.messages.fields import Limits, Seen, Text, Whole, Wholes
from fedsw.federation.messages.terms import SEEDED


@dataclass(frozen=True, eq=False)
class Greeting(Message):
    """The first message to every client; also sent to one that was away, to learn whether it is back."""

    experiment: Annotated[
        str, Text(record="config", name="experiment", seen=Seen.PUBLIC, about="the experiment, as JSON")
    ]
    run: Annotated[
        str,
        Text(record="config", name="run", seen=Seen.PUBLIC, about="name of the run; stays when it is resumed"),
    ]


@dataclass(frozen=True, eq=False)
class Joined(Message):
    """A client that has loaded and validated its records."""

    nonce = "metrics"

    client: Annotated[
        int,
        Whole(
            record="metrics",
            name="partition-id",
            seen=Seen.PUBLIC,
            about="the client's place in the client order",
            limits=FROM_ZERO,
        ),
    ]
    sizes: Annotated[
        tuple[int, ...],
        Wholes(
            record="metrics",
            name="sizes",
            seen=Seen.PUBLIC,
            about="the client's records by cell",
            limits=Limits(0, MOST_RECORDS),
            length="c",
            binds="N",
        ),
    ]
    epsilon: SpentBefore
    ids: Annotated[
        tuple[Tensor, ...] | None,
        RecordIds(
            record="arrays",
            name="record ids",
            seen=Seen.PUBLIC,
            about="numbers of the client's records; a run in which they are sent is called nominal",
            shape=("N",),
            precision="int64",
            limits=Limits(0, MOST_RECORDS - 1),
            when=SEEDED,
        ),
    ]
