"""The order p of a distance W_p^p that is a penalty; checked without a tensor, as settings are read without torch."""

from __future__ import annotations

import math

from fedsw._tools.settings import real


def require_penalty_order(order: float) -> float:
    """The order p of a distance W_p^p: finite and at least 2.

    Below 2 what one record moves does not fall as 1/n with n records, and at 1 it does not fall at all (RLL, Appendix
    F; docs/guarantees/orders.md). ValueError says so.
    """
    number = real(order, "order")
    if not 2 <= number < math.inf:
        raise ValueError(
            f"order is {number:g}; a penalty's order is finite and at least 2: below it one record of n moves the "
            "gradient by far more than 1/n of it, at order 1 by a constant. Use 2, or more to weigh tails"
        )
    return number
