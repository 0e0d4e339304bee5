"""Twins of what a run has released: records of its moments' law, to plan the rounds that are left, for nothing.

Twins of a run that begins with released moments have its map of inputs, and start where it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.text import number
from fedsw.data.columns.declaration import Columns
from fedsw.desk.planning.public_rows import PublicRows, public_columns
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.compatibility import relation_of
from fedsw.experiment.trust import Law, trust_model
from fedsw.federation.trust import budget_shares as split
from fedsw.learning.models import flatten
from fedsw.learning.moments.beside_rounds import binned, histograms_of
from fedsw.learning.moments.column_counts import ColumnCounts, Histograms
from fedsw.learning.moments.moments_sum import STEP, Layout, layout_of, sums_of
from fedsw.learning.moments.preparation import prepare, residual_of, started, whitening_of
from fedsw.learning.moments.released_moments import Moments, constant_of
from fedsw.learning.objectives import Clip, histograms
from fedsw.learning.tasks.objective import ClippedObjective
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import ScoreCounts
from fedsw.mathematics.transport.sliced import orthogonal_spread
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import kept_moments
from fedsw.runs.run_files import RunFile, read_json
from fedsw.runs.single.objective import Objective

Float = NDArray[np.float64]

_TWINS = 8_000
_UNTOLD = (
    "whether the rounds that are left would do better than a constant cannot be told. More records, a larger ε or "
    "narrower bounds would tell"
)
_LEAST = 4
"""Twins of a cell, at least, so that both halves have some."""


@dataclass(frozen=True)
class AfterMoments:
    """Public numbers and twins from which a run that has released its moments is planned anew.

    Twins are drawn from the law that the moments tell. ``untold`` says in words why these cannot tell what a constant
    is worth; empty if they can.
    """

    experiment: Experiment
    by_group: dict[str, int]
    twins: PublicRows
    untold: str


def after_moments(path: Path, allow_modules: tuple[str, ...] = ()) -> AfterMoments:
    """A run's experiment, the numbers of its records by group, and twins of the law that its moments tell."""
    directory = RunDirectory(path)
    experiment, _ = directory.read_config(allow_modules)
    problem = Problem.from_experiment(experiment)
    if problem.coding is not None and problem.coding.line is None:
        raise ExperimentError(
            f"model.kind {experiment.model.kind!r} has moments of what filters see in images, from which no images can "
            "be drawn to plan with: `fedsw plan EXPERIMENT` says what public numbers tell"
        )
    moments = kept_moments(problem, directory)
    if moments is None:
        raise ExperimentError(
            f"{path} has released no moments to plan from: `fedsw run EXPERIMENT --moments-alone` releases them, where "
            "privacy.moments is above 0, and stops"
        )
    if not moments.layout.features:
        raise ExperimentError(
            f"{path} has released moments of its target alone (model.inputs 'constant-first'), which tell nothing of "
            "its columns: plan from the experiment"
        )
    cells = dict(zip(problem.objective.cells, moments.records, strict=True))
    stored = (read_json(path / RunFile.PLAN) or {}).get("groups", cells)
    by_group = _by_group(problem, [int(stored.get(name, size)) for name, size in cells.items()])
    twins = twins_of(moments, problem, public_columns(experiment))
    return AfterMoments(experiment, by_group, twins, hidden_by_noise(moments))


def sizes_of(path: Path, allow_modules: tuple[str, ...] = ()) -> tuple[Experiment, dict[str, int]]:
    """A run's experiment, and the public numbers of its records by group; none are public under a sketch."""
    experiment, _ = RunDirectory(path).read_config(allow_modules)
    stored = (read_json(path / RunFile.PLAN) or {}).get("groups")
    if not stored:
        raise ExperimentError(f"{path} has no public sizes of groups, from which other numbers could be forecast")
    return experiment, _by_group(Problem.from_experiment(experiment), [int(size) for size in stored.values()])


def hidden_by_noise(moments: Moments) -> str:
    """Say why released moments cannot tell what a constant is worth (noise hides it); empty if they can."""
    score = constant_of(moments).score
    if moments.layout.classes and score.high >= 1:
        return (
            f"the noise in the released moments hides how rare the rarer classes are (the most frequent has from "
            f"{number(100 * score.low)} to 100 % of the records); {_UNTOLD}"
        )
    if not moments.layout.classes and score.low <= 0:
        return (
            "the noise in the released moments hides how much the target varies (a constant's squared error is "
            f"between 0 and {number(score.high)}); {_UNTOLD}"
        )
    return ""


def twins_of(moments: Moments, problem: Problem, columns: Columns, *, seed: int = 0) -> PublicRows:
    """Records drawn from the law of released moments, as many in every cell as its share of all.

    Inputs are normal with the covariance within classes, as far as noise does not hide it, about the mean of their
    class, moved by their cell's own; numbers that are predicted follow the inputs by least squares, and chance by what
    these miss. Inputs are kept between 0 and 1 (signed ones between -1 and 1) where their columns are declared so.
    """
    chance, total = np.random.default_rng([12, seed]), max(1, moments.count)
    sizes = [max(_LEAST, round(_TWINS * size / total)) if size else 0 for size in moments.records]
    cell, apart = np.repeat(np.arange(len(sizes)), sizes), len(sizes) >= len(problem.groups)
    values, vectors = np.linalg.eigh(moments.within)
    root = (vectors * np.sqrt(np.maximum(values, moments.hidden))) @ vectors.T  # what noise hides counts as it
    target, middle = _targets_and_middles(moments, problem, cell, chance)
    inputs = middle + chance.standard_normal((len(cell), len(root))) @ root
    if not moments.layout.classes:
        target = _predicted(moments, inputs, chance)
    if problem.coding is not None:
        inputs = problem.coding.inputs(inputs)
    inputs = np.clip(inputs, *_limits(columns, inputs.shape[1]))
    return PublicRows(
        features=torch.from_numpy(inputs.astype(np.float32)),
        sensitive=torch.from_numpy((cell if apart else np.arange(len(cell))) % len(problem.groups)),
        target=torch.from_numpy(target.astype(np.int64 if moments.layout.classes else np.float32)),
        ids=torch.arange(len(cell)),
        columns=columns,
        kind="twins of released moments",
    )


def _apart(moments: Moments) -> Float:
    """Means of the inputs in every class less that of all, (classes, p), without what noise alone moves them apart."""
    whitening = whitening_of(moments)
    seen = np.sum((moments.class_shifts @ whitening) ** 2, axis=1)
    noise = moments.noise_of_products * np.linalg.norm(whitening) / moments.target_mean
    shrunk = np.maximum(0.0, 1 - noise**2 / np.maximum(seen, 1e-300))
    return np.asarray(moments.class_shifts * np.sqrt(shrunk)[:, None])


def _targets_and_middles(
    moments: Moments, problem: Problem, cell: NDArray[np.int64], chance: np.random.Generator
) -> tuple[Float, Float]:
    """Classes (n,) by the shares of every cell, and the means (n, p) of inputs for class and cell."""
    layout = moments.layout
    odds = layout.classes and len(problem.objective.cells) > len(problem.groups)
    shifts = _apart(moments) if layout.classes else np.zeros((1, layout.features))
    target, middle = np.zeros(len(cell)), np.tile(moments.mean, (len(cell), 1))
    for index in range(len(moments.records)):
        rows = np.flatnonzero(cell == index)
        if not len(rows):
            continue
        block, many = (index, moments.records[index]) if layout.cells > 1 else (0, moments.count)
        cell_mean = moments.block(block)[0, 1 : 1 + layout.features] / max(1, many)
        moved = cell_mean - moments.shift
        if odds:
            shares = np.eye(layout.targets)[index // len(problem.groups)]
        elif layout.classes:
            shares = np.clip(moments.shares_of(block), 1e-6, None)
            shares = shares / shares.sum()
        if layout.classes:
            target[rows] = chance.choice(layout.targets, len(rows), p=shares)
            moved = moved - shares @ shifts
            middle[rows] += shifts[target[rows].astype(int)]
        of_cell = moments.count / np.sqrt(layout.cells) / max(1, many)
        noise = moments.noise_of_inputs * of_cell * np.sqrt(layout.features)
        middle[rows] += moved * max(0.0, 1 - noise**2 / max(float(moved @ moved), 1e-300))
    return target, middle


def _predicted(moments: Moments, inputs: Float, chance: np.random.Generator) -> Float:
    """Numbers (n, t) between 0 and 1: least squares of the inputs, and chance by what these miss."""
    whitening = whitening_of(moments)
    slopes = whitening @ whitening @ moments.cross
    missed = residual_of(moments, whitening) / np.sqrt(moments.layout.targets)
    drawn = (inputs - moments.mean) @ slopes + moments.target_mean
    return np.asarray(np.clip(drawn + missed * chance.standard_normal(drawn.shape), 0.0, 1.0))


def _limits(columns: Columns, count: int) -> tuple[Float, Float]:
    """The least and the most (p,) that inputs can be."""
    least, most = [], []
    for feature in columns.features:
        missing = [1.0] * bool(feature.missing)
        width = feature.inputs - len(missing)
        low, high = feature.reader.limits(feature)
        least += [low] * width + [0.0] * len(missing)
        most += [high] * width + missing
    if len(least) != count:
        return np.full(count, -np.inf), np.full(count, np.inf)
    return np.array(least), np.array(most)


def _by_group(problem: Problem, sizes: Sequence[int]) -> dict[str, int]:
    """Records of every group, of those of every cell: the cells of a class are those of all groups in order.

    One stratum of all groups counts as equal parts: how many there are of each is not public.
    """
    groups = problem.groups
    if len(sizes) < len(groups):
        sizes = [len(range(index, sum(sizes), len(groups))) for index in range(len(groups))]
    return {name: sum(sizes[index :: len(groups)]) for index, name in enumerate(groups)}


def opened(
    problem: Problem, experiment: Experiment, twins: PublicRows, *, one: float, seed: int
) -> tuple[Problem, Clip, Tensor]:
    """The problem of prepared twins, its clips, and the parameters (r,) that training begins with.

    Where a run takes bins from its histograms, so do they; without `privacy.moments` nothing is prepared. ``one`` is
    the noise multiplier of one release of all records that spends the whole budget, 0 without noise, ``seed`` that of
    the noise in histograms and moments.
    """
    settings = experiment.clip
    clip = problem.clip if settings.open else Clip(settings.output, settings.jacobian, settings.loss)
    counts = histograms_of(replace(problem, experiment=experiment))
    if counts is not None:
        exact = counts.counted(twins.features).double().numpy()
        values, sigma = as_released(experiment, counts, exact, experiment.privacy.histograms, one=one, seed=[15, seed])
        histograms = Histograms(counts, values, sigma, len(twins))
        experiment = binned(replace(problem, experiment=experiment), histograms)
        problem = Problem.from_experiment(experiment)
    moments = moments_of(problem, experiment, twins, one=one, seed=seed)
    if moments is None:
        return problem, clip, flatten(problem.build_model())
    problem = replace(problem, experiment=experiment, clip=clip)
    preparation = prepare(problem, moments)
    ready, scale = problem.under(preparation), preparation.scale
    start = started(ready, preparation, moments, problem.build_model())
    return ready, Clip(clip.output, scale * clip.jacobian, scale * clip.loss), start


def moments_of(problem: Problem, experiment: Experiment, twins: PublicRows, *, one: float, seed: int) -> Moments | None:
    """Moments of twins with the noise that a run's would have, as for `opened`; None if a run releases none."""
    share = float(experiment.privacy.moments)
    layout = layout_of(problem) if share else None
    if layout is None:
        return None
    exact = (sums_of(problem, layout, twins).double() * STEP).numpy()
    values, sigma = as_released(experiment, layout, exact, share, one=one, seed=[11, seed])
    cells = problem.objective.cell_of(twins.sensitive, twins.target).bincount(minlength=len(problem.objective.cells))
    return Moments(layout, torch.from_numpy(values), sigma, tuple(cells.tolist()), experiment.privacy.hides_sizes)


def as_released(
    experiment: Experiment,
    counted: Layout | ScoreCounts | ColumnCounts,
    exact: Float,
    share: float,
    *,
    one: float,
    seed: Sequence[int],
) -> tuple[Float, float]:
    """Sums over twins with the noise that a run's would have for a share of the budget, and its deviation."""
    together = trust_model(experiment.privacy.trust).summed(experiment)
    sigma = counted.moved_for(relation_of(experiment)) * one / math.sqrt(share) * together
    return exact + sigma * np.random.default_rng(seed).standard_normal(exact.shape), sigma


@dataclass(frozen=True)
class Summed:
    """Noise of all clients together, as deviations of a table's counts (`bins`, 0 without) and of the gradient."""

    count: float
    gradient: float
    bins: int


def summed_noise(
    problem: Problem, experiment: Experiment, clip: Clip, batch: Sequence[int], *, multiplier: float
) -> Summed:
    """Return the noise that clients add together to a batch of twins: each its own, or under masks a share of one.

    In a batch of so many twins of every stratum, at a noise multiplier of a client's tables and contribution together.
    """
    compared = problem.objective.between_groups()
    share, bins = 0.0, 0
    if split.asks_tables(experiment):
        share, bins = experiment.privacy.model.tables(replace(problem, experiment=experiment), batch, multiplier)
    divided = split.BudgetSplit(1.0, multiplier, 0.0, math.sqrt(share) / multiplier, math.sqrt(1 - share) / multiplier)
    k = problem.clipped.directions(0, 0)[0].shape[1]
    fixed = problem.dimension > 1 and experiment.slicing.scheme == "orthogonal"
    spread = orthogonal_spread(problem.dimension, k) if fixed else 1.0
    noise = split.noise(divided, compared, clip, sizes=batch, own_sizes=batch, spread=spread, k=k)
    together = trust_model(experiment.privacy.trust).summed(experiment)
    return Summed(together * noise.table, together * noise.contribution, bins)


SUMMED: Mapping[Law | None, Callable[..., Summed]] = dict.fromkeys(("masked sum", "clipped contribution"), summed_noise)
"""Noise of all clients together in a round, by what is noised: where a server adds that of all, its plan has it."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TabledObjective(Objective):
    """An objective with one penalty, by ranks from noised histograms, as the server of `local-gradient` does."""

    bins: int
    deviation: float
    seed: int

    def of(self, clip: Clip, weights: Tensor) -> ClippedObjective:
        """See `Objective.of`, with tables in place of ranks; weights (n, ...) of a model."""
        exact = vars(super().of(clip, weights))
        return TabledClipped(**exact, bins=self.bins, deviation=self.deviation, seed=self.seed)


@dataclass(frozen=True, eq=False, kw_only=True)
class TabledClipped(ClippedObjective):
    """`TabledObjective` with clips, on a model's device."""

    bins: int
    deviation: float
    seed: int

    def pulled(self, strata: Sequence[Tensor], directions: Sequence[Tensor], round_: int, attempt: int) -> list[Tensor]:
        """Cotangents (n_s, d) by stratum, from tables with a round's noise."""
        theta, compared = directions[0].to(self.device), self.weighted.between_groups()
        chance, radius = np.random.default_rng([10, self.seed, round_]), self.clip.output
        counts = []
        for rows in strata:
            clean = histograms.histograms(rows, theta, radius, self.bins)
            noise = torch.from_numpy(chance.standard_normal(tuple(clean.shape)))
            counts.append(histograms.monotone(clean + self.deviation * noise, len(rows)))
        tables = histograms.matched(counts, compared, radius)
        return [
            histograms.cotangents(rows, theta, table, compared, cell=cell, size=len(rows), radius=radius)
            for cell, (rows, table) in enumerate(zip(strata, tables, strict=True))
        ]
