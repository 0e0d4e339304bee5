"""Accounts of data sets: what all runs on the same records have spent together, and the limit that they keep to.

Source: docs/guarantees/ledger.md.
"""

from fedsw.privacy.accounting.lifetime._bound import (
    Bound,
    bind,
    bind_again,
    bound_in,
    bound_to,
    counting,
    require_same,
    settle,
    unbind,
)
from fedsw.privacy.accounting.lifetime._chosen import Limit, Share, Use, in_order, room
from fedsw.privacy.accounting.lifetime._dataset_account import (
    ACCOUNTS_VARIABLE,
    About,
    DatasetAccount,
    LimitReached,
    Reservation,
    account_named,
    accounts_folder,
    accounts_in,
)
from fedsw.privacy.accounting.lifetime.composing import (
    NO_NOISE,
    Cost,
    Counts,
    added,
    composed_epsilon,
    cost_beside_others,
    cost_of_ledger,
    one_cost,
    planned,
    total_epsilon,
)
from fedsw.privacy.accounting.lifetime.state import State, TakenRun

__all__ = [
    "ACCOUNTS_VARIABLE",
    "NO_NOISE",
    "About",
    "Bound",
    "Cost",
    "Counts",
    "DatasetAccount",
    "Limit",
    "LimitReached",
    "Reservation",
    "Share",
    "State",
    "TakenRun",
    "Use",
    "account_named",
    "accounts_folder",
    "accounts_in",
    "added",
    "bind",
    "bind_again",
    "bound_in",
    "bound_to",
    "composed_epsilon",
    "cost_beside_others",
    "cost_of_ledger",
    "counting",
    "in_order",
    "one_cost",
    "planned",
    "require_same",
    "room",
    "settle",
    "total_epsilon",
    "unbind",
]
