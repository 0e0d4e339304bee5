"""Messages that ask for sums over records, exact, noised or masked: moments, a sketch, what kept records add up to.

Of masked sums, everything that goes down is the same for all sites, and every site signs it by its mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Broadcast, BroadcastValues, Values, WholeValues
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.common import (
    FROM_ZERO,
    AskedClients,
    Attempt,
    Federation,
    LostClients,
    Prepared,
    Round,
    Sigma,
    SpentBefore,
    Theta,
)
from fedsw.federation.messages.fields import Limits, Seen, Text, Whole
from fedsw.federation.messages.local import Release
from fedsw.federation.messages.terms import WITH_STAGES, Condition

_STEPS = Limits(-(2**53), 2**53)
"""Sums of whole steps beyond it are not exact, and no number of records that is taken makes them."""

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


_COUNTED = Limits(0, 2**53)
"""Sums of whole steps beyond it are not exact, and no number of records that is taken makes them."""


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
            limits=_COUNTED,
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


SlotMeansOfAll = Annotated[
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
    tables: SlotMeansOfAll
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
