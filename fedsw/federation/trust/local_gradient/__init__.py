"""Trust model `local-gradient`: clients release noised tables and their own noised contribution."""

from __future__ import annotations

from fedsw.experiment.sections import TableSettings
from fedsw.federation.trust.trust_model import Served


class LocalGradients(Served):
    """Nobody is trusted: each client noises its histograms of outputs and its contribution for its own guarantee."""

    name = "local-gradient"
    once = "sketch-local"
    serves = "fedsw.federation.trust.local_gradient._adding:SIDES"
    compares = frozenset(("groups",))
    local = True
    gradients = True
    law = "clipped contribution"
    sections = {"local": TableSettings}
    why_not = "its noised tables rank the outputs of private groups against each other"
    trusted_with = "nobody but the client itself"
    leaves = "noised table, noised contribution"
    adds_noise = "client"
    protects = "everybody: server, other clients, readers"
    needs_noise = (
        "privacy.epsilon is inf: without noise trust 'local-gradient' would send counts of outputs as they are; "
        "set a finite epsilon or a noise_multiplier, or use trust 'none' for the non-private reference"
    )


TRUST_MODELS = (LocalGradients(),)
