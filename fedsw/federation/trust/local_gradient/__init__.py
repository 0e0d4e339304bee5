"""Trust model `local-gradient`: clients release noised tables and their own noised contribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsw.experiment.sections import TableSettings
from fedsw.experiment.trust import BESIDE_ROUNDS
from fedsw.federation.trust import OwnLedgers


class LocalGradients(OwnLedgers):
    """Inter-silo record-level DP: each client noises its histograms of outputs and its contribution by itself."""

    name = "local-gradient"
    once = "sketch-local"
    serves = "fedsw.federation.trust.local_gradient.adding:SIDES"
    compares = frozenset(("groups",))
    held_out_to = frozenset(("operator", "everybody"))
    law = "clipped contribution"
    beside = BESIDE_ROUNDS
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

    def tables(self, problem: Any, batch: Sequence[int], multiplier: float) -> tuple[float, int]:
        """See `TrustModel`: as its settings say."""
        settings = problem.experiment.own(TableSettings)
        return settings.table_share, settings.bins


TRUST_MODELS = (LocalGradients(),)
