"""Messages of masked sums: everything that goes down is the same for all sites, and every site signs it by its mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Broadcast, BroadcastValues, WholeValues
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.common import FROM_ZERO, Attempt, Prepared, Round, SpentBefore, Theta
from fedsw.federation.messages.fields import Limits, Seen, Text, Whole
from fedsw.federation.messages.sums import BeforeRounds, Learnt
from fedsw.federation.messages.terms import Condition

_MOST_OF_A_COHORT = 2**24
"""Letters: a hundred thousand clients fit."""

Sites = Annotated[
    str,
    Text(
        record="config",
        name="cohort",
        seen=Seen.PUBLIC,
        about="all sites in the sum: key, nonce, clients and their records by cell, and the federation's records; JSON",
        most=_MOST_OF_A_COHORT,
    ),
]


SlotMeans = Annotated[
    Broadcast | None,
    BroadcastValues(
        record="arrays",
        name="tables",
        seen=Seen.NOISED,
        about="slot means that the server made of the masked sum of all tables, in its order; a client clamps them",
        shape=("x",),
        when=Condition("with a penalty", lambda task: task.objective.alpha > 0),
    ),
]


def _digits(name: str, about: str) -> Text:
    """A field of 64 hexadecimal digits, which anybody may see."""
    return Text(
        record="config",
        name=name,
        seen=Seen.PUBLIC,
        about=about,
        most=64,
        pattern="[0-9a-f]{64}",
        form="64 hexadecimal digits",
    )


@dataclass(frozen=True, eq=False)
class ReadyAsked(Message):
    """Before an attempt's masked sums."""

    round: Annotated[
        int,
        Whole(
            record="config",
            name="round",
            seen=Seen.PUBLIC,
            about="number of the round; 0 before the first one",
            limits=FROM_ZERO,
        ),
    ]
    attempt: Attempt


@dataclass(frozen=True, eq=False)
class Ready(Message):
    """A site that can be asked: its public key, and a nonce that it never had before."""

    key: Annotated[str, _digits("key", "the site's public key; the others know it from their rosters")]
    fresh: Annotated[str, _digits("fresh", "the site's nonce of this attempt")]


@dataclass(frozen=True, eq=False)
class MaskedTableAsked(Message):
    """First masked sum of an attempt: histograms of a fresh sample."""

    theta: Theta
    round: Round
    attempt: Attempt
    cohort: Sites
    prepared: Prepared = None


@dataclass(frozen=True, eq=False)
class MaskedSumAsked(Message):
    """Second masked sum of an attempt, or the only one: contributions of the same sample."""

    theta: Theta
    tables: SlotMeans
    round: Round
    attempt: Attempt
    cohort: Sites
    prepared: Prepared = None


@dataclass(frozen=True, eq=False)
class MaskedSketchAsked(Message):
    """The masked sum of a stage of a sketch, over all records; the round is the stage."""

    round: Round
    attempt: Attempt
    learnt: Learnt
    cohort: Sites


@dataclass(frozen=True, eq=False)
class MaskedMomentsAsked(Message):
    """The masked sum of the moments of all records, once, before the first round."""

    round: BeforeRounds
    attempt: Attempt
    cohort: Sites


@dataclass(frozen=True, eq=False)
class MaskedTallyAsked(Message):
    """The masked sum over all kept records, once, after the last round, under the released model."""

    theta: Theta
    round: Round
    attempt: Attempt
    cohort: Sites


@dataclass(frozen=True, eq=False)
class MaskedNumbers(Message):
    """A site's part of a masked sum: uniform numbers to whoever has not those of all other sites."""

    values: Annotated[
        Tensor,
        WholeValues(
            record="arrays",
            name="masked",
            seen=Seen.NOISED,
            about="the site's vector with its share of noise, in steps of the common grid, and its mask, mod 2^64",
            shape=("y",),
            limits=Limits(-(2**63), 2**63 - 1),
        ),
    ]
    epsilon: SpentBefore
