"""The clipped gradient of a model that is one linear layer, in closed form: what a forecast trains most of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedsw.data import Records
from fedsw.learning.objectives import Clip
from fedsw.learning.tasks.objective import ClippedObjective
from fedsw.privacy.release import Sample
from fedsw.runs.single.objective import Batch, Objective
from fedsw.runs.single.training_plan import Plan


@dataclass(frozen=True, eq=False, repr=False)
class LinearObjective(Objective):
    """The task's loss only, of a model that `is_linear`: for twins, which are simulated records."""

    def of(self, clip: Clip, weights: Tensor) -> ClippedObjective:
        """See `Objective.of`, summed in closed form; weights (n, ...) of a model."""
        return LinearClipped(**vars(super().of(clip, weights)))

    def _require_per_record(self, model: nn.Module, weights: Tensor, records: Records) -> None:
        """Nothing: one linear layer mixes no records, and these are simulated."""


@dataclass(frozen=True, eq=False)
class LinearClipped(ClippedObjective):
    """`LinearObjective` with clips.

    A record's loss gradient is its gradient in the outputs times its inputs with a 1, so that its norm is known before
    it is formed. The sum is that of `ClippedObjective` within rounding; it is not measured again when added, and
    protects no record.
    """

    def summed(
        self,
        model: nn.Module,
        records: Records,
        sizes: Sequence[int],
        directions: Sequence[Tensor],
        round_: int,
        attempt: int,
    ) -> Tensor:
        """See `ClippedObjective`."""
        inputs = self.inputs_of(records)
        with torch.no_grad():
            raw = model(inputs.features)
        losses = self.losses(raw.requires_grad_(), inputs)
        (pull,) = torch.autograd.grad(losses.sum(), raw)
        lengths = (inputs.features.square().sum(dim=1) + 1).sqrt()
        norms = torch.linalg.vector_norm(pull, dim=1) * lengths
        factors = self.weighted.task_weight(len(records)) * (self.clip.loss / norms.clamp(min=1e-30)).clamp(max=1.0)
        pull = pull * factors[:, None]
        return torch.cat([(pull.T @ inputs.features).reshape(-1), pull.sum(dim=0)]).double()


def is_linear(model: nn.Module, objective: Objective) -> bool:
    """Say whether `LinearObjective` is for a model and an objective: one layer with its bias, and no penalty pulls."""
    layers = [*model.children()] if isinstance(model, nn.Sequential) else [model]
    return (
        len(layers) == 1
        and type(layers[0]) is nn.Linear
        and layers[0].bias is not None
        and not any(penalty.weight > 0 for penalty in objective.penalties)
    )


def batches_of(plan: Plan, records: Records) -> Iterator[Batch]:
    """The plan's batches of public records: drawn, or all records in every round, which are then drawn once."""
    if min(plan.rates) < 1:
        yield from plan.batches(records)
        return
    batch = next(iter(plan.batches(records)))
    for round_ in range(1, plan.rounds + 1):
        yield replace(batch, round=round_, sample=Sample(plan, None))
