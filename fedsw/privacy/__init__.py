"""The one door, and what stands behind it: sensitivities, mechanisms, accountants, plans, ledgers.

`release` is the door: `Bounded` in, `Released` out, charged in a ledger before noise is drawn. `sensitivity` says how
far one record moves a value, `mechanisms` are the noises, `relations` who neighbours are, `accountants` whose word
stands behind an epsilon; `accounting` computes it, and has ledgers and accounts. `plan` is made once from public
numbers; `masks` hide a site's part of a sum; `local_release` and `slices` are records and projections with noise of
their own. `Stream` is a source of random numbers.
"""

from typing import TYPE_CHECKING

from fedsw._tools.lazy import named

if TYPE_CHECKING:
    from fedsw._tools.randomness import Stream as Stream

__all__ = [
    "Stream", "accountants", "accounting", "local_release", "masks", "mechanisms", "plan", "relations", "release",
    "sensitivity", "slices",
]  # fmt: skip

__getattr__ = named(__name__, {"mechanisms": ("Stream",)})
