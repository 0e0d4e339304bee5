"""Messages before the first round: the moments of all records, exact or noised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Values, WholeValues
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.common import AskedClients, Attempt, Federation, LostClients, Sigma
from fedsw.federation.messages.fields import Limits, Seen, Whole
from fedsw.federation.messages.local import Release

_STEPS = Limits(-(2**53), 2**53)
"""Sums of whole steps beyond it are not exact."""

BeforeRounds = Annotated[
    int,
    Whole(
        record="config",
        name="round",
        seen=Seen.PUBLIC,
        about="0: before the first round of training",
        limits=Limits(0, 0),
    ),
]


@dataclass(frozen=True, eq=False)
class MomentsAsked(Message):
    """The moments of all records of some of the node's clients."""

    nonce = "config"

    round: BeforeRounds
    attempt: Attempt
    asked: AskedClients


@dataclass(frozen=True, eq=False)
class ExactMoments(Message):
    """The moments of all records of the asked clients, without noise, in whole steps."""

    steps: Annotated[
        Tensor,
        WholeValues(
            record="arrays",
            name="steps",
            seen=Seen.SECRET,
            about="sums over all records by cell, in whole steps; checked against their number",
            shape=("c", "u"),
            limits=_STEPS,
        ),
    ]
    lost: LostClients


@dataclass(frozen=True, eq=False)
class NoisyMomentsAsked(Message):
    """`local-gradient`: the moments of a client's records, once."""

    round: BeforeRounds
    attempt: Attempt
    records: Federation


@dataclass(frozen=True, eq=False)
class NoisyMoments(Release):
    """`local-gradient`: a client's moments, noised by itself."""

    values: Annotated[
        Tensor,
        Values(
            record="arrays",
            name="noised",
            seen=Seen.NOISED,
            about="sums over the client's records by cell, noised",
            shape=("c", "u"),
            precision="float64",
            finite=True,
        ),
    ]
    sigma: Sigma
