"""How a client plans its own guarantee for slices and for a release: noise, and what each answer costs its records."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from fedsw.accounting import Charge, Slicing, Step, epsilon_by, noise_multiplier
from fedsw.experiment import Experiment, planned_releases
from fedsw.experiment.sections import ReleaseSettings, SliceSettings
from fedsw.experiment.trust import trust_model
from fedsw.federation.budgets.split import GROUP
from fedsw.privacy.records import RecordRelease
from fedsw.privacy.release import Part


@dataclass(frozen=True)
class SlicesPlan:
    """A client's releases of slices.

    Attributes:
        rate: sampling rate p_c of the client's own batches; 1 for one release of everything.
        releases: how many there will be.
        slicing: the law of the directions.
        diameter: how far a replaced record can move its features.
        sigma: standard deviation of the noise of every projection; 0 without privacy.
        epsilon: of all releases together.
    """

    rate: float
    releases: int
    slicing: Slicing
    diameter: float
    sigma: float
    epsilon: float

    @property
    def charge(self) -> Charge:
        """What one release costs the client's records."""
        return Charge(GROUP, self.rate, self.diameter, slicing=self.slicing)

    @property
    def part(self) -> Part:
        """The part that this charge pays for; its bound is that of the features, before slicing."""
        return Part("slices", self.diameter, self.sigma)

    @property
    def shared_directions(self) -> bool:
        """Whether directions are whole orthogonal blocks: any such directions hide a record, so all may share them."""
        return self.slicing.fixed


def slices_plan(experiment: Experiment, *, dimension: int, rate: float, delta: float) -> SlicesPlan:
    """The noise with which a client at sampling rate `rate` keeps (epsilon, delta) over all its releases of slices.

    Guarantee: (epsilon, delta) for the replacement of one of the client's records, against everybody, by the profile of
    random slicing, amplified by the client's own sampling and composed over releases (docs/guarantees/accounting.md).
    With the accountants of other papers it is what they say it is (`fedsw.accounting.ACCOUNTANTS`).

    Args:
        dimension: of the features.
        rate: p_c; ignored where everything is released once.
        delta: of the guarantee.
    """
    releases = planned_releases(experiment)
    rate = 1.0 if experiment.own(SliceSettings).once else rate
    slicing = Slicing(dimension, experiment.slicing.directions, experiment.slicing.scheme)
    diameter = 2 * experiment.clip.output
    if not experiment.privacy.noisy:
        return SlicesPlan(rate, releases, slicing, diameter, 0.0, math.inf)
    privacy = experiment.privacy
    multiplier, epsilon = _calibrated(
        privacy.epsilon, privacy.noise_multiplier, delta, rate, releases, slicing, privacy.accountant
    )
    return SlicesPlan(rate, releases, slicing, diameter, multiplier * diameter, epsilon)


def release_of(experiment: Experiment, delta: float) -> RecordRelease:
    """The one-shot release of a client's records that an experiment asks for.

    Raises:
        ValueError: if the settings do not fit together.
    """
    local, privacy = experiment.own(ReleaseSettings), experiment.privacy
    assert privacy.epsilon is not None
    return RecordRelease(
        privacy.epsilon,
        delta,
        experiment.clip.output,
        norm=local.norm,
        mechanism=local.mechanism,
        calibration=local.calibration,
        diameter=local.diameter,
        dct=local.dct,
        keep=local.keep,
    )


def release_charge(release: RecordRelease) -> Charge:
    """What the release costs: every record once, at the true diameter, whatever the noise was calibrated for."""
    return Charge(GROUP, 1.0, 2 * release.radius)


def release_epsilon(experiment: Experiment, delta: float) -> float:
    """The release's epsilon: the one asked for, or a larger one where the noise is for the paper's diameter."""
    release = release_of(experiment, delta)
    step = Step(1.0, release_charge(release).sensitivity / release.scale)
    return epsilon_by(local_accountant(experiment), {step: 1}, delta)


def local_accountant(experiment: Experiment) -> str:
    """The accountant of a run's ledgers, as its trust model says."""
    return trust_model(experiment.privacy.trust).accountant(experiment)


@functools.lru_cache(maxsize=4096)
def _calibrated(
    epsilon: float | None,
    multiplier: float | None,
    delta: float,
    rate: float,
    releases: int,
    slicing: Slicing,
    accountant: str,
) -> tuple[float, float]:
    if multiplier is not None:
        step = Step(rate, 1 / multiplier, slicing=slicing)
        return multiplier, epsilon_by(accountant, {step: releases}, delta)
    assert epsilon is not None
    found = noise_multiplier(epsilon, delta, sampling_rate=rate, steps=releases, slicing=slicing, accountant=accountant)
    return found, epsilon
