"""Messages of the trust models `central` and `none`: un-noised outputs up, cotangents down, contributions up."""

from __future__ import annotations

import sys
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Values, WholeValues
from fedsw.federation.messages.codec import Exchange, Message
from fedsw.federation.messages.common import FROM_ZERO, Attempt, Prepared, Round, Theta
from fedsw.federation.messages.fields import PUBLIC, SECRET, Limits, Real, Whole
from fedsw.federation.messages.terms import UNSAFE

_MOST = 1e100  # of an un-noised loss or count: products and sums stay finite

Counts = Annotated[
    Tensor,
    WholeValues(
        "counts",
        SECRET,
        "records of every client and cell to draw; with `stratified` sampling they are public",
        shape=("S", "c"),
        limits=FROM_ZERO,
    ),
]
TaskWeight = Annotated[
    float,
    Real(
        "task-weight",
        PUBLIC,
        "weight of every record's loss gradient",
        record="config",
        limits=Limits(0.0, sys.float_info.max),
    ),
]


class OutputsAsked(Message):
    """First exchange of an attempt: which sample to draw, and the model to run on it."""

    nonce = "config"

    theta: Theta
    round: Round
    attempt: Attempt
    counts: Counts
    rows: Annotated[int, Whole("rows", PUBLIC, "the length P of this attempt", limits=FROM_ZERO)]
    prepared: Prepared = None


class Outputs(Message):
    """The sample's outputs, projected on the ball of radius M, by cell, client after client."""

    outputs: Annotated[
        Tensor,
        Values(
            "outputs",
            SECRET,
            "outputs of the sample, by cell; the server projects them again",
            shape=("P", "d"),
            filled=True,
        ),
    ]


OUTPUTS = Exchange("train.outputs", OutputsAsked, Outputs, "first of an attempt: the outputs of a fresh sample")


class GradientsAsked(Message):
    """Second exchange of an attempt: the cotangents of the same sample's outputs."""

    nonce = "config"

    theta: Theta
    cotangents: Annotated[
        Tensor,
        Values(
            "cotangents",
            SECRET,
            "one row for each of the outputs; un-noised functions of other clients' outputs too",
            shape=("P", "d"),
            precision="float64",
            filled=True,
        ),
    ]
    round: Round
    attempt: Attempt
    task_weight: TaskWeight
    prepared: Prepared = None


class Contribution(Message):
    """The same sample's clipped contribution: the sum over the node's clients."""

    nonce = "metrics"

    vector: Annotated[
        Tensor,
        Values(
            "contribution",
            SECRET,
            "sum of clipped Jacobian^T cotangent and weighted clipped loss gradient; its norm is checked",
            shape=("r",),
            precision="float64",
        ),
    ]
    lost: Annotated[
        Tensor,
        WholeValues(
            "lost",
            PUBLIC,
            "positions of the node's clients that were lost since the first exchange; the sum is without their rows",
            shape=("L",),
            limits=FROM_ZERO,
        ),
    ]
    training_loss: Annotated[
        float | None,
        Real("training-loss", SECRET, "mean loss of the sample", limits=Limits(-_MOST, _MOST), when=UNSAFE, spare=True),
    ]
    records: Annotated[
        float | None,
        Real("num-examples", SECRET, "records of the sample", limits=Limits(0.0, _MOST), when=UNSAFE, spare=True),
    ]


GRADIENTS = Exchange(
    "train.gradients",
    GradientsAsked,
    Contribution,
    "second of an attempt: the contribution of the same sample; there is none where nothing private passes through "
    "the parameters",
)


class SumAsked(Message):
    """The only exchange of an attempt without a penalty: which sample to draw, and the model to run on it."""

    nonce = "config"

    theta: Theta
    round: Round
    attempt: Attempt
    counts: Counts
    task_weight: TaskWeight
    prepared: Prepared = None


SUM = Exchange(
    "train.sum",
    SumAsked,
    Contribution,
    "the only one of an attempt with `objective.alpha = 0` between groups, where no outputs are compared: the "
    "contribution of a fresh sample",
)
