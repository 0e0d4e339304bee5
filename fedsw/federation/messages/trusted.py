"""Messages of the trust models `central` and `none`: un-noised outputs up, cotangents down, contributions up."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Values, WholeValues
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.common import FROM_ZERO, Attempt, Prepared, Round, Theta
from fedsw.federation.messages.fields import Limits, Real, Seen, Whole
from fedsw.federation.messages.terms import UNSAFE

_MOST = 1e100  # of an un-noised loss or count: products and sums stay finite


Counts = Annotated[
    Tensor,
    WholeValues(
        record="arrays",
        name="counts",
        seen=Seen.SECRET,
        about="records of every client and cell to draw; with `stratified` sampling they are public",
        shape=("S", "c"),
        limits=FROM_ZERO,
    ),
]
TaskWeight = Annotated[
    float,
    Real(
        record="config",
        name="task-weight",
        seen=Seen.PUBLIC,
        about="weight of every record's loss gradient",
        limits=Limits(0.0, sys.float_info.max),
    ),
]


@dataclass(frozen=True, eq=False)
class OutputsAsked(Message):
    """First exchange of an attempt: which sample to draw, and the model to run on it."""

    nonce = "config"

    theta: Theta
    round: Round
    attempt: Attempt
    counts: Counts
    rows: Annotated[
        int,
        Whole(record="config", name="rows", seen=Seen.PUBLIC, about="the length P of this attempt", limits=FROM_ZERO),
    ]
    prepared: Prepared = None


@dataclass(frozen=True, eq=False)
class Outputs(Message):
    """The sample's outputs, projected on the ball of radius M, by cell, client after client."""

    outputs: Annotated[
        Tensor,
        Values(
            record="arrays",
            name="outputs",
            seen=Seen.SECRET,
            about="outputs of the sample, by cell; the server projects them again",
            shape=("P", "d"),
            filled=True,
        ),
    ]


@dataclass(frozen=True, eq=False)
class GradientsAsked(Message):
    """Second exchange of an attempt: the cotangents of the same sample's outputs."""

    nonce = "config"

    theta: Theta
    cotangents: Annotated[
        Tensor,
        Values(
            record="arrays",
            name="cotangents",
            seen=Seen.SECRET,
            about="one row for each of the outputs; un-noised functions of other clients' outputs too",
            shape=("P", "d"),
            precision="float64",
            filled=True,
        ),
    ]
    round: Round
    attempt: Attempt
    task_weight: TaskWeight
    prepared: Prepared = None


@dataclass(frozen=True, eq=False)
class SumAsked(Message):
    """The only exchange of an attempt without a penalty: which sample to draw, and the model to run on it."""

    nonce = "config"

    theta: Theta
    round: Round
    attempt: Attempt
    counts: Counts
    task_weight: TaskWeight
    prepared: Prepared = None


@dataclass(frozen=True, eq=False)
class Contribution(Message):
    """The same sample's clipped contribution: the sum over the node's clients."""

    nonce = "metrics"

    vector: Annotated[
        Tensor,
        Values(
            record="arrays",
            name="contribution",
            seen=Seen.SECRET,
            about="sum of clipped Jacobian^T cotangent and weighted clipped loss gradient; its norm is checked",
            shape=("r",),
            precision="float64",
        ),
    ]
    lost: Annotated[
        Tensor,
        WholeValues(
            record="arrays",
            name="lost",
            seen=Seen.PUBLIC,
            about="positions of the node's clients that were lost since the first exchange; the sum is without their "
            "rows",
            shape=("L",),
            limits=FROM_ZERO,
        ),
    ]
    training_loss: Annotated[
        float | None,
        Real(
            record="metrics",
            name="training-loss",
            seen=Seen.SECRET,
            about="mean loss of the sample",
            limits=Limits(-_MOST, _MOST),
            when=UNSAFE,
            spare=True,
        ),
    ]
    records: Annotated[
        float | None,
        Real(
            record="metrics",
            name="num-examples",
            seen=Seen.SECRET,
            about="records of the sample",
            limits=Limits(0.0, _MOST),
            when=UNSAFE,
            spare=True,
        ),
    ]
