"""Masked sums of clients' whole updates, for any Flower app: trust model `distributed` with clients as the records.

A node says that it is `ready`, with its key and a nonce; it answers a training message that has the cohort of all with
a `share`, once; the server makes the cohort and, of all shares, `total`. Checks, masks and noise are those of `site`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict
from torch import Tensor

from fedsw._tools.installed import code_digest
from fedsw._tools.randomness import Stream
from fedsw._tools.settings import ExperimentError
from fedsw.federation.node.roster import Keyring, keyring_of
from fedsw.federation.trust.distributed.members import Cohort, Party, party_of, require_honest
from fedsw.privacy.accounting import BudgetExhausted, Ledger
from fedsw.privacy.bounded_sums import SumPlan
from fedsw.privacy.masks import NONCE_BYTES, Share, Whole, digest_of, require_no_wrap, shared_step, summed
from fedsw.privacy.release import Bounded, Part, pay, release_share
from fedsw.privacy.sensitivity import SLACK

READY, COHORT = "fedsw-ready", "fedsw-cohort"
"""Records of training messages: of one that asks whether a node is ready, and of one that has the cohort."""

_NONCE = "fedsw-nonce"
_UPDATE = "update"


@dataclass(frozen=True)
class DueShare:
    """A training message that a node may answer with its share, of this attempt; nothing is charged yet."""

    ring: Keyring
    cohort: Cohort
    attempt: int
    request: bytes


def question() -> RecordDict:
    """The content of a message that asks whether a node is ready for a sum."""
    return RecordDict({READY: ConfigRecord()})


def ready(plan: SumPlan, ledger: Ledger, context: Context) -> RecordDict:
    """Say that this node can be asked for its share of a sum: its public key, and a nonce that it never had before.

    BudgetExhausted if its ledger has all attempts of the plan: it would spoil the sum, which others are charged for.
    """
    ring, attempt = _ring(plan, context), len(ledger.entries()) + 1
    if attempt > plan.rounds:
        raise BudgetExhausted(
            f"all {plan.rounds} rounds are charged in {ledger.path}; a new plan adds to what was spent"
        )
    nonce = os.urandom(NONCE_BYTES)
    context.state[_NONCE] = ConfigRecord({"attempt": attempt, "nonce": nonce})
    said: dict[str, Any] = {
        "site": _site(context),
        "key": ring.key.public.hex(),
        "nonce": nonce.hex(),
        "code": code_digest(),
    }
    return RecordDict({READY: ConfigRecord(said)})


def asked(plan: SumPlan, content: RecordDict, context: Context) -> DueShare:
    """Take the cohort out of a training message, and check it as `site` does; nothing is charged.

    ValueError, NotInRoster if a client is not in this one's roster or is there twice, there are fewer than the noise is
    for, or more may collude; RuntimeError if this node gave no nonce for it.
    """
    if COHORT not in content.config_records:
        raise ValueError(
            "this client's update leaves in a masked sum, and the message has no cohort: wrap the server's strategy in "
            "fedsw.flower.MaskedUpdates"
        )
    if _NONCE not in context.state.config_records:
        raise RuntimeError("this node gave no nonce for a sum, or has answered it; the server must ask it again")
    promised = context.state.config_records[_NONCE]
    del context.state[_NONCE]
    # What is asked, the cohort in it, and the node's own plan: masks of sites that differ in any of it do not cancel,
    # so that noise of unlike plans never adds up to too little.
    asked_for = (plan.norm, plan.sigma, plan.sizes, plan.colluding, plan.rounds, plan.delta, plan.seed)
    request = digest_of({**_named(content, context.run_id), "plan": repr(asked_for)})
    text = str(content.config_records[COHORT][COHORT])
    del content[COHORT]
    ring, cohort = _ring(plan, context), Cohort.read(text)
    for party in cohort.parties:
        if len(party.clients) != 1:  # noise comes by node, and is whole for as many nodes as the plan has clients
            raise ValueError(
                f"site {party.site} of the cohort has {len(party.clients)} clients; a node's update is one's"
            )
    clients, held = np.array([_site(context)]), np.ones((1, 1), dtype=np.int64)
    party_of(cohort, ring, bytes(promised["nonce"]).hex(), clients, held, *_assumed(plan))  # type: ignore[arg-type]
    _share(plan, len(cohort.parties))
    return DueShare(ring, cohort, int(promised["attempt"]), request)  # type: ignore[arg-type]


def share(due: DueShare, plan: SumPlan, bounded: Bounded, ledger: Ledger, context: Context) -> Whole:
    """Charge the attempt, then this node's clipped update with its share of noise and its mask, (n,) mod 2^64.

    Guarantee: docs/guarantees/units.md, Theorem U5. The charge is on disk before noise is drawn, and an attempt is
    charged once: a nonce that is there again, with the state of the node, masks nothing twice.

    Raises:
        BudgetExhausted, AlreadySpent: nothing has left.
    """
    part = Part.of(_UPDATE, bounded.sensitivity, plan.sigma)
    mask = due.ring.key.mask(due.cohort.others(due.ring.key.public.hex()), due.request, bounded.shape[0])
    paid = pay(ledger, due.attempt, 0, bounded.charges, plan.sigma, [part])
    stream = Stream.secure()
    if plan.seed is not None:
        stream = Stream.seeded(plan.seed, f"share of {_site(context)}", due.attempt, 0)
    return release_share(bounded, [paid], _UPDATE, _share(plan, len(due.cohort.parties)), mask, stream)


def party_in(said: RecordDict) -> Party:
    """A node's own words when it is `ready`; ValueError if they are malformed."""
    fields = dict(said.config_records.get(READY, {}))
    return Party.model_validate({**fields, "clients": [fields.get("site")], "sizes": [[1]]})


def cohort_of(parties: Sequence[Party]) -> ConfigRecord:
    """The record of a training message for all nodes that are ready."""
    return ConfigRecord({COHORT: Cohort(records=len(parties), parties=list(parties)).model_dump_json()})


def total(plan: SumPlan, shares: Sequence[Whole]) -> Tensor:
    """The noised sum (n,) of all clients' clipped updates, of the share of every client of a cohort; float64."""
    return summed(shares, _share(plan, len(shares)).step)


def digest(content: RecordDict) -> bytes:
    """Digest of a training message's content: masks of nodes with another one do not cancel."""
    return digest_of(_named(content, 0))


def _named(content: RecordDict, run: int) -> Mapping[str, bytes | str | int]:
    """All of a message's records by name; an array's bytes have its shape and type."""
    arrays = {f"a/{name}/{key}": array.data for name, of in content.array_records.items() for key, array in of.items()}
    settings = {
        f"c/{name}/{key}": repr(value)
        for records in (content.config_records, content.metric_records)
        for name, of in records.items()
        for key, value in of.items()
    }
    return {"run": run, **arrays, **settings}


def _assumed(plan: SumPlan) -> tuple[int, int]:
    """T and C: how many clients are in a sum at least, and how many of them may collude."""
    assert plan.colluding is not None
    return plan.sizes[0], plan.colluding


def _share(plan: SumPlan, clients: int) -> Share:
    """A client's part of the noise that H have together, on the grid of all; ValueError if a sum could wrap around."""
    least, colluding = _assumed(plan)
    step = shared_step(plan.sigma, least - colluding, [1])
    one = Share(1, least - colluding, step, plan.norm * SLACK)
    require_no_wrap(plan.sigma, [one] * clients)
    return one


def _ring(plan: SumPlan, context: Context) -> Keyring:
    ring = keyring_of(context.node_config, str(context.run_id), _site(context))
    require_honest(*_assumed(plan), ring.colluding)
    return ring


def _site(context: Context) -> int:
    """The number that a node has in a cohort; its key says who it is."""
    if "partition-id" not in context.node_config:
        raise ExperimentError(
            "this node's configuration names no 'partition-id', its number among the clients of a sum"
        )
    return int(context.node_config["partition-id"])
