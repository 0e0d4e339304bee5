"""The public labelled records of domain adaptation: loaded and checked once, a batch for every attempt."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fedsw.data import Records
from fedsw.experiment import ExperimentError
from fedsw.experiment.sources import load_public
from fedsw.randomness import Stream, smallest_keys
from fedsw.tasks.problem import Problem


class PublicRecords:
    """Batches of the public domain, drawn from public randomness.

    Raises:
        ExperimentError, FileNotFoundError: if there is no public domain, or it does not fit the private records.
    """

    def __init__(self, task: Problem) -> None:
        dataset = load_public(task.experiment)
        if dataset is None:
            raise ExperimentError("domain adaptation needs data.public, the labelled public data set; it is not set")
        if dataset.train.features.shape[1] != task.features or len(dataset.classes) != task.classes:
            raise ExperimentError(
                f"data.public {task.experiment.data.public!r} has {dataset.train.features.shape[1]} features and "
                f"{len(dataset.classes)} classes; the private records have {task.features} and {task.classes}"
            )
        self._records = dataset.train
        self._seed, self._size = task.experiment.slicing.seed, task.experiment.data.public_batch

    def batch(self, round_: int, attempt: int) -> Records:
        """`data.public_batch` records, or all where there are fewer."""
        keys = Stream.seeded(self._seed, "public batch", round_, attempt).words(len(self._records))
        return self._records.take(smallest_keys(keys, min(self._size, len(self._records))))


class ForPublic(nn.Module):
    """A model as public records (m, p) meet it: by its own `public` where it has one, which moves them first.

    Parameters are the model's, in its order.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor) -> Any:
        """What the model returns for public records (m, p)."""
        return getattr(self.model, "public", self.model)(features)
