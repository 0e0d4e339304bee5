"""The canary attack on sums that are released once: the attacker sees them, and wrote what clients look through.

Moments, counts of scores, sums over kept records and the stages of a sketch: every registered sum
(`fedsw.federation.trust.sums_once.SUMS`), under every trust model with sides that release it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.audit import canary_masked as masked
from fedsw.audit.bounds import expected_mu
from fedsw.audit.finding import Claim
from fedsw.audit.neighbours import Trial, View, canary_rows, exchanged
from fedsw.data import Records, concatenate
from fedsw.experiment import Experiment, ExperimentError
from fedsw.federation.node.held_records import Held
from fedsw.federation.node.node import Node
from fedsw.federation.trust import sums_once as sums
from fedsw.federation.trust.budget_shares import TALLY_PART
from fedsw.federation.trust.distributed.attempt_cost import attempts_at_one
from fedsw.federation.trust.distributed.members import honest
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.federation.trust.sketch.sketch_once import PART as SKETCH
from fedsw.learning.models import flatten
from fedsw.learning.sketches.from_settings import classifier_of, sent_size, table_of
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.clipping.rules import Worst
from fedsw.privacy.accounting import Step, epsilon
from fedsw.privacy.release import Bounded, Paid, Released

_CANDIDATES, _FAR, _AXES = 25, 1e3, 6
"""Genuine records to look for the canary's two values among, how far they are moved, and along how many axes."""
_OUT_OF_REACH = 1e6  # far beyond the lengths that inputs are cut to
_AS_GOOD = 0.999  # of the largest squared distance: such a pair is told apart as well
_NEARLY, _MOST_NUMBERS = 0.95, 2**25
"""The part of mu that is to be shown, and how many numbers are noised for it, of each neighbour: some seconds."""


@dataclass(frozen=True)
class OnceRelease:
    """One release of a sum over all records: its kind, its round, and what a server sends that records go through."""

    kind: type[sums.Sum]
    round: int
    weights: Tensor

    def of(self, task: Problem) -> sums.Sum:
        """The sum, in a run's task."""
        return self.kind.at(task, self.round, self.weights)


def releases_of(task: Problem) -> dict[str, tuple[OnceRelease, ...]]:
    """Everything that a run releases once of all records, or of all kept ones, by part; stages of a sketch together.

    The attacker is the server, too: it sends a model or a network of its choice, or marks every pair of columns.
    """
    experiment, shape, known = task.experiment, task.shape, dict[str, tuple[OnceRelease, ...]]()
    theta = torch.randn(task.parameters, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for kind in experiment.privacy.model.sides.once.sums:
        releases = []
        for number in kind.rounds(experiment):
            weights = theta
            if kind.part == SKETCH and number == 1:  # records go through nothing that a server sends
                weights = torch.zeros(0, dtype=torch.float64)
            elif kind.part == SKETCH and table_of(experiment) is not None:
                weights = torch.ones(sent_size(experiment, shape), dtype=torch.float64)
            elif kind.part == SKETCH:  # an untrained network
                weights = flatten(classifier_of(experiment, shape, seed=number))
            releases.append(OnceRelease(kind, number, weights))
        with suppress(RuntimeError):  # of a run that releases nothing of the kind
            releases[0].of(task)
            known[kind.part] = tuple(releases)
    return known


def claim_of(plan: FederationPlan, part: str, releases: Sequence[OnceRelease]) -> Claim:
    """The plan's claim for the releases of a part: all stages of a sketch together, or every planned attempt at a sum.

    Its noise is the plan's multiplier times the sensitivity, whatever a client or a server makes of them.
    """
    task, experiment = plan.task, plan.task.experiment
    attempts = _attempts(experiment)
    if part == SKETCH:
        bound, multiplier = plan.sensitivities[0].value, plan.multiplier * math.sqrt(attempts)
    else:
        (release,) = releases
        budget = release.of(task).budget(plan.delta, plan.shares, attempts)
        bound, multiplier = budget.sensitivity.value, budget.multiplier
    spent = epsilon({Step(1.0, 1 / multiplier): attempts}, plan.delta)
    return Claim(1.0, bound, multiplier * bound, attempts, spent, plan.delta)


def of_kept(part: str) -> bool:
    """True if a part is of records that are kept out of training, which no other release reads."""
    return part == TALLY_PART


WHOSE = {False: "of all records", True: "of kept records"}


def beside_rounds(plain: Trial) -> list[tuple[str, OnceNeighbours, Claim]]:
    """List what a run of rounds releases once: each part, its worst neighbours, and what is claimed of it."""
    return [
        (part, farthest(plain, part, releases), claim_of(plain.plan, part, releases))
        for part, releases in releases_of(plain.task).items()
        if part != SKETCH
    ]


def _attempts(experiment: Experiment) -> int:
    return attempts_at_one(experiment) if experiment.privacy.model.masks else 1


@dataclass(frozen=True)
class OnceNeighbours:
    """Two data sets that differ in one record of a client, or in all rows of one unit: a row of values each.

    ``without`` is None if only one of them has the record; ``held_out`` records are those out of training.
    """

    client: int
    without: Records | None
    with_: Records
    held_out: bool
    why: str

    def records(self, task: Problem, genuine: Records, client: int, *, canary: bool) -> Records:
        """A client's records; `canary` says in which of the two data sets."""
        if client != self.client:
            return genuine
        rows = torch.from_numpy(canary_rows(genuine, np.arange(len(genuine))))
        value = self.with_ if canary else self.without
        if value is None:
            others = torch.ones(len(genuine), dtype=torch.bool)
            others[rows] = False
            return genuine.take(others.numpy())

        def replaced(values: Tensor, new: Tensor) -> Tensor:
            return values.index_copy(0, rows, new.to(values).expand(len(rows), *values.shape[1:]))

        return Records(
            replaced(genuine.features, value.features),
            replaced(genuine.sensitive, value.sensitive),
            replaced(genuine.target, value.target),
            genuine.ids,
            unit=genuine.unit,
        )


def farthest(plain: Trial, part: str, releases: Sequence[OnceRelease]) -> OnceNeighbours:
    """The two values of a client's record that the releases together tell best, among those of `options`.

    Of pairs that they tell as well, the one that moves fewest numbers: noise of the others tells nothing.
    """
    task, held_out = plain.task, of_kept(part)
    sizes = {
        int(site.clients[0]): int((site.sizes if not held_out or site.held_out is None else site.held_out).sum())
        for site in plain.sites
    }
    client = max(sizes, key=lambda client: sizes[client])  # the one with most records
    node = plain.node(client)
    held = node.held_out if held_out else node
    assert held is not None
    options = _options(task, held.records, part)
    places = np.arange(len(options))
    every = Held(options, places, places)  # a client for each value, so that each is summed by itself
    made = Node.of(task, every, "options")
    made.held_out = Node.of(task, every, "options") if held_out else None
    squares = torch.zeros(len(options), len(options), dtype=torch.float64)
    lengths, moved = torch.zeros(2, len(options), dtype=torch.float64)
    for release in releases:
        total = release.of(task)
        steps = [total.steps(made, [int(index)], Stream.secure()).reshape(-1) for index in places]
        vectors = torch.stack(steps).double() * total.step
        vectors = vectors / total.budget(plain.plan.delta, plain.plan.shares, _attempts(task.experiment)).sigma
        squares += torch.cdist(vectors, vectors).square()
        lengths += vectors.square().sum(dim=1)
        moved += (vectors != 0).double().sum(dim=1)
    if task.experiment.privacy.hides_sizes:
        best = int((lengths / (1 + 1e-3 * moved)).argmax()) if part != SKETCH else int(lengths.argmax())
        why = "a record that is there or not, as long as genuine and distant ones are"
        return OnceNeighbours(client, None, options.take(torch.tensor([best])), held_out, why)
    fewest = torch.where(squares >= _AS_GOOD * squares.max(), moved[:, None] + moved[None, :], math.inf)
    one, other = divmod(int(fewest.argmin()), len(options))
    why = "two records as far apart as genuine, mirrored and distant ones are, in two labels where there are labels"
    return OnceNeighbours(client, options.take(torch.tensor([one])), options.take(torch.tensor([other])), held_out, why)


def _options(task: Problem, genuine: Records, part: str) -> Records:
    """Values of a record: genuine, mirrored and distant ones, each with every label, and in groups where it may be."""
    shape = task.shape
    few = genuine.take(torch.arange(min(len(genuine), _CANDIDATES)))
    if part == SKETCH:
        return concatenate(_of_sketch(task, few))
    one = few.take(torch.zeros(1, dtype=torch.int64))
    features = [few.features[: _AXES - 1]]
    for axis in range(min(_AXES, few.features.shape[1])):
        for sign in (1, -1):
            far = torch.zeros_like(one.features)
            far[:, axis] = sign * _OUT_OF_REACH
            features.append(far)
    rows = torch.cat(features)
    targets: list[Tensor] = [one.target]
    if shape.classes > 1:
        targets = [torch.full_like(one.target, value) for value in range(min(shape.classes, 3))]
    elif shape.targets:
        targets = [torch.full_like(one.target, value) for value in (0.0, 1.0)]
    groups = [one.sensitive]
    if not of_kept(part):  # kept records are replaced within their group
        groups = [torch.full_like(one.sensitive, value) for value in range(min(len(shape.groups), 2))]
    options = []
    for target in targets:
        for group in groups:
            many = len(rows)
            options.append(
                Records(rows, group.expand(many), target.expand(many, *target.shape[1:]), one.ids.expand(many))
            )
    return concatenate(options)


def _of_sketch(task: Problem, few: Records) -> list[Records]:
    """Genuine, mirrored and distant records, each with its own label and with the next, or its group and the next."""
    factors = (1.0,) if table_of(task.experiment) is not None else (1.0, -1.0, _FAR, -_FAR)
    sketch, options = task.experiment.sketch, []
    for features in (factor * few.features for factor in factors):
        for step in (0, 1):
            target, sensitive = few.target, few.sensitive
            if sketch.labels and task.shape.classes > 1:
                target = (target + step) % task.shape.classes
            elif sketch.groups:
                sensitive = (sensitive + step) % len(task.shape.groups)
            options.append(Records(features, sensitive, target, few.ids))
    return options


class OnceTrial(Trial):
    """A `Trial` of what is released once, a ``part`` of a run: by a server with no limit, clients, or under masks."""

    trials = 100_000  # a release may have thousands of numbers, and noise of its own in each
    singly = 100  # each is charged, and waits for the disk

    def __init__(
        self,
        experiment: Experiment,
        neighbours: OnceNeighbours | None,
        folder: Path,
        *,
        canary: bool,
        worst: Worst | None = None,
        part: str = SKETCH,
        plan: FederationPlan | None = None,
    ) -> None:
        super().__init__(experiment, neighbours, folder, canary=canary, worst=worst)
        self._open, self._part = ExitStack(), part
        if plan is not None:  # both data sets have the public sizes of the run
            self.plan = self.context.plan = plan
        self.context.stored = folder / "releases"
        self.context.ledger = self.ledger

    @property
    def steps(self) -> int:
        """As many attempts as the noise is for; all stages of a sketch together have the noise of one release."""
        return _attempts(self.task.experiment)

    @property
    def sigma(self) -> float:
        """See `Trial`: each of the planned attempts has an equal part of the budget."""
        return super().sigma * math.sqrt(self.steps)

    def enough(self, mu: float, numbers: int, confidence: float) -> int:
        """See `Trial`: until nearly all of mu is shown, where it takes no more than some seconds."""
        trials = self.trials
        while expected_mu(mu, trials, confidence) < _NEARLY * mu and 4 * trials * numbers <= _MOST_NUMBERS:
            trials *= 2
        return trials

    def staged(self, worst: Worst) -> AbstractContextManager[None]:
        """See `Trial`: the network and the task are the experiment's own, for a bound asks nothing of them."""
        return nullcontext()

    def layers(self) -> list[Worst]:
        """None: no gradient of a record is clipped."""
        return []

    def worst(self, cell: int) -> OnceNeighbours:
        """See `farthest`."""
        return farthest(self, self._part, releases_of(self.task)[self._part])

    def views(self, round_: int) -> list[View]:
        """Releases of the part, all stages of a sketch, at a fresh attempt each."""
        left: list[View] = []
        once = self.task.experiment.privacy.model.sides.once
        side = self._open.enter_context(once.side(self.context, sums.SUMS[self._part]))
        overheard = self._under_masks if self.task.experiment.privacy.model.masks else self._overheard
        for release in releases_of(self.task)[self._part]:
            with overheard(left):
                side.round(release.round, release.weights)
        return left

    def __exit__(self, *raised: object) -> None:
        self._open.close()
        super().__exit__(*raised)

    @contextmanager
    def _under_masks(self, left: list[View]) -> Iterator[None]:
        """Note the sum of the fewest honest sites' parts, with the canary's holder among them."""
        with masked.overheard() as parts:
            yield
        (holder,) = [holder for holder, site in enumerate(self.sites) if int(site.clients[0]) == self.victim]
        others = [part for other, part in enumerate(parts) if other != holder]
        left.append(masked.view_of([parts[holder], *others][: honest(self.task.experiment)]))

    @contextmanager
    def _overheard(self, left: list[View]) -> Iterator[None]:
        """Note what leaves, exact and noised: at the server that noises a sum, or at the client with the canary."""
        noised_here = list[View]()
        own_release, release, paid_release = sums.own_release, *(getattr(sums, n) for n in ("release", "release_paid"))

        def released(value: Bounded, guarantee: object, ledger: object) -> Released:
            sent: Released = release(value, guarantee, ledger)

            def door(numbers: Tensor) -> Released:
                many = Bounded(
                    numbers,
                    value.sensitivity,
                    round=value.round,
                    attempt=self.begin(value.round),
                    charges=value.charges,
                )
                again: Released = release(many, guarantee, ledger)
                return again

            left.append(View.through(door, exact[-1], sent.value, sent.sigma))
            return sent

        def released_paid(value: Bounded, paid: Paid, name: str, stream: Stream) -> Released:
            part = paid.parts[name]
            sent: Released = paid_release(value, paid, name, stream)

            def door(numbers: Tensor) -> Released:
                payment = Paid(0, 0, 0.0, {name: part})
                again: Released = paid_release(Bounded(numbers, value.sensitivity), payment, name, Stream.secure())
                return again

            noised_here.append(View.through(door, exact[-1], sent.value, part.scale))
            return sent

        def noised(total: sums.Sum, node: Node, *arguments: object) -> Released:
            sent: Released = own_release(total, node, *arguments)  # type: ignore[arg-type]
            if int(node.clients[0]) == self.victim:
                left.append(noised_here[-1])
            return sent

        with ExitStack() as stack:
            exact = stack.enter_context(masked.bounded_ones())
            stack.enter_context(exchanged(sums, "release", released))
            stack.enter_context(exchanged(sums, "release_paid", released_paid))
            stack.enter_context(exchanged(sums, "own_release", noised))
            yield


class Unattacked(OnceTrial):
    """The sites and the plan of a run of rounds without worst neighbours here."""


def require_sketch(experiment: Experiment) -> None:
    """Refuse sketches with neighbours that differ in more than a single record."""
    if experiment.data.unit is not None:
        raise ExperimentError(
            f"data.unit is {experiment.data.unit!r}, and a sketch takes a row of each at random; --canary replaces one "
            "record of a sketch: leave data.unit out"
        )
