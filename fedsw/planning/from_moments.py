"""Twins whose training begins with released moments, as a run's does: the map of their inputs, and where it starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedsw.experiment import Experiment
from fedsw.experiment.sections import TableSettings
from fedsw.experiment.trust import trust_model
from fedsw.federation.budgets import split
from fedsw.federation.trust.distributed.budget import bins_of, bound_of, table_share
from fedsw.models import flatten
from fedsw.objectives import Clip, histograms
from fedsw.objectives import Objective as Compared
from fedsw.planning.law import PublicRows
from fedsw.single.objective import Batch, Objective
from fedsw.tasks.moments import STEP, Moments, layout_of, sums_of
from fedsw.tasks.preparation import prepare, started
from fedsw.tasks.problem import Problem
from fedsw.tasks.sensitivity import planned_spreads
from fedsw.transport.sliced import orthogonal_spread


def opened(
    problem: Problem, experiment: Experiment, twins: PublicRows, *, one: float, seed: int
) -> tuple[Problem, Clip, Tensor]:
    """The problem of prepared twins, its clips, and the parameters (r,) that training begins with.

    Args:
        experiment: with every setting; without `privacy.moments` nothing is prepared.
        one: noise multiplier of one release of all records that spends the whole budget; 0 without noise.
        seed: of the noise in the moments.
    """
    asked = experiment.clip
    clip = problem.clip if asked.open else Clip(asked.output, asked.jacobian, asked.loss)
    moments = moments_of(problem, experiment, twins, one=one, seed=seed)
    if moments is None:
        return problem, clip, flatten(problem.build_model())
    problem = replace(problem, experiment=experiment, clip=clip)
    preparation = prepare(problem, moments)
    scale = preparation.scale
    ready = problem.under(preparation)
    start = started(ready, preparation, moments, problem.build_model())
    return ready, Clip(clip.output, scale * clip.jacobian, scale * clip.loss), start


def moments_of(problem: Problem, experiment: Experiment, twins: PublicRows, *, one: float, seed: int) -> Moments | None:
    """Moments of twins with the noise that a run's would have; None where a run releases none.

    Args:
        one, seed: as for `opened`.
    """
    share = float(experiment.privacy.moments)
    layout = layout_of(problem) if share else None
    if layout is None:
        return None
    together = trust_model(experiment.privacy.trust).summed(experiment) if experiment.privacy.local else 1.0
    sigma = layout.moved * one / math.sqrt(share) * together
    noise = np.random.default_rng([11, seed]).standard_normal((layout.cells, layout.width))
    values = sums_of(problem, layout, twins).double() * STEP + sigma * torch.from_numpy(noise)
    cells = problem.objective.cell_of(twins.sensitive, twins.target).bincount(minlength=layout.cells)
    return Moments(layout, values, sigma, tuple(cells.tolist()))


@dataclass(frozen=True)
class Summed:
    """What all clients of a round add together.

    Attributes:
        count, gradient: standard deviation of the noise in every count of a table, and in the gradient.
        bins: of a table; 0 without one.
    """

    count: float
    gradient: float
    bins: int


def summed_noise(
    problem: Problem, experiment: Experiment, clip: Clip, batch: Sequence[int], *, multiplier: float
) -> Summed:
    """What clients that add noise add to a batch of twins together: each its own, or under masks a share of one.

    Args:
        batch: twins of every stratum in a batch.
        multiplier: noise multiplier of a client's round, tables and contribution together.
    """
    compared = problem.objective
    assert isinstance(compared, Compared)
    share, bins = 0.0, 0
    if split.asks_tables(experiment):
        share, bins = _tables(replace(problem, experiment=experiment), batch, multiplier)
    divided = split.BudgetSplit(1.0, multiplier, 0.0, math.sqrt(share) / multiplier, math.sqrt(1 - share) / multiplier)
    k = problem.directions(0, 0).shape[1]
    fixed = problem.dimension > 1 and experiment.slicing.scheme == "orthogonal"
    spread = orthogonal_spread(problem.dimension, k) if fixed else 1.0
    noise = split.noise(divided, compared, clip, sizes=batch, own=batch, spread=spread, k=k)
    together = trust_model(experiment.privacy.trust).summed(experiment)
    return Summed(together * noise.table, together * noise.contribution, bins)


def _tables(problem: Problem, batch: Sequence[int], multiplier: float) -> tuple[float, int]:
    """The tables' share and their bins: under masks both follow from public numbers."""
    experiment = problem.experiment
    if not trust_model(experiment.privacy.trust).masked:
        settings = experiment.own(TableSettings)
        return settings.table_share, settings.bins
    directions = problem.all_directions(0, 0)
    bins = bins_of(problem, batch, directions, multiplier)
    return table_share(problem, batch, bound_of(problem, batch, planned_spreads(problem)), directions, bins), bins


@dataclass(frozen=True, eq=False, kw_only=True)
class TabledObjective(Objective):
    """An objective whose one penalty takes ranks from noised histograms, as the server of `local-gradient` does.

    Attributes:
        bins: of every histogram.
        deviation: of the noise in every count.
        seed: of that noise.
    """

    bins: int
    deviation: float
    seed: int

    def _cotangents(
        self, by_stratum: Sequence[Sequence[Tensor]], thetas: Sequence[Tensor], batch: Batch, clip: Clip
    ) -> Sequence[Sequence[Tensor]]:
        ((outputs,), (theta,), (compared,)) = by_stratum, thetas, self.composite.parts
        assert isinstance(compared, Compared)
        chance, radius = np.random.default_rng([10, self.seed, batch.round]), clip.output
        counts = []
        for rows in outputs:
            clean = histograms.histograms(rows, theta, radius, self.bins)
            noise = torch.from_numpy(chance.standard_normal(tuple(clean.shape)))
            counts.append(histograms.monotone(clean + self.deviation * noise, len(rows)))
        tables = histograms.matched(counts, compared, radius)
        return [
            [
                histograms.cotangents(rows, theta, table, compared, cell=cell, size=len(rows), radius=radius)
                for cell, (rows, table) in enumerate(zip(outputs, tables, strict=True))
            ]
        ]
