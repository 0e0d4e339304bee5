"""The one table of messages between server and clients: each a dataclass that says what a field is, and who may see it.

First fields that several messages have, and those that are the same under every trust model; then `central` and `none`,
the local trust models, masked sums, and the sums that are released once, of which a row makes three exchanges.
"""

from __future__ import annotations

import sys
from dataclasses import field
from typing import Annotated, Any

import torch
from torch import Tensor

from fedsw._tools.installed import code_digest
from fedsw.experiment.trust import RunGuarantee
from fedsw.federation.messages.codec import (
    COUNTED,
    HELD_OUT_RELEASED,
    NOISED,
    OWN_DIRECTIONS,
    OWN_LEDGER,
    PUBLIC,
    RELEASED,
    SECRET,
    SEEDED,
    THROUGH_MODEL,
    UNSAFE,
    WITH_CUT,
    WITH_MOMENTS,
    WITH_STAGES,
    WITH_TABLES,
    ArrayField,
    Broadcast,
    Exchange,
    Limits,
    Message,
    NumberField,
    Text,
)
from fedsw.runs.run_files import RUN_NAME

MOST_RECORDS = 2**28
"""Records of a group that a federation may hold together: a round draws a key of 8 bytes for each of them, 2 GiB."""
MOST_BELIEVED = 2**40
"""More than any federation has of records, and any run of rounds: what a server that is not trusted may say of them."""
MOST_OF_SETTINGS = 2**22
"""Letters of an experiment: thousands of declared columns fit."""

_LATEST = 2**43  # ms since 1970: the year 2248

FROM_ZERO = Limits(0, MOST_BELIEVED)
DEVIATIONS = Limits(*RunGuarantee.deviations)
FINITE_EPSILON = Limits(*RunGuarantee.epsilons)

_NOTHING = torch.zeros((0, 3), dtype=torch.int64)


def digits(name: str, *, spare: bool = False) -> Text:
    """A field of 64 hexadecimal digits, which is public."""
    return Text(name, PUBLIC, most=64, pattern="[0-9a-f]{64}", form="64 hexadecimal digits", spare=spare)


Round = Annotated[int, "number of the round", NumberField("round", PUBLIC, Limits(1, MOST_BELIEVED))]
Attempt = Annotated[
    int,
    "number of the attempt; no other attempt of the round ever has it",
    NumberField("attempt", PUBLIC, FROM_ZERO),
]
Federation = Annotated[
    int,
    "records of the whole federation, for a delta such as 0.1/n; a client counts at least its own",
    NumberField("records", PUBLIC, FROM_ZERO),
]
Theta = Annotated[Broadcast, "the model, flat", ArrayField("theta", RELEASED, "r", alike=True, record="model")]
ThetaIfUsed = Annotated[
    Broadcast | None,
    "the model, flat",
    ArrayField("theta", RELEASED, "r", alike=True, record="model", when=THROUGH_MODEL),
]
Spent = Annotated[
    float,
    "the epsilon that the client's ledger has spent after this",
    NumberField("epsilon", PUBLIC, FINITE_EPSILON, record="metrics", kind=float, promised="epsilons"),
]
SpentBefore = Annotated[
    Tensor | None,
    "the epsilon that each client's ledger has spent",
    ArrayField("epsilon", PUBLIC, "S", "float64", FINITE_EPSILON, when=OWN_LEDGER),
]
Sigma = Annotated[
    float,
    "standard deviation of the noise of every number",
    NumberField("sigma", PUBLIC, DEVIATIONS, record="metrics", kind=float, promised="deviations"),
]
Prepared = Annotated[
    Broadcast | None,
    "a linear map of features and a scale of clips, made of the released moments",
    ArrayField("preparation", RELEASED, "v", "float64", alike=True, record="prepared", finite=True, when=WITH_MOMENTS),
]


Lost = Annotated[
    Tensor,
    "positions of the node's clients that are lost; the sum is without their records",
    ArrayField("lost", PUBLIC, "L", "int64", FROM_ZERO),
]
RunName = Annotated[
    str,
    "name of the run; stays when it is resumed",
    Text("run", PUBLIC, most=32, pattern=RUN_NAME, form="32 hexadecimal digits"),
]
Code = Annotated[
    str | None,
    "SHA-256 of the files of the fedsw that its sender has installed",
    digits("code", spare=True),
]


class Asked(Message):
    """The base of requests for an attempt."""

    round: Round
    attempt: Attempt


class AskedUnderModel(Message):
    """The base of requests for an attempt under the model that was released last."""

    theta: Theta
    round: Round
    attempt: Attempt


class Greeting(Message):
    """Before the first round, and whenever a client that was away is back."""

    experiment: Annotated[str, "the experiment, as JSON", Text("experiment", PUBLIC, most=MOST_OF_SETTINGS)]
    run: RunName
    code: Code = field(default_factory=code_digest)


class SizesAsked(Greeting):
    """Before the greeting, where `training.preset` has still settings to choose: by these numbers."""


class _OfClients(Message):
    """The base of what a node reports of its clients, with records loaded and validated."""

    clients: Annotated[
        Tensor,
        "the places of the node's clients in the client order, ascending",
        ArrayField("clients", PUBLIC, "S", "int64", FROM_ZERO, length="S"),
    ]


class Sizes(_OfClients):
    """The numbers of a node's records that a preset's rules read."""

    by_group: Annotated[
        Tensor,
        "each client's records by group that are trained on",
        ArrayField("by group", COUNTED, "S g", "int64", Limits(0, MOST_RECORDS)),
    ]


class Joined(_OfClients):
    """A node with clients that can take part: of one, or of many if it is a site."""

    nonce = "config"

    sizes: Annotated[
        Tensor,
        "each client's records by cell",
        ArrayField("sizes", COUNTED, "S c", "int64", Limits(0), totals="N"),
    ]
    epsilon: SpentBefore
    ids: Annotated[
        tuple[Tensor, ...] | None,
        "numbers of the clients' records, client after client; a run that sends them is called nominal",
        ArrayField("record ids", PUBLIC, "N", "int64", Limits(0, MOST_RECORDS - 1), by_cell=True, when=SEEDED),
    ]
    kept: Annotated[
        Tensor | None,
        "each client's records by group that are kept out of training",
        ArrayField("kept", COUNTED, "S g", "int64", Limits(0), when=HELD_OUT_RELEASED),
    ] = None
    answered: Annotated[
        Tensor,
        "what the node has answered in this run before: round, attempt, and 2 for an attempt's last exchange "
        "or 1 for one before it",
        ArrayField("answered", PUBLIC, "A e", "int64", FROM_ZERO),
    ] = _NOTHING
    code: Code = field(default_factory=code_digest)


class RollAsked(Message):
    """When a node on a machine of its own is there, before its greeting and whenever it is back: who is it?"""

    run: RunName


class Here(Message):
    """A node says who it is, before it looks at an experiment or a record."""

    nonce = "config"

    number: Annotated[int, "the node's number, from 0", NumberField("number", PUBLIC, FROM_ZERO)]
    flower: Annotated[
        str,
        "Flower's version",
        Text("flower", PUBLIC, most=40, pattern=r"[0-9A-Za-z.+!-]*", form="a version"),
    ]
    clock: Annotated[int, "the node's time, in ms since 1970", NumberField("clock", PUBLIC, Limits(0, _LATEST))]
    code: Code = field(default_factory=code_digest)


ROLL = Exchange("query.roll", RollAsked, Here)
SIZES = Exchange("query.sizes", SizesAsked, Sizes)
HELLO = Exchange("query.hello", Greeting, Joined)


_MOST = 1e100  # of an un-noised loss or count: products and sums stay finite

Counts = Annotated[
    Tensor,
    "records of every client and cell to draw; with `stratified` sampling they are public",
    ArrayField("counts", SECRET, "S c", "int64", FROM_ZERO),
]
TaskWeight = Annotated[
    float,
    "weight of every record's loss gradient",
    NumberField("task-weight", PUBLIC, Limits(0.0, sys.float_info.max), kind=float),
]


class OutputsAsked(AskedUnderModel):
    """First of an attempt: the outputs of a fresh sample."""

    nonce = "config"

    counts: Counts
    rows: Annotated[int, "the length P of this attempt", NumberField("rows", PUBLIC, FROM_ZERO)]
    prepared: Prepared = None


class Outputs(Message):
    """The sample's outputs, projected on the ball of radius M, by cell, client after client."""

    outputs: Annotated[
        Tensor,
        "outputs of the sample, by cell; the server projects them again",
        ArrayField("outputs", SECRET, "P d", filled=True),
    ]


class GradientsAsked(AskedUnderModel):
    """Second of an attempt, where something private passes through the parameters: the sample's contribution."""

    nonce = "config"

    cotangents: Annotated[
        Tensor,
        "one row for each of the outputs; un-noised functions of other clients' outputs too",
        ArrayField("cotangents", SECRET, "P d", "float64", filled=True),
    ]
    task_weight: TaskWeight
    prepared: Prepared = None


class Contribution(Message):
    """The same sample's clipped contribution: the sum over the node's clients."""

    nonce = "metrics"

    vector: Annotated[
        Tensor,
        "sum of clipped Jacobian^T cotangent and weighted clipped loss gradient; its norm is checked",
        ArrayField("contribution", SECRET, "r", "float64"),
    ]
    lost: Lost
    training_loss: Annotated[
        float | None,
        "mean loss of the sample",
        NumberField(
            "training-loss", SECRET, Limits(-_MOST, _MOST), record="metrics", kind=float, when=UNSAFE, spare=True
        ),
    ]
    records: Annotated[
        float | None,
        "records of the sample",
        NumberField("num-examples", SECRET, Limits(0.0, _MOST), record="metrics", kind=float, when=UNSAFE, spare=True),
    ]


class SumAsked(AskedUnderModel):
    """The only one of an attempt with `objective.alpha = 0`, as no outputs are compared: a sample's contribution."""

    nonce = "config"

    counts: Counts
    task_weight: TaskWeight
    prepared: Prepared = None


OUTPUTS = Exchange("train.outputs", OutputsAsked, Outputs, followed=True)
GRADIENTS = Exchange("train.gradients", GradientsAsked, Contribution)
SUM = Exchange("train.sum", SumAsked, Contribution)


BatchSizes = Annotated[
    tuple[int, ...],
    "records by cell of the whole federation's batch; a client counts at least its own",
    NumberField("sizes", PUBLIC, FROM_ZERO, count="c"),
]


class Release(Message):
    """The fields that every release of a client has: what it cost. The base of the classes below."""

    nonce = "metrics"

    epsilon: Spent


class Noised(Release):
    """The base of releases of one array that a client has noised itself."""

    values: Tensor
    sigma: Sigma


class TableAsked(AskedUnderModel):
    """First of an attempt: noised histograms of a fresh sample; there is none without a penalty."""

    sizes: BatchSizes
    records: Federation
    prepared: Prepared = None


class NoisedTable(Noised):
    """Noised histograms of a fresh secret batch's outputs."""

    values: Annotated[
        Tensor,
        "histograms of the batch's outputs along every direction; 0 in cells without a record (public)",
        ArrayField("noised", NOISED, "c k B", finite=True),
    ]


class LocalGradientAsked(AskedUnderModel):
    """Second of an attempt, or the only one without a penalty: the noised contribution of the same sample."""

    tables: Annotated[
        Broadcast | None,
        "slot means that the server made of the summed noised histograms; a client clamps them",
        ArrayField("tables", NOISED, "c k B", alike=True, record="arrays", when=WITH_TABLES),
    ]
    sizes: BatchSizes
    records: Federation
    prepared: Prepared = None


class NoisedContribution(Noised):
    """The same batch's noised contribution."""

    values: Annotated[Tensor, "clipped contribution of the batch", ArrayField("noised", NOISED, "r", finite=True)]


class SlicesAsked(Asked):
    """Every round, or once: noised random slices of features."""

    records: Federation
    theta: ThetaIfUsed


class NoisedSlices(Release):
    """Noised random projections of features."""

    projections: Annotated[
        Tensor,
        "projections of the batch's features on the directions, in random order",
        ArrayField("projections", NOISED, "n k", finite=True),
    ]
    directions: Annotated[
        Tensor | None,
        "the client's own draw of directions; elsewhere they are the attempt's public ones",
        ArrayField("directions", PUBLIC, "d k", "float64", finite=True, when=OWN_DIRECTIONS),
    ]
    sigma: Sigma


class ReleaseAsked(Asked):
    """Once: privatised records."""

    records: Federation


class ReleasedRecords(Release):
    """All of a client's records, privatised."""

    released: Annotated[
        Tensor,
        "privatised records, in the released space",
        ArrayField("released", NOISED, "N d", finite=True),
    ]


TABLES = Exchange("train.tables", TableAsked, NoisedTable, followed=True)
LOCAL_GRADIENTS = Exchange("train.local_gradients", LocalGradientAsked, NoisedContribution)
SLICES = Exchange("train.slices", SlicesAsked, NoisedSlices)
RELEASE = Exchange("train.release", ReleaseAsked, ReleasedRecords)


_MOST_OF_A_COHORT = 2**24
"""Letters: a hundred thousand clients fit."""

Sites = Annotated[
    str,
    "all sites in the sum: key, nonce, code, clients and their records by cell, and the federation's records; JSON",
    Text("cohort", PUBLIC, most=_MOST_OF_A_COHORT),
]


class ReadyAsked(Asked):
    """Before an attempt's masked sums: who is there, with a fresh nonce; nothing is drawn or charged."""

    round: Annotated[int, "number of the round; 0 before the first one", NumberField("round", PUBLIC, FROM_ZERO)]


class Ready(Message):
    """A site that can be asked: its public key, and a nonce that it never had before."""

    key: Annotated[str, "the site's public key; the others know it from their rosters", digits("key")]
    fresh: Annotated[str, "the site's nonce of this attempt", digits("fresh")]
    code: Code = field(default_factory=code_digest)


class MaskedNumbers(Message):
    """A site's part of a masked sum: uniform numbers without those of all other sites."""

    values: Annotated[
        Tensor,
        "the site's vector with its share of noise, in steps of the common grid, and its mask, mod 2^64",
        ArrayField("masked", NOISED, "y", "int64", Limits(-(2**63), 2**63 - 1)),
    ]
    epsilon: SpentBefore


class MaskedTableAsked(AskedUnderModel):
    """First masked sum of an attempt: histograms of a fresh sample; there is none without a penalty."""

    cohort: Sites
    prepared: Prepared = None


class MaskedSumAsked(AskedUnderModel):
    """Second masked sum of an attempt, or the only one: the contribution of the same sample."""

    tables: Annotated[
        Broadcast | None,
        "slot means that the server made of the masked sum of all tables, in its order; a client clamps them",
        ArrayField("tables", NOISED, "x", alike=True, record="arrays", when=WITH_TABLES),
    ]
    cohort: Sites
    prepared: Prepared = None


class MaskedAsked(Asked):
    """The base of requests for a sum that is released once."""

    cohort: Sites


READY = Exchange("query.ready", ReadyAsked, Ready)
MASKED_TABLES = Exchange("train.masked_tables", MaskedTableAsked, MaskedNumbers, followed=True)
MASKED_SUM = Exchange("train.masked_sum", MaskedSumAsked, MaskedNumbers)


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
