"""What held-out metrics are compared with: the best constant, chance, and the loss before training.

All of it is of held-out records, outside the guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw import metrics
from fedsw.data import Records

_DRAWS = 400
_LEVEL = 1.96
"""Standard errors of a normal law that hold 95 %."""


@dataclass(frozen=True)
class Quality:
    """How much held-out metrics are worth.

    Attributes:
        constant: metrics of the best predictor that looks at no input: the most frequent class, or the mean target, of
            the held-out records themselves.
        answer: what it always answers, in words.
        best_threshold: for two classes, the threshold on the outputs that is right most often on these records, and how
            often; an upper limit for what another threshold could bring.
        standard_errors: of held-out metrics, over draws of held-out records.
        gain: how much better than the constant the model is in its first metric, and the standard error of that.
        one_answer: whether the model answers the same class for every record.
    """

    constant: Mapping[str, float] = field(default_factory=dict)
    answer: str = ""
    best_threshold: Mapping[str, float] = field(default_factory=dict)
    standard_errors: Mapping[str, float] = field(default_factory=dict)
    gain: tuple[float, float] | None = None
    one_answer: bool = False

    @property
    def below_constant(self) -> bool:
        """Whether a constant would have done better."""
        return self.gain is not None and not self.gain[0] >= 0

    @property
    def within_chance(self) -> bool:
        """Whether the held-out records are too few to tell the model from a constant, at the 95 % level."""
        return self.gain is not None and abs(self.gain[0]) < _LEVEL * self.gain[1]


def quality_of_classes(
    outputs: Tensor, records: Records, *, groups: int, classes: int, names: Sequence[str] = ()
) -> Quality:
    """What a classifier's held-out metrics are worth.

    Args:
        outputs: probabilities (n, 1) of class 1 of two, or (n, d) of d classes.
        records: the n held-out records.
        names: of the classes, for words.
    """
    predicted, target = metrics.predictions(outputs), records.target
    most = int(torch.bincount(target, minlength=classes).argmax())
    always = torch.full_like(predicted, most)
    gained = ((predicted == target).double() - (always == target).double()).numpy()
    thresholds = {} if classes > 2 else best_threshold(outputs[:, 0].double(), target)
    return Quality(
        constant={
            "accuracy": metrics.accuracy(always, target),
            "disparate_impact": 1.0,
            "demographic_parity_difference": 0.0,
            "equalized_odds_difference": 0.0,
        },
        answer=f"always {names[most]!r}" if names else f"always class {most}",
        best_threshold=thresholds,
        standard_errors=_class_errors(predicted, target, records.sensitive, groups, classes),
        gain=(
            float(gained.mean()),
            float(gained.std(ddof=1) / math.sqrt(len(gained))) if len(gained) > 1 else math.inf,
        ),
        one_answer=bool((predicted == predicted[0]).all()),
    )


def quality_of_numbers(outputs: Tensor, records: Records) -> Quality:
    """What a regression's held-out squared error is worth.

    Args:
        outputs: (n, t) predictions.
        records: the n held-out records, with targets (n, t).
    """
    predicted, target = outputs.double(), records.target.double()
    own = (predicted - target).square().reshape(len(target), -1).sum(dim=1).numpy()
    mean = target.mean(dim=0, keepdim=True)
    always = (target - mean).square().reshape(len(target), -1).sum(dim=1).numpy()
    gained, count = always - own, len(own)
    errors = {"mean_squared_error": float(own.std(ddof=1) / math.sqrt(count))} if count > 1 else {}
    said = ", ".join(f"{value:.3g}" for value in mean.flatten().tolist()[:4])
    return Quality(
        constant={"mean_squared_error": float(always.mean()), "w2_squared": 0.0},
        answer=f"always the mean, {said}",
        standard_errors=errors,
        gain=(float(gained.mean()), float(gained.std(ddof=1) / math.sqrt(count)) if count > 1 else math.inf),
    )


def best_threshold(outputs: Tensor, target: Tensor) -> dict[str, float]:
    """The threshold above which class 1 is answered that is right most often, and how often; outputs, target: (n,)."""
    order = torch.argsort(outputs)
    ranked, positive = outputs[order], target[order].double()
    below = torch.cat([torch.zeros(1, dtype=torch.float64), torch.cumsum(1 - positive, 0)])
    above = torch.cat([torch.flip(torch.cumsum(torch.flip(positive, (0,)), 0), (0,)), torch.zeros(1).double()])
    possible = torch.ones(len(below), dtype=torch.bool)
    possible[1:-1] = ranked[1:] > ranked[:-1]
    right = torch.where(possible, below + above, -1.0)
    place = int(right.argmax())
    if place == 0:
        threshold = float(ranked[0]) - 1.0
    elif place == len(ranked):
        threshold = float(ranked[-1])
    else:
        threshold = float((ranked[place - 1] + ranked[place]) / 2)
    return {"threshold": threshold, "accuracy": float(right[place]) / len(ranked)}


def _class_errors(predicted: Tensor, target: Tensor, sensitive: Tensor, groups: int, classes: int) -> dict[str, float]:
    """Bootstrap standard errors: records are drawn again, which is a multinomial draw of their table of counts."""
    cell = (sensitive * classes + target) * classes + predicted
    counts = torch.bincount(cell, minlength=groups * classes * classes).double().numpy()
    drawn = np.random.default_rng(0).multinomial(int(counts.sum()), counts / counts.sum(), _DRAWS)
    tables = drawn.reshape(_DRAWS, groups, classes, classes).astype(np.float64)
    return spread_of(metrics_of_tables(tables))


def metrics_of_tables(tables: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Metrics (D,) of counts by group, class and answer, (D, groups, classes, classes); nan where undefined."""
    values = {"accuracy": np.trace(tables.sum(1), axis1=1, axis2=2) / tables.sum((1, 2, 3))}
    if tables.shape[1] > 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = tables.sum(2) / tables.sum((2, 3))[:, :, None]
            positive = rates[:, :, 1]
            values["disparate_impact"] = positive.min(1) / positive.max(1)
            values["demographic_parity_difference"] = (rates.max(1) - rates.min(1)).max(1)
            odds = tables / tables.sum(3)[:, :, :, None]
            values["equalized_odds_difference"] = (odds.max(1) - odds.min(1)).max((1, 2))
    return values


def spread_of(values: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Standard deviations over draws (D,), of what is a number in more than half of them."""
    finite = {name: draws[np.isfinite(draws)] for name, draws in values.items()}
    return {name: float(draws.std(ddof=1)) for name, draws in finite.items() if 2 * len(draws) > len(values[name])}
