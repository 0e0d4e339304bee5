"""Plans of rounds, fixed before the first one: batch sizes, sampling rates, sensitivities, noise."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.randomness import Stream, below_rate, hypergeometric, split_sample
from fedsw._tools.settings import FederationError
from fedsw.experiment import resolve_delta
from fedsw.experiment.compatibility import sampling_of
from fedsw.federation.exchange.participants import Present, Site, clients_of, totals, whole
from fedsw.federation.messages import Broadcast
from fedsw.federation.trust.budget_shares import Shares, idle, shares, with_once
from fedsw.learning.moments.preparation import Preparation
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy import plan as plans
from fedsw.privacy.accounting import Charge, Step
from fedsw.privacy.accounting.ledger import counted_as
from fedsw.privacy.accounting.lifetime import Counts, planned
from fedsw.privacy.relations import ADD_OR_REMOVE, RELATIONS
from fedsw.privacy.sensitivity import Sensitivity

_UNSEEN = 90 * math.log(2)


@dataclass(frozen=True)
class Draw:
    """One attempt's counts (S, c) of each site's clients by cell, with the totals and sampling rates they imply.

    The counts are secret under `global` and `poisson` sampling: they are never logged, stored or published. The totals
    of `poisson` sampling are those that sums are divided by, and not what was drawn.
    """

    counts: tuple[NDArray[np.int64], ...]
    batch: tuple[int, ...]
    rates: tuple[float, ...]

    @property
    def total(self) -> int:
        """Records that the attempt's sum is divided by."""
        return sum(self.batch)


@dataclass(frozen=True, kw_only=True, repr=False)
class FederationPlan(plans.NoisePlan):
    """The plan of a federation: that of one machine (`fedsw.privacy.plan.NoisePlan`) with its problem."""

    task: Problem

    @classmethod
    def of(cls, task: Problem, **settled: Any) -> FederationPlan:
        """With what follows from the experiment: strata, rounds, accountant, noise and seed."""
        experiment = task.experiment
        return cls(
            task=task,
            strata=task.objective.cells,
            rounds=experiment.releases,
            accountant=experiment.accountant,
            mechanism=experiment.mechanism,
            seed=experiment.seed,
            **settled,
        )

    @property
    def neighbours(self) -> str:
        """See `fedsw.privacy.plan.NoisePlan`."""
        return ADD_OR_REMOVE if self.task.experiment.privacy.hides_sizes else super().neighbours

    def shares(self) -> Shares:
        """Split of the budget between the rounds and releases beside them; epsilon is infinite without noise."""
        epsilon = self.epsilon if self.multiplier else math.inf
        return Shares(self.moments, self.multiplier, epsilon, self.scores, self.histograms)

    def steps_of_rounds(self) -> Counts:
        """Return all rounds, at the largest rate that an attempt may have, and what is released once beside them."""
        experiment = self.task.experiment
        training, sampling = experiment.training, sampling_of(experiment)
        largest = 0.0 if training.batch_size or self.rounds == 1 else training.batch_fraction
        step = counted_as(self.mechanism)(Step(max(largest, *self.rates), 1 / self.multiplier, sampling))
        return with_once(planned(step, self.rounds), self.shares(), sampling=sampling)

    def under(self, preparation: Preparation) -> FederationPlan:
        """The plan of the rounds after moments were released: inputs are prepared, and clips and bounds scaled."""
        task = self.task.under(preparation)
        factor = task.clip.loss / self.task.clip.loss
        return replace(self, task=task, sensitivities=tuple(factor * sensitivity for sensitivity in self.sensitivities))


def prepared_by(plan: FederationPlan) -> Broadcast | None:
    """Preparation by released moments, as requests carry it; None if none are released."""
    preparation = plan.task.preparation
    return None if preparation is None else Broadcast.exact(preparation.flat())


def make_plan(task: Problem, sites: Sequence[Site]) -> FederationPlan:
    """Settle batch sizes, rates, sensitivities and the noise multiplier (sigma/Delta) for all rounds.

    Guarantee: with this multiplier every round of the plan, composed with the releases of moments and of scores where
    there are any, satisfies the asked (epsilon, delta) for the replacement of one record of any group
    (docs/guarantees/sampling.md, moments.md, thresholds.md). Under additions and removals for these, and nothing in it
    follows from how many records there are.

    FederationError, ValueError naming a group that its batch does not fit, an unreachable epsilon or delta.
    """
    privacy = task.experiment.privacy
    present = whole(sites)
    sizes = totals(present) if task.experiment.declared is None else task.experiment.declared[:1]
    delta = resolve_delta(privacy.delta, records=sum(sizes))
    counts = _stratified_counts(task, present) if privacy.sampling == "stratified" else None
    batch = batch_sizes(task, sizes, clients_of(present)) if counts is None else column_sums(counts)
    rates = _global_rates(batch, sizes) if counts is None else stratified_rates(counts, present)
    if privacy.hides_sizes:
        rates = (task.experiment.training.batch_fraction,)
    # One rate for the calibration: never below what a later attempt with fewer clients may need.
    rate = max(rates) if task.experiment.training.batch_size else max(task.experiment.training.batch_fraction, *rates)
    # privacy.epsilon becomes sigma/Delta of a round here (by privacy.plan.calibrated), with moments or without.
    shared = shares(task.experiment, rate=rate, delta=delta, device=task.accounting_device)
    return FederationPlan.of(
        task,
        sizes=sizes,
        batch=batch,
        rates=rates,
        delta=delta,
        epsilon=shared.epsilon,
        multiplier=shared.rounds,
        sensitivities=task.clipped.sensitivities(batch, task.clipped.planned_spreads()),
        moments=shared.moments,
        scores=shared.scores,
        histograms=shared.histograms,
    )


def draw(plan: FederationPlan, present: Sequence[Present], *, round_: int, attempt: int) -> Draw:
    """This attempt's counts for the clients that are available now.

    `global`: multivariate hypergeometric, so that with uniform samples at the clients the union is exactly one
    sample without replacement of the available records. `stratified`: fixed in advance. `poisson`: binomial, so that
    with these samples every record is in the batch or not by itself.
    """
    if plan.task.experiment.privacy.hides_sizes:
        return _poisson(plan, present, round_=round_, attempt=attempt)
    task, sizes = plan.task, totals(present)
    if min(sizes) == 0:
        name = task.objective.cells[sizes.index(0)]
        reason = f"the available clients hold no record of group {name}"
        raise FederationError(f"{reason}; wait for the others", recorded=reason)
    if task.experiment.privacy.sampling == "stratified":
        counts = _stratified_counts(task, present)
        return Draw(counts, column_sums(counts), stratified_rates(counts, present))
    batch = batch_sizes(task, sizes, clients_of(present))
    sizes_by_client = np.concatenate([presence.sizes for presence in present])
    if task.experiment.seed is None:
        secret = Stream.secure()
        columns = [hypergeometric(secret, held, size) for held, size in zip(sizes_by_client.T, batch, strict=True)]
    else:
        columns = _seeded_counts(task, present, sizes_by_client, batch, round_, attempt)
    return Draw(_by_site(np.stack(columns, axis=1), present), batch, _global_rates(batch, sizes))


def _poisson(plan: FederationPlan, present: Sequence[Present], *, round_: int, attempt: int) -> Draw:
    """Counts of records that join by themselves, each with the plan's rate; nothing is raised or fixed by their number.

    A record joins where its key is below the rate: an own one, or in a seeded run that by which its client draws.
    """
    (rate,), task = plan.rates, plan.task
    held = np.concatenate([presence.sizes for presence in present])[:, 0]
    if task.experiment.seed is None:
        keys = Stream.secure().words(int(held.sum()))
    else:
        ids = np.concatenate([presence.ids(0) for presence in present])
        keys = Stream(task.seeded_batch_key(round_, attempt)).words(int(ids.max(initial=-1)) + 1)[ids]
    counts = below_rate(keys, np.cumsum(held), rate)
    return Draw(_by_site(counts[:, None], present), plan.batch, plan.rates)


def _by_site(counts: NDArray[np.int64], present: Sequence[Present]) -> tuple[NDArray[np.int64], ...]:
    """Counts (S, c) of every site's clients, of those of all clients in client order."""
    return tuple(np.split(counts, np.cumsum([len(presence.sizes) for presence in present])[:-1]))


def charges(plan: FederationPlan, draw_: Draw, bounds: Sequence[Sensitivity]) -> list[Charge]:
    """Charges of one released round, by group: each at its own sampling rate and sensitivity."""
    cells = plan.task.objective.cells
    trained = [
        Charge(cell, rate, bound.value, RELATIONS.get(bound.relation).sampling)
        for cell, rate, bound in zip(cells, draw_.rates, bounds, strict=True)
    ]
    return [*trained, *idle(plan.task.experiment)]


def batch_sizes(task: Problem, sizes: Sequence[int], clients: int) -> tuple[int, ...]:
    """Records of every cell in a batch: the fraction rounded down (at least one), or the fixed size."""
    training = task.experiment.training
    if training.batch_size is None:
        return plans.by_fraction(training.batch_fraction, sizes)
    for cell, size in zip(task.objective.cells, sizes, strict=True):
        if training.batch_size > size:
            raise FederationError(
                f"batch of {training.batch_size} records asked from group {cell}, which has {size} across {clients} "
                f"clients. Lower training.batch_size to {min(sizes)} or less, or add clients"
            )
    return (training.batch_size,) * len(sizes)


@functools.lru_cache(maxsize=4096)
def most_drawn(batch: int, held: int, size: int) -> int:
    """A count that a client who holds `held` of a cell's `size` records exceeds with probability below 2^-90.

    Counts are hypergeometric, and a tail of theirs is at most that of the binomial's Chernoff bound,
    exp(-batch KL(count/batch, held/size)). What a size of messages could show of a count beyond it, over 1000 clients,
    10 cells and 10^4 rounds together, is below 1e-19: hardly a part of the delta that every composition sets aside
    for floating point (1e-12).

    Source: Hoeffding 1963, Theorem 4.
    """
    most, share = min(batch, held), held / size
    low, high = math.ceil(batch * share), most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _tail_exponent(batch, middle, share) >= _UNSEEN else (middle + 1, high)
    return min(low, most)


def _tail_exponent(batch: int, count: int, share: float) -> float:
    """batch KL(count/batch, share), natural logarithms; count above the mean."""
    part = count / batch
    if share >= 1.0 or part <= share:
        return 0.0
    rest = (batch - count) * math.log((1 - part) / (1 - share)) if count < batch else 0.0
    return count * math.log(part / share) + rest


def stratified_rates(counts: Sequence[NDArray[np.int64]], present: Sequence[Present]) -> tuple[float, ...]:
    """p of every cell when each client's count is fixed and visible: the largest over the clients; counts (S, c)."""
    drawn, held = np.concatenate(counts), np.concatenate([presence.sizes for presence in present])
    rates = np.divide(drawn, held, out=np.zeros(held.shape), where=held > 0)
    return tuple(float(rate) for rate in rates.max(axis=0))


def _seeded_counts(
    task: Problem, present: Sequence[Present], held: NDArray[np.int64], batch: Sequence[int], round_: int, attempt: int
) -> list[NDArray[np.int64]]:
    """Counts of every client by cell, from the keys of global record ids that the clients draw by as well."""
    cells = range(len(task.objective.cells))
    ids = [np.concatenate([presence.ids(cell) for presence in present]) for cell in cells]
    words = Stream(task.seeded_batch_key(round_, attempt)).words(max(int(members.max()) for members in ids) + 1)
    pairs = zip(cells, ids, strict=True)
    return [split_sample(words[members], np.cumsum(held[:, cell]), batch[cell]) for cell, members in pairs]


def _stratified_counts(task: Problem, present: Sequence[Present]) -> tuple[NDArray[np.int64], ...]:
    training = task.experiment.training
    counts = tuple(np.floor(training.batch_fraction * presence.sizes).astype(np.int64) for presence in present)
    for cell, total in zip(task.objective.cells, column_sums(counts), strict=True):
        if total == 0:
            raise FederationError(
                f"stratified sampling takes no record of group {cell}: {training.batch_fraction:g} of every client's "
                "records rounds to 0. Raise training.batch_fraction"
            )
    return counts


def column_sums(rows: Iterable[Sequence[int] | NDArray[np.int64]]) -> tuple[int, ...]:
    """Totals of every column of rows (c,), or of blocks of rows (S, c), of which there is at least one."""
    return tuple(np.concatenate([np.atleast_2d(row) for row in rows]).sum(axis=0).tolist())


def _global_rates(batch: Sequence[int], sizes: Sequence[int]) -> tuple[float, ...]:
    return tuple(count / size for count, size in zip(batch, sizes, strict=True))
