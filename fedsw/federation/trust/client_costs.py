"""How a client plans its own guarantee for slices, a release or a sketch: noise, and what each answer costs."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass

from fedsw.experiment import Experiment, accountant_of, mechanism_of, planned_releases
from fedsw.experiment.sections import ReleaseSettings, SliceSettings
from fedsw.learning.moments.budget_split import GROUP
from fedsw.learning.moments.moments_budget import SumBudget
from fedsw.learning.sketches.from_settings import Stage
from fedsw.learning.sketches.noised import sketch_sensitivity
from fedsw.learning.sketches.sketch_law import Law
from fedsw.learning.tasks.measures import sketcher_of
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy import plan as plans
from fedsw.privacy.accountants import GAUSSIAN, NO_NOISE
from fedsw.privacy.accounting import Charge, Slicing, Step, epsilon_by, lifetime
from fedsw.privacy.accounting.lifetime import Counts
from fedsw.privacy.local_release import RecordRelease
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

    @property
    def shared_directions(self) -> bool:
        """True if directions are whole orthogonal blocks: any such directions hide a record, so all may share them."""
        return self.slicing.fixed


def slices_plan(experiment: Experiment, *, dimension: int, rate: float, delta: float) -> SlicesPlan:
    """The noise with which a client at sampling rate `rate` keeps (epsilon, delta) over all its releases of slices.

    Guarantee: (epsilon, delta) for the replacement of one of the client's records, against everybody, by the profile of
    random slicing, amplified by the client's own sampling and composed over releases (docs/guarantees/accounting.md).
    With the accountants of other papers it is what they say it is (`fedsw.privacy.accounting.ACCOUNTANTS`).
    """
    releases = planned_releases(experiment)
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
        accountant=accountant_of(experiment),
        mechanism=mechanism_of(experiment),
        slicing=slicing,
    )
    return SlicesPlan(rate, releases, slicing, diameter, multiplier * diameter, epsilon)


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
    return epsilon_by(accountant_of(experiment), {step: 1}, delta)


PART = "sketch"
_ROOM = 1e-7
"""Relative: what a ledger that adds up stages one by one may differ by in its last digits."""


@dataclass(frozen=True)
class SketchBudget(SumBudget):
    """One release of a sketch of all records, of one stage; `epsilon` is of all stages together.

    `whole` is the noise multiplier of one release that costs as much as all stages together; 0 without noise.
    """

    epsilon: float
    whole: float


def sketch_budget(experiment: Experiment, law: Law, delta: float, number: int = 1) -> SketchBudget:
    """An attempt at the release of a stage: the same at every client, and at a server that is trusted.

    Guarantee: one release of every stage, each with its noise, together satisfy (epsilon, delta) for the replacement of
    one record, label and group included, also where what a stage measures depends on the releases before: the exact
    profile of the Gaussian mechanism at mu = 1 / m, as stage i has m_i = m / sqrt(share_i), and the shares have sum 1.
    Where a trust model charges each of several attempts at a stage, every one of them has an equal part of its share.

    ValueError for an epsilon or a delta that cannot be reached.
    """
    privacy, attempts = experiment.privacy, experiment.privacy.model.attempts(experiment)
    epsilon = privacy.epsilon if privacy.noise_multiplier is None else None
    shares = tuple(share / attempts for share in experiment.sketch.shares for _ in range(attempts))
    multiplier, achieved = _sketch_calibrated(
        epsilon, privacy.noise_multiplier, delta, accountant_of(experiment), shares
    )
    of_stage = multiplier / math.sqrt(shares[(number - 1) * attempts])
    return SketchBudget(PART, sketch_sensitivity(law), of_stage, achieved, multiplier)


@dataclass(frozen=True)
class StageCost:
    """Cost of a stage: its share of the budget's mu^2, its mu over all attempts, and one attempt's sigma over Delta.

    `numbers` is how many a record's vector has.
    """

    share: float
    mu: float
    multiplier: float
    numbers: int


def stage_costs(task: Problem, delta: float) -> tuple[StageCost, ...]:
    """Costs of all stages of a sketch, as ledgers are charged: squares of mu add up to the whole budget's."""
    experiment, costs = task.experiment, list[StageCost]()
    attempts = experiment.privacy.model.attempts(experiment)
    for number, share in enumerate(experiment.sketch.shares, start=1):
        sketcher = sketcher_of(task, Stage(number))
        multiplier = sketch_budget(experiment, sketcher.law, delta, number).multiplier
        costs.append(StageCost(share, math.sqrt(attempts) / multiplier, multiplier, sketcher.coordinates))
    return tuple(costs)


def planned_stages(task: Problem, delta: float) -> Counts:
    """Steps that an account reserves for a noised sketch: all planned attempts at every stage, as charged."""
    attempts, steps = task.experiment.privacy.model.attempts(task.experiment), Counter[Step]()
    for stage in stage_costs(task, delta):
        steps.update(lifetime.planned(Step(1.0, 1 / stage.multiplier), attempts))
    return steps


@functools.lru_cache(maxsize=64)
def _sketch_calibrated(
    epsilon: float | None, multiplier: float | None, delta: float, accountant: str, shares: tuple[float, ...]
) -> tuple[float, float]:
    """Multiplier and epsilon as a ledger adds stages up: raised until numerical accounts are within the budget."""
    calibrated, whole = plans.calibrated(epsilon, multiplier, delta=delta, rate=1.0, rounds=1, accountant=accountant)
    if len(shares) == 1 or not calibrated:
        return calibrated, whole

    def added_up(total: float) -> float:
        return epsilon_by(accountant, Counter(Step(1.0, math.sqrt(share) / total) for share in shares), delta)

    spent = added_up(calibrated)
    if epsilon is None:
        return calibrated, spent
    while spent > epsilon:
        calibrated *= 1 + _ROOM + (spent / epsilon - 1)
        spent = added_up(calibrated)
    return calibrated, epsilon
