"""Forecast of a run: what is expected to be left, and on which facts, that only the owner knows, it depends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedsw.desk.planning.forecast import FEASIBLE, Curve, Score
from fedsw.desk.planning.public_rows import RARE

SHARES = (RARE, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
"""Shares of records outside of the most frequent class, among which a plan looks for the largest at which a constant
does as well ..."""
_MARGIN = 2
"""... and so many of them further on more than a constant is promised: twins tell more of a rare class than most tables
do."""


@dataclass(frozen=True)
class WhatIf:
    """The share of what can be learnt that is expected to be left, for other numbers."""

    records: int
    epsilon: float
    share_left: float


@dataclass(frozen=True)
class Forecast:
    """Forecast of a run by training on public twins.

    Attributes:
        learnt: scores of the ``reference`` (in words) on twins of every law, and the best constant beside it.
        share_left: the share of its gain over a constant that is left, as expected; ``range``, under single laws.
        strength: of the signal: below 1 noise buries it.
        log_loss: of the run's probabilities, and of the class shares, the mean of all laws; None of numbers.
        tight: what would be left if columns used a small part of their bounds; None for a table, or without bounds.
        skewed: the least that would be left if most of the predicted numbers were small and a few far larger; None
            where that was not tried.
        bare: what would be left if columns told a point or two more than a constant; None if that was not tried.
        rarest: share of the least frequent of so many ``classes`` that is assumed, and ``assumed`` of all but the most
            frequent; None if it is known, and without classes.
        rare: what would be left if all but the most frequent class had one record in fifty; None if not tried.
        constant_to: the largest share of all classes but the most frequent at which a constant would do as well, of
            those tried; None if there is none, or none was tried.
    """

    reference: str
    learnt: tuple[Score, ...]
    share_left: float
    range: tuple[float, float]
    strength: float
    what_ifs: tuple[WhatIf, ...]
    log_loss: tuple[float, float] | None = None
    tight: float | None = None
    skewed: float | None = None
    bare: float | None = None
    classes: int = 0
    rarest: float | None = None
    assumed: float = 0.0
    rare: float | None = None
    constant_to: float | None = None

    @property
    def promised_from(self) -> float:
        """The least share outside of the most frequent class for which more than a constant is promised."""
        if self.constant_to is None:
            return self.assumed
        return promised_above(self.constant_to)

    @property
    def depends(self) -> bool:
        """Say whether more than a constant can be expected only if columns tell enough, or use their bounds."""
        unsure = (self.tight, self.skewed, self.bare)
        return self.share_left >= FEASIBLE and any(map(_too_little, unsure))

    @property
    def of_bounds(self) -> bool:
        """Say whether it hangs on how much of their bounds the records use."""
        return _too_little(self.tight) or _too_little(self.skewed)

    @property
    def condition(self) -> str:
        """On which the forecast depends, in words; empty if on none."""
        if not self.depends:
            return ""
        whose = ((self.tight, "the columns"), (self.skewed, "the numbers to predict"))
        who = " and ".join(words for share, words in whose if _too_little(share))
        counts = " (counts, most of them small, do not)" if _too_little(self.skewed) else ""
        used = f"{who} use more than a tenth of their bounds{counts}" if who else ""
        gains = "two points of accuracy" if self.learnt[0].constant > 0 else "4 % of squared error"
        told = f"a model without privacy gains more than {gains} over a constant" if _too_little(self.bare) else ""
        return " and ".join(filter(None, [told, used]))

    @property
    def feasible(self) -> bool:
        """Say whether more than a constant can be expected, however little columns tell or use of their bounds."""
        return self.share_left >= FEASIBLE and not self.depends


def _too_little(share: float | None) -> bool:
    return share is not None and share < FEASIBLE


def promised_above(constant_to: float) -> float:
    """The share outside of the most frequent class from which on more than a constant is promised; half if none is."""
    above = [share for share in SHARES if share > constant_to]
    return above[_MARGIN - 1] if len(above) >= _MARGIN else 0.5


def largest_for_constant(left_of: Callable[[float], float]) -> float:
    """The largest of `SHARES` at which too little is left; it is so at the first, by bisection."""
    low, high = 0, len(SHARES)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if left_of(SHARES[middle]) < FEASIBLE else (low, middle)
    return SHARES[low]


def left_alone(measured: Curve, strength: float) -> list[float]:
    """The share left under every single law; 0 if it lets nothing be learnt."""
    laws = range(len(measured.reference))
    return [measured.under(law).at(strength) if law in measured.taught else 0.0 for law in laws]
