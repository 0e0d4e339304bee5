"""The guarantee that settings ask for: by a run's noise, or none of a run that adds none."""

from __future__ import annotations

from typing import ClassVar, TypeVar

T = TypeVar("T")


class Guarantee:
    """Guarantee of a run that adds noise: whoever needs to know is told what to say, or what to do.

    Attributes:
        unprotected: why nothing is promised, in words; None where something is.
    """

    unprotected: ClassVar[str | None] = None

    def by_noise(self, *, noised: T, none: T) -> T:
        """Choose by whether what is released has noise."""
        return noised


class NoGuarantee(Guarantee):
    """Guarantee of a run without noise: epsilon is infinite, no ledger has a row that means anything for a person."""

    unprotected = "no noise would be added (privacy.trust 'none' or epsilon inf)"

    def by_noise(self, *, noised: T, none: T) -> T:
        """See `Guarantee`."""
        return none
