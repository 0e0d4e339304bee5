"""Accounts of data sets: the joint cost of all runs on the same records, and its limit, kept by privacy filters.

Source: docs/guarantees/ledger.md.
"""

from fedsw.privacy.accounting.lifetime.chosen import AdmittedCost, Limit, Use, in_order, room
from fedsw.privacy.accounting.lifetime.composing import (
    NO_NOISE,
    Cost,
    Counts,
    added,
    composed_epsilon,
    of_replacement,
    planned,
    total_epsilon,
)
from fedsw.privacy.accounting.lifetime.dataset_account import (
    ACCOUNTS_VARIABLE,
    About,
    Binding,
    DatasetAccount,
    LimitReached,
    Reservation,
    State,
    TakenRun,
    account_named,
    accounts_folder,
    accounts_in,
    counting,
    require_same,
)

__all__ = [
    "ACCOUNTS_VARIABLE",
    "NO_NOISE",
    "About",
    "Binding",
    "Cost",
    "Counts",
    "DatasetAccount",
    "Limit",
    "LimitReached",
    "Reservation",
    "AdmittedCost",
    "State",
    "TakenRun",
    "Use",
    "account_named",
    "accounts_folder",
    "accounts_in",
    "added",
    "composed_epsilon",
    "counting",
    "in_order",
    "of_replacement",
    "planned",
    "require_same",
    "room",
    "total_epsilon",
]
