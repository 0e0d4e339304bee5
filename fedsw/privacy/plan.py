"""A plan: what public numbers settle before the first round; the same for one machine and for a federation."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsw._tools.later import torch
from fedsw._tools.randomness import Stream
from fedsw._tools.settings import real
from fedsw._tools.text import Short, downward, upward
from fedsw.privacy.accountants import GAUSSIAN, doubt, require_noise
from fedsw.privacy.accounting import Slicing, Step, epsilon_by, noise_multiplier
from fedsw.privacy.accounting.ledger import counted_as
from fedsw.privacy.accounting.lifetime import NO_NOISE, Counts, planned
from fedsw.privacy.mechanisms import ratio_of, require_norm
from fedsw.privacy.relations import ADD_OR_REMOVE, RELATIONS, REPLACE_ONE, Sampling, require_relation
from fedsw.privacy.sensitivity import STATED, Sensitivity, worst

ALONE = (
    "It is of these releases alone: without an account (account=NAME) nothing composes them with others on the same "
    "records."
)
"""The caveat of a plan without an account: other releases on the same records are not counted."""


@dataclass(frozen=True, kw_only=True, repr=False)
class NoisePlan(Short):
    """Sampling, noise and the guarantee of all rounds; everything here is public. Print it.

    Attributes:
        strata: names of the strata of sampling; each is accounted for on its own.
        sizes, batch, rates: records of every stratum, of these in every batch, and its sampling rate.
        rounds: how many releases.
        epsilon, delta: of all rounds together, for the replacement of one record within its stratum.
        multiplier: noise multiplier sigma / Delta; 0 without noise.
        sensitivities: Delta of every stratum for the planned batches, safety factors included.
        accountant: what composes the rounds.
        mechanism: the noise of every release, in `fedsw.privacy.mechanisms.MECHANISMS`.
        seed: of sampling and noise; None for secret ones. With a seed epsilon is nominal.
        unit: what all records of a person are called, where they are one unit; the sizes are then those of units.
        moments, scores, histograms: noise multipliers of releases before and after the rounds, and before moments; 0
            without one, or without noise.
    """

    strata: tuple[str, ...]
    sizes: tuple[int, ...]
    batch: tuple[int, ...]
    rates: tuple[float, ...]
    rounds: int
    epsilon: float
    delta: float
    multiplier: float
    sensitivities: tuple[Sensitivity, ...]
    accountant: str = "pld"
    mechanism: str = GAUSSIAN
    seed: int | None = None
    unit: str | None = None
    moments: float = 0.0
    scores: float = 0.0
    histograms: float = 0.0

    def __post_init__(self) -> None:
        """ValueError for bounds of other neighbours than replaced records, or in another norm than its noise's.

        Also for a noise that the accountant does not take.
        """
        require_relation("the plan", self.relation, self.neighbours)
        require_noise(self.accountant, self.mechanism)
        for sensitivity in self.sensitivities if self.multiplier else ():
            require_norm(self.mechanism, "what the plan releases", sensitivity.norm)

    @property
    def neighbours(self) -> str:
        """The neighbours that its guarantee is to hold for, which every bound must be for."""
        return REPLACE_ONE

    @property
    def relation(self) -> str:
        """The neighbours that every bound is for."""
        return self.sensitivity.relation

    @property
    def records(self) -> int:
        """Number of private records."""
        return sum(self.sizes)

    @property
    def sensitivity(self) -> Sensitivity:
        """The largest Delta: the noise is in proportion to it."""
        return worst(self.sensitivities)

    @property
    def ratio(self) -> str:
        """Name of the noise multiplier, as the ratio that it is under the plan's mechanism."""
        return ratio_of(self.mechanism)

    @property
    def sigma(self) -> float:
        """Standard deviation of noise for the planned batch; a round has its own, which `release.release` computes."""
        return self.multiplier * self.sensitivity.value

    @property
    def nominal(self) -> bool:
        """True if sampling and noise can be reproduced, so that epsilon is what a secret seed would give."""
        return self.seed is not None

    def reserved(self) -> Counts:
        """Steps that an account sets aside for all rounds: those of the stratum that is sampled at the largest rate.

        They are as its noise counts there, infinite for one that nothing is proven of (`ledger.counted_as`).
        """
        if not self.multiplier:
            return {step: self.rounds for step in NO_NOISE}
        step = Step(max(self.rates), 1 / self.multiplier, RELATIONS.get(self.relation).sampling)
        return planned(counted_as(self.mechanism)(step), self.rounds)

    @property
    def unprotected(self) -> str | None:
        """Reason why there is no guarantee against readers of the releases, in words; None if there is one."""
        if not self.multiplier:
            return "no noise would be added (epsilon inf)"
        if self.nominal:
            return f"seed is {self.seed}: whoever knows it can undo sampling and noise"
        return None

    @property
    def guarantee(self) -> str:
        """The guarantee in words."""
        if not self.multiplier:
            return "None: no noise is added, epsilon is infinite."
        kind = "nominal " if self.nominal else ""
        return (
            f"{doubt(self.accountant, self.mechanism)}{kind}({upward(self.epsilon, 6)}, {upward(self.delta)})-"
            f"differential privacy of {self._protected} {ALONE}"
        )

    @property
    def _protected(self) -> str:
        """Whom the guarantee protects from whom, and what is public, in words."""
        theirs = " It rests on a bound that the user stated." if STATED in self.sensitivity.bound else ""
        one = "record, for its" if self.unit is None else f"{self.unit!r}, for the"
        whole = "" if self.unit is None else "of all of its records "
        counted = ", the counts of scores after them" if self.scores else ""
        change = f"replacement {whole}by any other within its stratum"
        if self.relation == ADD_OR_REMOVE:
            change = f"addition or removal {whole}".rstrip()
        return (
            f"each {one} {change}, against everybody who sees all "
            f"{self.rounds} released gradients{counted} and everything computed from them. Public: "
            f"{', '.join(self.sensitivity.public)}.{theirs}"
        )

    def noise_stream(self, round_: int, attempt: int) -> Stream:
        """Random numbers for an attempt's noise: the operating system's entropy, or the seed's stream."""
        return Stream.secure() if self.seed is None else Stream.seeded(self.seed, "noise", round_, attempt)

    def _facts(self) -> Mapping[str, object]:
        kind = "nominal " if self.nominal else ""
        return {
            "records" if self.unit is None else f"{self.unit} units": self.records,
            "strata": len(self.strata),
            "rounds": self.rounds,
            "epsilon": f"{kind}{upward(self.epsilon, 6)}",
            "delta": upward(self.delta),
            "noise multiplier": downward(self.multiplier, 6),
            "bound": self.sensitivity.bound,
        }

    @property
    def _sampled(self) -> list[tuple[str, str]]:
        """Rows that say which records are drawn."""
        strata = [f"{n} ({b} of {s})" for n, b, s in zip(self.strata, self.batch, self.sizes, strict=True)]
        sampling = RELATIONS.get(self.relation).sampling.replace("-", " ")
        rate = f"{max(self.rates):.6g}, {self.rounds} rounds, {sampling}"
        return [("strata", ", ".join(strata)), ("sampling rate", rate)]

    def __str__(self) -> str:
        rows = [
            *self._sampled,
            ("sensitivity", f"{self.sensitivity.value:.6g} ({self.sensitivity.bound})"),
            ("noise multiplier", f"{self.multiplier:.6g}"),
            ("sigma", f"{self.sigma:.6g}"),
            *([] if self.mechanism == GAUSSIAN else [("noise", self.mechanism)]),
            ("accountant", self.accountant),
            ("guarantee", self.guarantee),
        ]
        return "\n".join(f"{name:17} {value}" for name, value in rows)


def asked_for(epsilon: object, multiplier: object) -> tuple[float | None, float | None]:
    """Which of epsilon and noise multiplier is given, as a number; ValueError unless it is one of them, and above 0."""
    if (epsilon is None) == (multiplier is None):
        raise ValueError("give epsilon (inf for no noise) or noise_multiplier, and the other follows")
    if epsilon is not None:
        if not (number := real(epsilon, "epsilon")) > 0:
            raise ValueError(f"epsilon = {number}; it is above 0 (inf for no noise)")
        return number, None
    if not 0 < (number := real(multiplier, "noise_multiplier")) < math.inf:
        raise ValueError(f"noise_multiplier = {number}; it is above 0 and finite. For no noise give epsilon=math.inf")
    return None, number


@functools.lru_cache(maxsize=4096)
def calibrated(
    epsilon: float | None,
    multiplier: float | None,
    *,
    delta: float,
    rate: float,
    rounds: int,
    accountant: str,
    mechanism: str = GAUSSIAN,
    device: torch.device | str = "cpu",
    slicing: Slicing | None = None,
    beside: tuple[tuple[Step, int], ...] = (),
    sampling: Sampling = "without-replacement",
) -> tuple[float, float]:
    """(noise multiplier, epsilon) of `rounds` releases, one of which is given; (0, inf) for epsilon = inf.

    Guarantee: that many releases at this sampling rate, composed with those `beside` them, satisfy (epsilon, delta) for
    the replacement of one record of any stratum, and of Poisson sampling for its addition or removal
    (docs/guarantees/sampling.md). ValueError for an epsilon or a delta that cannot be reached.
    """
    require_noise(accountant, mechanism)
    if multiplier is not None:
        steps = [(Step(rate, 1 / multiplier, sampling, slicing), rounds), *beside]
        return multiplier, epsilon_by(accountant, steps, delta, device=device)
    assert epsilon is not None
    if math.isinf(epsilon):
        return 0.0, math.inf
    needed = noise_multiplier(
        epsilon,
        delta,
        sampling_rate=rate,
        steps=rounds,
        sampling=sampling,
        accountant=accountant,
        mechanism=mechanism,
        slicing=slicing,
        beside=beside,
        device=device,
    )
    return needed, epsilon


def with_releases(
    parts: Mapping[str, float],
    epsilon: float | None,
    multiplier: float | None,
    *,
    delta: float,
    rate: float,
    rounds: int,
    attempts: int = 1,
    sampling: Sampling = "without-replacement",
    setting: str = "noise_multiplier",
    **by: Any,
) -> tuple[tuple[float, ...], float, float]:
    """Split a budget between rounds and releases at rate 1 beside them: noise multipliers of these, and `calibrated`.

    With `epsilon` given, each release gets its part of mu^2, where mu is that of one Gaussian release with the whole
    budget; what is left is found by composing the rounds with them numerically. With `multiplier` given it is the
    rounds', and the others get the same parts of all together. Each of the attempts at a release costs its share of the
    part. A release without a part, and any without noise, has multiplier 0. The `setting` is what the user calls the
    multiplier; what is in `by` is `calibrated`'s.

    Guarantee: one release of each, and all rounds, satisfy (epsilon, delta) together. ValueError as `calibrated`.
    """
    settled = functools.partial(calibrated, delta=delta, sampling=sampling, **by)
    if not any(parts.values()):
        return (0.0,) * len(parts), *settled(epsilon, multiplier, rate=rate, rounds=rounds)
    alone, left = epsilon, 1.0
    if multiplier is not None:
        alone, left = settled(None, multiplier, rate=rate, rounds=rounds)[1], 1 - sum(parts.values())
        if math.isinf(alone):
            named = " and ".join(name for name, part in parts.items() if part)
            raise ValueError(
                f"{rounds} rounds at {setting} = {multiplier:g} spend an infinite epsilon, of which "
                f"{named} have no part: use a larger noise_multiplier"
            )
    whole = settled(alone, None, rate=1.0, rounds=1)[0]
    once = tuple(whole * math.sqrt(left * attempts / part) if part else 0.0 for part in parts.values())
    beside = tuple((Step(1.0, 1 / one, sampling), attempts) for one in once if one)
    return once, *settled(epsilon, multiplier, rate=rate, rounds=rounds, beside=beside)


def by_fraction(fraction: float, sizes: Sequence[int]) -> tuple[int, ...]:
    """Records of every stratum in a batch: the fraction of each, rounded down, at least one."""
    return tuple(max(1, math.floor(fraction * size)) for size in sizes)
