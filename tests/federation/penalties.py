"""Penalties of a user's own, as a module would have them: of parts, with a stated bound, with a false one, and none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

import fedsw


@dataclass(frozen=True)
class Fair(fedsw.Penalty):
    """Parity and equalized odds, half and half: proven."""

    def parts(self) -> Sequence[fedsw.Penalty]:
        return [fedsw.Parity(0.5), fedsw.EqualizedOdds(0.5)]


@dataclass(frozen=True)
class Means(fedsw.Penalty):
    """The squared difference of two groups' mean outputs."""

    def pull(self, outputs: Sequence[Tensor], directions: Tensor) -> Sequence[Tensor]:
        one, other = outputs
        gap = one.mean(0) - other.mean(0)
        return [2 * gap.expand_as(one) / len(one), -2 * gap.expand_as(other) / len(other)]

    def bound(self, sizes: Sequence[int], clip: fedsw.Clip) -> float:
        return 16 * clip.output * clip.jacobian / min(sizes)


@dataclass(frozen=True)
class Hopeful(Means):
    """The same, with a bound that does not hold."""

    def bound(self, sizes: Sequence[int], clip: fedsw.Clip) -> float:
        return 0.5 * super().bound(sizes, clip)


@dataclass(frozen=True)
class Upset(Means):
    """The same with a derivative that is no number for some outputs, which no made-up ones have."""

    def pull(self, outputs: Sequence[Tensor], directions: Tensor) -> Sequence[Tensor]:
        return [rows / (0.0 if len(rows) > 20 else 1.0) for rows in super().pull(outputs, directions)]


energy = fedsw.Stated(pull=Means().pull, bound=Means().bound)


def nothing() -> None:
    """No penalty."""
