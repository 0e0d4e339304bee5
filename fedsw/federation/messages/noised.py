"""Messages of the local trust models: a client sends noised values only, with the epsilon that it has spent."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedsw.federation.messages import common
from fedsw.federation.messages._lengths import OWN_DIRECTIONS, WITH_TABLES
from fedsw.federation.messages.arrays import ArrayField, Broadcast
from fedsw.federation.messages.codec import Exchange, Message
from fedsw.federation.messages.common import Asked, AskedUnderModel, Federation, Prepared
from fedsw.federation.messages.fields import NOISED, PUBLIC, NumberField

BatchSizes = Annotated[
    tuple[int, ...],
    "records by cell of the whole federation's batch; a client counts at least its own",
    NumberField("sizes", PUBLIC, common.FROM_ZERO, count="c"),
]


class Release(Message):
    """The fields that every release of a client has: what it cost. The base of the classes below."""

    nonce = "metrics"

    epsilon: common.Spent


class Noised(Release):
    """The base of releases of one array that a client has noised itself."""

    values: Tensor
    sigma: common.Sigma


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
    theta: common.ThetaIfUsed


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
    sigma: common.Sigma


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
