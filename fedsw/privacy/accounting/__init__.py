"""Accounting: what steps cost (epsilon, delta), how much noise a budget needs, and what a run has spent.

Everywhere the noise multiplier is sigma / Delta, with Delta the full sensitivity under the replacement of one record
(for Poisson steps: under its addition or removal; for random slices: the diameter of the features before slicing),
and mu = Delta / sigma is its inverse.
"""

from fedsw.privacy.accountants import ACCOUNTANTS
from fedsw.privacy.accounting.composition import (
    Composition,
    DeltaTooSmall,
    epsilon,
    epsilon_bracket,
    lower_epsilon,
)
from fedsw.privacy.accounting.epsilons import accountant, budget_report, epsilon_by, noise_multiplier, steps
from fedsw.privacy.accounting.journal import Head, LedgerBusy, LedgerDamaged, LedgerReplaced
from fedsw.privacy.accounting.ledger import (
    AlreadySpent,
    BudgetExhausted,
    Charge,
    Entry,
    Ledger,
    Spending,
    Uncounted,
    spend_together,
)
from fedsw.privacy.accounting.profiles import Step, joint, step_profile
from fedsw.privacy.accounting.slicing import Slicing

__all__ = [
    "ACCOUNTANTS",
    "AlreadySpent",
    "BudgetExhausted",
    "Charge",
    "Composition",
    "DeltaTooSmall",
    "Entry",
    "Head",
    "Ledger",
    "LedgerBusy",
    "LedgerDamaged",
    "LedgerReplaced",
    "Slicing",
    "Spending",
    "Step",
    "Uncounted",
    "accountant",
    "budget_report",
    "epsilon",
    "epsilon_bracket",
    "epsilon_by",
    "joint",
    "lower_epsilon",
    "noise_multiplier",
    "spend_together",
    "step_profile",
    "steps",
]
