"""Accountants by name, with what is known of each before anything is computed; `fedsw.accounting` computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Covers = Literal["plain", "sliced", "both", "laplace"]


@dataclass(frozen=True)
class Accountant:
    """A way to turn steps into epsilon.

    Attributes:
        guarantee: whether its epsilon is proven to be an upper bound for the sampling it is used with.
        note: where it comes from and what it takes as noise multiplier.
        covers: ``"plain"``, steps without random slicing; ``"sliced"``, made for random slices through independent
            directions, and "rdp-wor" for other steps among them; ``"both"``; or ``"laplace"``, where a step's mu is
            the l1 sensitivity / scale of Laplace noise, which no other accountant means.
        renyi: whether it composes by dp_accounting's Renyi divergences, which bound sampling without replacement alone.
        stated: whether a user registered it, and says that its epsilon is an upper bound.
        epsilon: of (steps, delta), none of which is without noise, costs nothing or is uncovered; a shipped one's is
            the function of its name in `fedsw.accounting.epsilons`.
    """

    name: str
    guarantee: bool
    note: str
    covers: Covers = "plain"
    renyi: bool = False
    stated: bool = False
    epsilon: Callable[..., float] | None = None


_SHIPPED = (
    Accountant(
        name="pld",
        guarantee=True,
        note="privacy loss distribution of the steps' own dominating pairs, discretised from above; "
        "noise multiplier = sigma / full sensitivity",
        covers="both",
    ),
    Accountant(
        name="gdp-clt-uniform",
        guarantee=False,
        note="central limit of Gaussian DP for sampling without replacement, as in Opacus (compute_mu_uniform): an "
        "approximation that may fall below the truth; given sigma / full sensitivity",
    ),
    Accountant(
        name="gdp-clt-poisson",
        guarantee=False,
        note="central limit of Gaussian DP for Poisson sampling, as in Opacus (compute_mu_poisson): an approximation, "
        "and of another sampling scheme when batches have a fixed size; given sigma / full sensitivity",
    ),
    Accountant(
        name="rdp-wor",
        guarantee=True,
        note="Renyi bound of Wang, Balle, Kasiviswanathan 2019 for replacement and sampling without replacement, by "
        "dp_accounting; given sigma / full sensitivity, which its RDP class expects (its PLD class would take "
        "sigma / C and double C for replacement)",
        renyi=True,
    ),
    Accountant(
        name="bernstein",
        guarantee=True,
        note="Bernstein bound of Rakotomamonjy and Ralaivola 2021 on the slices' sensitivity, its failures (delta/2 in "
        "all) shared by the releases; then rdp-wor at delta/2; given sigma / diameter",
        covers="sliced",
        renyi=True,
    ),
    Accountant(
        name="bernstein-published",
        guarantee=False,
        note="the same as published: every release fails with probability delta/2, which is counted once; a guarantee "
        "for one release only",
        covers="sliced",
        renyi=True,
    ),
    Accountant(
        name="clt",
        guarantee=False,
        note="central limit of the slices' sensitivity (Rakotomamonjy and Ralaivola 2021) in the place of the bound, "
        "delta/2 counted once; then rdp-wor at delta/2: an approximation; given sigma / diameter",
        covers="sliced",
        renyi=True,
    ),
    Accountant(
        name="laplace",
        guarantee=True,
        note="pure epsilon of Laplace noise: l1 sensitivity / scale of every release, added up, without amplification",
        covers="laplace",
    ),
)
ACCOUNTANTS = {each.name: each for each in _SHIPPED}
"""All accountants, in the order in which they are compared."""


def accountant_named(name: str) -> Accountant:
    """An accountant by its name; ValueError, naming those that there are, if there is none."""
    if name not in ACCOUNTANTS:
        raise ValueError(
            f"accountant is {name!r}; choose one of {', '.join(ACCOUNTANTS)}, or import what registers yours first."
        )
    return ACCOUNTANTS[name]


def require_noise(name: str, mechanism: str) -> None:
    """Refuse normal noise ("gaussian") for an accountant of "laplace" noise, and the other way round: ValueError.

    The same sensitivity / scale costs another epsilon.
    """
    laplace = accountant_named(name).covers == "laplace"
    if mechanism == ("gaussian" if laplace else "laplace"):
        raise ValueError(
            f"accountant {name!r} is of {'Laplace' if laplace else 'normal'} noise, and this noise is {mechanism!r}, "
            "which costs another epsilon: choose an accountant of its own; nothing was charged"
        )


def doubt(name: str) -> str:
    """What to say before an epsilon of an accountant that proves nothing; "" for one that is proven."""
    by = accountant_named(name)
    if by.guarantee:
        return ""
    if by.stated:
        return (
            f"No guarantee but by the user's word: that the accountant {name} gives an upper bound is stated by the "
            "user. It says "
        )
    return f"No guarantee: what the accountant {name} says may fall below the truth. It says "
