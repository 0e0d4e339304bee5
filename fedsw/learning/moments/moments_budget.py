"""From `privacy.epsilon` to noise multipliers (`shares`): of rounds, with moments or without, and of releases beside.

Moments before the rounds and counts of scores after them cost all records of training; sums over records that were kept
out, these records alone.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedsw._tools.later import torch
from fedsw.experiment import Experiment, ExperimentError, accountant_of, mechanism_of
from fedsw.experiment.compatibility import sampling_of
from fedsw.experiment.trust import releasing_gradients
from fedsw.learning.moments.moments_sum import MOST_FEATURES, Layout, layout_of
from fedsw.learning.moments.preparation import foldable
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import ScoreCounts
from fedsw.learning.tasks.tally import Tally
from fedsw.privacy import plan as plans
from fedsw.privacy.accounting import Charge, Step, lifetime
from fedsw.privacy.accounting.lifetime import Cost, Counts
from fedsw.privacy.relations import RELATIONS, Sampling
from fedsw.privacy.release import Part
from fedsw.privacy.sensitivity import DECLARED, SIZES, SLACK, Sensitivity

FIRST = 0
"""The round that the release of moments has in ledgers and messages; rounds of training begin at 1."""

PART = "moments"


@dataclass(frozen=True)
class Shares:
    """A budget in parts: noise multipliers of moments, released first, of every round, and of scores; epsilon of all.

    Those of moments and of scores' counts, released last, are 0 where none are released, all without noise.
    """

    moments: float
    rounds: float
    epsilon: float
    scores: float = 0.0


def planned_once(multiplier: float, attempts: int = 1, sampling: Sampling = "without-replacement") -> Counts:
    """Return the charges that an account sets aside for attempts at one release; none where the multiplier is 0."""
    return lifetime.planned(Step(1.0, 1 / multiplier, sampling), attempts) if multiplier else {}


@dataclass(frozen=True)
class SumBudget:
    """One release of a sum over all records: how far a replaced one moves it, and sigma over that (0 without noise)."""

    name: str
    sensitivity: Sensitivity
    multiplier: float

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in every number."""
        return self.multiplier * self.sensitivity.value

    @property
    def part(self) -> Part:
        """The part that this pays for."""
        return Part.of(self.name, self.sensitivity, self.sigma)

    def charges(self, groups: Sequence[str], experiment: Experiment) -> list[Charge]:
        """Return the charge to every group that is trained on: all of its records, once."""
        sampling = RELATIONS.get(self.sensitivity.relation).sampling
        return [*(Charge(group, 1.0, self.sensitivity.value, sampling) for group in groups), *idle(experiment)]


def shares(
    experiment: Experiment,
    *,
    rate: float,
    delta: float,
    device: torch.device | str = "cpu",
    rounds: int | None = None,
    attempts: int = 1,
) -> Shares:
    """How an experiment's budget is shared between its moments, its rounds and the counts of scores.

    With `epsilon` given, moments get `privacy.moments` of mu^2 and scores `thresholds.share`, where mu is that of one
    Gaussian release with the whole budget; what is left is found by composing the rounds with both numerically. With
    `noise_multiplier` given it is the rounds', and the others get the same parts of all together. Attempts that fail
    are counted among `rounds`; each of the `attempts` at moments, or at scores, costs its part of the share.

    Guarantee: one release of moments, all rounds and one of scores, at these noise multipliers and this sampling rate,
    together satisfy (epsilon, delta) for the replacement of one record, or its addition or removal where the run's
    guarantee is for that.

    ValueError for an epsilon or a delta that cannot be reached.

    Source: docs/guarantees/moments.md, thresholds.md.
    """
    privacy, parts = experiment.privacy, (float(experiment.privacy.moments), experiment.thresholds.share)
    many = experiment.training.rounds if rounds is None else rounds
    by = {"accountant": accountant_of(experiment), "mechanism": mechanism_of(experiment)}
    sampling = sampling_of(experiment)
    settled = functools.partial(plans.calibrated, delta=delta, device=device, sampling=sampling, **by)
    target = (privacy.epsilon, privacy.noise_multiplier)
    if not any(parts):
        return Shares(0.0, *settled(*target, rate=rate, rounds=many))
    if privacy.noise_multiplier is None:
        whole = settled(privacy.epsilon, None, rate=1.0, rounds=1)[0]
        first, last = (whole / math.sqrt(part / attempts) if part else 0.0 for part in parts)
    else:
        _, alone = settled(*target, rate=rate, rounds=many)
        if math.isinf(alone):
            beside_rounds = " and ".join(name for name, part in zip(("moments", "scores"), parts, strict=True) if part)
            raise ValueError(
                f"{many} rounds at privacy.noise_multiplier = {privacy.noise_multiplier:g} spend an infinite epsilon, "
                f"of which {beside_rounds} have no part: use a larger noise_multiplier"
            )
        whole = settled(alone, None, rate=1.0, rounds=1)[0]
        left = experiment.left_to_rounds
        first, last = (whole * math.sqrt(left / part * attempts) if part else 0.0 for part in parts)
    beside = tuple((Step(1.0, 1 / multiplier, sampling), attempts) for multiplier in (first, last) if multiplier)
    return Shares(first, *settled(*target, rate=rate, rounds=many, beside=beside), last)


def moments_budget(layout: Layout, multiplier: float, relation: str) -> SumBudget:
    """The release of moments.

    Guarantee: the sums move by at most the sensitivity when one record is replaced by any other, or comes or goes where
    that is the relation (`fedsw.learning.moments.moments_sum.Layout.moved_for`).
    """
    public = {"poisson": DECLARED, "without-replacement": SIZES}[RELATIONS.get(relation).sampling]
    return SumBudget(PART, SLACK * Sensitivity(layout.moved_for(relation), "moments", relation, (public,)), multiplier)


def require_moments(problem: Problem, *, alone: bool = False) -> None:
    """Check that the moments that an experiment asks for can be released and used; `alone` if it is to stop then."""
    experiment = problem.experiment
    if not experiment.privacy.moments:
        if alone:
            raise ExperimentError(
                "moments alone are asked for, and privacy.moments is 0 here: noise would hide them, or nothing asks "
                "for them; set a share of the budget, as in privacy.moments=0.1"
            )
        return
    if experiment.privacy.moments == "auto":  # what chooses a share leaves moments out where there can be none
        return
    trust = experiment.privacy.trust
    reason = ""
    if trust not in (able := releasing_gradients()):
        reason = f"are released under privacy.trust {', '.join(map(repr, able))}, not {trust!r}"
    elif layout_of(problem) is None:
        reason = (
            f"are of at most {MOST_FEATURES} inputs with a class or numbers to predict, and penalties between groups "
            f"alone; here are {problem.features} inputs and objective.task {experiment.objective.task!r}"
        )
    elif not foldable(problem.build_model(), problem.features):
        reason = f"go into a first linear layer that takes the inputs; model.kind {experiment.model.kind!r} has none"
    if reason:
        raise ExperimentError(
            f"privacy.moments is {experiment.privacy.moments:g}, and moments {reason}: set privacy.moments to 0"
        )


def moments_layout(problem: Problem) -> Layout | None:
    """Return the layout of the sums before the rounds; None in an experiment that releases no moments."""
    return layout_of(problem) if problem.experiment.privacy.moments else None


SCORES_PART = "scores"


def scores_round(experiment: Experiment) -> int:
    """The round that the release of scores has in ledgers and messages: after those of training and of kept records."""
    return experiment.training.rounds + 2


def scores_of(problem: Problem) -> ScoreCounts | None:
    """Return the counts that thresholds by group are read off; None in an experiment that releases none."""
    if not problem.experiment.thresholds.share:
        return None
    return ScoreCounts(len(problem.groups), 1 if problem.positive is None else problem.positive)


def scores_budget(counts: ScoreCounts, multiplier: float) -> SumBudget:
    """The release of scores.

    Guarantee: the counts move by at most the sensitivity when one record is replaced by any other
    (`fedsw.learning.tasks.score_counts.ScoreCounts.moved`).
    """
    return SumBudget(SCORES_PART, SLACK * Sensitivity(counts.moved, "counts of scores"), multiplier)


def require_thresholds(problem: Problem) -> None:
    """Check that counts of scores, where an experiment asks for them, can be released and used: ExperimentError."""
    experiment, facts = problem.experiment, problem.task.facts
    if not experiment.thresholds.share:
        return
    reason = ""
    if not (facts.classifies and facts.supervised) or problem.classes != 2 or problem.dimension != 1:
        task = experiment.objective.task
        reason = f"are of a classifier of two classes; here objective.task is {task!r}, of {problem.classes} classes"
    elif len(problem.groups) < 2:
        reason = f"are by group, and the data have {len(problem.groups)}"
    if reason:
        raise ExperimentError(
            f"thresholds.share is {experiment.thresholds.share:g}, and thresholds {reason}: leave [thresholds] out"
        )


HELD_OUT = "held out"
"""The group of a ledger that holds the records which were kept out of training; no record is in another, too."""

TALLY_PART = "tally"
PUBLIC = ("how many records of each group are kept out of training",)


def tally_of(task: Problem) -> Tally | None:
    """Return the tally released of kept records; None in an experiment that releases none."""
    return task.task.tally(task.shape) if task.experiment.data.held_out_released else None


@dataclass(frozen=True)
class HeldOutBudget(SumBudget):
    """One release of a sum over all kept records, in so many attempts."""

    attempts: int = 1

    def charges(self, groups: Sequence[str], experiment: Experiment) -> list[Charge]:
        """Return the charges: to every kept record once, to those of the other groups nothing."""
        held_out = Charge(HELD_OUT, 1.0, self.sensitivity.value)
        return [*(Charge(group, 0.0, 0.0) for group in groups), held_out]

    def planned(self) -> Counts:
        """Return the charges that an account sets aside for the release."""
        if not self.multiplier:
            return lifetime.NO_NOISE
        return lifetime.planned(Step(1.0, 1 / self.multiplier), self.attempts)


def held_out_budget(
    experiment: Experiment, tally: Tally, epsilon: float, delta: float, attempts: int = 1
) -> HeldOutBudget:
    """The release of kept records, in so many attempts, at the run's own (epsilon, delta): training meets none of them.

    Guarantee: training reads none of the kept records, and this reads no others. So whoever sees both sees, of any one
    record, a release of (epsilon, delta) and nothing else: for the replacement of one record within its group, the run
    keeps (epsilon, delta) as a whole.

    Source: docs/guarantees/units.md.
    """
    by = {"accountant": accountant_of(experiment), "mechanism": mechanism_of(experiment)}
    multiplier, _ = plans.calibrated(epsilon, None, delta=delta, rate=1.0, rounds=attempts, **by)
    sensitivity = SLACK * Sensitivity(tally.moved, "tally of kept records", public=PUBLIC)
    return HeldOutBudget(TALLY_PART, sensitivity, multiplier, attempts)


def idle(experiment: Experiment) -> list[Charge]:
    """Return the charge of a training round to the kept records: zero, and stated where a ledger has their group."""
    return [Charge(HELD_OUT, 0.0, 0.0)] if experiment.data.held_out_released else []


def with_held_out(groups: Sequence[str], experiment: Experiment) -> tuple[str, ...]:
    """The groups of a run's ledger."""
    return (*groups, HELD_OUT) if experiment.data.held_out_released else tuple(groups)


def run_with_split(run: str, experiment: Experiment) -> str:
    """The run's name in a client's ledger, with what decides who is kept out where something of them is released.

    A server that nobody trusts could else go on with a run under another split, and have records counted that were
    trained on: each part would stay within its epsilon, and one record would have paid both.
    """
    if not experiment.data.held_out_released:
        return run
    deciding = experiment.model_dump_json(include={"data", "objective", "partition", "federation"})
    return f"{run}.{hashlib.sha256(deciding.encode()).hexdigest()[:16]}"


def covering(task: Problem, training: Counts, epsilon: float, delta: float, attempts: int = 1) -> Counts | Cost:
    """Return the charges set aside for a run: a record is trained on or kept out, and other runs do not know which."""
    if (tally := tally_of(task)) is None:
        return training
    budget = held_out_budget(task.experiment, tally, epsilon, delta, attempts)
    return Cost.of([training, budget.planned()])
