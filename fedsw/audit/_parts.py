"""Rows of a run's ledger by kind, and for which part of its cost an audit speaks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedsw.privacy.accounting import Step, epsilon
from fedsw.privacy.plan import calibrated

How = Literal["attacked", "recomputed", "no verdict", "not attacked"]


@dataclass(frozen=True)
class AuditedPart:
    """Rows of one kind: what they cost together, what an audit did with them, and in words what it found, or why not.

    The ``square`` is mu^2 of the one Gaussian release that costs as much: of several parts they add up to that of the
    run, exactly where all records are in every release, else nearly. Rows of ``held_out`` records cost no others.
    """

    name: str
    square: float
    how: How
    words: str
    held_out: bool = False

    @property
    def passed(self) -> bool:
        """True if the audit speaks for these rows."""
        return self.how in ("attacked", "recomputed")


def square_of(steps: Mapping[Step, int], delta: float) -> float:
    """Return mu^2 of the one Gaussian release with the epsilon of these steps at delta."""
    if all(step.sampling_rate == 1.0 and step.slicing is None for step in steps):
        return sum(times * step.mu**2 for step, times in steps.items())
    spent = epsilon(dict(steps), delta)
    if math.isinf(spent):
        return math.inf
    multiplier, _ = calibrated(spent, None, delta=delta, rate=1.0, rounds=1, accountant="pld")
    return multiplier**-2


def rows_of(parts: Sequence[AuditedPart]) -> list[tuple[str, str]]:
    """Lines of the screen, one for every kind of row, with its share of mu^2."""
    return [
        (part.name, f"{part.how}{' ' + part.words if part.words else ''}{_share_of(part, parts)}") for part in parts
    ]


def spoken_for(parts: Sequence[AuditedPart]) -> float:
    """Return the part of the run's mu^2 that the audit speaks for; of kept records alone where it has no other rows."""
    counted = [part for part in parts if not part.held_out] or list(parts)
    whole = sum(part.square for part in counted)
    if not math.isfinite(whole) or whole <= 0:
        return 1.0 if all(part.passed for part in counted) else 0.0
    return sum(part.square for part in counted if part.passed) / whole


def said_of(parts: Sequence[AuditedPart]) -> str:
    """Say for which part of mu^2 an audit passed, and what is left; empty without rows."""
    if not parts:
        return ""
    left = [part.name for part in parts if not part.passed]
    rest = f"; not for {', '.join(left)}" if left else ""
    return f"this holds for {spoken_for(parts):.0%} of μ²{rest}"


def content_of(parts: Sequence[AuditedPart]) -> list[dict[str, Any]]:
    """The JSON of all parts."""
    return [
        {"rows": part.name, "how": part.how, "words": part.words, "squared_mu": part.square, "kept": part.held_out}
        for part in parts
    ]


def _share_of(part: AuditedPart, parts: Sequence[AuditedPart]) -> str:
    whole = sum(other.square for other in parts if not other.held_out)
    if part.held_out:
        return "; of kept records alone"
    return f"; {part.square / whole:.0%} of μ²" if 0 < whole < math.inf else ""
