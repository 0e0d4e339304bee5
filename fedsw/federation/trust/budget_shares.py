"""From `privacy.epsilon` to noise multipliers (`shares`): of rounds, with moments or without, and of releases beside.

Moments before the rounds and counts of scores after them cost all records of training; sums over records that were kept
out cost only these. At the end, the split of a client's own (epsilon, delta) over its rounds, and of a round's
part between table and contribution.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedsw._tools.later import torch
from fedsw.experiment import Experiment
from fedsw.experiment.compatibility import sampling_of
from fedsw.experiment.sections import TableSettings
from fedsw.federation.node.own_ledger import GROUP, HELD_OUT
from fedsw.learning.moments.beside_rounds import tally_of
from fedsw.learning.moments.column_counts import ColumnCounts
from fedsw.learning.moments.moments_sum import Layout
from fedsw.learning.objectives import Clip, WeightedPenalty
from fedsw.learning.objectives.histograms import contribution_sensitivity, table_sensitivity
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import ScoreCounts
from fedsw.learning.tasks.tally import Tally
from fedsw.privacy import plan as plans
from fedsw.privacy.accounting import Charge, Step, lifetime
from fedsw.privacy.accounting.lifetime import Cost, Counts, added
from fedsw.privacy.relations import ADD_OR_REMOVE, RELATIONS, REPLACE_ONE, Sampling
from fedsw.privacy.release import Part
from fedsw.privacy.sensitivity import DECLARED, SIZES, SLACK, Sensitivity, worst

BEFORE_TRAINING = 0
"""The round of what is released before training, in ledgers and messages: histograms, then moments."""

PART, HISTOGRAMS_PART, SCORES_PART, TALLY_PART = "moments", "histograms", "scores", "tally"
"""What is released once, in payments: the first three of records of training, each a field of `Shares`."""
PUBLIC = ("how many records of each group are kept out of training",)


@dataclass(frozen=True)
class Shares:
    """A budget in parts: noise multipliers of moments, released first, of every round, and of scores; epsilon of all.

    Those of moments, of scores' counts, released last, and of histograms, which come before moments, are 0 if none
    are released, all without noise.
    """

    moments: float
    rounds: float
    epsilon: float
    scores: float = 0.0
    histograms: float = 0.0

    @property
    def once(self) -> tuple[float, ...]:
        """Noise multipliers of what is released once of all records of training; 0 of what is not."""
        return (self.histograms, self.moments, self.scores)


def planned_once(multiplier: float, attempts: int = 1, sampling: Sampling = "without-replacement") -> Counts:
    """Return the charges that an account sets aside for attempts at one release; none if the multiplier is 0."""
    return lifetime.planned(Step(1.0, 1 / multiplier, sampling), attempts) if multiplier else {}


def with_once(rounds: Counts, shared: Shares, attempts: int = 1, sampling: Sampling = "without-replacement") -> Counts:
    """Return the charges that an account sets aside for rounds, and for what is released once beside them."""
    return functools.reduce(added, (planned_once(one, attempts, sampling) for one in shared.once), rounds)


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
    """Split an experiment's budget between its histograms, its moments, its rounds and the counts of scores.

    With `epsilon` given, histograms and moments get `privacy.histograms` and `privacy.moments` of mu^2 and scores the
    larger of `calibration.share` and `thresholds.share`, where mu is that of one Gaussian release with the whole
    budget; what is left is found by composing the rounds with all of them numerically. With `noise_multiplier` given it
    is the rounds', and the others get the same parts of all together. Attempts that fail are counted among `rounds`;
    each of the `attempts` at something that is released once costs its part of the share.

    Guarantee: one release of histograms, one of moments, all rounds and one of scores, at these noise multipliers and
    this sampling rate, together satisfy (epsilon, delta) for the replacement of one record, or its addition or removal
    where the run's guarantee is for that.

    ValueError for an epsilon or a delta that cannot be reached.

    Source: docs/guarantees/moments.md, calibration.md, thresholds.md.
    """
    privacy = experiment.privacy
    (histograms, moments, scores), multiplier, epsilon = plans.with_releases(
        {
            "histograms": privacy.histograms,
            "moments": float(privacy.moments),
            "scores": experiment.share_of_scores,
        },
        privacy.epsilon,
        privacy.noise_multiplier,
        delta=delta,
        rate=rate,
        rounds=experiment.training.rounds if rounds is None else rounds,
        attempts=attempts,
        accountant=experiment.accountant,
        mechanism=experiment.mechanism,
        device=device,
        sampling=sampling_of(experiment),
        setting="privacy.noise_multiplier",
    )
    return Shares(moments, multiplier, epsilon, scores, histograms)


_PUBLIC: Mapping[Sampling, str] = {"poisson": DECLARED, "without-replacement": SIZES}
"""The number of records that a sum over all of them rests on, by the sampling of the neighbours."""

_ABOUT: Mapping[str, str] = {
    HISTOGRAMS_PART: "histograms of columns",
    PART: "moments",
    SCORES_PART: "counts of scores",
}


def sum_budget(part: str, counted: Layout | ScoreCounts | ColumnCounts, multiplier: float, relation: str) -> SumBudget:
    """The release of histograms or of moments before the rounds, or of counts of scores after them.

    Guarantee: the sums move by at most the sensitivity when one record is replaced by any other, or comes or goes where
    that is the relation (`moved_for` of what is counted).
    """
    public = _PUBLIC[RELATIONS.get(relation).sampling]
    moved = Sensitivity(counted.moved_for(relation), _ABOUT[part], relation, (public,))
    return SumBudget(part, SLACK * moved, multiplier)


def rounds_beside(experiment: Experiment) -> dict[str, int]:
    """The rounds that releases beside those of training have in ledgers and messages, by part: before, or after."""
    first = {HISTOGRAMS_PART: BEFORE_TRAINING, PART: BEFORE_TRAINING}
    return {**first, TALLY_PART: experiment.training.rounds + 1, SCORES_PART: experiment.training.rounds + 2}


@dataclass(frozen=True)
class HeldOutBudget(SumBudget):
    """One release of a sum over all kept records, by the number of its attempts."""

    attempts: int = 1

    def charges(self, groups: Sequence[str], experiment: Experiment) -> list[Charge]:
        """Return the charges: to every kept record once, to those of the other groups nothing."""
        sampling = RELATIONS.get(self.sensitivity.relation).sampling
        held_out = Charge(HELD_OUT, 1.0, self.sensitivity.value, sampling)
        return [*(Charge(group, 0.0, 0.0, sampling) for group in groups), held_out]

    def planned(self) -> Counts:
        """Return the charges that an account sets aside for the release."""
        if not self.multiplier:
            return lifetime.NO_NOISE
        return planned_once(self.multiplier, self.attempts, RELATIONS.get(self.sensitivity.relation).sampling)


def held_out_budget(
    experiment: Experiment, tally: Tally, epsilon: float, delta: float, attempts: int = 1
) -> HeldOutBudget:
    """The release of kept records, in its attempts, at the run's own (epsilon, delta): training meets none of them.

    Guarantee: training reads none of the kept records, and this reads no others. An observer of both sees, of any one
    record, a release of (epsilon, delta) and nothing else: for the replacement of one record within its group, the run
    keeps (epsilon, delta) as a whole.

    Source: docs/guarantees/units.md.
    """
    by = {"accountant": experiment.accountant, "mechanism": experiment.mechanism, "sampling": sampling_of(experiment)}
    multiplier, _ = plans.calibrated(epsilon, None, delta=delta, rate=1.0, rounds=attempts, **by)
    relation, public = (ADD_OR_REMOVE, (DECLARED,)) if experiment.privacy.hides_sizes else (REPLACE_ONE, PUBLIC)
    sensitivity = SLACK * Sensitivity(tally.moved_for(relation), "tally of kept records", relation, public)
    return HeldOutBudget(TALLY_PART, sensitivity, multiplier, attempts)


def idle(experiment: Experiment) -> list[Charge]:
    """Return the charge of a training round to the kept records: zero, and stated where a ledger has their group."""
    return [Charge(HELD_OUT, 0.0, 0.0, sampling_of(experiment))] if experiment.data.held_out_released else []


def covering(task: Problem, training: Counts, epsilon: float, delta: float, attempts: int = 1) -> Counts | Cost:
    """Return the charges set aside for a run: a record is trained on or kept out, and other runs do not know which."""
    if (tally := tally_of(task)) is None:
        return training
    of_kept = held_out_budget(task.experiment, tally, epsilon, delta, attempts).planned()
    if not task.experiment.privacy.hides_sizes:
        return Cost.of([training, of_kept])
    # A replaced record may go from one part to the other: each is then moved as by a record that comes, or goes.
    halved = [{replace(step, mu=step.mu / 2): n for step, n in part.items()} for part in (training, of_kept)]
    return Cost.of([training, of_kept, added(*halved)])


@dataclass(frozen=True, kw_only=True)
class BudgetSplit(Shares):
    """The shares of one client's guarantee, and the parts of a round, of which the noise multiplier is 1/mu.

    Attributes:
        rate: p_c, the largest sampling rate of its cells.
        table: mu of the table only; 0 if none is asked.
        contribution: mu of the contribution only, given the table: mu^2 = table^2 + contribution^2.
    """

    rate: float
    table: float
    contribution: float

    @classmethod
    def of(cls, shared: Shares, *, rate: float, share: float) -> BudgetSplit:
        """The split where the table has this share of a round's mu^2."""
        table, contribution = math.sqrt(share) / shared.rounds, math.sqrt(1 - share) / shared.rounds
        return cls(**vars(shared), rate=rate, table=table, contribution=contribution)


@dataclass(frozen=True)
class Noise:
    """The noise of one attempt: standard deviations, bounds, and the joint one in units of `contribution`."""

    table: float
    contribution: float
    joint: Sensitivity
    of_table: Sensitivity | None
    of_contribution: Sensitivity

    def charge(self, rate: float) -> Charge:
        """Return the attempt's charge to the client's records: table and contribution on one batch are one step."""
        return Charge(GROUP, rate, self.joint.value)

    @property
    def sigma(self) -> float:
        """The noise that the charge is read with."""
        return self.contribution or self.table

    @property
    def parts(self) -> list[Part]:
        """The parts that this charge pays for: a table where there is one, a contribution where anything moves it."""
        parts = [] if self.of_table is None else [Part.of("table", self.of_table, self.table)]
        if self.contribution:
            parts.append(Part.of("contribution", self.of_contribution, self.contribution))
        return parts


def own_batch(sizes: Sequence[int], fraction: float) -> tuple[int, ...]:
    """Records of every cell in a client's batches: its fraction rounded down, at least 1 where it holds any; public."""
    return tuple(min(size, max(1, math.floor(fraction * size))) for size in sizes)


def believed(sizes: Sequence[int], own_sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the federation's batch as far as a server can be believed: a client's own records are in it."""
    if len(sizes) != len(own_sizes):
        raise ValueError(f"the server sent {len(sizes)} batch sizes for {len(own_sizes)} groups")
    return tuple(max(size, count) for size, count in zip(sizes, own_sizes, strict=True))


def sampling_rate(sizes: Sequence[int], fraction: float) -> float:
    """p_c = the largest n'_{c,j}/N_{c,j} of a client's cells: only a client's own sampling amplifies its guarantee."""
    return max(count / size for count, size in zip(own_batch(sizes, fraction), sizes, strict=True) if size)


def budget_split(experiment: Experiment, *, rate: float, delta: float) -> BudgetSplit:
    """The noise multipliers with which a client at sampling rate `rate` keeps (epsilon, delta) over all rounds.

    Guarantee: one attempt a round, each a table of noise multiplier 1/table and a contribution of 1/contribution on one
    fresh sample, satisfies (epsilon, delta) for the replacement of one of the client's records, against everyone:
    given the batch the two compose to G_mu, the sampling amplifies that to C_p(G_mu), and the rounds compose, with the
    releases of moments before and of scores after them where there are any.

    Source: theory of docs/guarantees/local-gradients.md; Dong, Roth, Su 2022, Corollary 3.3 and Theorem 4.2.
    """
    shared = shares(experiment, rate=rate, delta=delta)
    share = experiment.own(TableSettings).table_share if asks_tables(experiment) else 0.0
    return BudgetSplit.of(shared, rate=rate, share=share)


def budget_of(experiment: Experiment, sizes: Sequence[int], delta: float) -> BudgetSplit:
    """Split of a client's budget, by its records of every cell and its delta."""
    return budget_split(experiment, rate=sampling_rate(sizes, experiment.training.batch_fraction), delta=delta)


def asks_tables(experiment: Experiment) -> bool:
    """True if ranks are needed at all: with alpha = 0 the contribution has the whole budget."""
    return experiment.objective.alpha > 0


def noise(
    split: BudgetSplit,
    penalty: WeightedPenalty,
    clip: Clip,
    *,
    sizes: Sequence[int],
    own_sizes: Sequence[int],
    spread: float,
    k: int,
) -> Noise:
    """Standard deviations of one attempt's noise, at the sensitivity of the worst cell that the client holds.

    Sizes are records of every cell in the batch of the whole federation, of which `own_sizes` are the client's, on k
    directions of that spread.
    """
    bound = SLACK * worst(
        contribution_sensitivity(penalty, sizes, clip, cell=cell, spread=spread)
        for cell, count in enumerate(own_sizes)
        if count
    )
    return together(split, table_sensitivity(k) if split.table else None, bound)


def together(split: BudgetSplit, of_table: Sensitivity | None, of_contribution: Sensitivity) -> Noise:
    """Standard deviations of one attempt's noise, at given sensitivities; the contribution's is 0 if none leaves."""
    if of_table is None:
        return Noise(0.0, of_contribution.value / split.contribution, of_contribution, None, of_contribution)
    table = of_table.value / split.table
    if not of_contribution.value:
        return Noise(table, 0.0, of_table, of_table, of_contribution)
    # One step of mu^2 = table^2 + contribution^2, in units of the contribution's noise: the ledger divides by sigma.
    sigma, joint = of_contribution.value / split.contribution, of_contribution + of_table
    value = math.hypot(of_contribution.value, sigma * split.table)
    return Noise(table, sigma, replace(joint, value=value), of_table, of_contribution)
