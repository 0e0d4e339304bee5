"""Trust model `distributed` at a site, whatever is summed: checked, charged, then a share of noise and a mask."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw.federation import messages
from fedsw.federation.messages.table import (
    MaskedAsked,
    MaskedNumbers,
    MaskedSumAsked,
    MaskedTableAsked,
    Ready,
)
from fedsw.federation.node.limits import codes_of
from fedsw.federation.node.node import Node
from fedsw.federation.node.replies import Due, answered, ledgers_of, node_of, paid_together, state_of_site
from fedsw.federation.node.roster import Keyring, keyring_of
from fedsw.federation.trust import most, promise
from fedsw.federation.trust.distributed.attempt_cost import Agreed, delta_of
from fedsw.federation.trust.distributed.members import Cohort, assumed, party_of, require_honest
from fedsw.privacy.masks import NONCE_BYTES, digest_of
from fedsw.privacy.release import Bounded, Paid, release_share

State = MutableMapping[str, Any]
A = TypeVar("A", bound=Agreed)
Asked = MaskedTableAsked | MaskedSumAsked | MaskedAsked


@dataclass(frozen=True)
class Answering(Generic[A]):
    """A site in an attempt: the cohort it has checked, its place there, what all sites agree on, what it has paid."""

    node: Node
    ring: Keyring
    cohort: Cohort
    attempt: A
    index: int
    paid: list[Paid]

    @property
    def there(self) -> NDArray[np.bool_]:
        """Which of the node's clients are in the sum, (S,)."""
        return np.isin(self.node.clients, self.cohort.parties[self.index].clients)


def ready(message: Message, context: Context) -> Message:
    """Say that this site can be asked for an attempt's sums: its public key, and a nonce that it never had before."""
    node, request = node_of(messages.READY, message, context)
    ring, state = _ring(node, context), state_of_site(context)
    state.clear()
    state.update({"round": request.round, "attempt": request.attempt, "nonce": os.urandom(NONCE_BYTES)})
    return answered(Ready(ring.key.public.hex(), bytes(state["nonce"]).hex()), node, message)


def charged(node: Node, request: Asked, context: Context, state: State, agree: Callable[[Cohort], A]) -> Answering[A]:
    """Check what all sites are asked, and charge the attempt to every client of this one that is in the sum.

    BudgetExhausted, AlreadySpent by a client's ledger; RuntimeError, ValueError as `checked`: what has no grid is
    refused before it is charged, too.
    """
    here = checked(node, request, context, state, agree)
    for part in here.attempt.parts:  # a grid that could wrap around is refused while nothing is charged
        here.attempt.shares(part.name)
    delta, agreed = delta_of(node.task.experiment, here.cohort.records), here.attempt
    promised, planned = promise(node, delta), most(node, delta)
    dues = [
        Due(ledger, promised, request.round, request.attempt, agreed.charges, agreed.sigma, agreed.parts, planned)
        for ledger in ledgers_of(node, context, np.flatnonzero(here.there).tolist()).values()
    ]
    said = paid_together(dues)
    # A site's sum is of all of its clients that are asked: if one cannot pay, nothing leaves. The others stay charged.
    if faults := [outcome for outcome in said if isinstance(outcome, Exception)]:
        raise faults[0]
    here.paid.extend(outcome for outcome in said if isinstance(outcome, Paid))
    return here


def checked(node: Node, request: Asked, context: Context, state: State, agree: Callable[[Cohort], A]) -> Answering[A]:
    """A request that this site may answer, with what all sites of its cohort `agree` on; nothing is charged.

    RuntimeError if this site gave no nonce for the attempt, or has answered it; ValueError by `party_of` and `agree`.
    """
    if (state.get("round"), state.get("attempt")) != (request.round, request.attempt) or "nonce" not in state:
        raise RuntimeError(
            f"round {request.round}, attempt {request.attempt} was not made ready at this site, or was answered; the "
            "server must start a fresh attempt"
        )
    ring, cohort = _ring(node, context), Cohort.read(request.cohort)
    nonce, planned = bytes(state["nonce"]).hex(), assumed(node.task.experiment)
    party = party_of(cohort, ring, nonce, node.clients, node.held, *planned)
    return Answering(node, ring, cohort, agree(cohort), cohort.parties.index(party), [])


def masked(here: Answering[A], bounded: Bounded, name: str, request: Asked, sent: Mapping[str, bytes]) -> Tensor:
    """The site's numbers (y,): its share of noise, rounded to the common grid, and its mask for this very request.

    Noise and mask are added at the door (`release_share`), for what `charged` has paid. What else all
    sites are sent alike is in the mask: masks cancel only where it is the same.
    """
    node = here.node
    digested: dict[str, bytes | str | int] = {
        "run": node.run,
        "experiment": node.settings,
        "round": request.round,
        "attempt": request.attempt,
        "sum": name,
        "cohort": request.cohort,
        **sent,
    }
    length = int(np.prod(bounded.shape))
    # The cohort has every site's nonce: no two attempts share a mask, and the two sums of one differ in their name.
    mask = here.ring.key.mask(here.cohort.others(here.ring.key.public.hex()), digest_of(digested), length)
    stream = node.own_stream(request.round, request.attempt, f"share of {name}")
    share = here.attempt.shares(name)[here.index]
    numbers = release_share(bounded, here.paid, name, share, mask, stream)
    return torch.from_numpy(numbers.view(np.int64))


def masked_reply(here: Answering[A], numbers: Tensor, message: Message) -> Message:
    """The masked numbers (y,), and what every client's ledger of the site in the sum has spent; 0 of others."""
    spent = torch.zeros(len(here.node.clients), dtype=torch.float64)
    spent[torch.from_numpy(here.there)] = torch.tensor([payment.spent for payment in here.paid], dtype=torch.float64)
    return answered(MaskedNumbers(numbers, spent), here.node, message, S=len(here.node.clients))


def _ring(node: Node, context: Context) -> Keyring:
    """Return this site's key and roster; refuse noise too small for the colluding clients its operator assumes."""
    codes = codes_of(node.task.experiment, context.node_config)
    ring = replace(keyring_of(context.node_config, node.run, int(node.clients[0])), codes=codes)
    require_honest(*assumed(node.task.experiment), ring.colluding)
    return ring
