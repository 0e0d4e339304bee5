"""What a trained model answers for encoded features: probabilities of classes, numbers in their own units, codes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedsw.columns import Columns
from fedsw.experiment import ExperimentError
from fedsw.tasks.problem import Problem
from fedsw.tasks.task import Inputs, part

_CLASSES = ("classification", "adaptation")
_GENERATORS = ("generation", "synthesis")


class Answer(nn.Module):
    """A trained model whose outputs are what a person asked for; the same for predictions and for exports.

    Called with features (n, p) as the columns are encoded, it returns (n, k) in the model's precision: for classes
    their probabilities, in the declared order; for a regression numbers in the targets' own units; for representations
    and autoencoders the codes; for a task of a user's own its outputs.
    """

    def __init__(self, problem: Problem, model: nn.Module) -> None:
        super().__init__()
        require_answers(problem)
        self.model = model
        self._problem, self._kind = problem, problem.experiment.objective.task
        low, width = _units(problem.experiment.data.columns if self._kind == "regression" else None)
        self.register_buffer("low", low.to(problem.dtype))
        self.register_buffer("width", width.to(problem.dtype))

    @property
    def classifies(self) -> bool:
        """Whether answers are probabilities of classes."""
        return self._kind in _CLASSES

    def forward(self, features: Tensor) -> Tensor:
        """Answers (n, k) for features (n, p)."""
        given = features.to(self._problem.dtype)
        if (norm := self._problem.experiment.data.row_norm) is not None:
            given = norm * nn.functional.normalize(given, dim=1)
        raw: Any = self.model(given)
        if self._kind == "adaptation":
            return part(raw, "classes", 1).softmax(dim=1)
        found = self._problem.task.outputs(raw, Inputs(given, given[:, :0], self._problem.shape))
        if self._kind == "classification":
            return torch.cat([1 - found, found], dim=1) if self._problem.dimension == 1 else found
        if self._kind == "regression":
            low, width = self.get_buffer("low"), self.get_buffer("width")
            return low + width * found
        return found


def require_answers(problem: Problem) -> None:
    """Refuse a model that takes no records.

    Raises:
        ExperimentError: saying what it makes instead.
    """
    if problem.task.facts.other_side == "generator" or problem.experiment.objective.task in _GENERATORS:
        raise ExperimentError(
            f"the run {problem.experiment.name!r} learnt a generator, which makes records and predicts nothing of a "
            "table; what it makes is in the run's outputs.npz, and `fedsw.load(run).model` is the generator itself"
        )


def _units(columns: Columns | None) -> tuple[Tensor, Tensor]:
    """Lower bounds and widths (t,) of a regression's targets; 0 and 1 where none are declared."""
    if columns is None:
        return torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    low = [0.0 if number.low is None else number.low for number in columns.targets]
    high = [1.0 if number.high is None else number.high for number in columns.targets]
    bounds = torch.tensor([low, high], dtype=torch.float64)
    return bounds[0], bounds[1] - bounds[0]
