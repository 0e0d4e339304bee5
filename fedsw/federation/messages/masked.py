"""Messages of masked sums: everything that goes down is the same for all sites, and every site signs it by its mask."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Broadcast, BroadcastValues, WholeValues
from fedsw.federation.messages.codec import Exchange, Message
from fedsw.federation.messages.common import FROM_ZERO, Attempt, Prepared, Round, SpentBefore, Theta
from fedsw.federation.messages.fields import NOISED, PUBLIC, Limits, Text, Whole
from fedsw.federation.messages.sums import BeforeRounds, Learnt
from fedsw.federation.messages.terms import Condition

_MOST_OF_A_COHORT = 2**24
"""Letters: a hundred thousand clients fit."""

Sites = Annotated[
    str,
    Text(
        "cohort",
        PUBLIC,
        "all sites in the sum: key, nonce, clients and their records by cell, and the federation's records; JSON",
        most=_MOST_OF_A_COHORT,
    ),
]
SlotMeansOfAll = Annotated[
    Broadcast | None,
    BroadcastValues(
        "tables",
        NOISED,
        "slot means that the server made of the masked sum of all tables, in its order; a client clamps them",
        record="arrays",
        shape=("x",),
        when=Condition("with a penalty", lambda task: task.objective.alpha > 0),
    ),
]


def _digits(name: str, about: str) -> Text:
    """A field of 64 hexadecimal digits, which anybody may see."""
    return Text(name, PUBLIC, about, most=64, pattern="[0-9a-f]{64}", form="64 hexadecimal digits")


class ReadyAsked(Message):
    """Before an attempt's masked sums."""

    round: Annotated[int, Whole("round", PUBLIC, "number of the round; 0 before the first one", limits=FROM_ZERO)]
    attempt: Attempt


class Ready(Message):
    """A site that can be asked: its public key, and a nonce that it never had before."""

    key: Annotated[str, _digits("key", "the site's public key; the others know it from their rosters")]
    fresh: Annotated[str, _digits("fresh", "the site's nonce of this attempt")]


READY = Exchange(
    "query.ready",
    ReadyAsked,
    Ready,
    "before an attempt's masked sums: who is there, with a fresh nonce; nothing is drawn or charged",
)


class MaskedNumbers(Message):
    """A site's part of a masked sum: uniform numbers to whoever has not those of all other sites."""

    values: Annotated[
        Tensor,
        WholeValues(
            "masked",
            NOISED,
            "the site's vector with its share of noise, in steps of the common grid, and its mask, mod 2^64",
            shape=("y",),
            limits=Limits(-(2**63), 2**63 - 1),
        ),
    ]
    epsilon: SpentBefore


class MaskedTableAsked(Message):
    """First masked sum of an attempt: histograms of a fresh sample."""

    theta: Theta
    round: Round
    attempt: Attempt
    cohort: Sites
    prepared: Prepared = None


MASKED_TABLES = Exchange(
    "train.masked_tables",
    MaskedTableAsked,
    MaskedNumbers,
    "first masked sum of an attempt: histograms of a fresh sample; there is none without a penalty",
)


class MaskedSumAsked(Message):
    """Second masked sum of an attempt, or the only one: contributions of the same sample."""

    theta: Theta
    tables: SlotMeansOfAll
    round: Round
    attempt: Attempt
    cohort: Sites
    prepared: Prepared = None


MASKED_SUM = Exchange(
    "train.masked_sum",
    MaskedSumAsked,
    MaskedNumbers,
    "second masked sum of an attempt, or the only one: the contribution of the same sample",
)


class MaskedSketchAsked(Message):
    """The masked sum of a stage of a sketch, over all records; the round is the stage."""

    round: Round
    attempt: Attempt
    learnt: Learnt
    cohort: Sites


MASKED_SKETCH = Exchange(
    "train.masked_sketch",
    MaskedSketchAsked,
    MaskedNumbers,
    "of tasks that learn from a sketch, once a stage: the masked sum over all records",
)


class MaskedMomentsAsked(Message):
    """The masked sum of the moments of all records, once, before the first round."""

    round: BeforeRounds
    attempt: Attempt
    cohort: Sites


MASKED_MOMENTS = Exchange(
    "train.masked_moments",
    MaskedMomentsAsked,
    MaskedNumbers,
    "once, before the first round, with `privacy.moments`: the masked sum over all records",
)


class MaskedTallyAsked(Message):
    """The masked sum over all kept records, once, after the last round, under the released model."""

    theta: Theta
    round: Round
    attempt: Attempt
    cohort: Sites


MASKED_TALLY = Exchange(
    "evaluate.masked_tally",
    MaskedTallyAsked,
    MaskedNumbers,
    'once, after the last round, with `data.held_out_to = "everybody"`: the masked sum over the records that were kept '
    "out of training",
)
