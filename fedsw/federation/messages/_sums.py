"""The sums over records that are released once, a row each: of it come the three exchanges by which it may leave."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor

from fedsw.federation.messages._lengths import WITH_CUT, WITH_STAGES
from fedsw.federation.messages.arrays import ArrayField, Broadcast
from fedsw.federation.messages.codec import Exchange, Message
from fedsw.federation.messages.common import Asked, Federation, Lost, Theta
from fedsw.federation.messages.fields import NOISED, PUBLIC, RELEASED, SECRET, Limits, NumberField
from fedsw.federation.messages.masked_sums import MaskedAsked, MaskedNumbers
from fedsw.federation.messages.noised import Noised

_COUNTS = Limits(0, 2**53)
_STEPS = Limits(-(2**53), 2**53)
"""Sums of whole steps beyond it are not exact, and no number of records that is taken makes them."""

BeforeRounds = Annotated[int, "0: before the first round of training", NumberField("round", PUBLIC, Limits(0, 0))]
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


class ExactAsked(Asked):
    """The base of requests of a trusted server."""

    nonce = "config"

    asked: Annotated[
        Tensor,
        "whether each of the node's clients is asked: 1 or 0",
        ArrayField("asked", PUBLIC, "S", "int64", Limits(0, 1)),
    ]


class NoisyAsked(Asked):
    """The base of requests to clients that noise what they send."""

    records: Federation


class ExactSums(Message):
    """The base of exact sums over all records of the asked clients, without noise."""

    steps: Tensor
    lost: Lost


Ways = tuple[Exchange[Any, ExactSums], Exchange[Any, Noised], Exchange[Any, MaskedNumbers]]
"""A sum's exchanges: exact, so that the server adds the noise; noised by every client itself; masked."""


def _three_ways(kinds: tuple[str, str, str], when: str, what: str, shape: str, limits: Limits, **fields: Any) -> Ways:
    """Make the exchanges of a sum.

    Args:
        kinds: Flower's types of them.
        when: it is asked for, and what it is of, in words.
        shape, limits: of the exact sum in whole steps.
        fields: those of a request beside the attempt and the clients, by attribute.
    """
    counted = f"{what}, in whole steps; checked against the number of records"
    steps = Annotated[Tensor, counted, ArrayField("steps", SECRET, shape, "int64", limits)]
    values = Annotated[Tensor, f"{what}, noised", ArrayField("noised", NOISED, shape, "float64", finite=True)]

    def message(kind: str, base: type[Message], about: str, fields: dict[str, Any]) -> Any:
        name = "".join(word.title() for word in kind.partition(".")[2].split("_"))
        request = issubclass(base, Asked)
        made = type(name + "Asked" * request, (base,), {"__doc__": about, "__annotations__": fields})
        # found by its name, as if it were written here: another process of Ray's finds this class, and makes no second
        assert made.__name__ not in globals()
        globals()[made.__name__] = made
        return made

    exact, noisy, masked = kinds
    return (
        Exchange(
            exact,
            message(exact, ExactAsked, f"{when}: an exact sum; the server adds the noise, if any.", fields),
            message(exact, ExactSums, "The exact sum over the asked clients.", {"steps": steps}),
        ),
        Exchange(
            noisy,
            message(noisy, NoisyAsked, f"{when}: a sum that the client noises itself.", fields),
            message(noisy, Noised, "A client's own sum, noised by itself.", {"values": values}),
        ),
        Exchange(
            masked,
            message(masked, MaskedAsked, f"{when}: a masked sum.", fields),
            MaskedNumbers,
        ),
    )


HISTOGRAMS, NOISY_HISTOGRAMS, MASKED_HISTOGRAMS = _three_ways(
    ("train.histograms", "train.noisy_histograms", "train.masked_histograms"),
    "Once, before the moments, with `privacy.histograms`",
    "counts of records by column and part of its bounds",
    "f p",
    _COUNTS,
    round=BeforeRounds,
)
MOMENTS, NOISY_MOMENTS, MASKED_MOMENTS = _three_ways(
    ("train.moments", "train.noisy_moments", "train.masked_moments"),
    "Once, before the first round, with `privacy.moments`",
    "sums over records by block",
    "b u",
    _STEPS,
    round=BeforeRounds,
)
RECORDS_SUM, SKETCH, MASKED_SKETCH = _three_ways(
    ("train.records_sum", "train.sketch", "train.masked_sketch"),
    "Once per stage of a sketch (its number is the round)",
    "cosines and sines of records by cell, and their counts",
    "q w",
    _STEPS,
    learnt=Learnt,
)
TALLY, NOISY_TALLY, MASKED_TALLY = _three_ways(
    ("evaluate.tally", "evaluate.noisy_tally", "evaluate.masked_tally"),
    'Once, after the last round, with `data.held_out_to = "everybody"`',
    "counts and sums over kept records by group",
    "g t",
    _COUNTS,
    theta=Theta,
    cut=CutIfUsed,
)
SCORES, NOISY_SCORES, MASKED_SCORES = _three_ways(
    ("train.scores", "train.noisy_scores", "train.masked_scores"),
    "Once, after the last round, for calibration or thresholds",
    "counts of records by group, class and bin of the model's probability",
    "s o",
    _COUNTS,
    theta=Theta,
)
