"""Members of a masked sum, in one text that all of its sites get, and a site's checks of it before it is charged."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsw._tools.installed import code_digest, short
from fedsw._tools.settings import ExperimentError
from fedsw.experiment import Experiment
from fedsw.experiment.sections import MaskedSettings
from fedsw.federation.messages import MOST_BELIEVED
from fedsw.federation.node.roster import Keyring, NotInRoster

Number = Annotated[int, Field(ge=0, le=MOST_BELIEVED)]
Digits = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Party(BaseModel):
    """A site in a masked sum: its first client, key and nonce; clients in the sum, ascending, with records by cell.

    Its `code` is the digest of its installed fedsw, in its own words; empty if it stated none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    site: Number
    key: Digits
    nonce: Digits
    clients: Annotated[list[Number], Field(min_length=1)]
    sizes: list[list[Number]]
    code: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = Field(default_factory=code_digest)


class Cohort(BaseModel):
    """All sites in a masked sum; `records` are of the whole federation, for a delta such as "0.1/n"."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    records: Number
    parties: Annotated[list[Party], Field(min_length=1)]

    @classmethod
    def read(cls, text: str) -> Cohort:
        """Read the cohort of a request; ValueError if it is malformed."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as fault:
            raise ValueError(f"the request's cohort is none: {fault.errors()[0]['msg']}; nothing was charged") from None

    @functools.cached_property
    def clients(self) -> tuple[int, ...]:
        """The numbers of all clients in the sum."""
        return tuple(client for party in self.parties for client in party.clients)

    @property
    def clients_by_site(self) -> tuple[int, ...]:
        """Number of clients that each site answers for."""
        return tuple(len(party.clients) for party in self.parties)

    def others(self, key: str) -> list[bytes]:
        """The public keys of the other sites."""
        return [bytes.fromhex(party.key) for party in self.parties if party.key != key]

    def counts(self, fraction: float) -> list[NDArray[np.int64]]:
        """For every site, how many records of each client and cell are drawn (m, c): fixed, so that all know them."""
        return [own_counts(party.sizes, fraction) for party in self.parties]


def own_counts(sizes: Sequence[Sequence[int]] | NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """Records of each client and cell in a batch, (m, c): the fraction, rounded down."""
    counts: NDArray[np.int64] = np.floor(fraction * np.asarray(sizes, dtype=np.int64)).astype(np.int64)
    return counts


def honest(experiment: Experiment) -> int:
    """H: least number of honest clients in a masked sum of a run."""
    return least(experiment) - experiment.own(MaskedSettings).colluding


def least(experiment: Experiment) -> int:
    """T: least number of clients in a masked sum."""
    return experiment.federation.min_clients or experiment.federation.clients


def assumed(experiment: Experiment) -> tuple[int, int]:
    """T and C of a run: the least number of clients in a masked sum, and how many of them may collude."""
    return least(experiment), experiment.own(MaskedSettings).colluding


def party_of(
    cohort: Cohort,
    ring: Keyring,
    nonce: str,
    clients: NDArray[np.int64],
    held: NDArray[np.int64],
    least: int,
    colluding: int,
) -> Party:
    """A site's own part of a cohort that it may answer, with its nonce of the attempt.

    ValueError if a site is not in this one's roster or is there twice, there are too few clients, more may collude than
    the noise is for, or what is said of this site itself is wrong. Nothing is charged then.

    Args:
        clients, held: the site's own clients (m,), ascending, and how many records each has of every cell (m, c).
        least, colluding: T and C, which the noise is for.
    """
    parties, cells = cohort.parties, held.shape[1]
    for party in parties:
        if len(party.sizes) != len(party.clients) or any(len(row) != cells for row in party.sizes):
            raise _refused(f"the cohort has no sizes of {cells} cells for every client of site {party.site}")
        if (why := ring.roster.refusal(party.site, party.key, len(party.clients))) is not None:
            raise NotInRoster(party.site, why)
        if ring.codes is not None and party.code not in ring.codes:
            raise NotInRoster(
                party.site,
                f"its fedsw has the code {short(party.code)}, and this client takes part with "
                f"{', '.join(map(short, sorted(ring.codes)))} only (--code)",
            )
    for what, values in (("key", [party.key for party in parties]), ("client", list(cohort.clients))):
        if len(set(values)) < len(values):
            raise _refused(f"the cohort has a {what} twice")
    if len(cohort.clients) < least:
        raise _refused(f"{len(cohort.clients)} clients are in the sum, fewer than the {least} that its noise is for")
    require_honest(least, colluding, ring.colluding)
    mine = [party for party in parties if party.key == ring.key.public.hex()]
    if len(mine) != 1 or mine[0].nonce != nonce or mine[0].site != int(clients[0]):
        raise _refused("the cohort has not this site's own key and nonce of the attempt")
    if mine[0].code != code_digest():
        raise _refused("the cohort has another code for this site than it has")
    places, known = np.searchsorted(clients, mine[0].clients), clients.tolist()
    if mine[0].clients != sorted(mine[0].clients) or any(client not in known for client in mine[0].clients):
        raise _refused("the cohort names clients for this site that it has not")
    if not np.array_equal(held[places], np.asarray(mine[0].sizes)):
        raise _refused("the cohort has other numbers of records for this site than it has")
    if cohort.records < sum(sum(row) for party in parties for row in party.sizes):
        raise _refused("the cohort has more records than it says the whole federation has")
    return mine[0]


def require_honest(least: int, planned: int, colluding: int) -> None:
    """Refuse noise that would be short where as many clients collude as a site's operator takes into account."""
    if planned < colluding:
        raise _refused(
            f"local.colluding is {planned}, and this client's operator takes {colluding} colluding clients into account"
        )
    if least - planned < 1:
        raise _refused(f"of {least} clients {planned} may collude: none is surely honest")


def require_alike(cohort: str, before: str) -> None:
    """Refuse a second masked sum of an attempt among other sites, or of other batches, than the first."""
    if cohort != before:
        raise RuntimeError("the cohort is not that of the attempt's first sum; the server must start a fresh attempt")


def _refused(why: str) -> ExperimentError:
    return ExperimentError(f"{why}; nothing was charged")


def rate_of(fraction: float) -> float:
    """The sampling rate that is charged: counts are rounded down, and the product before in floating point."""
    return min(1.0, fraction * (1 + 2.0**-50)) if math.isfinite(fraction) else 1.0
