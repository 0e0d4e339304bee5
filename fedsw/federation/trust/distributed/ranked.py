"""Masked tables of outputs, from which ranks are taken: those of all penalties, cell after cell, in one vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw.learning.objectives import Clip, WeightedPenalty
from fedsw.learning.objectives import histograms as tables
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.public_side import Learner
from fedsw.mathematics.transport.sliced import project
from fedsw.privacy.sensitivity import Sensitivity, loss_sensitivity


@dataclass(frozen=True)
class RankedPenalty:
    """A penalty with ranks from tables, one of each of its cells; `owners` are the strata's cells in it."""

    number: int
    part: WeightedPenalty
    columns: slice
    clip: Clip
    owners: tuple[int, ...]

    def sizes(self, batch: Sequence[int]) -> list[int]:
        """Records of each of its cells, of those of every stratum."""
        sizes = [0] * len(self.part.cells)
        for owner, size in zip(self.owners, batch, strict=True):
            sizes[owner] += size
        return sizes


def ranked_by(task: Problem) -> tuple[RankedPenalty, ...]:
    """All penalties of a run."""
    strata, penalties = range(len(task.objective.cells)), []
    for number, (part, compared) in enumerate(zip(task.objective.parts, task.clipped.compared, strict=True)):
        part.require_slot_means()
        owners = tuple(part.owner(stratum) for stratum in strata)
        penalties.append(RankedPenalty(number, part, compared.columns, compared.clip, owners))
    return tuple(penalties)


def compares(task: Problem) -> bool:
    """True if an attempt has tables, since something is compared."""
    return task.objective.alpha > 0


def sensitivity_of_tables(directions: Sequence[Tensor]) -> Sensitivity:
    """Sensitivity of all tables of an attempt to a replaced record: sqrt(2 k), of all penalties' directions (d, k)."""
    return tables.table_sensitivity(sum(block.shape[1] for block in directions))


def sensitivity_of_contributions(
    task: Problem, batch: Sequence[int], spreads: Sequence[float], stratum: int
) -> Sensitivity:
    """Sensitivity of the contributions to a replaced record of a stratum, given all noised tables of its attempt.

    Guarantee: the record's own terms alone move, the task's and one of every penalty: 2 (C w + sum L_p max ||q_p||).
    Proof: docs/guarantees/distributed-tasks.md.
    """
    total = sum(batch)
    moved = total * task.objective.task_weight(total) * loss_sensitivity(task.clip.loss, total)
    for ranked, spread in zip(ranked_by(task), spreads, strict=True):
        cell, sizes = ranked.owners[stratum], ranked.sizes(batch)
        moved += tables.pulled_sensitivity(ranked.part, sizes, ranked.clip, cell=cell, spread=spread)
    return moved


@dataclass(frozen=True)
class TableErrors:
    """Mean squares of the errors that tables bring to the gradient, at mu = 1.

    That of noise is for each bin, and grows with their number; that of binning falls with its square.
    """

    noise: float
    binning: float


def table_errors(task: Problem, batch: Sequence[int], directions: Sequence[int]) -> TableErrors:
    """The errors that tables of B bins bring to the gradient, on these numbers of directions, by penalty.

    Noise moves cumulated counts like a bridge, of mean square sigma^2 B / 6 with sigma^2 = 2 sum(k), ranks by that over
    n, and slot means by the width of the other side times as much. Bins move slot means by w / sqrt(12), w = 2 A / B,
    for each of the two sides that has bins. Either moves the gradient by at most 2 alpha W L / sqrt(k) times that for
    every cell, of which a part is taken. For two cells of n records their sum is least at B ~ (n / sigma)^(2/3).
    """
    noise = binning = 0.0
    for ranked, k in zip(ranked_by(task), directions, strict=True):
        part, sizes, clip = ranked.part, ranked.sizes(batch), ranked.clip
        weights = [part.weight_of(cell) for cell in range(len(sizes))]
        ranks = [1 / size**2 for size in sizes]
        for i, j, weight in part.pairs:
            if i != j:  # a public side's ranks have no noise
                ranks[i] += weight / weights[i] / sizes[j] ** 2
                ranks[j] += weight / weights[j] / sizes[i] ** 2
        unit = _ALIGNED * 4 * part.alpha * clip.jacobian * part.reach(clip.output)
        sides = 2 if part.other_side is None else 1
        noise += sum(directions) / (3 * k) * sum((unit * w) ** 2 * rank for w, rank in zip(weights, ranks, strict=True))
        binning += _UNEVEN * sides / (12 * k) * sum((unit * w) ** 2 for w in weights)
    return TableErrors(noise, binning)


_ALIGNED = 0.25
"""How much of a table's error comes together in the gradient: all of it only if all Jacobians point one way."""
_UNEVEN = 0.1
"""How much of that the width of bins keeps, of the mean square: the errors of a bin's records add up to nearly 0."""


def length_of(task: Problem, directions: Sequence[Tensor], bins: int) -> int:
    """Number of entries of all tables of an attempt with these directions, each (d, k)."""
    counts = [len(r.part.cells) * block.shape[1] for r, block in zip(ranked_by(task), directions, strict=True)]
    return bins * sum(counts)


def counted(task: Problem, outputs: Tensor, drawn: Sequence[int], directions: Sequence[Tensor], bins: int) -> Tensor:
    """All histograms of a batch, WITHOUT NOISE, one after the other, flat, float64.

    Outputs (n, columns) are stratum after stratum, as many of each as were `drawn`, each penalty's in its ball.
    """
    histograms = []
    for ranked, theta in zip(ranked_by(task), directions, strict=True):
        cell = torch.tensor(ranked.owners).repeat_interleave(torch.tensor(drawn))
        columns, cells = outputs[:, ranked.columns], len(ranked.part.cells)
        histograms.append(tables.histograms_by(columns, cell, cells, theta, ranked.clip.output, bins).reshape(-1))
    return torch.cat(histograms)


def cotangents(
    task: Problem,
    outputs: Tensor,
    drawn: Sequence[int],
    batch: Sequence[int],
    directions: Sequence[Tensor],
    bins: int,
    means: Tensor,
) -> Tensor:
    """Cotangents (n, columns) of a site's outputs, each of its own record and the tables; see `histograms.cotangents`.

    The `batch` is that of all clients, by stratum; slot means, in the order of `counted`, are whatever the server says.
    ValueError if they are not as many as the tables have numbers.
    """
    q = torch.zeros(outputs.shape, dtype=torch.float64)
    edges = [0, *torch.tensor(drawn).cumsum(0).tolist()]
    for ranked, theta, table in _by_penalty(task, directions, bins, means):
        sizes = ranked.sizes(batch)
        for stratum, owner in enumerate(ranked.owners):
            rows = slice(edges[stratum], edges[stratum + 1])
            q[rows, ranked.columns] = tables.cotangents(
                outputs[rows, ranked.columns],
                theta,
                table[owner],
                ranked.part,
                cell=owner,
                size=sizes[owner],
                radius=ranked.clip.output,
            )
    return q


class Ranks:
    """Post-processing of noised tables at the server: slot means, and a public side's gradient."""

    def __init__(self, task: Problem) -> None:
        self._task = task
        self._learner = Learner(task) if task.objective.other_side in ("generator", "domain") else None

    def of(
        self,
        counts: Tensor,
        batch: Sequence[int],
        directions: Sequence[Tensor],
        bins: int,
        theta: Tensor,
        round_: int,
        attempt: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Slot means in the order of the noised counts, and the gradient (r,) of a public side that has parameters.

        The counts are the noised sum of all sites' `counted`; the `batch` has its records by stratum.
        """
        means, moved = [], None
        for ranked, block, table in _by_penalty(self._task, directions, bins, counts):
            sizes, radius = ranked.sizes(batch), ranked.clip.output
            cells = [tables.monotone(cell, size) for cell, size in zip(table, sizes, strict=True)]
            side, sample = ranked.part.other_side, None
            if side is not None and self._learner is None:
                sample = self._task.clipped.prior(round_, attempt, ranked.number, sizes[0]).cpu()
            elif side is not None and self._learner is not None:
                sample = self._learner.points(theta, sizes[0], round_, attempt)
                sample = project(sample, radius) if side == "domain" else sample
            seen, pulled = ranked.part.slot_means(cells, block, radius, sample)
            means += seen
            if self._learner is not None and pulled is not None:
                scale = 1.0 if side == "domain" else ranked.part.alpha  # a domain's learner weighs
                moved = self._learner.gradient(scale * pulled)
        return torch.cat([cell.reshape(-1) for cell in means]), moved


def _by_penalty(
    task: Problem, directions: Sequence[Tensor], bins: int, flat: Tensor
) -> list[tuple[RankedPenalty, Tensor, Tensor]]:
    """Every penalty with its directions and its tables (cells, k, bins)."""
    shapes = [(len(r.part.cells), block.shape[1], bins) for r, block in zip(ranked_by(task), directions, strict=True)]
    if len(flat) != sum(map(math.prod, shapes)):
        raise ValueError(f"{len(flat)} numbers of tables came for {sum(map(math.prod, shapes))}")
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    return [
        (ranked, theta, part.reshape(shape))
        for ranked, theta, part, shape in zip(ranked_by(task), directions, parts, shapes, strict=True)
    ]
