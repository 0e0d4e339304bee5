"""Cost and noise of an attempt, from public numbers only, so that all sites get the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedsw.experiment import Experiment, resolve_delta
from fedsw.experiment.sections import AUTO_BINS, MaskedSettings
from fedsw.federation.node.node import Node
from fedsw.federation.trust import budget_shares as split
from fedsw.federation.trust.budget_shares import Shares, covering, idle, shares, with_once
from fedsw.federation.trust.distributed import ranked
from fedsw.federation.trust.distributed.members import Cohort, honest, rate_of
from fedsw.federation.trust.round_plan import column_sums
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.transport.sliced import spread
from fedsw.privacy.accounting import Charge, Step, lifetime
from fedsw.privacy.accounting.lifetime import Cost, Counts
from fedsw.privacy.masks import Share, require_no_wrap, shared_step
from fedsw.privacy.release import Part
from fedsw.privacy.sensitivity import SLACK, Sensitivity, worst

# Limits of the tables' share: at 0 or 1 one of the two sums that leave would have noise without bound.
_LEAST_SHARE, _MOST_SHARE = 0.02, 0.9


@dataclass(frozen=True, eq=False)
class Agreed:
    """Noise and cost of an attempt, with every site's share: all sites get the same.

    The ``charges`` are what it costs every client's records, by group, whether it is completed or not, read with
    ``sigma``; for that the ``parts`` may leave. No coordinate of a site's vector is larger than what ``most`` says, by
    part and in the cohort's order, in which ``clients`` says how many are at each site. The noise is that of ``honest``
    clients together, H.
    """

    charges: list[Charge]
    sigma: float
    parts: list[Part]
    most: Mapping[str, Sequence[float]]
    honest: int
    clients: tuple[int, ...]

    def scale(self, name: str) -> float:
        """Standard deviation that H clients' noise on a part has together."""
        return next(part.scale for part in self.parts if part.name == name)

    def shares(self, name: str) -> list[Share]:
        """Every site's share of a part's noise, in the cohort's order, on one grid, where no sum wraps around."""
        sigma = self.scale(name)
        step = shared_step(sigma, self.honest, self.clients)
        shares = [Share(m, self.honest, step, most) for m, most in zip(self.clients, self.most[name], strict=True)]
        require_no_wrap(sigma, shares)
        return shares


@dataclass(frozen=True, eq=False)
class Attempt(Agreed):
    """A round's attempt: noise of H honest clients together, all sites' batch by cell, directions (d, k), and bins."""

    noise: split.Noise
    batch: tuple[int, ...]
    directions: tuple[Tensor, ...]
    bins: int


def attempt_of(task: Problem, cohort: Cohort, directions: Sequence[Tensor]) -> Attempt:
    """The noise and the cost of an attempt of a cohort, with numbers that a site has checked, on directions (d, k).

    Guarantee: any H = T - C clients of the cohort add noise of the planned multiplier to each of the attempt's sums, at
    the sensitivity of the worst cell (docs/guarantees/distributed.md).

    ValueError if a cell has no record in the batch, or noise or a grid for it are out of range.
    """
    experiment = task.experiment
    counts = cohort.counts(experiment.training.batch_fraction)
    drawn = np.stack([rows.sum(axis=0) for rows in counts])  # (sites, cells)
    batch = column_sums(counts)
    if min(batch) == 0:
        name = task.objective.cells[batch.index(0)]
        raise ValueError(
            f"no record of group {name} would be in the batch: {experiment.training.batch_fraction:g} of every "
            "client's records rounds to 0. Raise training.batch_fraction; nothing was charged"
        )
    delta, spreads = delta_of(experiment, cohort.records), [spread(block) for block in directions]
    noise = noise_of(task, batch, delta, spreads=spreads, directions=directions)
    charges = [noise.charge(rate_of(experiment.training.batch_fraction)), *idle(experiment)]
    bins = bins_of(task, batch, directions, planned_shares(experiment, delta).rounds)
    tables = drawn.sum(axis=1).astype(float)  # a record counts once in one bin of every direction
    contributions = tables * (SLACK * noise.of_contribution.value / 2)  # every record's term, alike
    most: dict[str, list[float]] = {"table": tables.tolist(), "contribution": contributions.tolist()}
    return Attempt(
        charges=charges,
        sigma=noise.sigma,
        parts=noise.parts,
        most=most,
        honest=honest(experiment),
        clients=cohort.clients_by_site,
        noise=noise,
        batch=batch,
        directions=tuple(directions),
        bins=bins,
    )


def noise_of(
    task: Problem, batch: Sequence[int], delta: float, *, spreads: Sequence[float], directions: Sequence[Tensor]
) -> split.Noise:
    """The noise of H honest clients together on an attempt with that batch, for such spreads of directions (d, k)."""
    shared = planned_shares(task.experiment, delta)
    bound = bound_of(task, batch, spreads)
    share = table_share(task, batch, bound, directions, bins_of(task, batch, directions, shared.rounds))
    divided = split.BudgetSplit.of(shared, rate=rate_of(task.experiment.training.batch_fraction), share=share)
    return split.together(divided, ranked.sensitivity_of_tables(directions) if share else None, bound)


def bound_of(task: Problem, batch: Sequence[int], spreads: Sequence[float]) -> Sensitivity:
    """Sensitivity of the contributions to a replaced record, given the tables; 0 if none are summed."""
    if not task.private_parameters:
        return Sensitivity(0.0, "own terms")
    strata = range(len(batch))
    return SLACK * worst(ranked.sensitivity_of_contributions(task, batch, spreads, stratum) for stratum in strata)


def table_share(
    task: Problem, batch: Sequence[int], bound: Sensitivity, directions: Sequence[Tensor], bins: int
) -> float:
    """The tables' share a of an attempt's mu^2 that makes the gradient's error least, from public numbers.

    The noise of the contribution brings an error of mean square y = r Delta^2 / (mu^2 (1 - a)) to the gradient, that of
    the tables x / (mu^2 a) (`ranked.table_errors`): least at a = sqrt(x) / (sqrt(x) + sqrt(y)). Where tables or
    contributions are all that leaves, they have all of it.

    The share affects accuracy only: no guarantee rests on it. Of the directions (d, k) their number counts.
    """
    if not ranked.compares(task):
        return 0.0
    if not task.private_parameters:
        return 1.0
    errors = ranked.table_errors(task, batch, [block.shape[1] for block in directions])
    return _share(errors.noise * bins, _gradient_error(task, bound))


def bins_of(task: Problem, batch: Sequence[int], directions: Sequence[Tensor], multiplier: float) -> int:
    """The number of bins of an attempt's tables on directions (d, k): `local.bins`, or under "auto" the best one.

    Public numbers alone decide, of the batch that all sites agree on: every site and the server choose the same number.
    It makes least what the mean of all rounds' gradients is wrong by: noise, which each round draws anew, at the share
    of the budget that so many bins get, and the width of bins, which is that of every round.

    Guarantee: none rests on it: the tables' sensitivity sqrt(2 k) is that of any number of bins.
    """
    setting = task.experiment.own(MaskedSettings).bins
    if setting != "auto":
        return setting
    if not ranked.compares(task):
        return AUTO_BINS[0]
    errors = ranked.table_errors(task, batch, [block.shape[1] for block in directions])
    gradient = _gradient_error(task, bound_of(task, batch, task.clipped.planned_spreads()))

    def error(bins: int) -> float:
        table = errors.noise * bins
        share = _share(table, gradient) if gradient else 1.0
        noise = table / share + (gradient / (1 - share) if gradient else 0.0)
        return multiplier * multiplier * noise / task.experiment.training.rounds + errors.binning / (bins * bins)

    return min(AUTO_BINS, key=error)


def _share(table: float, gradient: float) -> float:
    """The tables' share that makes table / share + gradient / (1 - share) least, within its limits."""
    x, y = math.sqrt(table), math.sqrt(gradient)
    return min(max(x / (x + y), _LEAST_SHARE), _MOST_SHARE)


def _gradient_error(task: Problem, bound: Sensitivity) -> float:
    """Mean square of the error that contributions with the noise of mu = 1 bring to the gradient."""
    return task.parameters * bound.value * bound.value


def planned_shares(experiment: Experiment, delta: float) -> Shares:
    """Noise multipliers and epsilon of all attempts that are planned for, at rounds and at moments."""
    rate, many = rate_of(experiment.training.batch_fraction), attempts(experiment)
    return shares(experiment, rate=rate, delta=delta, rounds=many, attempts=attempts_at_one(experiment))


def attempts(experiment: Experiment) -> int:
    """Number of attempts that the budget is for: the rounds, and those that are expected to fail."""
    return math.ceil(experiment.training.rounds * (1 + experiment.own(MaskedSettings).failing))


def attempts_at_one(experiment: Experiment) -> int:
    """Number of attempts that the budget is for at a sum that is released once."""
    return math.ceil(1 + experiment.own(MaskedSettings).failing)


def failing(experiment: Experiment) -> int:
    """Number of failed attempts, at rounds or at stages of a sketch, that the budget allows."""
    if stages := experiment.stages:
        return stages * (attempts_at_one(experiment) - 1)
    return attempts(experiment) - experiment.training.rounds


def delta_of(experiment: Experiment, records: int) -> float:
    """The guarantee's delta, by the federation's number of records."""
    return resolve_delta(experiment.privacy.delta, records=records)


def planned(node: Node, delta: float) -> Counts | Cost:
    """Cost of all planned attempts to a client's records."""
    task, experiment = node.task, node.task.experiment
    shared = planned_shares(experiment, delta)
    step = Step(rate_of(experiment.training.batch_fraction), 1 / shared.rounds)
    many = attempts_at_one(experiment)
    training = with_once(lifetime.planned(step, attempts(experiment)), shared, many)
    return covering(task, training, shared.epsilon, delta, many)
