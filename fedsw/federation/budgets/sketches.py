"""How one release of a sketch is planned: its noise, what it costs, and the epsilon that follows; T = 1, rate 1."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from fedsw.accounting import Charge
from fedsw.experiment import Experiment
from fedsw.federation.budgets.split import GROUP
from fedsw.privacy import plan as plans
from fedsw.privacy.release import Part
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.sketches.law import Law
from fedsw.sketches.noised import sketch_sensitivity

PART = "sketch"


@dataclass(frozen=True)
class SketchBudget:
    """One release of all records.

    Attributes:
        sensitivity: how far a replaced record moves the sum, its label and group included.
        multiplier: sigma over that; 0 without noise.
        epsilon: of the release.
    """

    sensitivity: Sensitivity
    multiplier: float
    epsilon: float

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in every number."""
        return self.multiplier * self.sensitivity.value

    @property
    def charge(self) -> Charge:
        """What it costs a client's records: all of them, once."""
        return Charge(GROUP, 1.0, self.sensitivity.value)

    @property
    def part(self) -> Part:
        """The part that this charge pays for."""
        return Part(PART, self.sensitivity.value, self.sigma)


def sketch_budget(experiment: Experiment, law: Law, delta: float) -> SketchBudget:
    """The one release that an experiment asks for: the same at every client, and at a server that is trusted.

    Guarantee: one release with this noise satisfies (epsilon, delta) for the replacement of one record, label and group
    included: the exact profile of the Gaussian mechanism at 1 / multiplier.

    Raises:
        ValueError: for an epsilon or a delta that cannot be reached.
    """
    privacy = experiment.privacy
    epsilon = privacy.epsilon if privacy.noise_multiplier is None else None
    multiplier, found = _calibrated(epsilon, privacy.noise_multiplier, delta, privacy.accountant)
    return SketchBudget(sketch_sensitivity(law), multiplier, found)


@functools.lru_cache(maxsize=64)
def _calibrated(epsilon: float | None, multiplier: float | None, delta: float, accountant: str) -> tuple[float, float]:
    return plans.calibrated(epsilon, multiplier, delta=delta, rate=1.0, rounds=1, accountant=accountant)
