"""Messages of the trust models `sketch` and `sketch-local`: a sum over all records, once, exact or noised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Values, WholeValues
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.common import AskedClients, Attempt, Federation, LostClients, Round, Sigma
from fedsw.federation.messages.fields import Limits, Seen
from fedsw.federation.messages.local import Release

_STEPS = Limits(-(2**53), 2**53)
"""Sums of whole steps beyond it are not exact, and no number of records that is taken makes them."""


@dataclass(frozen=True, eq=False)
class SumOfRecordsAsked(Message):
    """`sketch`: the sum over all records of some of the node's clients."""

    nonce = "config"

    round: Round
    attempt: Attempt
    asked: AskedClients


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
    """`sketch-local`: a sketch of all records, once."""

    round: Round
    attempt: Attempt
    records: Federation


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
