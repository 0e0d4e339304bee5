"""Messages that ask for sums over records, exact or noised: moments, a sketch, what kept records add up to."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedsw.federation.messages.arrays import Broadcast, BroadcastValues, Values, WholeValues
from fedsw.federation.messages.codec import Exchange, Message
from fedsw.federation.messages.common import FROM_ZERO, Attempt, Federation, Round, Theta
from fedsw.federation.messages.fields import NOISED, PUBLIC, RELEASED, SECRET, Limits, Whole
from fedsw.federation.messages.local import Noised
from fedsw.federation.messages.terms import WITH_STAGES

_STEPS = Limits(-(2**53), 2**53)
"""Sums of whole steps beyond it are not exact, and no number of records that is taken makes them."""

BeforeRounds = Annotated[int, Whole("round", PUBLIC, "0: before the first round of training", limits=Limits(0, 0))]
AskedClients = Annotated[
    Tensor,
    WholeValues(
        "asked", PUBLIC, "whether each of the node's clients is asked: 1 or 0", shape=("S",), limits=Limits(0, 1)
    ),
]
Learnt = Annotated[
    Broadcast | None,
    BroadcastValues(
        "classifier",
        RELEASED,
        "weights of the classifier that a later stage looks through, of the declared architecture, or 1 for each "
        "pair of columns that it measures; zeros in the first. Whatever they are, what is made of a record is bounded "
        "at the client",
        shape=("z",),
        precision="float64",
        when=WITH_STAGES,
    ),
]


def _steps(about: str, shape: tuple[str, str], limits: Limits = _STEPS) -> WholeValues:
    """A field of exact sums in whole steps, for a trusted server alone."""
    return WholeValues("steps", SECRET, about, shape=shape, limits=limits)


def _noised(about: str, shape: tuple[str, str]) -> Values:
    """A field of sums that a client has noised itself."""
    return Values("noised", NOISED, about, shape=shape, precision="float64", finite=True)


class ExactSums(Message):
    """Sums over all records of the asked clients, without noise; what they are of is said by the classes below."""

    steps: Tensor
    lost: Annotated[
        Tensor,
        WholeValues(
            "lost",
            PUBLIC,
            "positions of the node's clients that are lost; the sums are without their records",
            shape=("L",),
            limits=FROM_ZERO,
        ),
    ]


class MomentsAsked(Message):
    """The moments of all records of some of the node's clients."""

    nonce = "config"

    round: BeforeRounds
    attempt: Attempt
    asked: AskedClients


class ExactMoments(ExactSums):
    """The moments of all records of the asked clients, without noise, in whole steps."""

    steps: Annotated[
        Tensor, _steps("sums over all records by cell, in whole steps; checked against their number", ("c", "u"))
    ]


MOMENTS = Exchange(
    "train.moments",
    MomentsAsked,
    ExactMoments,
    "once, before the first round, with `privacy.moments`: exact sums over all records, which the server noises",
)


class NoisyMomentsAsked(Message):
    """`local-gradient`: the moments of a client's records, once."""

    round: BeforeRounds
    attempt: Attempt
    records: Federation


class NoisyMoments(Noised):
    """`local-gradient`: a client's moments, noised by itself."""

    values: Annotated[Tensor, _noised("sums over the client's records by cell, noised", ("c", "u"))]


NOISY_MOMENTS = Exchange(
    "train.noisy_moments",
    NoisyMomentsAsked,
    NoisyMoments,
    "once, before the first round, with `privacy.moments`: sums over all records of a client, which it has noised "
    "itself",
)


class SumOfRecordsAsked(Message):
    """`sketch`: the sum over all records of some of the node's clients; the round is the stage."""

    nonce = "config"

    round: Round
    attempt: Attempt
    asked: AskedClients
    learnt: Learnt


class SumOfRecords(ExactSums):
    """`sketch`: the sum over the asked clients' records, without noise, in whole steps of 2^-26."""

    steps: Annotated[
        Tensor,
        _steps(
            "cosines and sines of all records by cell, and their counts, in whole steps; counts and lengths are "
            "checked against the number of records",
            ("q", "w"),
        ),
    ]


RECORDS_SUM = Exchange(
    "train.records_sum",
    SumOfRecordsAsked,
    SumOfRecords,
    "once: the exact sum over all records, which the server noises",
)


class SketchAsked(Message):
    """`sketch-local`: a sketch of all records, once a stage; the round is the stage."""

    round: Round
    attempt: Attempt
    records: Federation
    learnt: Learnt


class NoisySketch(Noised):
    """`sketch-local`: a client's own sketch, noised by itself."""

    values: Annotated[Tensor, _noised("sums of the client's records by cell, and their counts, noised", ("q", "w"))]


SKETCH = Exchange("train.sketch", SketchAsked, NoisySketch, "once: a sketch that the client has noised itself")


class TallyAsked(Message):
    """The sums over kept records of some of the node's clients, under the released model."""

    nonce = "config"

    theta: Theta
    round: Round
    attempt: Attempt
    asked: AskedClients


class ExactTally(ExactSums):
    """The sums over the asked clients' kept records, without noise, in whole steps of 2^-26."""

    steps: Annotated[
        Tensor,
        _steps(
            "counts and sums over kept records by group, in whole steps; checked against their number",
            ("g", "t"),
            Limits(0, 2**53),
        ),
    ]


TALLY = Exchange(
    "evaluate.tally",
    TallyAsked,
    ExactTally,
    'once, after the last round, with `data.held_out_to = "everybody"`: exact sums over the records that were kept '
    "out of training, which the server noises",
)


class NoisyTallyAsked(Message):
    """`local-gradient`: the sums over a client's kept records, once."""

    theta: Theta
    round: Round
    attempt: Attempt
    records: Federation


class NoisyTally(Noised):
    """`local-gradient`: a client's sums over its kept records, noised by itself."""

    values: Annotated[Tensor, _noised("counts and sums over the client's kept records by group, noised", ("g", "t"))]


NOISY_TALLY = Exchange(
    "evaluate.noisy_tally",
    NoisyTallyAsked,
    NoisyTally,
    'once, after the last round, with `data.held_out_to = "everybody"`: sums over the records that a client kept out '
    "of training, which it has noised itself",
)
