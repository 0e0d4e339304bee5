"""Messages after the last round: what the records that clients kept out of training add up to, exact or noised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Values, WholeValues
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.common import AskedClients, Attempt, Federation, LostClients, Round, Sigma, Theta
from fedsw.federation.messages.fields import Limits, Seen
from fedsw.federation.messages.local import Release

_STEPS = Limits(0, 2**53)
"""Sums of whole steps beyond it are not exact."""


@dataclass(frozen=True, eq=False)
class TallyAsked(Message):
    """The sums over kept records of some of the node's clients, under the released model."""

    nonce = "config"

    theta: Theta
    round: Round
    attempt: Attempt
    asked: AskedClients


@dataclass(frozen=True, eq=False)
class ExactTally(Message):
    """The sums over the asked clients' kept records, without noise, in whole steps of 2^-26."""

    steps: Annotated[
        Tensor,
        WholeValues(
            record="arrays",
            name="steps",
            seen=Seen.SECRET,
            about="counts and sums over kept records by group, in whole steps; checked against their number",
            shape=("g", "t"),
            limits=_STEPS,
        ),
    ]
    lost: LostClients


@dataclass(frozen=True, eq=False)
class NoisyTallyAsked(Message):
    """`local-gradient`: the sums over a client's kept records, once."""

    theta: Theta
    round: Round
    attempt: Attempt
    records: Federation


@dataclass(frozen=True, eq=False)
class NoisyTally(Release):
    """`local-gradient`: a client's sums over its kept records, noised by itself."""

    values: Annotated[
        Tensor,
        Values(
            record="arrays",
            name="noised",
            seen=Seen.NOISED,
            about="counts and sums over the client's kept records by group, noised",
            shape=("g", "t"),
            precision="float64",
            finite=True,
        ),
    ]
    sigma: Sigma
