"""Trust model `local-slices`: clients release noisy random slices of features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw.experiment.sections import SliceSettings
from fedsw.federation.trust import OwnLedgers

if TYPE_CHECKING:
    from fedsw.experiment import Experiment
    from fedsw.experiment.choices import Settings
    from fedsw.privacy.accountants import Accountant


class LocalSliced(OwnLedgers):
    """No trust in others: each client noises random projections of its features, fresh every round or stored once."""

    name = "local-slices"
    serves = "fedsw.federation.trust.local_slices.noised_slices:SIDES"
    compares = frozenset(("generator", "domain"))
    law = "random slices"
    sections = {"local": SliceSettings}
    why_not = "it matches private features that no parameter moves, by their noised projections"
    trusted_with = "nobody but the client itself"
    leaves = "noised random slices of features"
    adds_noise = "client"
    protects = "everybody"

    def accounts(self, accountant: Accountant) -> bool:
        """See `TrustModel`: any."""
        return True

    def releases(self, experiment: Experiment) -> int:
        """See `TrustModel`: every round, or once, what all its rounds then learn from."""
        return 1 if experiment.own(SliceSettings).once else experiment.training.rounds

    def moves_points(self, settings: Settings) -> bool:
        """See `TrustModel`: flows do."""
        return settings.own(SliceSettings).algorithm != "dp-swd"


TRUST_MODELS = (LocalSliced(),)
