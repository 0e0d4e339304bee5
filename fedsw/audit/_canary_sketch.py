"""The canary attack on sketches: by whoever sees what all stages release, and wrote what later ones look through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.audit._neighbours import Trial, View, exchanged
from fedsw.data import Records, concatenate
from fedsw.experiment import Experiment, ExperimentError
from fedsw.federation.node.node import Node
from fedsw.federation.trust import sums_once as sums
from fedsw.federation.trust.sketch import sketch_once as sides
from fedsw.federation.trust.sketch.sketch_costs import PART, sketch_budget
from fedsw.learning.models import flatten
from fedsw.learning.sketches.from_settings import Stage, classifier_of, sent_size, table_of
from fedsw.learning.tasks.measures import law_of_problem, sketch_of_records
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.clipping.rules import Worst
from fedsw.privacy.release import Bounded, Paid, Released

_CANDIDATES, _FAR = 25, 1e3
"""Genuine records that the canary's two values are looked for among, and how far out they are moved, too."""


@dataclass(frozen=True)
class SketchNeighbours:
    """Two data sets that differ in one record, the first of a client: one row each."""

    client: int
    without: Records
    with_: Records
    why: str

    def records(self, task: Problem, genuine: Records, client: int, *, canary: bool) -> Records:
        """A client's records; `canary` says in which of the two data sets."""
        if client != self.client:
            return genuine
        canary_record, first = self.with_ if canary else self.without, torch.zeros(1, dtype=torch.int64)

        def replaced(values: Tensor, value: Tensor) -> Tensor:
            return values.index_copy(0, first, value.to(values))

        return Records(
            replaced(genuine.features, canary_record.features),
            replaced(genuine.sensitive, canary_record.sensitive),
            replaced(genuine.target, canary_record.target),
            genuine.ids,
        )


class SketchTrial(Trial):
    """A `Trial` of trust `sketch` or `sketch-local`: every stage is released once, at a server with no limit."""

    trials = 100_000  # a release has thousands of numbers, and noise of its own in each

    def __init__(
        self,
        experiment: Experiment,
        neighbours: SketchNeighbours | None,
        folder: Path,
        *,
        canary: bool,
        worst: Worst | None = None,
    ) -> None:
        super().__init__(experiment, neighbours, folder, canary=canary, worst=worst)
        self._holder, self._open = neighbours.client if neighbours else 0, ExitStack()
        self.context.stored = folder / "releases"
        self.context.ledger = self._ledger(folder)

    @property
    def steps(self) -> int:
        """One: all stages together have the noise of one release."""
        return 1

    def staged(self, worst: Worst) -> AbstractContextManager[None]:
        """See `Trial`: the network and the task are the experiment's own, for a bound asks nothing of them."""
        return nullcontext()

    def layers(self) -> list[Worst]:
        """None: no gradient of a record is clipped."""
        return []

    def holder(self, cell: int) -> int:
        """The client with most records."""
        return int(max(self.sites, key=lambda site: int(site.sizes.sum())).clients[0])

    def worst(self, cell: int) -> SketchNeighbours:
        """The two values of a client's record that all stages together tell best, among those of `_options`."""
        client = self.holder(cell)
        options = _options(self.task, self._node(client).records)
        squares = torch.zeros(len(options), len(options), dtype=torch.float64)
        for stage in self._stages():
            vectors = self._vectors(options, stage) / self._budget(stage).sigma
            squares += torch.cdist(vectors, vectors).square()
        one, other = divmod(int(squares.argmax()), len(options))
        why = "two records as far apart as genuine, mirrored and distant ones are, in two labels where there are labels"
        return SketchNeighbours(client, options.take(torch.tensor([one])), options.take(torch.tensor([other])), why)

    def views(self, round_: int) -> list[View]:
        """Releases of all stages, at a fresh attempt each; whoever sees them wrote what later stages look through."""
        left: list[View] = []
        side = self._open.enter_context(self.task.experiment.privacy.model.sides.server(self.context))
        with self._overheard(left):
            for stage in self._stages():
                side.round(stage.number, self._written(stage.number))
        return left

    def __exit__(self, *raised: object) -> None:
        self._open.close()
        super().__exit__(*raised)

    def _stages(self) -> list[Stage]:
        count = len(self.task.experiment.sketch.shares)
        return [sides.stage_with(number, self._written(number)) for number in range(1, 1 + count)]

    def _written(self, number: int) -> Tensor:
        """The server's message for a stage: a network of its own choice, untrained, or a mark at every pair."""
        experiment, shape = self.task.experiment, self.task.shape
        if number == 1:
            return torch.zeros(0, dtype=torch.float64)
        if table_of(experiment) is not None:
            return torch.ones(sent_size(experiment, shape), dtype=torch.float64)
        return flatten(classifier_of(experiment, shape, seed=number))

    def _vectors(self, records: Records, stage: Stage) -> Tensor:
        """Each record's part of a stage's sum, (n, numbers)."""
        rows = [records.take(torch.tensor([row])) for row in range(len(records))]
        return torch.stack([sketch_of_records(self.task, row, stage).reshape(-1) for row in rows])

    def _budget(self, stage: Stage) -> Any:
        law = law_of_problem(self.task, stage)
        return sketch_budget(self.task.experiment, law, self.plan.delta, stage.number)

    @contextmanager
    def _overheard(self, left: list[View]) -> Iterator[None]:
        """Note what leaves, exact and noised: at the server that noises a sum, or at the client with the canary."""
        exact_sums: list[Tensor] = []
        own_release, bounded_sum = sums.own_release, getattr(sides, "bounded_sum")  # noqa: B009
        release, release_paid = (getattr(sums, name) for name in ("release", "release_paid"))  # broken or not

        def summed(law: Any, totals: Sequence[Tensor], records: Sequence[int], **about: Any) -> Bounded:
            exact_sums.append(torch.stack([total.cpu() for total in totals]).sum(dim=0))
            made: Bounded = bounded_sum(law, totals, records, **about)
            return made

        def released(bounded: Bounded, guarantee: Any, ledger: Any) -> Released:
            sent: Released = release(bounded, guarantee, ledger)

            def door(numbers: Tensor) -> Released:
                many = Bounded(
                    numbers,
                    bounded.sensitivity,
                    round=bounded.round,
                    attempt=self.begin(bounded.round),
                    charges=bounded.charges,
                )
                again: Released = release(many, guarantee, ledger)
                return again

            left.append(View.through(door, exact_sums[-1].reshape(-1), sent.value, sent.sigma))
            return sent

        def noised(total: sides.SketchSum, node: Node, *arguments: Any) -> Released:
            sent = own_release(total, node, *arguments)
            if int(node.clients[0]) == self._holder:
                budget = self._budget(total.stage)

                def door(numbers: Tensor) -> Released:
                    payment = Paid(0, 0, 0.0, {PART: budget.part})
                    again: Released = release_paid(Bounded(numbers, budget.sensitivity), payment, PART, Stream.secure())
                    return again

                exact = sketch_of_records(node.task, node.records, total.stage)
                left.append(View.through(door, exact.reshape(-1), sent.value, budget.part.scale))
            return sent

        with ExitStack() as stack:
            stack.enter_context(exchanged(sides, "bounded_sum", summed))
            stack.enter_context(exchanged(sums, "release", released))
            stack.enter_context(exchanged(sums, "own_release", noised))
            yield


def require_sketch(experiment: Experiment) -> None:
    """Refuse sketches whose neighbours are no single records."""
    if experiment.data.unit is not None:
        raise ExperimentError(
            f"data.unit is {experiment.data.unit!r}, and a sketch takes a row of each at random; --canary replaces one "
            "record of a sketch: leave data.unit out"
        )


def _options(task: Problem, genuine: Records) -> Records:
    """Values of a record: genuine, mirrored and distant ones, each with its own label and with the next."""
    few = genuine.take(torch.arange(min(len(genuine), _CANDIDATES)))
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
    return concatenate(options)
