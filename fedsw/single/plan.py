"""A plan: what is settled before the first round from public numbers alone, and what every round costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsw.accounting import Ledger, Step, epsilon_by, noise_multiplier
from fedsw.data import Records
from fedsw.experiment import resolve_delta
from fedsw.objectives import Clip
from fedsw.objectives.stated import STATED
from fedsw.privacy.sensitivity import SLACK, Sensitivity, worst
from fedsw.randomness import Stream
from fedsw.single.batches import Batch, draw_batch
from fedsw.single.objective import Objective


@dataclass(frozen=True)
class Plan:
    """Sampling, noise and the guarantee of all rounds; everything here is public. Made by `plan`; print it.

    Attributes:
        strata: names of the strata of sampling; each is accounted for on its own.
        sizes: records of every stratum.
        batch: of these in every batch.
        rounds: how many releases.
        epsilon, delta: of all rounds together, for the replacement of one record within its stratum.
        multiplier: noise multiplier sigma / Delta; 0 without noise.
        sensitivities: Delta of every stratum for the planned batches, safety factors included.
        accountant: what composes the rounds.
        seed: of sampling and noise; None for secret ones. With a seed epsilon is nominal.
    """

    strata: tuple[str, ...]
    sizes: tuple[int, ...]
    batch: tuple[int, ...]
    rounds: int
    epsilon: float
    delta: float
    multiplier: float
    sensitivities: tuple[Sensitivity, ...]
    objective: Objective
    accountant: str = "pld"
    seed: int | None = None

    @property
    def rates(self) -> tuple[float, ...]:
        """Sampling rate of every stratum."""
        return tuple(taken / size for taken, size in zip(self.batch, self.sizes, strict=True))

    @property
    def sensitivity(self) -> Sensitivity:
        """The largest Delta: the noise is in proportion to it."""
        return worst(self.sensitivities)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in every coordinate of a released gradient."""
        return self.multiplier * self.sensitivity.value

    @property
    def nominal(self) -> bool:
        """Whether sampling and noise can be reproduced, so that epsilon is what a secret seed would give."""
        return self.seed is not None

    @property
    def guarantee(self) -> str:
        """The guarantee in words."""
        if not self.multiplier:
            return "None: no noise is added, epsilon is infinite."
        kind = "nominal " if self.nominal else ""
        theirs = " It rests on a bound that the user stated." if STATED in self.sensitivity.bound else ""
        return (
            f"{kind}({self.epsilon:.6g}, {self.delta:.3g})-differential privacy of each record, for its replacement by "
            f"any other within its stratum, against everybody who sees all {self.rounds} released gradients and "
            f"everything computed from them. Public: {', '.join(self.sensitivity.public)}.{theirs}"
        )

    def noise_stream(self, round_: int, attempt: int) -> Stream:
        """Where an attempt's noise comes from: the operating system's entropy, or the seed's stream."""
        return Stream.secure() if self.seed is None else Stream.seeded(self.seed, "noise", round_, attempt)

    def batches(self, records: Records, *, ledger: Ledger | None = None, first: int = 1) -> Iterator[Batch]:
        """The batches of rounds `first` to `rounds`: secret, without replacement, by stratum.

        Args:
            records: all private records; their strata must have the planned sizes.
            ledger: what was released before, to go on after a stop: attempts that it holds are not repeated.
            first: the first round that is not yet in the model.

        Raises:
            ValueError: if a stratum has another number of records than was planned for; nothing is drawn.
        """
        cell = self.objective.composite.cell_of(records.sensitive, records.target).numpy()
        strata = [np.flatnonzero(cell == index) for index in range(len(self.strata))]
        for name, rows, size in zip(self.strata, strata, self.sizes, strict=True):
            if len(rows) != size:
                raise ValueError(
                    f"stratum {name} has {len(rows)} records and the plan is for {size}: rates and noise follow from "
                    "the sizes. Make the plan with the sizes of these records"
                )
        spent = [] if ledger is None else [(entry.round, entry.attempt) for entry in ledger.entries()]
        used: Mapping[int, int] = {round_: attempt for round_, attempt in sorted(spent)}
        for round_ in range(first, self.rounds + 1):
            attempt = used.get(round_, -1) + 1
            yield draw_batch(records, strata, self.batch, seed=self.seed, round_=round_, attempt=attempt)

    def __str__(self) -> str:
        strata = [f"{n} ({b} of {s})" for n, b, s in zip(self.strata, self.batch, self.sizes, strict=True)]
        rows = [
            ("strata", ", ".join(strata)),
            ("sampling rate", f"{max(self.rates):.6g}, {self.rounds} rounds, without replacement"),
            ("sensitivity", f"{self.sensitivity.value:.6g} ({self.sensitivity.bound})"),
            ("noise multiplier", f"{self.multiplier:.6g}"),
            ("sigma", f"{self.sigma:.6g}"),
            ("accountant", self.accountant),
            ("guarantee", self.guarantee),
        ]
        return "\n".join(f"{name:17} {value}" for name, value in rows)


def plan(
    objective: Objective,
    clip: Clip,
    *,
    sizes: Sequence[int] | Mapping[str, int],
    rounds: int,
    epsilon: float | None = None,
    delta: float | str,
    batch_fraction: float | None = None,
    batch_size: int | None = None,
    noise_multiplier: float | None = None,
    accountant: str = "pld",
    seed: int | None = None,
) -> Plan:
    """Settle batches, sensitivity and noise from public numbers.

    Guarantee: `rounds` releases with this multiplier satisfy (epsilon, delta)-differential privacy for the replacement
    of one record of any stratum (docs/guarantees.md, "Composition").

    Args:
        objective: what is minimised.
        clip: norms M, L and C.
        sizes: private records of every stratum, in the order of `objective.strata` or by their names; public.
        rounds: number of releases.
        epsilon: asked for; inf for no noise. Or give `noise_multiplier`, and epsilon follows.
        delta: of the guarantee: a number well below 1/n, or "0.1/n" with n the number of records.
        batch_fraction: of every stratum in a batch, rounded down, at least one record; or `batch_size` of each.
        seed: makes sampling and noise reproducible; epsilon is then nominal. For experiments only.

    Raises:
        ValueError: naming the number that does not fit, and what would.
    """
    counts = _counts(objective, sizes)
    batch = _batch(objective.strata, counts, batch_fraction, batch_size)
    if rounds < 1:
        raise ValueError(f"rounds = {rounds}; a plan has at least 1")
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("give epsilon (inf for no noise) or noise_multiplier, and the other follows")
    resolved = resolve_delta(delta, records=sum(counts))
    bounds = tuple(SLACK * each for each in objective.planned_sensitivities(batch, clip))
    # At the asked fraction, which the rounded batches stay below: the noise is that of a federation of these records.
    rate = max(batch_fraction or 0.0, *(taken / size for taken, size in zip(batch, counts, strict=True)))
    multiplier, found = _noise(epsilon, noise_multiplier, resolved, rate, rounds, accountant)
    return Plan(
        objective.strata, counts, batch, rounds, found, resolved, multiplier, bounds, objective, accountant, seed
    )


def _counts(objective: Objective, sizes: Sequence[int] | Mapping[str, int]) -> tuple[int, ...]:
    strata = objective.strata
    if isinstance(sizes, Mapping):
        if set(sizes) != set(strata):
            raise ValueError(f"sizes are for {', '.join(map(str, sizes))}; the strata are {', '.join(strata)}")
        sizes = [sizes[name] for name in strata]
    if len(sizes) != len(strata):
        raise ValueError(f"{len(sizes)} sizes for {len(strata)} strata; give one for each of {', '.join(strata)}")
    for name, size in zip(strata, sizes, strict=True):
        if size < 1:
            raise ValueError(f"stratum {name} has {size} records; it needs at least 1, or another grouping")
    return tuple(int(size) for size in sizes)


def _batch(
    strata: Sequence[str], sizes: Sequence[int], fraction: float | None, size: int | None
) -> tuple[int, ...]:
    if (fraction is None) == (size is None):
        raise ValueError("give batch_fraction or batch_size, one of the two")
    if fraction is not None:
        if not 0 < fraction <= 1:
            raise ValueError(f"batch_fraction = {fraction}; it lies above 0 and at most at 1")
        return tuple(max(1, math.floor(fraction * held)) for held in sizes)
    assert size is not None
    for name, held in zip(strata, sizes, strict=True):
        if not 1 <= size <= held:
            raise ValueError(f"batch_size = {size}; stratum {name} has {held} records: between 1 and {held} fit")
    return (size,) * len(sizes)


def _noise(
    epsilon: float | None, multiplier: float | None, delta: float, rate: float, rounds: int, accountant: str
) -> tuple[float, float]:
    """(noise multiplier, epsilon)."""
    if multiplier is not None:
        return multiplier, epsilon_by(accountant, {Step(rate, 1 / multiplier): rounds}, delta)
    assert epsilon is not None
    if math.isinf(epsilon):
        return 0.0, math.inf
    return noise_multiplier(epsilon, delta, sampling_rate=rate, steps=rounds, accountant=accountant), epsilon
