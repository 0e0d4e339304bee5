"""`Matching`, a distance of private records' outputs to another sample: a prior's, a generator's, a domain's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsw.learning.objectives import histograms
from fedsw.learning.objectives._weighted_penalty import Clip, OtherSide, WeightedPenalty
from fedsw.mathematics.transport import sliced
from fedsw.mathematics.transport.order import require_penalty_order
from fedsw.privacy.sensitivity import Bound, Sensitivity, Side, loss_sensitivity, swd_sensitivity, worst


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
