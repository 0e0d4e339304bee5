"""Accountants by name, with what is known of each before anything is computed; `fedsw.privacy.accounting` computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from fedsw._tools.registry import Registry, Unknown, Word

Covers = Literal["plain", "sliced", "both"]

GAUSSIAN, LAPLACE = "gaussian", "laplace"
"""The shipped noises; `fedsw.privacy.mechanisms.MECHANISMS` has them, and those of a user's own."""

NO_NOISE = "none"
"""The mechanism's name for a release without noise: it costs epsilon = infinity, by any accountant."""

ROUNDING = 1e-9
"""Relative: by how much two ways of computing one epsilon in closed form may differ, and a total exceed its limit."""

_TRANSFORMS = 5e-17
"""Over delta, relative: four times what the round-off of numerical composition moves an epsilon by, measured."""

_WEAKEST_FIRST: tuple[Word, ...] = ("none", "stated", "proven")
_NORMAL: Mapping[str, Word] = {GAUSSIAN: "proven"}


@dataclass(frozen=True)
class Accountant:
    """A way to turn steps into epsilon.

    Attributes:
        guarantee: True if its epsilon is proven to be an upper bound for the sampling it is used with.
        note: where it comes from and what it takes as noise multiplier.
        covers: ``"plain"``, steps without random slicing; ``"sliced"``, made for random slices through independent
            directions, and "rdp-wor" for other steps among them; or ``"both"``.
        takes: the noises that it accounts for, each with who says so (`Word`); a step's mu is their sensitivity over
            scale. It refuses all others. The first is the one that it was made for.
        pure: True if its epsilon holds with delta = 0.
        renyi: True if it composes dp_accounting's Renyi divergences, which bound sampling without replacement only.
        numeric: True if it composes steps numerically, one after the other, on a device.
        stated: True if a user registered it, and says that its epsilon is an upper bound.
        epsilon: its function, (steps, delta) to epsilon; never called with steps that have no noise, cost nothing or
            are not covered. Those of shipped accountants are in `fedsw.privacy.accounting.epsilons`.
    """

    name: str
    guarantee: bool
    note: str
    covers: Covers = "plain"
    takes: Mapping[str, Word] = field(default_factory=lambda: dict(_NORMAL), hash=False)
    pure: bool = False
    renyi: bool = False
    numeric: bool = False
    stated: bool = False
    epsilon: Callable[..., float] | None = None

    def __post_init__(self) -> None:
        """Refuse unknown steps, noises and words: ValueError."""
        if self.covers not in get_args(Covers):
            raise ValueError(f"covers is {self.covers!r}; choose one of {', '.join(get_args(Covers))}")
        if not self.takes:
            raise ValueError(f"accountant {self.name!r} takes no noise; name at least one, such as {GAUSSIAN!r}")
        if unknown := set(self.takes.values()) - set(_WEAKEST_FIRST):
            raise ValueError(f"a word is {', '.join(map(repr, unknown))}; choose one of {', '.join(_WEAKEST_FIRST)}")

    def may_differ(self, delta: float) -> float:
        """By which part two epsilons of the same steps may differ, at delta, where a quotient is rounded otherwise.

        A multiplier's 1/m and a ledger's Delta/sigma may be one unit in the last place apart. A closed form differs by
        rounding only; where steps are composed numerically the round-off, set aside in both epsilons, may differ, too.
        """
        return max(ROUNDING, _TRANSFORMS / delta if self.numeric else 0.0)

    @property
    def word(self) -> Word:
        """Basis of the claim that its epsilon is an upper bound for the noise that it was made for; see `Word`."""
        if self.guarantee:
            return "proven"
        return "stated" if self.stated else "none"


_SHIPPED = (
    Accountant(
        name="pld",
        guarantee=True,
        note="privacy loss distribution of the steps' own dominating pairs, discretised from above; "
        "noise multiplier = sigma / full sensitivity",
        covers="both",
        numeric=True,
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
        takes={LAPLACE: "proven"},
        pure=True,
    ),
)
ACCOUNTANTS: Registry[Accountant] = Registry("accountant", Accountant)
"""All accountants, in the order in which they are compared."""

for _shipped in _SHIPPED:
    ACCOUNTANTS.register(_shipped.name, _shipped)


def accountant_named(name: str) -> Accountant:
    """The accountant of a name; `Unknown`, which lists all names, for any other."""
    if name not in ACCOUNTANTS:
        raise Unknown(f"{ACCOUNTANTS.unknown(name)}: choose one of these, or import what registers yours first")
    return ACCOUNTANTS.get(name)


def own_noise(name: str) -> str:
    """The noise that an accountant was made for."""
    return next(iter(accountant_named(name).takes))


def word_of(name: str, mechanism: str) -> Word:
    """Basis of the claim that an accountant's epsilon bounds the cost of a noise, as a `Word`.

    "proven" if both are: the accountant's bound, and that it holds for this noise; else the weaker word of the two.
    A release without noise costs an infinite epsilon, which is proven. ValueError if the accountant does not take the
    noise.
    """
    accountant = accountant_named(name)
    if mechanism == NO_NOISE:
        return "proven"
    if mechanism not in accountant.takes:
        raise Unknown(
            f"accountant {name!r} is of {' and '.join(accountant.takes)} noise, and this noise is {mechanism!r}, "
            "which costs another epsilon: choose an accountant that takes it; nothing was charged"
        )
    words = {accountant.word, accountant.takes[mechanism]}
    return next(word for word in _WEAKEST_FIRST if word in words)


def require_noise(name: str, mechanism: str) -> None:
    """Refuse a noise that an accountant does not list: ValueError.

    The same sensitivity / scale costs another epsilon under another noise.
    """
    word_of(name, mechanism)


def let_take(name: str, mechanism: str, word: Word) -> None:
    """Add a noise to those that an accountant takes, with who says so; ValueError if it takes it already."""
    accountant = accountant_named(name)
    if mechanism in accountant.takes:
        raise ValueError(f"accountant {name!r} takes {mechanism!r} noise already; give yours another name")
    ACCOUNTANTS.amend(name, replace(accountant, takes={**accountant.takes, mechanism: word}))


def is_proven(name: str, mechanism: str) -> bool:
    """Say whether an accountant's epsilon is proven to be an upper bound for releases with a noise."""
    return word_of(name, mechanism) == "proven"


def doubt(name: str, mechanism: str) -> str:
    """Caveat to print before an epsilon that is not proven for releases with a noise; "" if it is proven."""
    word = word_of(name, mechanism)
    if word == "proven":
        return ""
    accountant = accountant_named(name)
    if accountant.guarantee:
        said = f"that the accountant {name} bounds what {mechanism!r} noise costs"
        if word == "stated":
            return f"No guarantee but by the user's word: {said} is stated by the user. It says "
        return f"No guarantee: it is not stated {said}. It says "
    if word == "stated":
        return (
            f"No guarantee but by the user's word: that the accountant {name} gives an upper bound is stated by the "
            "user. It says "
        )
    return f"No guarantee: what the accountant {name} says may fall below the truth. It says "
