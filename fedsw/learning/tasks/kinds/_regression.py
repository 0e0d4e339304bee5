"""Regression of numbers in [0, 1]: predictions are compared between groups, squared error is the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw._tools.later import imported_later, torch
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import Facts, Judged
from fedsw.learning.tasks.task import HeldOut, Inputs, Raw, Task, part

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedsw.data.sources import Shape
    from fedsw.learning.tasks import metrics as metrics
    from fedsw.learning.tasks import tally as tallies
    from fedsw.learning.tasks.tally import Tally

globals().update(imported_later(__spec__))


class Regression(Task):
    """Any number of targets, one included."""

    facts = Facts(
        sources=("synthetic", "law-school", "communities", "files"),
        target="numbers",
        unit="targets",
        answers="predicted",
        judged=Judged("mean_squared_error", "lower", beside=("w2_squared",)),
    )

    def dimension(self, shape: Shape, model: Model) -> int:
        """The number of targets."""
        return shape.targets

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """Predictions (n, t) in the unit cube."""
        return torch.sigmoid(part(raw, "outputs", 0))

    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Squared error (n,), summed over the targets."""
        raw = part(raw, "outputs", 0)
        return (torch.sigmoid(raw) - batch.target.to(raw.dtype)).square().sum(dim=-1)

    def metrics(self, model: nn.Module, held_out: HeldOut) -> dict[str, float]:
        """Loss, gap between groups and mean squared error; for one target also Kolmogorov and Smirnov's distance.

        Of a declared number gap and error are in its own units, squared, and there is the error's root; the loss is
        that of the number in [0, 1], as training has it.
        """
        square = 1.0 if held_out.shape.units is None else held_out.shape.units[1] ** 2
        error = square * metrics.mean_squared_error(held_out.outputs, held_out.records.target)
        report = {"loss": held_out.loss, "w2_squared": square * held_out.gap(), "mean_squared_error": error}
        if held_out.shape.units is not None:
            report["root_mean_squared_error"] = error**0.5
        if held_out.outputs.shape[1] == 1:
            groups = len(held_out.shape.groups)
            report["ks"] = metrics.kolmogorov_smirnov(held_out.outputs, held_out.records.sensitive, groups=groups)
        return report

    def tally(self, shape: Shape) -> Tally:
        """Squared errors, moments of the targets, and counts of one prediction."""
        return tallies.RegressionSums(len(shape.groups), shape.targets)


TASK = Regression
