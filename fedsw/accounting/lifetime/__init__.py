"""One account for one data set: what all runs on the same records spent together, and how much they may.

Source: docs/guarantees.md, "One account for one data set".
"""

from fedsw.accounting.lifetime.account import About, DatasetAccount, LimitReached, Reservation, accounts_in
from fedsw.accounting.lifetime.composing import composed_epsilon, counts_of_ledger, room
from fedsw.accounting.lifetime.cover import NO_NOISE, Counts, planned
from fedsw.accounting.lifetime.places import ACCOUNTS_VARIABLE, accounts_folder
from fedsw.accounting.lifetime.state import State, TakenRun

__all__ = [
    "ACCOUNTS_VARIABLE",
    "NO_NOISE",
    "About",
    "Counts",
    "DatasetAccount",
    "LimitReached",
    "Reservation",
    "State",
    "TakenRun",
    "accounts_folder",
    "accounts_in",
    "composed_epsilon",
    "counts_of_ledger",
    "planned",
    "room",
]
