"""What observed error rates prove of a mechanism: lower bounds on its epsilon, with their confidence."""

from fedsw.audit.bounds import (
    Attack,
    epsilon_of_rates,
    gaussian_mu,
    judged,
    rate_at_least,
    rate_at_most,
    shown_epsilon,
    shown_mu,
)

__all__ = [
    "Attack",
    "epsilon_of_rates",
    "gaussian_mu",
    "judged",
    "rate_at_least",
    "rate_at_most",
    "shown_epsilon",
    "shown_mu",
]
