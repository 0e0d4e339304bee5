"""Messages of masked sums: all sites get the same request, and each site's mask depends on all of it."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from torch import Tensor

from fedsw._tools.installed import code_digest
from fedsw.federation.messages._lengths import WITH_TABLES
from fedsw.federation.messages.arrays import ArrayField, Broadcast
from fedsw.federation.messages.codec import Exchange, Message
from fedsw.federation.messages.common import (
    FROM_ZERO,
    Asked,
    AskedUnderModel,
    Code,
    Prepared,
    SpentBefore,
    digits,
)
from fedsw.federation.messages.fields import NOISED, PUBLIC, Limits, NumberField, Text

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
