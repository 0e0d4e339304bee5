"""Fields and limits that several messages have, and the first messages: the same under every trust model."""

from __future__ import annotations

import sys
from typing import Annotated

import torch
from torch import Tensor

from fedsw.federation.messages.arrays import Broadcast, BroadcastValues, RecordIds, Values, WholeValues
from fedsw.federation.messages.codec import Exchange, Message
from fedsw.federation.messages.fields import PUBLIC, RELEASED, Limits, Real, Text, Whole
from fedsw.federation.messages.terms import HELD_OUT_RELEASED, OWN_LEDGER, SEEDED, THROUGH_MODEL, WITH_MOMENTS
from fedsw.runs.files import RUN_NAME

MOST_RECORDS = 2**28
"""Records of a group that a federation may hold together: a round draws a key of 8 bytes for each of them, 2 GiB."""
MOST_BELIEVED = 2**40
"""More than any federation has of records, and any run of rounds: what a server that is not trusted may say of them."""
MOST_OF_SETTINGS = 2**22
"""Letters of an experiment: thousands of declared columns fit."""

FROM_ZERO = Limits(0, MOST_BELIEVED)
DEVIATIONS = Limits(1e-30, 1e30)
"""Standard deviations of noise that are believed: their squares, and those of sums over them, stay finite."""
FINITE_EPSILON = Limits(0.0, sys.float_info.max)

_NOTHING = torch.zeros((0, 3), dtype=torch.int64)

Round = Annotated[int, Whole("round", PUBLIC, "number of the round", limits=Limits(1, MOST_BELIEVED))]
Attempt = Annotated[
    int, Whole("attempt", PUBLIC, "number of the attempt; no other attempt of the round ever has it", limits=FROM_ZERO)
]
Federation = Annotated[
    int,
    Whole(
        "records",
        PUBLIC,
        "records of the whole federation, for a delta such as 0.1/n; a client counts at least its own",
        limits=FROM_ZERO,
    ),
]
Theta = Annotated[Broadcast, BroadcastValues("theta", RELEASED, "the model, flat", shape=("r",))]
ThetaIfUsed = Annotated[
    Broadcast | None, BroadcastValues("theta", RELEASED, "the model, flat", shape=("r",), when=THROUGH_MODEL)
]
Spent = Annotated[
    float,
    Real(
        "epsilon",
        PUBLIC,
        "the epsilon that the client's ledger has spent after this",
        limits=FINITE_EPSILON,
        without_noise=Limits(0.0),
    ),
]
SpentBefore = Annotated[
    Tensor | None,
    Values(
        "epsilon",
        PUBLIC,
        "the epsilon that each client's ledger has spent",
        shape=("S",),
        precision="float64",
        limits=FINITE_EPSILON,
        when=OWN_LEDGER,
    ),
]
Sigma = Annotated[
    float,
    Real(
        "sigma",
        PUBLIC,
        "standard deviation of the noise of every number",
        limits=DEVIATIONS,
        without_noise=Limits(0.0, 0.0),
    ),
]
Prepared = Annotated[
    Broadcast | None,
    BroadcastValues(
        "preparation",
        RELEASED,
        "a linear map of features and a scale of clips, made of the released moments",
        record="prepared",
        shape=("v",),
        precision="float64",
        finite=True,
        when=WITH_MOMENTS,
    ),
]
Settings = Annotated[str, Text("experiment", PUBLIC, "the experiment, as JSON", most=MOST_OF_SETTINGS)]
RunName = Annotated[
    str,
    Text(
        "run",
        PUBLIC,
        "name of the run; stays when it is resumed",
        most=32,
        pattern=RUN_NAME,
        form="32 hexadecimal digits",
    ),
]
Clients = Annotated[
    Tensor,
    WholeValues(
        "clients",
        PUBLIC,
        "the places of the node's clients in the client order, ascending",
        shape=("S",),
        limits=FROM_ZERO,
        length="S",
    ),
]


class SizesAsked(Message):
    """The message before the greeting where the experiment leaves settings to `training.preset`."""

    experiment: Settings
    run: RunName


class Sizes(Message):
    """What the rules of a preset read of a node's records, which are loaded and validated."""

    clients: Clients
    by_group: Annotated[
        Tensor,
        WholeValues(
            "by group",
            PUBLIC,
            "each client's records by group that are trained on",
            shape=("S", "g"),
            limits=Limits(0, MOST_RECORDS),
        ),
    ]


SIZES = Exchange(
    "query.sizes",
    SizesAsked,
    Sizes,
    "before the greeting, where `training.preset` has still settings to choose: by these numbers",
)


class Greeting(Message):
    """The first message to every node; also sent to one that was away, to learn whether it is back."""

    experiment: Settings
    run: RunName


class Joined(Message):
    """A node that has loaded and validated the records of its clients: of one, or of many if it is a site."""

    clients: Clients
    sizes: Annotated[
        Tensor,
        WholeValues("sizes", PUBLIC, "each client's records by cell", shape=("S", "c"), limits=Limits(0), totals="N"),
    ]
    epsilon: SpentBefore
    ids: Annotated[
        tuple[Tensor, ...] | None,
        RecordIds(
            "record ids",
            PUBLIC,
            "numbers of the clients' records, client after client; a run that sends them is called nominal",
            shape=("N",),
            limits=Limits(0, MOST_RECORDS - 1),
            when=SEEDED,
        ),
    ]
    kept: Annotated[
        Tensor | None,
        WholeValues(
            "kept",
            PUBLIC,
            "each client's records by group that are kept out of training",
            shape=("S", "g"),
            limits=Limits(0),
            when=HELD_OUT_RELEASED,
        ),
    ] = None
    answered: Annotated[
        Tensor,
        WholeValues(
            "answered",
            PUBLIC,
            "what the node has answered in this run before: round, attempt, and 2 for an attempt's last exchange "
            "or 1 for one before it",
            shape=("A", "e"),
            limits=FROM_ZERO,
        ),
    ] = _NOTHING


HELLO = Exchange("query.hello", Greeting, Joined, "before the first round, and whenever a client that was away is back")
