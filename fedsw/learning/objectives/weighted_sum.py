"""`WeightedSum`, a task loss and penalties: strata of sampling, cotangents, and the sensitivity of the whole."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedsw._tools.registry import Word
from fedsw.learning.objectives._weighted_penalty import Clip, OtherSide, WeightedPenalty
from fedsw.learning.objectives.penalties import NoPenalty, Penalty, part_of
from fedsw.mathematics.transport.sliced import DEFAULT_MEMORY_LIMIT, Ties
from fedsw.privacy.sensitivity import SLACK, Bound, Sensitivity, loss_sensitivity

Sample = Callable[[int, int], Tensor]
"""From the number of a penalty and a count to the other sample (m, d) of an attempt."""


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """(1 - sum of weights) * task loss + sum of weight * penalty, over outputs that each penalty chooses.

    A penalty between groups has the groups as cells, or pairs (class, group); one to a sample has all private records
    as one cell. What differs between them is asked of `parts`, one for each penalty. It has no model and no records:
    `fedsw.learning.tasks.objective.ClippedObjective` brings it to both.
    """

    penalties: tuple[Penalty, ...]

    def __post_init__(self) -> None:
        if not self.penalties:
            raise ValueError("an objective has a penalty, or NoPenalty() for the task loss alone")
        if len(self.penalties) > 1 and any(isinstance(penalty, NoPenalty) for penalty in self.penalties):
            raise ValueError("penalty 'none' stands alone: beside another it would draw by other strata; leave it out")
        if (total := sum(penalty.weight for penalty in self.penalties)) > 1 + 1e-12:
            raise ValueError(f"the penalties' weights add up to {total:g}; the task loss has the rest of 1")
        for name in ("groups", "classes"):
            counts = {getattr(penalty, name) for penalty in self.penalties if hasattr(penalty, name)}
            if len(counts) > 1:
                raise ValueError(f"penalties of one objective count {name} differently: {sorted(counts)}")

    @cached_property
    def task_share(self) -> float:
        """Weight of the task loss of private records; 0 if its records are public, or there are none."""
        return max(0.0, 1 - self.alpha) if self.private_loss else 0.0

    @property
    def private_loss(self) -> bool:
        """True if the task loss is of private records, so that it counts in the sensitivity."""
        return all(part.private_loss for part in self.parts)

    @cached_property
    def alpha(self) -> float:
        """Weight of all penalties together."""
        return sum(penalty.weight for penalty in self.penalties)

    @cached_property
    def parts(self) -> tuple[WeightedPenalty, ...]:
        """Every penalty with its weight; TypeError for one without a known sensitivity and derivative."""
        return tuple(part_of(penalty) for penalty in self.penalties)

    @cached_property
    def lone(self) -> WeightedPenalty | None:
        """The part of an objective with one shipped penalty on the task's own outputs; None for any other."""
        if len(self.penalties) > 1:
            return None
        (penalty,) = self.penalties
        plain = penalty.shipped and penalty.outputs is None and penalty.clip is None
        return self.parts[0] if plain else None

    @property
    def other_side(self) -> OtherSide | None:
        """The kind of sample that `lone` compares with; None for groups, and where penalties are composed."""
        return None if self.lone is None else self.lone.other_side

    def between_groups(self) -> WeightedPenalty:
        """The `lone` part, which compares groups with each other; TypeError for any other objective."""
        if self.lone is None or self.lone.other_side is not None:
            names = ", ".join(type(penalty).__name__ for penalty in self.penalties)
            raise TypeError(f"ranks of one penalty between groups are asked for; the objective has {names}")
        return self.lone

    @property
    def private_parameters(self) -> bool:
        """True if private records pass through the trained parameters, so that clients contribute gradients."""
        return any(part.private_parameters for part in self.parts)

    @cached_property
    def finest(self) -> WeightedPenalty:
        """The penalty with the finest strata: batches are drawn by these, and they are public."""
        return max(self.parts, key=lambda part: len(part.cells))

    @property
    def cells(self) -> tuple[str, ...]:
        """Names of the strata, in the order of all sequences by stratum."""
        return self.finest.cells

    def cell_of(self, sensitive: Tensor, target: Tensor) -> Tensor:
        """Index into `cells` of every record (n,), int64."""
        return self.finest.cell_of(sensitive, target)

    @property
    def drawn_by(self) -> tuple[str, ...]:
        """Attributes of a record that its replacement keeps: all that some penalty's strata are drawn by."""
        return tuple(sorted({name for part in self.parts for name in part.drawn_by}))

    @property
    def word(self) -> Word:
        """Who vouches for the bound: proven if that of every penalty is."""
        return "proven" if all(part.word == "proven" for part in self.parts) else "stated"

    def task_weight(self, batch: int) -> float:
        """Weight of one private record's task loss in a batch of that many."""
        if not self.private_loss:
            return 0.0
        if batch < 1:
            raise ValueError(f"batch = {batch}; the task loss is a mean over at least 1 record.")
        return self.task_share / batch

    def cotangents(
        self,
        outputs: Sequence[Sequence[Tensor]],
        directions: Sequence[Tensor],
        sample: Sample,
        *,
        ties: Ties = "shared",
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> tuple[list[list[Tensor]], list[Tensor | None]]:
        """Gradient of every weighted penalty in its outputs, by penalty and stratum, and in the other samples; float64.

        Outputs are (n_s, d) by penalty and stratum, in the ball of the penalty's M, directions (d, k) unit columns
        for every penalty, independent of the data; ``sample`` is the other one of a penalty that compares with one.
        """
        by_penalty, others = [], []
        for number, (part, by_stratum, theta) in enumerate(zip(self.parts, outputs, directions, strict=True)):
            sizes = [len(rows) for rows in by_stratum]
            owners = [part.owner(stratum) for stratum in range(len(sizes))]
            cells = [
                torch.cat([rows for rows, owner in zip(by_stratum, owners, strict=True) if owner == cell])
                for cell in range(len(part.cells))
            ]
            drawn = functools.partial(sample, number)
            by_cell, other = part.pulled(cells, theta, drawn, ties=ties, memory_limit=memory_limit)
            if part.word != "proven":  # a derivative that is no number is nothing: no value stops a round
                by_cell = [rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for rows in by_cell]
            by_penalty.append(_parted(by_cell, owners, sizes))
            others.append(other)
        return by_penalty, others

    def sensitivities(
        self,
        sizes: Sequence[int],
        clip: Clip,
        *,
        dimensions: Sequence[int],
        spreads: Sequence[float],
        bound: Bound = "auto",
    ) -> tuple[Sensitivity, ...]:
        """Sensitivity of the whole clipped gradient to one replaced record of each stratum.

        The triangle inequality over the terms: the task loss and every penalty that the stratum's records are in, each
        with its own proof, or with what the user states.
        ``sizes`` are records of every stratum in the batch; a penalty's own clip replaces M and L for it.
        """
        if len(self.parts) == 1:  # it knows the task loss beside it, and has the clip C of that from the objective
            own_clip = self.penalties[0].clip
            used = clip if own_clip is None else Clip(own_clip.output, own_clip.jacobian, clip.loss)
            return self.parts[0].sensitivities(sizes, used, d=dimensions[0], spread=spreads[0], bound=bound)
        totals = [self.task_share * loss_sensitivity(clip.loss, sum(sizes)) for _ in sizes]
        for part, penalty, d, spread in zip(self.parts, self.penalties, dimensions, spreads, strict=True):
            owners = [part.owner(stratum) for stratum in range(len(sizes))]
            held = [
                sum(size for size, owner in zip(sizes, owners, strict=True) if owner == cell)
                for cell in range(len(part.cells))
            ]
            # A coarser penalty has several strata in one cell: what a record moves falls with all of their records.
            alone = part.sensitivities(held, penalty.clip or clip, d=d, spread=spread, bound=bound, alone=True)
            for stratum, owner in enumerate(owners):
                totals[stratum] += alone[owner]
        return tuple(totals)


def _parted(by_cell: Sequence[Tensor], owners: Sequence[int], sizes: Sequence[int]) -> list[Tensor]:
    """Rows by cell as rows by stratum: the inverse of joining."""
    starts = [0] * len(by_cell)
    parts = []
    for owner, size in zip(owners, sizes, strict=True):
        parts.append(by_cell[owner][starts[owner] : starts[owner] + size])
        starts[owner] += size
    return parts


@functools.lru_cache(maxsize=64)
def with_slack(
    objective: WeightedSum,
    batch: tuple[int, ...],
    clip: Clip,
    widths: tuple[int, ...],
    spreads: tuple[float, ...],
    bound: Bound,
) -> tuple[Sensitivity, ...]:
    """Sensitivity of a batch's summed contributions to one replaced record of each cell, with floating-point slack."""
    sensitivities = objective.sensitivities(batch, clip, dimensions=widths, spreads=spreads, bound=bound)
    return tuple(SLACK * sensitivity for sensitivity in sensitivities)
