"""Task loss and penalties of a batch: what goes through a model, and the clipped sum that comes back.

A client's contribution, a trainer's gradient and a forecast's are these calls. Read `ClippedObjective.gradient` first:
it is the whole of a round on one machine. A federation makes the same steps at two places: clients `forward` a batch
and send its `outputs`, the server computes `cotangents`, and clients answer with `contributions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedsw._tools.randomness import Stream
from fedsw._tools.subnormal import flushing_to_zero
from fedsw.data import Records
from fedsw.learning.models import count_parameters
from fedsw.learning.objectives import Clip, WeightedSum
from fedsw.learning.objectives.distances import terms_of
from fedsw.learning.objectives.weighted_sum import with_slack
from fedsw.learning.tasks.compared import Compared
from fedsw.learning.tasks.generated_samples import uniform_ball
from fedsw.learning.tasks.task import Inputs, Raw
from fedsw.mathematics.clipping import Mode, Tape, clipped_sum, kept, record
from fedsw.mathematics.transport.sliced import Scheme, Ties, orthogonal_spread, project, public_directions, spread
from fedsw.privacy.sensitivity import SLACK, Bound, Sensitivity, added_sensitivity


class Learnt(Protocol):
    """A task: `fedsw.Task`, or anything with these two functions of a model's raw outputs and a batch."""

    def outputs(self, raw: Raw, batch: Inputs, /) -> Tensor:
        """Outputs that a penalty compares: (n, d)."""

    def loss(self, raw: Raw, batch: Inputs, /) -> Tensor:
        """Task loss of every record: (n,)."""


@dataclass(frozen=True)
class OutputSlices:
    """Directions that outputs are projected on, and how ranks are found along them.

    Attributes:
        count, scheme, seed: of the directions; public.
        ties: how equal projections are ranked.
        memory_limit: bytes that ranks may take at once.
    """

    count: int
    scheme: Scheme
    seed: int
    ties: Ties
    memory_limit: int

    def directions(self, number: int, d: int, round_: int, attempt: int) -> Tensor:
        """The directions (d, k) of a penalty in an attempt, float64: seeded apart from data, sampling and noise."""
        purpose = () if number == 0 else (f"penalty {number}",)
        return public_directions(d, self.count, self.scheme, self.seed, "directions", *purpose, round_, attempt)


@dataclass(frozen=True)
class ForwardPass:
    """One attempt's records, stratum by stratum, under the model of that attempt.

    If they passed through the model in one piece: its tape, the outputs (n, columns) that penalties compare, neither
    projected nor detached, and the records as the model takes them, on its device.
    """

    round: int
    attempt: int
    records: Records
    model: nn.Module
    tape: Tape | None = None
    heads: Tensor | None = None
    inputs: Inputs | None = None


@dataclass(frozen=True, eq=False)
class ClippedObjective:
    """(1 - sum of weights) * task loss + sum of weight * penalty, clipped, at a holder of records.

    Attributes:
        weighted: the objective's weights, strata and penalties.
        compared: the columns of every penalty among the outputs, and its clip.
        clip: default norms M, L and C.
        task: outputs and loss of a record.
        inputs_of: brings records to the model's device and precision.
        slicing, mode, bound: as in an experiment's settings.
        micro_batch: most records that pass through the model at once.
        device: of the model.
        hides_sizes: the guarantee covers additions and removals of records, so that sizes are secret.
        reports_loss: the mean task loss is returned without noise, for the unsafe metrics.
    """

    weighted: WeightedSum
    compared: tuple[Compared, ...]
    clip: Clip
    task: Learnt
    inputs_of: Callable[[Records], Inputs]
    slicing: OutputSlices
    mode: Mode
    bound: Bound
    micro_batch: int
    device: torch.device
    hides_sizes: bool = False
    reports_loss: bool = False

    def gradient(
        self, model: nn.Module, records: Records, sizes: Sequence[int], round_: int, attempt: int
    ) -> tuple[Tensor, tuple[Sensitivity, ...]]:
        """The clipped gradient (r,) on a batch of one holder, and its sensitivity to one record of each stratum.

        Guarantee: replacing one record of a stratum moves it by at most that stratum's sensitivity, whatever records
        and model hold. ``sizes`` are records of every stratum, in the order of the batch; public.
        """
        directions = self.directions(round_, attempt)
        spreads = [1.0 if len(block) == 1 else spread(block) for block in directions]
        return self.summed(model, records, sizes, directions, round_, attempt), self.sensitivities(sizes, spreads)

    @flushing_to_zero
    def summed(
        self,
        model: nn.Module,
        records: Records,
        sizes: Sequence[int],
        directions: Sequence[Tensor],
        round_: int,
        attempt: int,
    ) -> Tensor:
        """The sum (r,) on the host; outputs, ranks and contributions stay on the model's device until then."""
        passed = self.forward(model, records, round_, attempt)
        # Under additions and removals `sizes` are what sums are divided by, and not how many records lie in the batch.
        lie = [len(records)] if self.hides_sizes else list(sizes)
        pulled = self.pulled(torch.split(self.outputs(passed), lie), directions, round_, attempt)
        return self.contribution(passed, torch.cat(pulled), self.weighted.task_weight(sum(sizes)))[0]

    @flushing_to_zero
    def forward(
        self, model: nn.Module, records: Records, round_: int, attempt: int, *, compare: bool = True
    ) -> ForwardPass:
        """Send a batch through the model; without `compare` no outputs are chosen, which nothing would look at.

        A batch of more than `micro_batch` records goes through it piece by piece where its outputs are asked for, and
        again for its contribution.
        """
        if not 0 < len(records) <= self.micro_batch:
            return ForwardPass(round_, attempt, records, model)
        inputs = self.inputs_of(records)
        tape = record(model, inputs.features)
        heads = self.heads(tape.raw, inputs) if compare else None
        return ForwardPass(round_, attempt, records, model, tape, heads, inputs)

    @flushing_to_zero
    def outputs(self, passed: ForwardPass) -> Tensor:
        """Outputs (n, columns) of all penalties in their balls, detached, on the device."""
        if passed.heads is not None:
            return self.in_balls(passed.heads.detach())
        parts = []
        for chunk in in_pieces(passed.records, self.micro_batch):
            inputs = self.inputs_of(chunk)
            parts.append(self.in_balls(self.heads(record(passed.model, inputs.features).raw, inputs).detach()))
        return torch.cat(parts) if parts else torch.zeros((0, self.compared[-1].columns.stop), device=self.device)

    def heads(self, raw: Raw, batch: Inputs) -> Tensor:
        """The outputs of all penalties side by side, centred and unprojected: (n, columns).

        ValueError if those of a penalty have another shape than was said.
        """
        penalties, selected = [part.penalty for part in self.compared], []
        with kept(self.task, *penalties) as state:
            for penalty, part in zip(penalties, self.compared, strict=True):
                head = state.apart(penalty.selected(raw, batch, self.task.outputs))
                head = head[:, None] if head.ndim == 1 and part.width == 1 else head
                if tuple(head.shape) != (len(batch.features), part.width):
                    raise ValueError(
                        f"compared outputs have shape {tuple(head.shape)} for {len(batch.features)} records and "
                        f"dimension {part.width}; they are (n, d). Set the dimension of the objective or of the penalty"
                    )
                selected.append(head)
        return selected[0] if len(selected) == 1 else torch.cat(selected, dim=1)

    def losses(self, raw: Raw, batch: Inputs) -> Tensor:
        """Task loss of every record (n,); ValueError if the task gives another shape."""
        with kept(self.task) as state:
            losses = state.apart(self.task.loss(raw, batch))
        if tuple(losses.shape) != (len(batch.features),):
            raise ValueError(
                f"the task's loss has shape {tuple(losses.shape)} for {len(batch.features)} records; it gives one "
                "number for each record, (n,), not their mean"
            )
        return losses

    def in_balls(self, heads: Tensor) -> Tensor:
        """Outputs (n, columns) of all penalties, each projected on the ball of its radius M."""
        if len(self.compared) == 1:
            return project(heads, self.compared[0].clip.output)
        return torch.cat([project(heads[:, part.columns], part.clip.output) for part in self.compared], dim=1)

    def directions(self, round_: int, attempt: int) -> list[Tensor]:
        """The directions of an attempt for every penalty, each (d, k) float64; public."""
        widths = enumerate(part.width for part in self.compared)
        return [self.slicing.directions(number, d, round_, attempt) for number, d in widths]

    def prior(self, round_: int, attempt: int, number: int, count: int) -> Tensor:
        """The sample (m, d) that a penalty compares with, on the device: its points, or fresh uniform ones."""
        part, stream = self.compared[number], Stream.seeded(self.slicing.seed, "prior", round_, attempt)
        return part.penalty.sample_of(partial(uniform_ball, count, part.width, stream=stream)).to(self.device)

    def pulled(self, strata: Sequence[Tensor], directions: Sequence[Tensor], round_: int, attempt: int) -> list[Tensor]:
        """`cotangents` (n_s, columns) by stratum where no other side learns: what penalties compare with lies here."""
        return self.cotangents(strata, directions, partial(self.prior, round_, attempt))[0]

    def cotangents(
        self, strata: Sequence[Tensor], directions: Sequence[Tensor], sample: Callable[[int, int], Tensor]
    ) -> tuple[list[Tensor], Tensor | None]:
        """Gradients of all penalties in outputs (n_s, columns) by stratum, and in the first penalty's other sample."""
        by_penalty, (other, *_) = self.weighted.cotangents(
            [[rows[:, part.columns] for rows in strata] for part in self.compared],
            [block.to(self.device) for block in directions],
            sample,
            ties=self.slicing.ties,
            memory_limit=self.slicing.memory_limit,
        )
        return [torch.cat(list(parts), dim=1) for parts in zip(*by_penalty, strict=True)], other

    def contribution(self, passed: ForwardPass, cotangents: Tensor, task_weight: float) -> tuple[Tensor, float]:
        """Sum (r,) over a batch, with one weight for every record's loss; see `contributions`.

        Guarantee: its l2 norm is at most L * sum ||q_i|| + n_c * task_weight * C, whatever the records hold.
        """
        count, weights = len(passed.records), None
        if task_weight > 0:
            weights = torch.full((count,), task_weight, dtype=torch.float64, device=self.device)
        (total,), loss = self.contributions(passed, cotangents, weights, [count])
        return total, loss

    @flushing_to_zero
    def contributions(
        self, passed: ForwardPass, cotangents: Tensor, weights: Tensor | None, runs: Sequence[int]
    ) -> tuple[Tensor, float]:
        """Sums (S, r) over runs of a batch of clipped Jacobian^T cotangent + weighted clipped loss gradient, float64.

        Everything is added on the device; the sums are returned on the host. Weights (n,) are of every record's loss.
        Records that went to the device in more than one piece go there again, `micro_batch` at a time.

        Guarantee: the l2 norm of each is at most sum L ||q_i|| + sum w_i C over its records, whatever they hold.
        Returns them with the mean un-noised task loss where it is reported; else, and for an empty batch, with 0.
        """
        total: Tensor | None = None
        start, q, summed = 0, cotangents.to(self.device), torch.zeros((), dtype=torch.float64, device=self.device)
        for chunk in in_pieces(passed.records, self.micro_batch):
            inputs = self.inputs_of(chunk) if passed.inputs is None else passed.inputs
            tape = passed.tape or record(passed.model, inputs.features)
            if self.hides_sizes:  # a way that follows from their number would change every record's rounding with it
                tape.way = "factored"
            here = slice(start, start + len(chunk))
            pulled = []
            if self.weighted.alpha > 0:
                heads = self.heads(tape.raw, inputs) if passed.heads is None else passed.heads
                whole = len(self.compared) == 1  # a view of all columns would be one more step of the derivative
                pulled = [
                    (heads if whole else heads[:, part.columns], q[here, part.columns], part.clip.jacobian)
                    for part in self.compared
                    if part.penalty.weight > 0
                ]
            losses = self.losses(tape.raw, inputs) if weights is not None or self.reports_loss else None
            terms = terms_of(pulled, losses, None if weights is None else weights[here], self.clip.loss, self.mode)
            # A piece has the records of some runs, and of the outer ones perhaps a part.
            lengths = np.diff(np.clip(np.append(0, np.cumsum(runs)), here.start, here.stop))
            added = clipped_sum(tape, terms, runs=lengths.tolist())
            total = added if total is None else total + added
            if self.reports_loss and losses is not None:
                summed += losses.detach().sum()
            start += len(chunk)
        if total is None:
            total = torch.zeros((len(runs), count_parameters(passed.model)), dtype=torch.float64)
        return total.cpu(), float(summed) / max(1, start) if self.reports_loss else 0.0

    def sensitivities(self, sizes: Sequence[int], spreads: Sequence[float]) -> tuple[Sensitivity, ...]:
        """Sensitivity of a batch's sum to a replaced record of each stratum, by the stratum's sizes, with the slack.

        Under additions and removals: how far a record moves a sum that is divided by these sizes.
        """
        if self.hides_sizes:
            records = sum(sizes)
            share = records * self.weighted.task_weight(records)
            return (SLACK * (share * added_sensitivity(self.clip.loss, records)),)
        widths = tuple(part.width for part in self.compared)
        return with_slack(self.weighted, tuple(sizes), self.clip, widths, tuple(spreads), self.bound)

    def planned_spreads(self) -> list[float]:
        """The spreads of all directions, known before for orthogonal blocks; 1, the worst, for i.i.d. ones."""
        widths, slicing = [part.width for part in self.compared], self.slicing
        return [1.0 if d == 1 or slicing.scheme == "iid" else orthogonal_spread(d, slicing.count) for d in widths]


def in_pieces(records: Records, most: int) -> Iterator[Records]:
    """The records in pieces of limited size, in order."""
    for start in range(0, len(records), most):
        yield records if len(records) <= most else records.take(np.arange(start, min(start + most, len(records))))
