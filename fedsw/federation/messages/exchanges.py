"""Every exchange between server and clients: what goes down, what comes up, and which trust models use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from fedsw.federation import wire
from fedsw.federation.messages.codec import Message
from fedsw.federation.messages.greetings import Greeting, Joined, Sizes, SizesAsked
from fedsw.federation.messages.held_out import ExactTally, NoisyTally, NoisyTallyAsked, TallyAsked
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
from fedsw.federation.messages.moments import ExactMoments, MomentsAsked, NoisyMoments, NoisyMomentsAsked
from fedsw.federation.messages.sketched import NoisySketch, SketchAsked, SumOfRecords, SumOfRecordsAsked
from fedsw.federation.messages.trusted import Contribution, GradientsAsked, Outputs, OutputsAsked, SumAsked

Down = TypeVar("Down", bound=Message)
Up = TypeVar("Up", bound=Message)

TRUSTED = ("central", "none")
EVERYBODY = (*TRUSTED, "local-gradient", "local-slices", "local-release", "sketch", "sketch-local")


@dataclass(frozen=True)
class Exchange(Generic[Down, Up]):
    """A message to clients, and their answer.

    Attributes:
        kind: Flower's type of both messages.
        down, up: classes of the two messages.
        trusts: trust models that use it; a client answers under no other.
        about: what it is for.
    """

    kind: str
    down: type[Down]
    up: type[Up]
    trusts: tuple[str, ...]
    about: str

    @property
    def action(self) -> str:
        """The name under which Flower's ClientApp answers."""
        return self.kind.partition(".")[2]


SIZES = Exchange(
    wire.SIZES,
    SizesAsked,
    Sizes,
    (*TRUSTED, "local-gradient"),
    "before the greeting, where `training.preset` has still settings to choose: by these numbers",
)
HELLO = Exchange(
    wire.HELLO, Greeting, Joined, EVERYBODY, "before the first round, and whenever a client that was away is back"
)
MOMENTS = Exchange(
    wire.MOMENTS,
    MomentsAsked,
    ExactMoments,
    TRUSTED,
    "once, before the first round, with `privacy.moments`: exact sums over all records, which the server noises",
)
NOISY_MOMENTS = Exchange(
    wire.NOISY_MOMENTS,
    NoisyMomentsAsked,
    NoisyMoments,
    ("local-gradient",),
    "once, before the first round, with `privacy.moments`: sums over all records of a client, which it has noised "
    "itself",
)
OUTPUTS = Exchange(wire.OUTPUTS, OutputsAsked, Outputs, TRUSTED, "first of an attempt: the outputs of a fresh sample")
GRADIENTS = Exchange(
    wire.GRADIENTS,
    GradientsAsked,
    Contribution,
    TRUSTED,
    "second of an attempt: the contribution of the same sample; there is none where nothing private passes through "
    "the parameters",
)
SUM = Exchange(
    wire.SUM,
    SumAsked,
    Contribution,
    TRUSTED,
    "the only one of an attempt with `objective.alpha = 0` between groups, where no outputs are compared: the "
    "contribution of a fresh sample",
)
TABLES = Exchange(
    wire.TABLES,
    TableAsked,
    NoisedTable,
    ("local-gradient",),
    "first of an attempt: noised histograms of a fresh sample; there is none without a penalty",
)
LOCAL_GRADIENTS = Exchange(
    wire.LOCAL_GRADIENTS,
    LocalGradientAsked,
    NoisedContribution,
    ("local-gradient",),
    "second of an attempt: the noised contribution of the same sample",
)
SLICES = Exchange(
    wire.SLICES,
    SlicesAsked,
    NoisedSlices,
    ("local-slices",),
    "every round, or once: noised random slices of features",
)
RELEASE = Exchange(wire.RELEASE, ReleaseAsked, ReleasedRecords, ("local-release",), "once: privatised records")
RECORDS_SUM = Exchange(
    wire.RECORDS_SUM,
    SumOfRecordsAsked,
    SumOfRecords,
    ("sketch",),
    "once: the exact sum over all records, which the server noises",
)
SKETCH = Exchange(
    wire.SKETCH, SketchAsked, NoisySketch, ("sketch-local",), "once: a sketch that the client has noised itself"
)
TALLY = Exchange(
    wire.TALLY,
    TallyAsked,
    ExactTally,
    TRUSTED,
    'once, after the last round, with `data.held_out_to = "everybody"`: exact sums over the records that were kept '
    "out of training, which the server noises",
)
NOISY_TALLY = Exchange(
    wire.NOISY_TALLY,
    NoisyTallyAsked,
    NoisyTally,
    ("local-gradient",),
    'once, after the last round, with `data.held_out_to = "everybody"`: sums over the records that a client kept out '
    "of training, which it has noised itself",
)

EXCHANGES: tuple[Exchange[Message, Message], ...] = (  # type: ignore[assignment]
    SIZES,
    HELLO,
    MOMENTS,
    NOISY_MOMENTS,
    OUTPUTS,
    GRADIENTS,
    SUM,
    TABLES,
    LOCAL_GRADIENTS,
    SLICES,
    RELEASE,
    RECORDS_SUM,
    SKETCH,
    TALLY,
    NOISY_TALLY,
)
