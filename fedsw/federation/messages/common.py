"""Fields and limits that several messages have."""

from __future__ import annotations

import sys
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Broadcast, BroadcastValues, Values, WholeValues
from fedsw.federation.messages.fields import Limits, Real, Seen, Whole
from fedsw.federation.messages.terms import OWN_LEDGER, THROUGH_MODEL, WITH_MOMENTS

MOST_RECORDS = 2**28
"""Records of a group that a federation may hold together: a round draws a key of 8 bytes for each of them, 2 GiB."""
MOST_BELIEVED = 2**40
"""More than any federation has of records, and any run of rounds: what a server that is not trusted may say of them."""

FROM_ZERO = Limits(0, MOST_BELIEVED)
DEVIATIONS = Limits(1e-30, 1e30)
"""Standard deviations of noise that are believed: their squares, and those of sums over them, stay finite."""
FINITE_EPSILON = Limits(0.0, sys.float_info.max)
ANY_EPSILON = Limits(0.0)

_THETA = "the model, flat"

Round = Annotated[
    int,
    Whole(
        record="config", name="round", seen=Seen.PUBLIC, about="number of the round", limits=Limits(1, MOST_BELIEVED)
    ),
]
Attempt = Annotated[
    int,
    Whole(
        record="config",
        name="attempt",
        seen=Seen.PUBLIC,
        about="number of the attempt; no other attempt of the round ever has it",
        limits=FROM_ZERO,
    ),
]
Federation = Annotated[
    int,
    Whole(
        record="config",
        name="records",
        seen=Seen.PUBLIC,
        about="records of the whole federation, for a delta such as 0.1/n; a client counts at least its own",
        limits=FROM_ZERO,
    ),
]
Theta = Annotated[
    Broadcast, BroadcastValues(record="model", name="theta", seen=Seen.RELEASED, about=_THETA, shape=("r",))
]
ThetaIfUsed = Annotated[
    Broadcast | None,
    BroadcastValues(record="model", name="theta", seen=Seen.RELEASED, about=_THETA, shape=("r",), when=THROUGH_MODEL),
]
Spent = Annotated[
    float,
    Real(
        record="metrics",
        name="epsilon",
        seen=Seen.PUBLIC,
        about="the epsilon that the client's ledger has spent after this",
        limits=FINITE_EPSILON,
        without_noise=ANY_EPSILON,
    ),
]
SpentBefore = Annotated[
    Tensor | None,
    Values(
        record="arrays",
        name="epsilon",
        seen=Seen.PUBLIC,
        about="the epsilon that each client's ledger has spent",
        shape=("S",),
        precision="float64",
        limits=FINITE_EPSILON,
        when=OWN_LEDGER,
    ),
]
Sigma = Annotated[
    float,
    Real(
        record="metrics",
        name="sigma",
        seen=Seen.PUBLIC,
        about="standard deviation of the noise of every number",
        limits=DEVIATIONS,
        without_noise=Limits(0.0, 0.0),
    ),
]
Prepared = Annotated[
    Broadcast | None,
    BroadcastValues(
        record="prepared",
        name="preparation",
        seen=Seen.RELEASED,
        about="a linear map of features and a scale of clips, made of the released moments",
        shape=("v",),
        precision="float64",
        finite=True,
        when=WITH_MOMENTS,
    ),
]
AskedClients = Annotated[
    Tensor,
    WholeValues(
        record="arrays",
        name="asked",
        seen=Seen.PUBLIC,
        about="whether each of the node's clients is asked: 1 or 0",
        shape=("S",),
        limits=Limits(0, 1),
    ),
]
LostClients = Annotated[
    Tensor,
    WholeValues(
        record="arrays",
        name="lost",
        seen=Seen.PUBLIC,
        about="positions of the node's clients that are lost; the sums are without their records",
        shape=("L",),
        limits=FROM_ZERO,
    ),
]
