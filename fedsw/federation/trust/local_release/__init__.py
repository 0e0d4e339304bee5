"""Trust model `local-release`: clients release privatised records, once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedsw.experiment.sections import ReleaseSettings
from fedsw.federation.trust import OwnLedgers
from fedsw.privacy.accountants import ACCOUNTANTS

if TYPE_CHECKING:
    from fedsw.experiment import Experiment
    from fedsw.experiment.choices import Settings
    from fedsw.experiment.sections import Privacy


class LocalReleased(OwnLedgers):
    """No trust in others: each client noises its records themselves and sends them once."""

    name = "local-release"
    serves = "fedsw.federation.trust.local_release.released_records:SIDES"
    compares = frozenset(("generator",))
    law = "whole records"
    sections = {"local": ReleaseSettings}
    why_not = "it releases records once, for a generator to learn from"
    trusted_with = "nobody but the client itself"
    leaves = "privatised records, once"
    adds_noise = "client"
    protects = "everybody"

    def releases(self, experiment: Experiment) -> int:
        """See `TrustModel`: once, what all its rounds then learn from."""
        return 1

    def accountant(self, experiment: Experiment) -> str:
        """See `TrustModel`: the settings', or the first that takes its noise; pure epsilon for Laplace noise."""
        mechanism, wanted = self.mechanism(experiment), experiment.privacy.accountant
        able = [name for name, accountant in ACCOUNTANTS.items() if mechanism in accountant.takes]
        return wanted if wanted in able else able[0]

    def mechanism(self, experiment: Experiment) -> str:
        """See `TrustModel`: as its settings say."""
        return experiment.own(ReleaseSettings).mechanism

    def trains_critic(self, settings: Settings) -> bool:
        """See `TrustModel`: adversarial losses do."""
        return settings.own(ReleaseSettings).adversarial

    def without_noise(self, privacy: Privacy) -> str | None:
        """See `TrustModel`: its noise is calibrated to an epsilon."""
        why = (
            "trust 'local-release' needs a finite privacy.epsilon to calibrate its noise; use trust 'none' for the "
            "non-private reference"
        )
        return None if math.isfinite(math.inf if privacy.epsilon is None else privacy.epsilon) else why


TRUST_MODELS = (LocalReleased(),)
