"""Trust model `local-gradient`: clients release noised tables and their own noised contribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw.experiment.sections import TableSettings
from fedsw.federation.trust.model import Served, Sides

if TYPE_CHECKING:
    from fedsw.experiment.sections import Privacy


class LocalGradients(Served):
    """Nobody is trusted: each client noises its histograms of outputs and its contribution for its own guarantee."""

    name = "local-gradient"
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
    covers = "every record against everybody: the server, the other clients, and readers"
    uncovered = "which group a record is in (the sizes of the groups at each client are public)"

    def without_noise(self, privacy: Privacy) -> str | None:
        """See `TrustModel`: counts of outputs would leave as they are."""
        if privacy.noisy:
            return None
        return (
            "privacy.epsilon is inf: without noise trust 'local-gradient' would send counts of outputs as they are; "
            "set a finite epsilon or a noise_multiplier, or use trust 'none' for the non-private reference"
        )

    @property
    def sides(self) -> Sides:
        """See `Served`."""
        from fedsw.federation.trust.local_gradient.server import SIDES

        return SIDES


TRUST_MODELS = (LocalGradients(),)
