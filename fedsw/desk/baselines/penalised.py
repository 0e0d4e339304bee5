"""A classifier with a penalty on the gap between two groups' mean scores, as a sum of terms of one record each.

DP-SGD clips the gradient of every record, so it needs a loss that is a mean of terms l_i(theta) of one record each. A
penalty on a gap of a batch is none: the gap's square, its absolute value, and the numbers of each group in the batch
make every record's gradient depend on the others, so clipping it does not bound what one record changes. Two public or
private-by-construction numbers take their place:

- the shares p_a of the groups among all records, which are public: the gap of the mean scores s is then the mean of
  x_i = (1[a_i = 1] / p_1 - 1[a_i = 0] / p_0) s_i;
- w, a parameter beside the model's, that follows the gap by the same noised steps: the gradient of the gap's square is
  replaced by 2 w mean(dx_i), that of its absolute value by sign(w) mean(dx_i).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedsw.data import Records
from fedsw.experiment import ExperimentError
from fedsw.experiment.sections import Training
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.task import Inputs

FOLLOWING = 0.2
"""Share of the distance to the noised gap that w covers in a step."""
SHARE = 0.5
"""Weight of a record's x_i in the vector that is clipped."""
Returned = tuple[Tensor, Tensor, Tensor]
"""Returned by `Scored` for a batch: logits, parts of the gap, and w times these."""


class Scored(nn.Module):
    """A problem's classifier (b, p) -> logits, its scores in [0, 1], and with a penalty w, which follows their gap."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.model = problem.build_model()
        self._problem = problem
        self.gap: nn.Linear | None = None
        if problem.experiment.objective.alpha > 0:
            self.gap = nn.Linear(1, 1, bias=False, dtype=problem.dtype)
            nn.init.zeros_(self.gap.weight)

    def forward(self, features: Tensor, contrast: Tensor) -> Returned:
        """Logits (b, o), every record's part x_i of the gap (b,), and w x_i with x_i held fixed (b,).

        Features are (b, p); the contrast (b,) is 1 / p_1 or -1 / p_0 by the record's group.
        """
        logits = self.model(features)
        if self.gap is None:
            return logits, torch.zeros_like(contrast), torch.zeros_like(contrast)
        part = contrast * self._problem.task.outputs(logits, self._problem.imagined(features))[:, 0]
        return logits, part, self.gap(part.detach().unsqueeze(1))[:, 0]

    @property
    def followed(self) -> float:
        """w; 0 if there is none."""
        return 0.0 if self.gap is None else float(self.gap.weight.detach())

    @property
    def notes(self) -> dict[str, float]:
        """Numbers of the penalty that are released with the model."""
        return {} if self.gap is None else {"gap": self.followed}

    @property
    def alpha(self) -> float:
        """Weight of the penalty, by the settings."""
        return self._problem.experiment.objective.alpha

    def weighted(self, returned: Returned, target: Tensor, weight: float, slope: float) -> Tensor:
        """Loss and penalty of b records (b,), the penalty by the slope of its value in the gap."""
        logits, part, follow = returned
        loss = self._problem.clipped.losses(logits, Inputs(target, target, self._problem.shape))
        return (1 - weight) * loss + weight * slope * part + SHARE * follow

    def groups(self, training: Training) -> Iterator[dict[str, Any]]:
        """Yield groups of parameters for torch's SGD: the model's, and w, which moves towards the gap."""
        yield {"params": list(self.model.parameters()), "lr": training.learning_rate, "momentum": training.momentum}
        if self.gap is not None:
            follow = {"lr": FOLLOWING / SHARE, "momentum": 0.0, "weight_decay": SHARE, "maximize": True}
            yield {"params": list(self.gap.parameters()), **follow}


def squared(scored: Scored, returned: Returned, target: Tensor) -> Tensor:
    """(1 - alpha) loss + alpha gap^2 as a mean over records of what this returns (b,), but for the value of gap^2.

    `returned` is what the model gave for b records, `target` are their classes (b,).
    """
    return scored.weighted(returned, target, scored.alpha, 2 * scored.followed)


def absolute(scored: Scored, returned: Returned, target: Tensor, weight: float) -> Tensor:
    """(1 - weight) loss + weight |gap| in the same way (b,)."""
    return scored.weighted(returned, target, weight, float(torch.sign(torch.tensor(scored.followed))))


def contrasts(problem: Problem, records: Records) -> Tensor:
    """1 / p_1 for records of group 1, -1 / p_0 for those of group 0, (n,), by their public shares; 0 without a penalty.

    ExperimentError unless there are two groups, both with records.
    """
    if problem.experiment.objective.alpha == 0:
        return torch.zeros(len(records), dtype=problem.dtype)
    groups = len(problem.groups)
    shares = torch.bincount(records.sensitive, minlength=groups).to(torch.float64) / len(records)
    if groups != 2 or bool((shares == 0).any()):
        raise ExperimentError(
            f"the penalty of a baseline is a gap between two groups with records, and there are {groups} groups "
            f"({', '.join(problem.groups)}) with shares {shares.tolist()}: set objective.alpha to 0, or use a method "
            "of fedsw"
        )
    sign = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    contrast: Tensor = (sign / shares)[records.sensitive].to(problem.dtype)
    return contrast
