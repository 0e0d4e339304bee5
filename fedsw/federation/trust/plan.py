"""What is fixed before the first round: batch sizes, sampling rates, sensitivities, noise."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsw.accounting import Charge, Step, epsilon_by, noise_multiplier
from fedsw.errors import FederationError
from fedsw.experiment import resolve_delta
from fedsw.federation.exchange.cohort import Member
from fedsw.objectives import Clip, Objective
from fedsw.objectives.composite import Composite
from fedsw.objectives.matching import Matching
from fedsw.privacy.sensitivity import SLACK, Bound, Sensitivity
from fedsw.randomness import Stream, split_sample
from fedsw.tasks.problem import Problem
from fedsw.transport.sliced import orthogonal_spread

_UNSEEN = 90 * math.log(2)


@dataclass(frozen=True)
class Draw:
    """One attempt's secret counts: per member and cell; with the totals and sampling rates they imply.

    The counts are secret under `global` sampling: they are never logged, stored or published.
    """

    counts: tuple[tuple[int, ...], ...]
    batch: tuple[int, ...]
    rates: tuple[float, ...]

    @property
    def total(self) -> int:
        """Records in the attempt's batch."""
        return sum(self.batch)


@dataclass(frozen=True)
class Plan:
    """The run's fixed quantities; everything here is public."""

    task: Problem
    sizes: tuple[int, ...]
    batch: tuple[int, ...]
    rates: tuple[float, ...]
    delta: float
    epsilon: float
    multiplier: float
    sensitivities: tuple[Sensitivity, ...]

    @property
    def records(self) -> int:
        """Number of private records."""
        return sum(self.sizes)

    def noise_stream(self, round_: int, attempt: int) -> Stream:
        """Where an attempt's noise comes from: secure, or reproducible in a seeded (nominal) run."""
        seed = self.task.experiment.seed
        return Stream.secure() if seed is None else Stream.seeded(seed, "noise", round_, attempt)


def make_plan(task: Problem, members: Sequence[Member]) -> Plan:
    """Settle batch sizes, rates, sensitivities and the noise multiplier (sigma/Delta) for all rounds.

    Guarantee: with this multiplier every round of the plan, composed, satisfies the asked (epsilon, delta) for the
    replacement of one record of any group (docs/guarantees.md, "Composition").

    Raises:
        FederationError, ValueError: naming a group that its batch does not fit, an unreachable epsilon or delta.
    """
    privacy, rounds = task.experiment.privacy, task.experiment.training.rounds
    sizes = _totals(members)
    delta = resolve_delta(privacy.delta, records=sum(sizes))
    counts = _stratified_counts(task, members) if privacy.sampling == "stratified" else None
    batch = batch_sizes(task, sizes, len(members)) if counts is None else _column_sums(counts)
    rates = _global_rates(batch, sizes) if counts is None else stratified_rates(counts, members)
    # One rate for the calibration: never below what a later attempt with fewer clients may need.
    rate = max(rates) if task.experiment.training.batch_size else max(task.experiment.training.batch_fraction, *rates)
    multiplier, epsilon = 0.0, math.inf
    if privacy.noisy and privacy.noise_multiplier is not None:
        multiplier = privacy.noise_multiplier
        epsilon = epsilon_by(
            privacy.accountant, {Step(rate, 1 / multiplier): rounds}, delta, device=task.accounting_device
        )
    elif privacy.noisy:
        assert privacy.epsilon is not None
        epsilon = privacy.epsilon
        multiplier = noise_multiplier(
            epsilon,
            delta,
            sampling_rate=rate,
            steps=rounds,
            accountant=privacy.accountant,
            device=task.accounting_device,
        )
    return Plan(
        task, sizes, batch, rates, delta, epsilon, multiplier, sensitivities(task, batch, _planned_spreads(task))
    )


def sensitivities(task: Problem, batch: Sequence[int], spreads: Sequence[float]) -> tuple[Sensitivity, ...]:
    """How far one replaced record of each cell moves the summed contributions, with the floating-point slack.

    Args:
        spreads: of the directions of every penalty.
    """
    widths = tuple(each.width for each in task.compared)
    return _with_slack(
        task.objective, tuple(batch), task.clip, widths, tuple(spreads), task.experiment.privacy.bound
    )


@functools.lru_cache(maxsize=64)
def _with_slack(
    objective: Objective | Matching | Composite,
    batch: tuple[int, ...],
    clip: Clip,
    widths: tuple[int, ...],
    spreads: tuple[float, ...],
    bound: Bound,
) -> tuple[Sensitivity, ...]:
    """The same in every round of one column, whose batches have one size."""
    if isinstance(objective, Composite):
        found = objective.sensitivities(batch, clip, dimensions=widths, spreads=spreads, bound=bound)
    else:
        found = objective.sensitivities(batch, clip, d=widths[0], spread=spreads[0], bound=bound)
    return tuple(SLACK * each for each in found)


def draw(plan: Plan, members: Sequence[Member], *, round_: int, attempt: int) -> Draw:
    """This attempt's counts for the clients that are available now.

    `global`: multivariate hypergeometric, so that with uniform samples at the clients the union is exactly one
    sample without replacement of the available records. `stratified`: fixed in advance.
    """
    task, sizes = plan.task, _totals(members)
    if min(sizes) == 0:
        name = task.objective.cells[sizes.index(0)]
        reason = f"the available clients hold no record of group {name}"
        raise FederationError(f"{reason}; wait for the others", recorded=reason)
    if task.experiment.privacy.sampling == "stratified":
        counts = _stratified_counts(task, members)
        return Draw(counts, _column_sums(counts), stratified_rates(counts, members))
    batch = batch_sizes(task, sizes, len(members))
    keys = _keys(task, members, round_, attempt)
    columns = [split_sample(held, size) for held, size in zip(keys, batch, strict=True)]
    return Draw(tuple(zip(*columns, strict=True)), batch, _global_rates(batch, sizes))


def charges(plan: Plan, draw_: Draw, bounds: Sequence[Sensitivity]) -> list[Charge]:
    """What one released round costs every group: its sampling rate with its own sensitivity."""
    cells = plan.task.objective.cells
    return [Charge(cell, rate, bound.value) for cell, rate, bound in zip(cells, draw_.rates, bounds, strict=True)]


def batch_sizes(task: Problem, sizes: Sequence[int], clients: int) -> tuple[int, ...]:
    """Records of every cell in a batch: the fraction rounded down (at least one), or the fixed size."""
    training = task.experiment.training
    if training.batch_size is None:
        return tuple(max(1, math.floor(training.batch_fraction * size)) for size in sizes)
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


def stratified_rates(counts: Sequence[Sequence[int]], members: Sequence[Member]) -> tuple[float, ...]:
    """p of every cell when each client's count is fixed and visible: the largest over the clients."""
    pairs = [(row, member.sizes) for row, member in zip(counts, members, strict=True)]
    cells = range(len(members[0].sizes))
    return tuple(max(row[cell] / sizes[cell] for row, sizes in pairs if sizes[cell]) for cell in cells)


def _planned_spreads(task: Problem) -> list[float]:
    """The spreads of all directions, known in advance for orthogonal blocks; 1, the worst, for i.i.d. ones."""
    slicing = task.experiment.slicing
    widths = [each.width for each in task.compared]
    return [1.0 if d == 1 or slicing.scheme == "iid" else orthogonal_spread(d, slicing.directions) for d in widths]


def _keys(task: Problem, members: Sequence[Member], round_: int, attempt: int) -> list[list[NDArray[np.uint64]]]:
    """Keys of every record by cell and member: the clients' own in a seeded run, the server's secret otherwise."""
    cells = range(len(task.objective.cells))
    if task.experiment.seed is None:
        secret = Stream.secure()
        edges = [np.cumsum([member.sizes[cell] for member in members]) for cell in cells]
        return [np.split(secret.words(int(ends[-1])), ends[:-1]) for ends in edges]
    ids = [member.ids for member in members]
    assert all(part is not None for part in ids)
    largest = max(int(cell.max()) for part in ids if part for cell in part if len(cell))
    words = Stream(task.seeded_batch_key(round_, attempt)).words(largest + 1)
    return [[words[part[cell]] for part in ids if part is not None] for cell in cells]


def _stratified_counts(task: Problem, members: Sequence[Member]) -> tuple[tuple[int, ...], ...]:
    training = task.experiment.training
    counts = tuple(tuple(math.floor(training.batch_fraction * size) for size in member.sizes) for member in members)
    for cell, total in zip(task.objective.cells, _column_sums(counts), strict=True):
        if total == 0:
            raise FederationError(
                f"stratified sampling takes no record of group {cell}: {training.batch_fraction:g} of every client's "
                "records rounds to 0. Raise training.batch_fraction"
            )
    return counts


def _totals(members: Sequence[Member]) -> tuple[int, ...]:
    return _column_sums([member.sizes for member in members])


def _column_sums(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*rows, strict=True))


def _global_rates(batch: Sequence[int], sizes: Sequence[int]) -> tuple[float, ...]:
    return tuple(count / size for count, size in zip(batch, sizes, strict=True))
