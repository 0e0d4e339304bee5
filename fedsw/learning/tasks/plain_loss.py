"""The task of a network as others train it: cross-entropy of its outputs for classes, squared error for numbers."""

from __future__ import annotations

from torch import Tensor, nn

from fedsw.data.sources import Shape
from fedsw.experiment.sections import Model
from fedsw.learning.tasks.task import Inputs, Raw, Task


class PlainLoss(Task):
    """A loss of one record each, whatever the batch: it may come and go (docs/guarantees/sampling.md)."""

    def dimension(self, shape: Shape, model: Model) -> int:
        """One output for each class, or each number."""
        return shape.classes or shape.targets

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """Probabilities (n, classes), or the numbers (n, t)."""
        outputs: Tensor = raw.softmax(dim=1) if batch.shape.classes else raw
        return outputs

    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Cross-entropy or squared error (n,)."""
        if batch.shape.classes:
            return nn.functional.cross_entropy(raw, batch.target, reduction="none")
        squares: Tensor = (raw - batch.target) ** 2
        return squares.sum(dim=1)
