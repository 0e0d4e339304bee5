"""The order p of a distance W_p^p that is a penalty; checked without a tensor, as settings are read without torch."""

from __future__ import annotations

from fedsw._tools.settings import real

MOST_ORDER = 64
"""Powers of outputs that a message rounds to float32 stay within the room that `SLACK` leaves, up to this order."""


def require_penalty_order(order: float) -> float:
    """The order p of a distance W_p^p: from 2 to 64.

    Below 2 what one record moves does not fall as 1/n with n records, and at 1 it does not fall at all (RLL, Appendix
    F; docs/guarantees/orders.md). ValueError says so.
    """
    number = real(order, "order")
    if not 2 <= number <= MOST_ORDER:
        raise ValueError(
            f"order is {number:g}; a penalty's order is from 2 to {MOST_ORDER}: below 2 one record of n moves the "
            "gradient by far more than 1/n of it, at order 1 by a constant. Use 2, or more to weigh tails"
        )
    return number
