"""Messages of the trust models `sketch` and `sketch-local`: a sum over all records, once, exact or noised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Broadcast, BroadcastValues, Values, WholeValues
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.common import AskedClients, Attempt, Federation, LostClients, Round, Sigma
from fedsw.federation.messages.fields import Limits, Seen
from fedsw.federation.messages.local import Release
from fedsw.federation.messages.terms import WITH_STAGES

_STEPS = Limits(-(2**53), 2**53)
"""Sums of whole steps beyond it are not exact, and no number of records that is taken makes them."""


Learnt = Annotated[
    Broadcast | None,
    BroadcastValues(
        record="model",
        name="classifier",
        seen=Seen.RELEASED,
        about="weights of the classifier that a later stage looks through, of the declared architecture, or 1 for each "
        "pair of columns that it measures; zeros in the first. Whatever they are, what is made of a record is bounded "
        "at the client",
        shape=("z",),
        precision="float64",
        when=WITH_STAGES,
    ),
]


@dataclass(frozen=True, eq=False)
class SumOfRecordsAsked(Message):
    """`sketch`: the sum over all records of some of the node's clients; the round is the stage."""

    nonce = "config"

    round: Round
    attempt: Attempt
    asked: AskedClients
    learnt: Learnt


@dataclass(frozen=True, eq=False)
class SumOfRecords(Message):
    """`sketch`: the sum over the asked clients' records, without noise, in whole steps of 2^-26."""

    steps: Annotated[
        Tensor,
        WholeValues(
            record="arrays",
            name="steps",
            seen=Seen.SECRET,
            about="cosines and sines of all records by cell, and their counts, in whole steps; counts and lengths are "
            "checked against the number of records",
            shape=("q", "w"),
            limits=_STEPS,
        ),
    ]
    lost: LostClients


@dataclass(frozen=True, eq=False)
class SketchAsked(Message):
    """`sketch-local`: a sketch of all records, once a stage; the round is the stage."""

    round: Round
    attempt: Attempt
    records: Federation
    learnt: Learnt


@dataclass(frozen=True, eq=False)
class NoisySketch(Release):
    """`sketch-local`: a client's own sketch, noised by itself."""

    values: Annotated[
        Tensor,
        Values(
            record="arrays",
            name="noised",
            seen=Seen.NOISED,
            about="sums of the client's records by cell, and their counts, noised",
            shape=("q", "w"),
            precision="float64",
            finite=True,
        ),
    ]
    sigma: Sigma
