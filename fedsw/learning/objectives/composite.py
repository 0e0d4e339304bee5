"""A task loss and several penalties: strata of sampling, cotangents, and the sensitivity of the whole, derived."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedsw._tools.registry import Word
from fedsw.learning.objectives.groups import Clip, Objective
from fedsw.learning.objectives.matching import Matching
from fedsw.learning.objectives.penalties import Part, Penalty, StatedPart
from fedsw.mathematics.transport.sliced import DEFAULT_MEMORY_LIMIT, Ties
from fedsw.privacy.sensitivity import SLACK, Bound, Sensitivity, loss_sensitivity

Sample = Callable[[int, int], Tensor]
"""From the number of a penalty and a count to the other sample (m, d) of an attempt."""


@dataclass(frozen=True)
class Composite:
    """(1 - sum of weights) * task loss + sum of weight * penalty, over outputs that each penalty chooses."""

    penalties: tuple[Penalty, ...]

    def __post_init__(self) -> None:
        if not self.penalties:
            raise ValueError("an objective needs at least one penalty; give one of weight 0 for the task loss alone")
        if (total := sum(penalty.weight for penalty in self.penalties)) > 1 + 1e-12:
            raise ValueError(f"the penalties' weights add up to {total:g}; the task loss has the rest of 1")
        for name in ("groups", "classes"):
            counts = {getattr(penalty, name) for penalty in self.penalties if hasattr(penalty, name)}
            if len(counts) > 1:
                raise ValueError(f"penalties of one objective count {name} differently: {sorted(counts)}")

    @cached_property
    def task_share(self) -> float:
        """Weight of the task loss."""
        return max(0.0, 1 - sum(penalty.weight for penalty in self.penalties))

    @property
    def alpha(self) -> float:
        """Weight of all penalties together."""
        return 1 - self.task_share

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The penalties as objectives of their own, each with its weight."""
        return tuple(penalty.between() for penalty in self.penalties)

    @cached_property
    def finest(self) -> Part:
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
        """Whose word the bound is: proven where that of every penalty is."""
        return "proven" if all(part.word == "proven" for part in self.parts) else "stated"

    def task_weight(self, batch: int) -> float:
        """Weight of one record's task loss in a batch of that many."""
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
    ) -> list[list[Tensor]]:
        """Gradient of every weighted penalty in its outputs, by penalty and stratum, float64.

        Outputs are (n_s, d) by penalty and stratum, in the ball of the penalty's M, directions (d, k) unit columns
        for every penalty, independent of the data; ``sample`` is the other one of a `ToSample`.
        """
        cotangents = []
        for number, (part, by_stratum, theta) in enumerate(zip(self.parts, outputs, directions, strict=True)):
            sizes = [len(rows) for rows in by_stratum]
            owners = [part.owner(stratum) for stratum in range(len(sizes))]
            cells = [
                torch.cat([rows for rows, owner in zip(by_stratum, owners, strict=True) if owner == cell])
                for cell in range(len(part.cells))
            ]
            if isinstance(part, StatedPart):  # a derivative that is no number is nothing: no value stops a round
                pulled = part.cotangents(cells, theta, ties=ties, memory_limit=memory_limit)
                by_cell = [rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for rows in pulled]
            elif isinstance(part, Matching):
                own, _ = part.cotangents(
                    cells[0], sample(number, len(cells[0])), theta, ties=ties, memory_limit=memory_limit
                )
                by_cell = [own]
            elif isinstance(part, Objective):
                by_cell = part.cotangents(cells, theta, ties=ties, memory_limit=memory_limit)
            else:
                raise TypeError(f"a {type(part).__name__} is no part of an objective whose derivative is known")
            cotangents.append(_parted(by_cell, owners, sizes))
        return cotangents

    def sensitivities(
        self,
        sizes: Sequence[int],
        clip: Clip,
        *,
        dimensions: Sequence[int],
        spreads: Sequence[float],
        bound: Bound = "auto",
    ) -> tuple[Sensitivity, ...]:
        """How far one replaced record of each stratum moves the clipped gradient of the whole.

        The triangle inequality over the terms: the task loss and every penalty that the stratum's records are in, each
        with its own proof, or with what the user states.
        ``sizes`` are records of every stratum in the batch; a penalty's own clip replaces M and L for it.
        """
        if len(self.parts) == 1:
            own = self.penalties[0].clip
            used = clip if own is None else Clip(own.output, own.jacobian, clip.loss)
            return self.parts[0].sensitivities(sizes, used, d=dimensions[0], spread=spreads[0], bound=bound)
        totals = [self.task_share * loss_sensitivity(clip.loss, sum(sizes)) for _ in sizes]
        for part, penalty, d, spread in zip(self.parts, self.penalties, dimensions, spreads, strict=True):
            owners = [part.owner(stratum) for stratum in range(len(sizes))]
            held = [
                sum(size for size, owner in zip(sizes, owners, strict=True) if owner == cell)
                for cell in range(len(part.cells))
            ]
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
    objective: Part | Composite,
    batch: tuple[int, ...],
    clip: Clip,
    widths: tuple[int, ...],
    spreads: tuple[float, ...],
    bound: Bound,
) -> tuple[Sensitivity, ...]:
    """How far one replaced record of each cell moves a batch's summed contributions, with the floating-point slack."""
    if isinstance(objective, Composite):
        sensitivities = objective.sensitivities(batch, clip, dimensions=widths, spreads=spreads, bound=bound)
    else:  # every part has the same function
        sensitivities = objective.sensitivities(batch, clip, d=widths[0], spread=spreads[0], bound=bound)
    return tuple(SLACK * sensitivity for sensitivity in sensitivities)
