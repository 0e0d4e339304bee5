"""The first message to a client, and its answer: the same under every trust model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import RecordIds, WholeValues
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.common import FROM_ZERO, MOST_RECORDS, SpentBefore
from fedsw.federation.messages.fields import Limits, Seen, Text
from fedsw.federation.messages.terms import HELD_OUT_RELEASED, SEEDED


@dataclass(frozen=True, eq=False)
class Greeting(Message):
    """The first message to every node; also sent to one that was away, to learn whether it is back."""

    experiment: Annotated[
        str, Text(record="config", name="experiment", seen=Seen.PUBLIC, about="the experiment, as JSON")
    ]
    run: Annotated[
        str,
        Text(record="config", name="run", seen=Seen.PUBLIC, about="name of the run; stays when it is resumed"),
    ]


@dataclass(frozen=True, eq=False)
class Joined(Message):
    """A node that has loaded and validated the records of its clients: of one, or of many if it is a site."""

    clients: Annotated[
        Tensor,
        WholeValues(
            record="arrays",
            name="clients",
            seen=Seen.PUBLIC,
            about="the places of the node's clients in the client order, ascending",
            shape=("S",),
            limits=FROM_ZERO,
            length="S",
        ),
    ]
    sizes: Annotated[
        Tensor,
        WholeValues(
            record="arrays",
            name="sizes",
            seen=Seen.PUBLIC,
            about="each client's records by cell",
            shape=("S", "c"),
            limits=Limits(0),
            totals="N",
        ),
    ]
    epsilon: SpentBefore
    ids: Annotated[
        tuple[Tensor, ...] | None,
        RecordIds(
            record="arrays",
            name="record ids",
            seen=Seen.PUBLIC,
            about="numbers of the clients' records, client after client; a run that sends them is called nominal",
            shape=("N",),
            limits=Limits(0, MOST_RECORDS - 1),
            when=SEEDED,
        ),
    ]
    kept: Annotated[
        Tensor | None,
        WholeValues(
            record="arrays",
            name="kept",
            seen=Seen.PUBLIC,
            about="each client's records by group that are kept out of training",
            shape=("S", "g"),
            limits=Limits(0),
            when=HELD_OUT_RELEASED,
        ),
    ] = None
