"""A client's plan of its own guarantee for one release of its records: noise, cost, and the epsilon that follows."""

from __future__ import annotations

from fedsw.experiment import Experiment
from fedsw.experiment.sections import ReleaseSettings
from fedsw.federation.node.own_ledger import GROUP
from fedsw.privacy.accounting import Charge, Step, epsilon_by
from fedsw.privacy.local_release import RecordRelease


def release_of(experiment: Experiment, delta: float) -> RecordRelease:
    """The one-shot release of a client's records that an experiment asks for."""
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
    """Charge of the release: every record once, at the true diameter, whatever the noise was calibrated for."""
    return Charge(GROUP, 1.0, 2 * release.radius)


def release_epsilon(experiment: Experiment, delta: float) -> float:
    """The release's epsilon: the one asked for, or a larger one where the noise is for the paper's diameter."""
    release = release_of(experiment, delta)
    step = Step(1.0, release_charge(release).sensitivity / release.scale)
    return epsilon_by(experiment.accountant, {step: 1}, delta)
