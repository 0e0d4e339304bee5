"""Fields and limits that several messages have, and the first messages: the same under every trust model."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

import torch
from torch import Tensor

from fedsw._tools.installed import code_digest
from fedsw.experiment.trust import RunGuarantee
from fedsw.federation.messages._lengths import HELD_OUT_RELEASED, OWN_LEDGER, SEEDED, THROUGH_MODEL, WITH_MOMENTS
from fedsw.federation.messages.arrays import ArrayField, Broadcast
from fedsw.federation.messages.codec import Exchange, Message
from fedsw.federation.messages.fields import COUNTED, PUBLIC, RELEASED, Limits, NumberField, Text
from fedsw.runs.run_files import RUN_NAME

MOST_RECORDS = 2**28
"""Records of a group that a federation may hold together: a round draws a key of 8 bytes for each of them, 2 GiB."""
MOST_BELIEVED = 2**40
"""More than any federation has of records, and any run of rounds: what a server that is not trusted may say of them."""
MOST_OF_SETTINGS = 2**22
"""Letters of an experiment: thousands of declared columns fit."""

_LATEST = 2**43  # ms since 1970: the year 2248

FROM_ZERO = Limits(0, MOST_BELIEVED)
DEVIATIONS = Limits(*RunGuarantee.deviations)
FINITE_EPSILON = Limits(*RunGuarantee.epsilons)

_NOTHING = torch.zeros((0, 3), dtype=torch.int64)


def digits(name: str, *, spare: bool = False) -> Text:
    """A field of 64 hexadecimal digits, which is public."""
    return Text(name, PUBLIC, most=64, pattern="[0-9a-f]{64}", form="64 hexadecimal digits", spare=spare)


Round = Annotated[int, "number of the round", NumberField("round", PUBLIC, Limits(1, MOST_BELIEVED))]
Attempt = Annotated[
    int,
    "number of the attempt; no other attempt of the round ever has it",
    NumberField("attempt", PUBLIC, FROM_ZERO),
]
Federation = Annotated[
    int,
    "records of the whole federation, for a delta such as 0.1/n; a client counts at least its own",
    NumberField("records", PUBLIC, FROM_ZERO),
]
Theta = Annotated[Broadcast, "the model, flat", ArrayField("theta", RELEASED, "r", alike=True, record="model")]
ThetaIfUsed = Annotated[
    Broadcast | None,
    "the model, flat",
    ArrayField("theta", RELEASED, "r", alike=True, record="model", when=THROUGH_MODEL),
]
Spent = Annotated[
    float,
    "the epsilon that the client's ledger has spent after this",
    NumberField("epsilon", PUBLIC, FINITE_EPSILON, record="metrics", kind=float, promised="epsilons"),
]
SpentBefore = Annotated[
    Tensor | None,
    "the epsilon that each client's ledger has spent",
    ArrayField("epsilon", PUBLIC, "S", "float64", FINITE_EPSILON, when=OWN_LEDGER),
]
Sigma = Annotated[
    float,
    "standard deviation of the noise of every number",
    NumberField("sigma", PUBLIC, DEVIATIONS, record="metrics", kind=float, promised="deviations"),
]
Prepared = Annotated[
    Broadcast | None,
    "a linear map of features and a scale of clips, made of the released moments",
    ArrayField("preparation", RELEASED, "v", "float64", alike=True, record="prepared", finite=True, when=WITH_MOMENTS),
]


Lost = Annotated[
    Tensor,
    "positions of the node's clients that are lost; the sum is without their records",
    ArrayField("lost", PUBLIC, "L", "int64", FROM_ZERO),
]
RunName = Annotated[
    str,
    "name of the run; stays when it is resumed",
    Text("run", PUBLIC, most=32, pattern=RUN_NAME, form="32 hexadecimal digits"),
]
Code = Annotated[
    str | None,
    "SHA-256 of the files of the fedsw that its sender has installed",
    digits("code", spare=True),
]


class Asked(Message):
    """The base of requests for an attempt."""

    round: Round
    attempt: Attempt


class AskedUnderModel(Message):
    """The base of requests for an attempt under the model that was released last."""

    theta: Theta
    round: Round
    attempt: Attempt


class Greeting(Message):
    """Before the first round, and whenever a client that was away is back."""

    experiment: Annotated[str, "the experiment, as JSON", Text("experiment", PUBLIC, most=MOST_OF_SETTINGS)]
    run: RunName
    code: Code = field(default_factory=code_digest)


class SizesAsked(Greeting):
    """Before the greeting, where `training.preset` has still settings to choose: by these numbers."""


class _OfClients(Message):
    """The base of what a node reports of its clients, with records loaded and validated."""

    clients: Annotated[
        Tensor,
        "the places of the node's clients in the client order, ascending",
        ArrayField("clients", PUBLIC, "S", "int64", FROM_ZERO, length="S"),
    ]


class Sizes(_OfClients):
    """The numbers of a node's records that a preset's rules read."""

    by_group: Annotated[
        Tensor,
        "each client's records by group that are trained on",
        ArrayField("by group", COUNTED, "S g", "int64", Limits(0, MOST_RECORDS)),
    ]


class Joined(_OfClients):
    """A node with clients that can take part: of one, or of many if it is a site."""

    nonce = "config"

    sizes: Annotated[
        Tensor,
        "each client's records by cell",
        ArrayField("sizes", COUNTED, "S c", "int64", Limits(0), totals="N"),
    ]
    epsilon: SpentBefore
    ids: Annotated[
        tuple[Tensor, ...] | None,
        "numbers of the clients' records, client after client; a run that sends them is called nominal",
        ArrayField("record ids", PUBLIC, "N", "int64", Limits(0, MOST_RECORDS - 1), by_cell=True, when=SEEDED),
    ]
    kept: Annotated[
        Tensor | None,
        "each client's records by group that are kept out of training",
        ArrayField("kept", COUNTED, "S g", "int64", Limits(0), when=HELD_OUT_RELEASED),
    ] = None
    answered: Annotated[
        Tensor,
        "what the node has answered in this run before: round, attempt, and 2 for an attempt's last exchange "
        "or 1 for one before it",
        ArrayField("answered", PUBLIC, "A e", "int64", FROM_ZERO),
    ] = _NOTHING
    code: Code = field(default_factory=code_digest)


class RollAsked(Message):
    """When a node on a machine of its own is there, before its greeting and whenever it is back: who is it?"""

    run: RunName


class Here(Message):
    """A node says who it is, before it looks at an experiment or a record."""

    nonce = "config"

    number: Annotated[int, "the node's number, from 0", NumberField("number", PUBLIC, FROM_ZERO)]
    flower: Annotated[
        str,
        "Flower's version",
        Text("flower", PUBLIC, most=40, pattern=r"[0-9A-Za-z.+!-]*", form="a version"),
    ]
    clock: Annotated[int, "the node's time, in ms since 1970", NumberField("clock", PUBLIC, Limits(0, _LATEST))]
    code: Code = field(default_factory=code_digest)


ROLL = Exchange("query.roll", RollAsked, Here)
SIZES = Exchange("query.sizes", SizesAsked, Sizes)
HELLO = Exchange("query.hello", Greeting, Joined)
