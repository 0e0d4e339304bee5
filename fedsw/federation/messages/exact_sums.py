"""Messages that ask for sums over records, exact or noised: moments, a sketch, a tally of kept records, scores."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedsw.federation.messages._lengths import WITH_CUT, WITH_STAGES
from fedsw.federation.messages.arrays import ArrayField, Broadcast
from fedsw.federation.messages.codec import Exchange, Message
from fedsw.federation.messages.common import FROM_ZERO, Asked, AskedUnderModel, Federation
from fedsw.federation.messages.fields import NOISED, PUBLIC, RELEASED, SECRET, Limits, NumberField
from fedsw.federation.messages.noised import Noised

_STEPS = Limits(-(2**53), 2**53)
"""Sums of whole steps beyond it are not exact, and no number of records that is taken makes them."""

BeforeRounds = Annotated[int, "0: before the first round of training", NumberField("round", PUBLIC, Limits(0, 0))]
AskedClients = Annotated[
    Tensor,
    "whether each of the node's clients is asked: 1 or 0",
    ArrayField("asked", PUBLIC, "S", "int64", Limits(0, 1)),
]
Learnt = Annotated[
    Broadcast | None,
    "weights of the classifier that a later stage looks through, of the declared architecture, or 1 for each "
    "pair of columns that it measures; zeros in the first. Whatever they are, what is made of a record is bounded "
    "at the client",
    ArrayField("classifier", RELEASED, "z", "float64", alike=True, record="model", when=WITH_STAGES),
]


CutIfUsed = Annotated[
    Broadcast | None,
    "where targets and answers are cut before their errors are summed, made of the released moments; whatever it is, "
    "what is made of a record is bounded at the client",
    ArrayField("cut", RELEASED, "h", "float64", alike=True, record="prepared", finite=True, when=WITH_CUT),
]


def _steps(shape: str, limits: Limits = _STEPS) -> ArrayField:
    """A field of exact sums in whole steps, for a trusted server alone."""
    return ArrayField("steps", SECRET, shape, "int64", limits)


def _noised(shape: str) -> ArrayField:
    """A field of sums that a client has noised itself."""
    return ArrayField("noised", NOISED, shape, "float64", finite=True)


class ExactSums(Message):
    """The base of exact sums over all records of the asked clients, without noise."""

    steps: Tensor
    lost: Annotated[
        Tensor,
        "positions of the node's clients that are lost; the sums are without their records",
        ArrayField("lost", PUBLIC, "L", "int64", FROM_ZERO),
    ]


class MomentsAsked(Asked):
    """Once, before the first round, with `privacy.moments`: exact sums over all records, which the server noises."""

    nonce = "config"

    round: BeforeRounds
    asked: AskedClients


class ExactMoments(ExactSums):
    """The moments of all records of the asked clients, without noise, in whole steps."""

    steps: Annotated[
        Tensor, "sums over all records by block, in whole steps; checked against their number", _steps("b u")
    ]


class NoisyMomentsAsked(Asked):
    """Once, before the first round, with `privacy.moments`: sums over a client's records, which it has noised."""

    round: BeforeRounds
    records: Federation


class NoisyMoments(Noised):
    """A client's moments, noised by itself."""

    values: Annotated[Tensor, "sums over the client's records by block, noised", _noised("b u")]


class HistogramsAsked(MomentsAsked):
    """Once, before the moments, with `privacy.histograms`: exact counts of all records by parts of every column."""


class ExactHistograms(ExactSums):
    """Counts of the asked clients' records in public parts of every column of numbers, without noise."""

    steps: Annotated[
        Tensor,
        "counts of records by column and part of its bounds; checked against their number",
        _steps("f p", Limits(0, 2**53)),
    ]


class NoisyHistogramsAsked(NoisyMomentsAsked):
    """Once, before the moments, with `privacy.histograms`: a client's noised counts by parts of every column."""


class NoisyHistograms(Noised):
    """A client's histograms of columns, noised by itself."""

    values: Annotated[Tensor, "counts of the client's records by column and part, noised", _noised("f p")]


class SumOfRecordsAsked(Asked):
    """Once per stage of a sketch (its number is the round): the exact sum over all records, which the server noises."""

    nonce = "config"

    asked: AskedClients
    learnt: Learnt


class SumOfRecords(ExactSums):
    """The sum over the asked clients' records, without noise, in whole steps of 2^-26."""

    steps: Annotated[
        Tensor,
        "cosines and sines of all records by cell, and their counts, in whole steps; counts and lengths are checked "
        "against the number of records",
        _steps("q w"),
    ]


class SketchAsked(Asked):
    """Once per stage of a sketch (its number is the round): a sketch that the client has noised itself."""

    records: Federation
    learnt: Learnt


class NoisySketch(Noised):
    """A client's own sketch, noised by itself."""

    values: Annotated[Tensor, "sums of the client's records by cell, and their counts, noised", _noised("q w")]


class TallyAsked(AskedUnderModel):
    """Once, after the last round, with `data.held_out_to = "everybody"`: exact sums over kept records."""

    nonce = "config"

    asked: AskedClients
    cut: CutIfUsed


class ExactTally(ExactSums):
    """The sums over the asked clients' kept records, without noise, in whole steps of 2^-26."""

    steps: Annotated[
        Tensor,
        "counts and sums over kept records by group, in whole steps; checked against their number",
        _steps("g t", Limits(0, 2**53)),
    ]


class NoisyTallyAsked(AskedUnderModel):
    """Once, after the last round, with `data.held_out_to = "everybody"`: a client's noised sums over kept records."""

    records: Federation
    cut: CutIfUsed


class NoisyTally(Noised):
    """A client's sums over its kept records, noised by itself."""

    values: Annotated[Tensor, "counts and sums over the client's kept records by group, noised", _noised("g t")]


class ScoresAsked(AskedUnderModel):
    """Once, after the last round, for calibration or thresholds: exact counts of the records' scores."""

    nonce = "config"

    asked: AskedClients


class ExactScores(ExactSums):
    """Number of the asked clients' records in each bin of the model's probability, without noise."""

    steps: Annotated[
        Tensor,
        "counts of records by group, class and bin of the probability; checked against their number",
        _steps("s o", Limits(0, 2**53)),
    ]


class NoisyScoresAsked(AskedUnderModel):
    """Once, after the last round, for calibration or thresholds: a client's noised counts of its records' scores."""

    records: Federation


class NoisyScores(Noised):
    """A client's counts of scores, noised by itself."""

    values: Annotated[Tensor, "counts of the client's records by group, class and bin, noised", _noised("s o")]


MOMENTS = Exchange("train.moments", MomentsAsked, ExactMoments)
NOISY_MOMENTS = Exchange("train.noisy_moments", NoisyMomentsAsked, NoisyMoments)
HISTOGRAMS = Exchange("train.histograms", HistogramsAsked, ExactHistograms)
NOISY_HISTOGRAMS = Exchange("train.noisy_histograms", NoisyHistogramsAsked, NoisyHistograms)
RECORDS_SUM = Exchange("train.records_sum", SumOfRecordsAsked, SumOfRecords)
SKETCH = Exchange("train.sketch", SketchAsked, NoisySketch)
TALLY = Exchange("evaluate.tally", TallyAsked, ExactTally)
NOISY_TALLY = Exchange("evaluate.noisy_tally", NoisyTallyAsked, NoisyTally)
SCORES = Exchange("train.scores", ScoresAsked, ExactScores)
NOISY_SCORES = Exchange("train.noisy_scores", NoisyScoresAsked, NoisyScores)
