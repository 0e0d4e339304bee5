"""Trust models `central`: the server sees un-noised functions of outputs, and noises one sum a round; and `none`."""

from __future__ import annotations

import math
from typing import ClassVar

from fedsw.experiment.trust import BESIDE_ROUNDS, TrustModel


class Central(TrustModel):
    """The server and the clients are trusted to follow the protocol; readers of the models are not."""

    name = "central"
    once: ClassVar[str | None] = "sketch"
    serves = "fedsw.federation.trust.central.rounds:SIDES"
    compares = frozenset(("groups", "prior", "generator", "domain"))
    most_order = math.inf
    law = "clipped sum"
    beside = BESIDE_ROUNDS
    own_bounds = frozenset(("proven", "stated", "none"))
    held_out_to = frozenset(("operator", "everybody"))
    relations = frozenset(("replace-one", "add-remove"))
    trusted_with = "server and clients follow the protocol and keep what they receive"
    leaves = "outputs, contribution"
    adds_noise = "server"
    protects = "readers of the models and of the published record"


class Nobody(Central):
    """As `central`, without noise: every other trust model is measured against it."""

    name = "none"
    once = None
    relations = frozenset(("replace-one",))
    fixed_epsilon = math.inf
    with_noise = "central"
    protectable = frozenset(("target",))
    trusted_with = "everybody"
    adds_noise = "none"
    protects = "nobody"

    def without_clipping(self) -> None:
        """See `TrustModel`: nothing is promised."""
        return


TRUST_MODELS = (Nobody(), Central())
