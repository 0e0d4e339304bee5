"""Messages of the trust models `central` and `none`: un-noised outputs up, cotangents down, contributions up."""

from __future__ import annotations

import sys
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages._lengths import UNSAFE
from fedsw.federation.messages.arrays import ArrayField
from fedsw.federation.messages.codec import Exchange, Message
from fedsw.federation.messages.common import FROM_ZERO, AskedUnderModel, Lost, Prepared
from fedsw.federation.messages.fields import PUBLIC, SECRET, Limits, NumberField

_MOST = 1e100  # of an un-noised loss or count: products and sums stay finite

Counts = Annotated[
    Tensor,
    "records of every client and cell to draw; with `stratified` sampling they are public",
    ArrayField("counts", SECRET, "S c", "int64", FROM_ZERO),
]
TaskWeight = Annotated[
    float,
    "weight of every record's loss gradient",
    NumberField("task-weight", PUBLIC, Limits(0.0, sys.float_info.max), kind=float),
]


class OutputsAsked(AskedUnderModel):
    """First of an attempt: the outputs of a fresh sample."""

    nonce = "config"

    counts: Counts
    rows: Annotated[int, "the length P of this attempt", NumberField("rows", PUBLIC, FROM_ZERO)]
    prepared: Prepared = None


class Outputs(Message):
    """The sample's outputs, projected on the ball of radius M, by cell, client after client."""

    outputs: Annotated[
        Tensor,
        "outputs of the sample, by cell; the server projects them again",
        ArrayField("outputs", SECRET, "P d", filled=True),
    ]


class GradientsAsked(AskedUnderModel):
    """Second of an attempt, where something private passes through the parameters: the sample's contribution."""

    nonce = "config"

    cotangents: Annotated[
        Tensor,
        "one row for each of the outputs; un-noised functions of other clients' outputs too",
        ArrayField("cotangents", SECRET, "P d", "float64", filled=True),
    ]
    task_weight: TaskWeight
    prepared: Prepared = None


class Contribution(Message):
    """The same sample's clipped contribution: the sum over the node's clients."""

    nonce = "metrics"

    vector: Annotated[
        Tensor,
        "sum of clipped Jacobian^T cotangent and weighted clipped loss gradient; its norm is checked",
        ArrayField("contribution", SECRET, "r", "float64"),
    ]
    lost: Lost
    training_loss: Annotated[
        float | None,
        "mean loss of the sample",
        NumberField(
            "training-loss", SECRET, Limits(-_MOST, _MOST), record="metrics", kind=float, when=UNSAFE, spare=True
        ),
    ]
    records: Annotated[
        float | None,
        "records of the sample",
        NumberField("num-examples", SECRET, Limits(0.0, _MOST), record="metrics", kind=float, when=UNSAFE, spare=True),
    ]


class SumAsked(AskedUnderModel):
    """The only one of an attempt with `objective.alpha = 0`, as no outputs are compared: a sample's contribution."""

    nonce = "config"

    counts: Counts
    task_weight: TaskWeight
    prepared: Prepared = None


OUTPUTS = Exchange("train.outputs", OutputsAsked, Outputs, followed=True)
GRADIENTS = Exchange("train.gradients", GradientsAsked, Contribution)
SUM = Exchange("train.sum", SumAsked, Contribution)
