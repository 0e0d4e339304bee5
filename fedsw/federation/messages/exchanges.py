"""Every exchange between server and clients: what goes down, and what comes up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fedsw.experiment.trust import answering, names_of, trust_models
from fedsw.federation import wire
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.common import Greeting, Joined, Sizes, SizesAsked
from fedsw.federation.messages.local import (
    LocalGradientAsked,
    NoisedContribution,
    NoisedSlices,
    NoisedTable,
    ReleaseAsked,
    ReleasedRecords,
    SlicesAsked,
    TableAsked,
)
from fedsw.federation.messages.sums import (
    ExactMoments,
    ExactTally,
    MaskedMomentsAsked,
    MaskedNumbers,
    MaskedSketchAsked,
    MaskedSumAsked,
    MaskedTableAsked,
    MaskedTallyAsked,
    MomentsAsked,
    NoisyMoments,
    NoisyMomentsAsked,
    NoisySketch,
    NoisyTally,
    NoisyTallyAsked,
    Ready,
    ReadyAsked,
    SketchAsked,
    SumOfRecords,
    SumOfRecordsAsked,
    TallyAsked,
)
from fedsw.federation.messages.trusted import Contribution, GradientsAsked, Outputs, OutputsAsked, SumAsked

Down = TypeVar("Down", bound=Message)
Up = TypeVar("Up", bound=Message)


@dataclass(frozen=True)
class Exchange(Generic[Down, Up]):
    """A message to clients, and their answer.

    Attributes:
        kind: Flower's type of both messages.
        down, up: classes of the two messages.
        about: what it is for.
    """

    kind: str
    down: type[Down]
    up: type[Up]
    about: str

    @property
    def action(self) -> str:
        """The name under which Flower's ClientApp answers."""
        return self.kind.partition(".")[2]


SIZES = Exchange(
    wire.SIZES,
    SizesAsked,
    Sizes,
    "before the greeting, where `training.preset` has still settings to choose: by these numbers",
)
HELLO = Exchange(wire.HELLO, Greeting, Joined, "before the first round, and whenever a client that was away is back")
MOMENTS = Exchange(
    wire.MOMENTS,
    MomentsAsked,
    ExactMoments,
    "once, before the first round, with `privacy.moments`: exact sums over all records, which the server noises",
)
NOISY_MOMENTS = Exchange(
    wire.NOISY_MOMENTS,
    NoisyMomentsAsked,
    NoisyMoments,
    "once, before the first round, with `privacy.moments`: sums over all records of a client, which it has noised "
    "itself",
)
OUTPUTS = Exchange(wire.OUTPUTS, OutputsAsked, Outputs, "first of an attempt: the outputs of a fresh sample")
GRADIENTS = Exchange(
    wire.GRADIENTS,
    GradientsAsked,
    Contribution,
    "second of an attempt: the contribution of the same sample; there is none where nothing private passes through "
    "the parameters",
)
SUM = Exchange(
    wire.SUM,
    SumAsked,
    Contribution,
    "the only one of an attempt with `objective.alpha = 0` between groups, where no outputs are compared: the "
    "contribution of a fresh sample",
)
TABLES = Exchange(
    wire.TABLES,
    TableAsked,
    NoisedTable,
    "first of an attempt: noised histograms of a fresh sample; there is none without a penalty",
)
LOCAL_GRADIENTS = Exchange(
    wire.LOCAL_GRADIENTS,
    LocalGradientAsked,
    NoisedContribution,
    "second of an attempt: the noised contribution of the same sample",
)
READY = Exchange(
    wire.READY,
    ReadyAsked,
    Ready,
    "before an attempt's masked sums: who is there, with a fresh nonce; nothing is drawn or charged",
)
MASKED_TABLES = Exchange(
    wire.MASKED_TABLES,
    MaskedTableAsked,
    MaskedNumbers,
    "first masked sum of an attempt: histograms of a fresh sample; there is none without a penalty",
)
MASKED_SUM = Exchange(
    wire.MASKED_SUM,
    MaskedSumAsked,
    MaskedNumbers,
    "second masked sum of an attempt, or the only one: the contribution of the same sample",
)
MASKED_SKETCH = Exchange(
    wire.MASKED_SKETCH,
    MaskedSketchAsked,
    MaskedNumbers,
    "of tasks that learn from a sketch, once a stage: the masked sum over all records",
)
MASKED_MOMENTS = Exchange(
    wire.MASKED_MOMENTS,
    MaskedMomentsAsked,
    MaskedNumbers,
    "once, before the first round, with `privacy.moments`: the masked sum over all records",
)
MASKED_TALLY = Exchange(
    wire.MASKED_TALLY,
    MaskedTallyAsked,
    MaskedNumbers,
    'once, after the last round, with `data.held_out_to = "everybody"`: the masked sum over the records that were kept '
    "out of training",
)
SLICES = Exchange(
    wire.SLICES,
    SlicesAsked,
    NoisedSlices,
    "every round, or once: noised random slices of features",
)
RELEASE = Exchange(wire.RELEASE, ReleaseAsked, ReleasedRecords, "once: privatised records")
RECORDS_SUM = Exchange(
    wire.RECORDS_SUM,
    SumOfRecordsAsked,
    SumOfRecords,
    "once: the exact sum over all records, which the server noises",
)
SKETCH = Exchange(wire.SKETCH, SketchAsked, NoisySketch, "once: a sketch that the client has noised itself")
TALLY = Exchange(
    wire.TALLY,
    TallyAsked,
    ExactTally,
    'once, after the last round, with `data.held_out_to = "everybody"`: exact sums over the records that were kept '
    "out of training, which the server noises",
)
NOISY_TALLY = Exchange(
    wire.NOISY_TALLY,
    NoisyTallyAsked,
    NoisyTally,
    'once, after the last round, with `data.held_out_to = "everybody"`: sums over the records that a client kept out '
    "of training, which it has noised itself",
)

AnyExchange = Exchange[Any, Any]

EXCHANGES: tuple[AnyExchange, ...] = (
    SIZES,
    HELLO,
    MOMENTS,
    NOISY_MOMENTS,
    OUTPUTS,
    GRADIENTS,
    SUM,
    TABLES,
    LOCAL_GRADIENTS,
    READY,
    MASKED_TABLES,
    MASKED_SUM,
    MASKED_SKETCH,
    MASKED_MOMENTS,
    MASKED_TALLY,
    SLICES,
    RELEASE,
    RECORDS_SUM,
    SKETCH,
    TALLY,
    NOISY_TALLY,
)


def trusts_of(exchange: AnyExchange) -> tuple[str, ...]:
    """The trust models under which a client answers it."""
    if exchange is HELLO:
        return tuple(trust_models())
    if exchange is SIZES:
        return names_of(gradients=True)
    return answering(exchange.kind)
