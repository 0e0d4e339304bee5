"""The plan of training on one machine, from public numbers only, and its batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.settings import real, seed_of, takes, whole
from fedsw.data import Records
from fedsw.data.units import Units
from fedsw.experiment import resolve_delta
from fedsw.learning.objectives import Clip
from fedsw.privacy import plan as plans
from fedsw.privacy.accountants import GAUSSIAN
from fedsw.privacy.accounting import Ledger, Step
from fedsw.privacy.accounting.lifetime import NO_NOISE, Counts, added, planned
from fedsw.privacy.mechanisms import require_norm
from fedsw.privacy.relations import ADD_OR_REMOVE, RELATIONS
from fedsw.privacy.release import Sample
from fedsw.runs.single.objective import Batch, Deciding, Objective, draw_batch


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(plans.NoisePlan, Deciding):
    """The plan of training on one machine: `fedsw.privacy.plan.NoisePlan`, and its batches. Made by `plan`."""

    objective: Objective
    calibration: float = 0.0

    @property
    def neighbours(self) -> str:
        """See `fedsw.privacy.plan.NoisePlan`."""
        return ADD_OR_REMOVE if self.objective.hides_sizes else super().neighbours

    def decisive(self) -> dict[str, Any]:
        """See `Deciding`: all fields but the objective, which has its own, and a calibration that is not asked for."""
        left_out = {"objective"} if self.calibration else {"objective", "calibration"}
        names = [field.name for field in dataclasses.fields(self) if field.name not in left_out]
        return {name: getattr(self, name) for name in names}

    def reserved(self) -> Counts:
        """See `NoisePlan`; counts of scores after the rounds, too."""
        if not self.calibration:
            return super().reserved()
        once = planned(Step(1.0, 1 / self.scores), 1) if self.scores else dict.fromkeys(NO_NOISE, 1)
        return added(super().reserved(), once)

    def batches(self, records: Records, *, ledger: Ledger | None = None, first: int = 1) -> Iterator[Batch]:
        """The batches of rounds `first` to `rounds`: secret, without replacement, by stratum.

        If records have privacy units (`as_records(..., unit=...)`), units are drawn, and one row of each; the plan's
        sizes, rates and guarantee are then those of units.

        Args:
            records: all private records; their strata must have the planned sizes.
            ledger: what pays for them, and has what was released before: attempts that it holds are not repeated. The
                batches leave for no other ledger; without one, each for the first that pays for it.
            first: the first round that is not yet in the model.

        Raises:
            ValueError, BadRecords: as `strata_of`; nothing is drawn.
        """
        strata = self.strata_of(records)
        spent = [] if ledger is None else [(entry.round, entry.attempt) for entry in ledger.entries()]
        last_attempts = dict(sorted(spent))
        poisson = self.rates[0] if self.objective.hides_sizes else None
        for round_ in range(first, self.rounds + 1):
            numbers = {"round_": round_, "attempt": last_attempts.get(round_, -1) + 1}
            sample = Sample(self, ledger)
            yield draw_batch(records, strata, self.batch, seed=self.seed, sample=sample, poisson=poisson, **numbers)

    def strata_of(self, records: Records) -> list[NDArray[np.int64]]:
        """The units of each stratum, by number, (n_s,), of private records with the planned sizes.

        Raises:
            ValueError: if a stratum has another number of records than was planned for, or a record a class that the
                objective does not have.
            BadRecords: if rows of one unit are of several strata.
        """
        self.objective.require_labels(records)
        units = Units.of(records)
        if units.declared != (self.unit is not None):
            raise ValueError(
                f"the plan is for {'records' if self.unit is None else repr(self.unit)}, and these records "
                f"{'have' if units.declared else 'lack'} privacy units: give plan(unit=...) for records of "
                "as_records(unit=...), and only for these"
            )
        cell = self.objective.composite.cell_of(records.sensitive, records.target)
        units.require_alike(cell, "stratum", "records")
        stratum = cell.numpy()[units.firsts]
        strata = [np.flatnonzero(stratum == index) for index in range(len(self.strata))]
        for name, rows, size in zip(self.strata, strata, self.sizes, strict=True):
            if len(rows) != size and not self.objective.hides_sizes:
                raise ValueError(
                    f"stratum {name} has {len(rows)} {'units' if units.declared else 'records'} and the plan is for "
                    f"{size}: rates and noise follow from the sizes. Make the plan with the sizes of these records"
                )
        return strata


@takes(seed="random_state")
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
    mechanism: str = GAUSSIAN,
    seed: int | None = None,
    unit: str | None = None,
    calibration: float = 0.0,
) -> Plan:
    """Settle batches, sensitivity and noise from public numbers.

    Guarantee: `rounds` releases with this multiplier, and one of counts of scores where `calibration` asks for it,
    satisfy (epsilon, delta)-differential privacy for the replacement of one record of any stratum, or for the addition
    or removal of one where the objective's relation is that, with Poisson samples as batches
    (docs/guarantees/sampling.md, calibration.md).

    Args:
        clip: norms M, L and C.
        sizes: private records of every stratum, in the order of `objective.strata` or by their names; public. Of an
            objective for additions and removals a declared number, which sums are divided by and no record changes.
        epsilon: asked for; inf for no noise. Or give `noise_multiplier`, and epsilon follows.
        delta: of the guarantee: a number well below 1/n, or "0.1/n" with n the number of records.
        batch_fraction: of every stratum in a batch, rounded down, at least one record; or `batch_size` of each.
        accountant, mechanism: what composes the releases, and their noise; the accountant takes it.
        seed: makes sampling and noise reproducible; epsilon is then nominal. For experiments only. `random_state` is
            another word.
        unit: what a person is called, if records have privacy units (`as_records(..., unit=...)`): the sizes are
            those of persons, and all records of one are replaced together.
        calibration: share of the budget (of mu^2), at most half, for one release of counts of scores after the rounds,
            out of which a classifier's probabilities are corrected (`PrivateTrainer.calibration`); 0 releases none.

    Raises:
        ValueError: naming the number that does not fit, and what would.
    """
    counts = _counts(objective, sizes)
    rounds, seed = whole(rounds, "rounds", least=1), seed_of(seed)
    batch_fraction = None if batch_fraction is None else real(batch_fraction, "batch_fraction")
    batch = _batch(objective.strata, counts, batch_fraction, batch_size)
    epsilon, noise_multiplier = plans.asked_for(epsilon, noise_multiplier)
    resolved = resolve_delta(delta, records=sum(counts))
    bounds = objective.planned_sensitivities(batch, clip)
    # The noise is for the asked fraction, as in a federation of these records. Batches are rounded down, so that each
    # is charged at a rate that is no larger.
    rate = max(batch_fraction or 0.0, *(taken / size for taken, size in zip(batch, counts, strict=True)))
    if calibration and objective.hides_sizes:
        raise ValueError("calibration counts all records, and relation 'add-remove' hides their number: set it to 0")
    if not 0 <= real(calibration, "calibration") <= _MOST_CALIBRATION:
        raise ValueError(f"calibration = {calibration}; it is a share of the budget, from 0 to {_MOST_CALIBRATION:g}")
    if calibration:
        require_norm(mechanism, "the counts of scores", "l2")
    if calibration and objective.scores is None:
        raise ValueError(
            f"calibration = {calibration:g} corrects a classifier's probabilities: the sigmoid of one logit for two "
            "classes, or the softmax of one for each. The objective has other outputs: set calibration to 0"
        )
    (scores,), multiplier, epsilon_planned = plans.with_releases(
        {"calibration": calibration},
        epsilon,
        noise_multiplier,
        delta=resolved,
        rate=rate,
        rounds=rounds,
        accountant=accountant,
        mechanism=mechanism,
        sampling=RELATIONS.get(bounds[0].relation).sampling,
    )
    rates = tuple(taken / size for taken, size in zip(batch, counts, strict=True))
    return Plan(
        strata=objective.strata,
        sizes=counts,
        batch=batch,
        rates=(rate,) if objective.hides_sizes else rates,
        rounds=rounds,
        epsilon=epsilon_planned,
        delta=resolved,
        multiplier=multiplier,
        sensitivities=bounds,
        accountant=accountant,
        mechanism=mechanism,
        seed=seed,
        unit=unit,
        objective=objective,
        scores=scores,
        calibration=calibration,
    )


_MOST_CALIBRATION = 0.5


def _counts(objective: Objective, sizes: Sequence[int] | Mapping[str, int]) -> tuple[int, ...]:
    strata = objective.strata
    if isinstance(sizes, Mapping):
        if set(sizes) != set(strata):
            raise ValueError(f"sizes are for {', '.join(map(str, sizes))}; the strata are {', '.join(strata)}")
        sizes = [sizes[name] for name in strata]
    if len(sizes) != len(strata):
        raise ValueError(f"{len(sizes)} sizes for {len(strata)} strata; give one for each of {', '.join(strata)}")
    counts = tuple(whole(size, f"size of stratum {name}", least=0) for name, size in zip(strata, sizes, strict=True))
    for name, count in zip(strata, counts, strict=True):
        if not count:
            raise ValueError(f"stratum {name} has 0 records; it needs at least 1, or another grouping")
    return counts


def _batch(strata: Sequence[str], sizes: Sequence[int], fraction: float | None, size: int | None) -> tuple[int, ...]:
    if (fraction is None) == (size is None):
        raise ValueError("give batch_fraction or batch_size, one of the two")
    if fraction is not None:
        if not 0 < fraction <= 1:
            raise ValueError(f"batch_fraction = {fraction}; it lies above 0 and at most at 1")
        return plans.by_fraction(fraction, sizes)
    size = whole(size, "batch_size", least=1)
    for name, held in zip(strata, sizes, strict=True):
        if size > held:
            raise ValueError(f"batch_size = {size}; stratum {name} has {held} records: between 1 and {held} fit")
    return (size,) * len(sizes)
