"""`WeightedPenalty`, one term of an objective, asked for all that differs; `Clip`, the norms that bound a record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedsw._tools.registry import Word
from fedsw._tools.text import Short
from fedsw.mathematics.transport.sliced import DEFAULT_MEMORY_LIMIT, Ties
from fedsw.privacy.sensitivity import Bound, Sensitivity

OtherSide = Literal["prior", "generator", "domain"]

_LEAST, _MOST = 1e-60, 1e60


@dataclass(frozen=True, repr=False)
class Clip(Short):
    """The three norms that bound a record's influence.

    ``output`` M is the radius of the ball that outputs are projected onto before they are compared, ``jacobian`` L the
    spectral norm that per-sample Jacobians of the unprojected output are clipped to, ``loss`` C the l2 norm that
    per-record gradients of the task loss are.
    """

    output: float
    jacobian: float
    loss: float

    def _facts(self) -> Mapping[str, object]:
        return {"output": self.output, "jacobian": self.jacobian, "loss": self.loss}

    def __post_init__(self) -> None:
        for name in ("output", "jacobian", "loss"):
            value = getattr(self, name)
            if not _LEAST <= value <= _MOST:
                raise ValueError(
                    f"clip.{name} = {value}; it must lie between {_LEAST:g} and {_MOST:g}, as products of norms are "
                    "squared. Use norms of the size that outputs and gradients have"
                )


class WeightedPenalty(ABC):
    """A penalty of an objective, with its weight. Whatever differs between penalties is asked of it.

    Attributes:
        alpha: its weight in the objective.
        word: who vouches for its bound.
        other_side: the kind of sample that private records are compared with; None if it is other private records.
        order: the order p of its distances W_p^p; tables of outputs give ranks for order 2 only.
    """

    alpha: float
    order: float = 2.0
    word: Word
    other_side: OtherSide | None

    @property
    def private_loss(self) -> bool:
        """True if the task loss beside it is of private records, so that it counts in the sensitivity."""
        return True

    @property
    def private_parameters(self) -> bool:
        """True if private records pass through the trained parameters."""
        return True

    @property
    @abstractmethod
    def cells(self) -> tuple[str, ...]:
        """Names of the cells of records that it compares, in the order of all sequences by cell."""

    @property
    @abstractmethod
    def drawn_by(self) -> tuple[str, ...]:
        """Attributes of a record that its replacement keeps."""

    @abstractmethod
    def owner(self, stratum: int) -> int:
        """Index of the cell that holds a stratum of the finest penalty."""

    @abstractmethod
    def cell_of(self, sensitive: Tensor, target: Tensor) -> Tensor:
        """Index into `cells` of every record (n,), int64, from its group (n,) and its target (n,) or (n, t)."""

    @abstractmethod
    def pulled(
        self,
        cells: Sequence[Tensor],
        directions: Tensor,
        sample: Callable[[int], Tensor],
        *,
        ties: Ties = "shared",
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> tuple[list[Tensor], Tensor | None]:
        """Gradient of the weighted penalty in the outputs of every cell, and in those of the other side; float64.

        Outputs (n_j, d) are in the ball of M, directions (d, k) unit columns, independent of the data. ``sample`` makes
        the other side's outputs (m, d) from the number of private ones; without another side there is None of it.
        """

    @abstractmethod
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
        """Sensitivity of the clipped gradient to one replaced record of each cell; `alone` is without the task loss."""

    @property
    def pairs(self) -> tuple[tuple[int, int, float], ...]:
        """Compared cells with the weight of their distance, alpha left out; (0, 0) with a sample that is public.

        TypeError, as `reach` and `slot_means`, where noised tables give no ranks.
        """
        raise self._without_ranks()

    def weight_of(self, cell: int) -> float:
        """Summed weight of the distances that a cell takes part in."""
        return sum(weight for i, j, weight in self.pairs if cell in (i, j))

    def reach(self, radius: float) -> float:
        """Bound A of slot means: the radius of the other side's ball, where the records' ball has this radius."""
        raise self._without_ranks()

    def slot_means(
        self, counts: Sequence[Tensor], directions: Tensor, radius: float, sample: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor | None]:
        """Slot means (k, bins) that the records of every cell see, and the derivative in the sample (m, d), if any.

        Counts (k, bins) of every cell are those of its table (`histograms.monotone`), directions (d, k).
        """
        raise self._without_ranks()

    def require_slot_means(self) -> None:
        """TypeError if noised tables give no ranks, or an order above 2 needs more of a slot than its mean."""
        self.pairs  # noqa: B018  which raises where there are no ranks
        if self.order != 2:
            raise TypeError(
                f"a {type(self).__name__} of order {self.order:g} has no slot means: noised tables serve order 2 alone"
            )

    def _without_ranks(self) -> TypeError:
        return TypeError(f"a {type(self).__name__} has no ranks that noised tables could give")
