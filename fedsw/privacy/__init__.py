"""Release of private values, and all that it rests on: sensitivities, mechanisms, accountants, plans, ledgers.

`release` is the only way out: it takes `Bounded` values, charges a ledger, adds noise and returns `Released` ones.
`sensitivity` bounds how far one record moves a value, `mechanisms` has the noises, `relations` the neighbouring data
sets, `accountants` says who vouches for an epsilon; `accounting` computes it, and has ledgers and accounts. `plan` is
made once from public numbers; `masks` hide a site's part of a sum; `local_release` and `slices` are records and
projections with noise of their own. `Stream` is a source of random numbers.
"""

from typing import TYPE_CHECKING

from fedsw._tools.later import named

if TYPE_CHECKING:
    from fedsw._tools.randomness import Stream as Stream

__all__ = [
    "Stream", "accountants", "accounting", "bounded_sums", "local_release", "masks", "mechanisms", "plan", "relations",
    "release", "sensitivity", "slices",
]  # fmt: skip

__getattr__ = named(__name__, {"mechanisms": ("Stream",)})
