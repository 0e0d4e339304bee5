"""A client's plan of its own guarantee for slices: noise, and the cost of each release."""

from __future__ import annotations

from dataclasses import dataclass

from fedsw.experiment import Experiment
from fedsw.experiment.sections import SliceSettings
from fedsw.federation.node.own_ledger import GROUP
from fedsw.privacy import plan as plans
from fedsw.privacy.accountants import GAUSSIAN, NO_NOISE
from fedsw.privacy.accounting import Charge, Slicing
from fedsw.privacy.release import Part


@dataclass(frozen=True)
class SlicesPlan:
    """A client's releases of slices: their sampling rate p_c (1 for one release of everything), number and directions.

    `diameter` is how far a replaced record can move its features, `sigma` the noise of every projection (0 without
    privacy), `epsilon` that of all releases together.
    """

    rate: float
    releases: int
    slicing: Slicing
    diameter: float
    sigma: float
    epsilon: float

    @property
    def charge(self) -> Charge:
        """Charge of one release to the client's records."""
        return Charge(GROUP, self.rate, self.diameter, slicing=self.slicing)

    @property
    def part(self) -> Part:
        """The part that this charge pays for; its bound is that of the features, before slicing."""
        return Part("slices", self.diameter, self.sigma, GAUSSIAN if self.sigma else NO_NOISE)


def slices_plan(experiment: Experiment, *, dimension: int, rate: float, delta: float) -> SlicesPlan:
    """The noise with which a client at sampling rate `rate` keeps (epsilon, delta) over all its releases of slices.

    Guarantee: (epsilon, delta) for the replacement of one of the client's records, against everybody, by the profile of
    random slicing, amplified by the client's own sampling and composed over releases (docs/guarantees/accounting.md).
    With the accountants of other papers it is what they say it is (`fedsw.privacy.accounting.ACCOUNTANTS`).
    """
    releases = experiment.releases
    rate = 1.0 if experiment.own(SliceSettings).once else rate
    slicing = Slicing(dimension, experiment.slicing.directions, experiment.slicing.scheme)
    diameter = 2 * experiment.clip.output
    privacy = experiment.privacy
    multiplier, epsilon = plans.calibrated(
        privacy.epsilon,
        privacy.noise_multiplier,
        delta=delta,
        rate=rate,
        rounds=releases,
        accountant=experiment.accountant,
        mechanism=experiment.mechanism,
        slicing=slicing,
    )
    return SlicesPlan(rate, releases, slicing, diameter, multiplier * diameter, epsilon)
