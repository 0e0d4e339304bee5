"""Classification: probabilities are compared between groups, cross-entropy is the loss."""

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


class Classification(Task):
    """Any number of classes: the probability of class 1 of two, or all probabilities of more."""

    facts = Facts(
        sources=("synthetic", "adult", "digits", "mnist", "fashion-mnist", "usps", "files"),
        target="class",
        answers="probability",
        judged=Judged("accuracy", "higher", beside=("disparate_impact",)),
    )

    def dimension(self, shape: Shape, model: Model) -> int:
        """1 for two classes, otherwise their number."""
        return 1 if shape.classes == 2 else shape.classes

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """Class probabilities (n, d) of logits."""
        logits = part(raw, "outputs", 0)
        return torch.sigmoid(logits) if batch.shape.classes == 2 else torch.softmax(logits, dim=-1)

    def answers(self, raw: Raw, batch: Inputs) -> Tensor:
        """Probabilities (n, classes)."""
        outputs = self.outputs(raw, batch)
        return torch.cat([1 - outputs, outputs], dim=1) if batch.shape.classes == 2 else outputs

    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Cross-entropy (n,)."""
        logits = part(raw, "outputs", 0)
        if batch.shape.classes == 2:
            target = batch.target.to(logits.dtype)
            return torch.nn.functional.binary_cross_entropy_with_logits(logits.reshape(-1), target, reduction="none")
        return torch.nn.functional.cross_entropy(logits, batch.target, reduction="none")

    def metrics(self, model: nn.Module, held_out: HeldOut) -> dict[str, float]:
        """Loss, accuracy and every metric of `fedsw.learning.tasks.metrics.classification`."""
        records, outputs = held_out.records, held_out.outputs
        report = metrics.classification(
            outputs,
            metrics.predictions(outputs),
            records.target,
            records.sensitive,
            groups=len(held_out.shape.groups),
            classes=held_out.shape.classes,
            positive=held_out.shape.positive,
            directions=held_out.directions,
        )
        return {"loss": held_out.loss, **report}

    def tally(self, shape: Shape) -> Tally:
        """Records of each group and class by predicted class."""
        return tallies.Counts(len(shape.groups), shape.classes)


TASK = Classification
