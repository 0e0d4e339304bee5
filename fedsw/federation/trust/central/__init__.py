"""Trust models `central`: the server sees un-noised functions of outputs, and noises one sum a round; and `none`."""

from __future__ import annotations

from typing import ClassVar

from fedsw.federation.trust.trust_model import Served


class Central(Served):
    """The server and the clients are trusted to follow the protocol; readers of the models are not."""

    name = "central"
    once: ClassVar[str | None] = "sketch"
    serves = "fedsw.federation.trust.central.rounds:SIDES"
    compares = frozenset(("groups", "prior", "generator", "domain"))
    gradients = True
    law = "clipped sum"
    trusted_with = "server and clients follow the protocol and keep what they receive"
    leaves = "outputs, contribution"
    adds_noise = "server"
    protects = "readers of the models and of the published record"


class Nobody(Central):
    """As `central`, without noise: every other trust model is measured against it."""

    name = "none"
    once = None
    noised = False
    trusted_with = "everybody"
    adds_noise = "none"
    protects = "nobody"


TRUST_MODELS = (Nobody(), Central())
