"""The first messages to a client, and its answers: the same under every trust model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedsw.federation.messages.arrays import RecordIds, WholeValues
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.common import FROM_ZERO, MOST_RECORDS, SpentBefore
from fedsw.federation.messages.fields import Limits, Seen, Text
from fedsw.federation.messages.terms import HELD_OUT_RELEASED, SEEDED
from fedsw.runs.files import RUN_NAME

MOST_OF_SETTINGS = 2**22
"""Letters of an experiment: thousands of declared columns fit."""

_NOTHING = torch.zeros((0, 3), dtype=torch.int64)

Settings = Annotated[
    str,
    Text(record="config", name="experiment", seen=Seen.PUBLIC, about="the experiment, as JSON", most=MOST_OF_SETTINGS),
]
RunName = Annotated[
    str,
    Text(
        record="config",
        name="run",
        seen=Seen.PUBLIC,
        about="name of the run; stays when it is resumed",
        most=32,
        pattern=RUN_NAME,
        form="32 hexadecimal digits",
    ),
]
Clients = Annotated[
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


@dataclass(frozen=True, eq=False)
class SizesAsked(Message):
    """The message before the greeting where the experiment leaves settings to `training.preset`."""

    experiment: Settings
    run: RunName


@dataclass(frozen=True, eq=False)
class Sizes(Message):
    """What the rules of a preset read of a node's records, which are loaded and validated."""

    clients: Clients
    by_group: Annotated[
        Tensor,
        WholeValues(
            record="arrays",
            name="by group",
            seen=Seen.PUBLIC,
            about="each client's records by group that are trained on",
            shape=("S", "g"),
            limits=Limits(0, MOST_RECORDS),
        ),
    ]


@dataclass(frozen=True, eq=False)
class Greeting(Message):
    """The first message to every node; also sent to one that was away, to learn whether it is back."""

    experiment: Settings
    run: RunName


@dataclass(frozen=True, eq=False)
class Joined(Message):
    """A node that has loaded and validated the records of its clients: of one, or of many if it is a site."""

    clients: Clients
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
    answered: Annotated[
        Tensor,
        WholeValues(
            record="arrays",
            name="answered",
            seen=Seen.PUBLIC,
            about="what the node has answered in this run before: round, attempt, and 2 for an attempt's last exchange "
            "or 1 for one before it",
            shape=("A", "e"),
            limits=FROM_ZERO,
        ),
    ] = _NOTHING
