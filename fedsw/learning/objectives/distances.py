"""Weighted Wasserstein distances between groups of records, and of records' outputs to another sample.

`BetweenGroups` compares groups; `Matching` compares with a prior's, a generator's or a domain's sample. The terms of a
clipped gradient are those of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from fedsw.learning.objectives import histograms
from fedsw.learning.objectives._weighted_penalty import Clip, OtherSide, WeightedPenalty
from fedsw.mathematics.clipping import Term
from fedsw.mathematics.clipping.clip import Mode
from fedsw.mathematics.transport import sliced
from fedsw.mathematics.transport.order import require_penalty_order
from fedsw.privacy.sensitivity import SIZES, Bound, Sensitivity, Side, loss_sensitivity, swd_sensitivity, worst

PenaltyName = Literal["statistical-parity", "equality-of-odds"]
_WITHIN_CLASSES: Mapping[str, bool] = {"statistical-parity": False, "equality-of-odds": True}
"""The penalties between groups, and whether each compares within every class; no other is known here."""

GROUP, GROUP_AND_LABEL = "each record's sensitive group", "each record's sensitive group and label"
"""Public attributes of a record where strata are drawn by its group, or by its group and label."""


@dataclass(frozen=True)
class BetweenGroups(WeightedPenalty):
    """alpha * penalty beside (1 - alpha) * task loss, where the penalty compares the outputs of cells of records.

    Distances are sliced W_p^p, p the ``order``, at least 2: the larger it is, the more tails weigh. Statistical parity
    compares the outputs of every two groups: the cells are the groups. Equality of odds compares them within every
    class, with weight 1/classes: the cells are the pairs (class, group). Batches are drawn cell by cell, so a record's
    cell and the cells' sizes are public.

    Equality of odds conditions on the ``classes`` (1 for statistical parity); ``alpha`` is between 0 and 1.

    Source: RLL, Section 5 and Appendix A.
    """

    penalty: PenaltyName
    groups: int
    classes: int
    alpha: float
    order: float = 2.0
    word = "proven"  # by docs/guarantees/sensitivity.md
    other_side = None

    def __post_init__(self) -> None:
        require_penalty_order(self.order)
        if self.penalty not in _WITHIN_CLASSES:
            raise ValueError(f"penalty {self.penalty!r} is unknown: choose {' or '.join(map(repr, _WITHIN_CLASSES))}.")
        if self.groups < (2 if self.alpha else 1):
            raise ValueError(f"groups = {self.groups}; comparing groups needs at least 2.")
        if self.classes < 1:
            raise ValueError(f"classes = {self.classes}; it must be at least 1.")
        if not self.within_classes and self.classes != 1:
            raise ValueError(
                f"statistical parity does not look at labels, but classes = {self.classes}: "
                "set classes to 1 or choose 'equality-of-odds'."
            )
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha = {self.alpha}; the weight of the penalty lies between 0 and 1.")

    @property
    def within_classes(self) -> bool:
        """True if groups are compared within every class, so that strata are (class, group)."""
        return _WITHIN_CLASSES[self.penalty]

    @property
    def drawn_by(self) -> tuple[str, ...]:
        """Attributes of a record that its replacement keeps, since batches are drawn by them."""
        return ("group", "label") if self.within_classes else ("group",)

    @property
    def cells(self) -> tuple[str, ...]:
        """Names of the strata of records, in the order of all per-cell sequences: "A=0" or "Y=1,A=0"."""
        if not self.within_classes:
            return tuple(f"A={group}" for group in range(self.groups))
        return tuple(f"Y={y},A={group}" for y in range(self.classes) for group in range(self.groups))

    def owner(self, stratum: int) -> int:
        """Which of its cells a stratum of the finest penalty is in: of (class, group), or of the groups only."""
        return stratum if self.within_classes else stratum % self.groups

    @property
    def pairs(self) -> tuple[tuple[int, int, float], ...]:
        """The compared cells and the weight of their distance: (cell, cell, weight), alpha left out."""
        return tuple(
            (y * self.groups + i, y * self.groups + j, 1 / self.classes)
            for y in range(self.classes)
            for i, j in combinations(range(self.groups), 2)
        )

    def cell_of(self, sensitive: Tensor, target: Tensor) -> Tensor:
        """Index (n,) into `cells` of every record, int64, from its group (n,) and (equality of odds) its label."""
        group = _indices(sensitive, "sensitive attribute", self.groups)
        if not self.within_classes:
            return group
        return _indices(target, "label", self.classes) * self.groups + group

    def cotangents(
        self,
        outputs: Sequence[Tensor],
        directions: Tensor,
        *,
        ties: sliced.Ties = "shared",
        memory_limit: int = sliced.DEFAULT_MEMORY_LIMIT,
    ) -> list[Tensor]:
        """Gradient of alpha * penalty with respect to the outputs, cell by cell, float64.

        Outputs are (n_j, d) for every cell, projected onto the ball of M already, directions (d, k) unit columns,
        independent of the data; ties and memory are as in `fedsw.mathematics.transport.sliced.slot_means`.
        """
        self._require_one_per_cell("output tensors", len(outputs))
        total = [torch.zeros_like(cell, dtype=torch.float64) for cell in outputs]
        for i, j, weight in self._weighted_pairs():
            q_i, q_j = sliced.cotangents_of_projected(
                outputs[i], outputs[j], directions, order=self.order, ties=ties, memory_limit=memory_limit
            )
            total[i].add_(q_i, alpha=weight)
            total[j].add_(q_j, alpha=weight)
        return total

    def pulled(
        self,
        cells: Sequence[Tensor],
        directions: Tensor,
        sample: Callable[[int], Tensor],
        *,
        ties: sliced.Ties = "shared",
        memory_limit: int = sliced.DEFAULT_MEMORY_LIMIT,
    ) -> tuple[list[Tensor], None]:
        """The `cotangents` (n, d) of every cell; no sample is asked for."""
        return self.cotangents(cells, directions, ties=ties, memory_limit=memory_limit), None

    def reach(self, radius: float) -> float:
        """The radius M itself: all cells' outputs are in one ball."""
        return float(radius)

    def slot_means(
        self, counts: Sequence[Tensor], directions: Tensor, radius: float, sample: Tensor | None = None
    ) -> tuple[list[Tensor], None]:
        """Slot means (k, bins) of every cell against those that it is compared with; see `histograms.matched`.

        TypeError for another order than 2: slot means do not give its derivative.
        """
        self.require_slot_means()
        return histograms.matched(counts, self, radius), None

    def sensitivities(
        self,
        sizes: Sequence[int],
        clip: Clip,
        *,
        d: int,
        spread: float | None = None,
        bound: Bound = "auto",
        alone: bool = False,
    ) -> tuple[Sensitivity, ...]:
        """Sensitivity of the clipped gradient to the replacement of one record, for every cell.

        It is (1 - alpha) 2C / sum(sizes) for the task loss, plus alpha times the weighted sensitivities of
        all the distances that the record's cell takes part in, each at the size of the record's own cell.

        Guarantee: for two batches with these cell sizes that differ by one record replaced at its position in
        cell j, the summed contributions differ by at most the j-th value in l2 norm. Protects every record
        against any observer of the noised sum; the record's cell and all sizes stay public.

        ``sizes`` are records of every cell in the batch, d the dimension of the outputs, ``spread`` of the directions;
        ``alone`` is the penalty's part, without the task loss.
        """
        self._require_one_per_cell("sizes", len(sizes))
        if d < 1 or (spread is not None and spread < (1 - 1e-9) / d):
            raise ValueError(f"spread = {spread} in dimension d = {d}: it is at least 1/d, and d at least 1.")
        public = (GROUP_AND_LABEL if self.within_classes else GROUP, SIZES)
        task = Sensitivity(0.0, "penalty") if alone else (1 - self.alpha) * loss_sensitivity(clip.loss, sum(sizes))
        totals = [replace(task, public=public) for _ in sizes]
        for i, j, weight in self._weighted_pairs():
            for cell, other in ((i, j), (j, i)):
                sides = self._side(sizes, cell, clip), self._side(sizes, other, clip)
                evenness = 1.0 if d == 1 else spread  # in one dimension all directions are the same
                totals[cell] += weight * swd_sensitivity(*sides, bound=bound, spread=evenness, order=self.order)
        return tuple(totals)

    def _weighted_pairs(self) -> tuple[tuple[int, int, float], ...]:
        if self.alpha == 0:
            return ()
        return tuple((i, j, self.alpha * weight) for i, j, weight in self.pairs)

    def _side(self, sizes: Sequence[int], cell: int, clip: Clip) -> Side:
        if sizes[cell] < 1:
            raise ValueError(
                f"cell {self.cells[cell]} has {sizes[cell]} records in the batch; the penalty needs at least "
                "1. Raise the batch fraction, merge the cell with another, or set alpha to 0."
            )
        return Side(sizes[cell], clip.output, clip.jacobian)

    def _require_one_per_cell(self, what: str, count: int) -> None:
        if count != len(self.cells):
            raise ValueError(
                f"{count} {what} for {len(self.cells)} cells: give one for each of {', '.join(self.cells)}."
            )


@dataclass(frozen=True)
class TaskAlone(WeightedPenalty):
    """No penalty: the task loss only, of all records in one stratum.

    Batches are drawn from all records alike. The guarantee keeps a record's group, as others say it: fewer than it
    might.
    """

    alpha = 0.0
    word = "proven"  # by docs/guarantees/sensitivity.md
    other_side = None

    @property
    def cells(self) -> tuple[str, ...]:
        """One stratum: every record."""
        return ("all",)

    @property
    def drawn_by(self) -> tuple[str, ...]:
        """Attributes of a record that its replacement keeps."""
        return ("group",)

    def owner(self, stratum: int) -> int:
        """Its only cell."""
        return 0

    def cell_of(self, sensitive: Tensor, target: Tensor) -> Tensor:
        """Cells (n,) of records with groups (n,) and targets (n,) or (n, t): all are in cell 0, whatever these are."""
        return torch.zeros(len(sensitive), dtype=torch.int64)

    def pulled(
        self,
        cells: Sequence[Tensor],
        directions: Tensor,
        sample: Callable[[int], Tensor],
        *,
        ties: sliced.Ties = "shared",
        memory_limit: int = sliced.DEFAULT_MEMORY_LIMIT,
    ) -> tuple[list[Tensor], None]:
        """Zeros (n, d): nothing is compared."""
        return [torch.zeros_like(cell, dtype=torch.float64) for cell in cells], None

    @property
    def pairs(self) -> tuple[tuple[int, int, float], ...]:
        """No cell is compared with another."""
        return ()

    def reach(self, radius: float) -> float:
        """The radius M itself, of slot means that are all 0."""
        return float(radius)

    def sensitivities(
        self,
        sizes: Sequence[int],
        clip: Clip,
        *,
        d: int,
        spread: float | None = None,
        bound: Bound = "auto",
        alone: bool = False,
    ) -> tuple[Sensitivity, ...]:
        """Sensitivity 2C/n of the clipped gradient to the replacement of one record of n.

        Guarantee: for two batches of ``sizes[0]`` records that differ by one record replaced at its position, the
        summed contributions differ by at most the value in l2 norm; the sizes are public.
        """
        (n,) = sizes
        value = Sensitivity(0.0, "penalty") if alone else loss_sensitivity(clip.loss, n)
        return (replace(value, public=(GROUP, SIZES)),)


def contribution_bound(cotangents: Sequence[Tensor], clip: Clip, task_weight: float) -> float:
    """The most that the contribution of a client can weigh in l2 norm if it clips as asked.

    L * (sum of the norms of its cotangents) + records * task_weight * C. A server that receives more knows
    that something is broken at the client; it is not a defence against one that lies within the bound.
    Cotangents are the rows (n_j, d) of every cell that were sent to the client, the weight `WeightedSum.task_weight`.
    """
    pulled = sum(float(torch.linalg.vector_norm(q.to(torch.float64), dim=-1).sum()) for q in cotangents)
    records = sum(q.shape[0] for q in cotangents)
    return clip.jacobian * pulled + records * task_weight * clip.loss


def _indices(values: Tensor, name: str, count: int) -> Tensor:
    if values.ndim != 1:
        raise ValueError(f"{name} has shape {tuple(values.shape)}: expected (n,), one value per record.")
    wrong = ((values != values.floor()) | (values < 0) | (values >= count)).nonzero()
    if wrong.numel():
        record = int(wrong[0])
        raise ValueError(
            f"{name} {values[record].item()} at record {record}: expected an integer from 0 to {count - 1}."
        )
    return values.to(torch.int64)


def terms_of(
    pulled: Iterable[tuple[Tensor, Tensor, float]],
    losses: Tensor | None,
    weights: Tensor | None,
    limit: float,
    mode: Mode,
) -> list[Term]:
    """The terms of one batch, or of a part of it; the same on one machine and at a client.

    ``pulled`` has for every penalty its outputs (n, d), their cotangents (n, d) and the norm L of the Jacobian's clip;
    losses and their weights, if the task loss has any, are (n,); ``limit`` is the norm C of their clip.
    """
    terms = [Term(outputs, q.to(outputs.device), jacobian, mode) for outputs, q, jacobian in pulled]
    if losses is not None and weights is not None:
        terms.append(Term(losses, weights.to(losses.device), limit, "spectral"))
    return terms


@dataclass(frozen=True)
class Matching(WeightedPenalty):
    """alpha * SW_p^p(outputs of the private records, outputs of the other side), beside (1 - alpha) * task loss.

    The other side is a `prior` (a public sample without parameters; the private side is an encoder), a
    `generator` (the private records are fixed points and only the generator has parameters), or a public `domain`
    with records that go through the same encoder as the private ones.

    The weight alpha is between 0 and 1: only a prior comes with a private task loss. The other side's outputs are in a
    ball of ``radius`` A; a generator's alone need none, as no bound on records without parameters looks at it. For a
    generator, ``both`` takes the noise of RLL's bound for two private sides, which is never less; it promises nothing
    about the generator's inputs (docs/guarantees/sensitivity.md). For a domain, private outputs may be ``fixed``. The
    ``order`` p is at least 2; above 2 a prior alone has one, as its sample is certain to be in its ball.

    Source: RLL, Sections 4 and 6, Appendix D.2.
    """

    other_side: OtherSide
    alpha: float
    radius: float
    both: bool = False
    fixed: bool = False
    order: float = 2.0
    word = "proven"  # by docs/guarantees/sensitivity.md

    def __post_init__(self) -> None:
        if require_penalty_order(self.order) != 2 and self.other_side != "prior":
            raise ValueError(
                f"a distance to a {self.other_side}'s outputs has order 2, not {self.order:g}: bounds of other orders "
                "grow with the radius of the other side, which these outputs may leave"
            )

    @property
    def cells(self) -> tuple[str, ...]:
        """One stratum: every private record."""
        return ("all",)

    @property
    def private_parameters(self) -> bool:
        """True if private records pass through the trained parameters."""
        return self.other_side != "generator" and not self.fixed

    @property
    def private_loss(self) -> bool:
        """True for a prior only: a generator has no other loss, and a domain's is of public records."""
        return self.other_side == "prior"

    @property
    def drawn_by(self) -> tuple[str, ...]:
        """Attributes of a record that its replacement keeps, as the guarantee says it: fewer than it might."""
        return ("group",)

    def owner(self, stratum: int) -> int:
        """Which of its cells a stratum of the finest penalty is in: the only one."""
        return 0

    def cell_of(self, sensitive: Tensor, target: Tensor) -> Tensor:
        """Cells (n,) of records with groups (n,) and targets (n,) or (n, t): all are in cell 0, whatever these are."""
        return torch.zeros(len(sensitive), dtype=torch.int64)

    def cotangents(
        self,
        outputs: Tensor,
        other: Tensor,
        directions: Tensor,
        *,
        ties: sliced.Ties = "shared",
        memory_limit: int = sliced.DEFAULT_MEMORY_LIMIT,
    ) -> tuple[Tensor, Tensor]:
        """Gradient of alpha * SW_p^p with respect to both samples, float64.

        Outputs (n, d) are projected onto the ball of M already, the other side's (m, d) in that of A, directions (d, k)
        unit columns, independent of the data.
        """
        mine, its = sliced.cotangents_of_projected(
            outputs, other, directions, order=self.order, ties=ties, memory_limit=memory_limit
        )
        return self.alpha * mine, self.alpha * its

    def pulled(
        self,
        cells: Sequence[Tensor],
        directions: Tensor,
        sample: Callable[[int], Tensor],
        *,
        ties: sliced.Ties = "shared",
        memory_limit: int = sliced.DEFAULT_MEMORY_LIMIT,
    ) -> tuple[list[Tensor], Tensor]:
        """The `cotangents` of the one cell (n, d) and of the other side's sample."""
        (outputs,) = cells
        mine, its = self.cotangents(outputs, sample(len(outputs)), directions, ties=ties, memory_limit=memory_limit)
        return [mine], its

    @property
    def pairs(self) -> tuple[tuple[int, int, float], ...]:
        """The one cell with a public sample; its ranks need no table."""
        return ((0, 0, 1.0),)

    def reach(self, radius: float) -> float:
        """The radius A of the other side's ball."""
        return self.radius

    def slot_means(
        self, counts: Sequence[Tensor], directions: Tensor, radius: float, sample: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Slot means of the one cell against the sample (m, d), and the derivative there; ValueError without it.

        TypeError for another order than 2: slot means do not give its derivative.
        """
        self.require_slot_means()
        if sample is None:
            raise ValueError(f"records are compared with a {self.other_side}'s sample, and none was given")
        seen, pulled = histograms.matched_to_sample(counts[0], sample, directions, radius)
        return [seen], pulled

    def sensitivities(
        self,
        sizes: Sequence[int],
        clip: Clip,
        *,
        d: int,
        spread: float | None = None,
        bound: Bound = "auto",
        alone: bool = False,
    ) -> tuple[Sensitivity, ...]:
        """Sensitivity of the clipped gradient to the replacement of one private record.

        Guarantee: for two batches of `sizes[0]` records that differ by one record replaced at its position, the
        sums of all clipped contributions, the other side's included, differ by at most the value in l2 norm.
        Protects every private record from any observer of the noised sum; sizes and the other sample are public. With
        `both` the value is the larger of the bounds of either side, m = n.

        There are ``sizes[0]`` private records in the batch; d is the dimension, ``spread`` of the directions; ``alone``
        is the distance's part, without the task loss.

        Source: docs/guarantees/sensitivity.md; RLL, Theorem 4.1.
        """
        (n,) = sizes
        spread = 1.0 if d == 1 else spread
        private = Side(n, clip.output, clip.jacobian if self.private_parameters else 0.0)
        parameters = 0.0 if self.other_side == "prior" else clip.jacobian
        other = Side(n, self.radius, parameters, private=False)
        sensitivity = swd_sensitivity(private, other, bound=bound, spread=spread, order=self.order)
        if self.both:
            exchanged = replace(other, private=True), private
            both = swd_sensitivity(*exchanged, bound=bound, spread=spread, order=self.order)
            sensitivity = worst([sensitivity, both])
        total = self.alpha * sensitivity
        if self.private_loss and not alone:
            total += (1 - self.alpha) * loss_sensitivity(clip.loss, n)
        return (total,)
