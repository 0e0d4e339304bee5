"""Split of a client's own (epsilon, delta) over the rounds, and of a round's part between table and contribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedsw.experiment import Experiment
from fedsw.experiment.sections import TableSettings
from fedsw.federation.node.own_ledger import GROUP
from fedsw.federation.trust.budget_shares import shares
from fedsw.learning.objectives import Clip, WeightedPenalty
from fedsw.learning.objectives.histograms import contribution_sensitivity, table_sensitivity
from fedsw.privacy.accounting import Charge
from fedsw.privacy.release import Part
from fedsw.privacy.sensitivity import SLACK, Sensitivity, worst


@dataclass(frozen=True)
class BudgetSplit:
    """One round of one client's guarantee.

    Attributes:
        rate: p_c, the largest sampling rate of its cells.
        multiplier: noise multiplier of table and contribution together, 1/mu.
        epsilon: of all planned rounds.
        table: mu of the table only; 0 if none is asked.
        contribution: mu of the contribution only, given the table: mu^2 = table^2 + contribution^2.
        moments, scores, histograms: noise multipliers of what is released before and after the rounds, and before
            moments; 0 if nothing is.
    """

    rate: float
    multiplier: float
    epsilon: float
    table: float
    contribution: float
    moments: float = 0.0
    scores: float = 0.0
    histograms: float = 0.0

    @property
    def once(self) -> tuple[float, ...]:
        """Noise multipliers of what is released once beside the rounds; 0 of what is not."""
        return (self.histograms, self.moments, self.scores)


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
    table, contribution = math.sqrt(share) / shared.rounds, math.sqrt(1 - share) / shared.rounds
    once = (shared.moments, shared.scores, shared.histograms)
    return BudgetSplit(rate, shared.rounds, shared.epsilon, table, contribution, *once)


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
    sigma, joint = of_contribution.value / split.contribution, of_contribution + of_table
    value = math.hypot(of_contribution.value, sigma * split.table)
    return Noise(table, sigma, replace(joint, value=value), of_table, of_contribution)
