"""What a synthetic table is worth for prediction: models trained on it and on real records, beside a constant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw.data import Records
from fedsw.runs import intervals
from fedsw.runs.intervals import LEVEL, SURE, Gain, Interval
from fedsw.runs.quality import units_of
from fedsw.text import measured, number

SYNTHETIC, REAL = "synthetic", "real"
_LITTLE = 0.5
"""Of what real records teach: a table that keeps less is of little use."""

Array = NDArray[np.float64]
_Around = Callable[[Array, float], Gain]
"""How much better than a constant predictions (n,) or (n, c) are, at a level."""


@dataclass(frozen=True)
class Usefulness:
    """What a model learns from synthetic rows, on held-out records that it has not seen.

    Attributes:
        model: the kind of model, that of two which does better when it is trained on real records.
        measure: AUC for two classes, accuracy for more, R2 for numbers.
        records: how many it is tested on.
        constant: the measure of the best constant.
        scores: by what the model was trained on.
        around: where each lies, 95 %, over draws of units.
        gains: how much better than the constant each is, 98 %.
        by_model: the scores of both kinds of models, by kind and measure.
    """

    model: str
    measure: str
    records: int
    constant: float
    scores: Mapping[str, float]
    around: Mapping[str, Interval]
    gains: Mapping[str, Gain]
    by_model: Mapping[str, Mapping[str, float]]

    @property
    def useless(self) -> bool:
        """Whether what real records teach is lost in the table: most of it, or all that can be seen."""
        return self.gains[REAL].above and (not self.gains[SYNTHETIC].above or self.kept < _LITTLE)

    @property
    def lost(self) -> float:
        """How much lower the score is that is learnt from the table."""
        return self.scores[REAL] - self.scores[SYNTHETIC]

    @property
    def kept(self) -> float:
        """The part of what a model learns from real records, beyond a constant, that it learns from the table."""
        return self.gains[SYNTHETIC].value / self.gains[REAL].value

    @property
    def verdict(self) -> str:
        """In two sentences, numbers with their intervals."""
        made, real = (measured(self.scores[each], self.around[each]) for each in (SYNTHETIC, REAL))
        shown = (
            f"{self.measure} on {self.records} held-out records of {self.model}: trained on the synthetic rows {made}, "
            f"on real ones {real}, so that {self.lost:.3f} is lost; a constant {number(self.constant)}."
        )
        if not self.gains[REAL].above:
            return (
                "Nobody can say whether the table is of use for prediction: these held-out records are too few, or "
                f"teach nothing. {shown}"
            )
        if not self.gains[SYNTHETIC].above:
            return (
                "The table is of no use for prediction: a model that learns from it cannot be told from a constant. "
                f"{shown}"
            )
        if self.useless:
            return (
                f"The table is of little use for prediction: {1 - self.kept:.0%} of what can be learnt is lost. {shown}"
            )
        return f"For prediction the table keeps {min(self.kept, 1):.0%} of what can be learnt. {shown}"


def usefulness(synthetic: Records, real: Records, tested: Records, classes: int) -> Usefulness | None:
    """Train two kinds of models on synthetic rows and on real records, and test them on others.

    Args:
        tested: records of which neither model has seen one.
        classes: how many; 0 for numbers, of which the first is predicted.

    Returns:
        None where there is nothing to predict: no target, or one class alone among the records that are tested.
    """
    origins = {SYNTHETIC: synthetic, REAL: real}
    if not tested.is_classification:
        return _of_numbers(origins, tested)
    if classes < 2 or len(np.unique(tested.target.numpy())) < 2 or len(np.unique(real.target.numpy())) < 2:
        return None
    return _of_classes(origins, tested, classes)


def _of_numbers(origins: Mapping[str, Records], tested: Records) -> Usefulness:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge

    wanted, units = _first(tested), units_of(tested)
    always = np.square(wanted - wanted.mean())
    scale = float(always.mean()) or 1.0

    def around(predicted: Array, level: float) -> Gain:
        return intervals.paired_mean((always - np.square(wanted - predicted)) / scale, units, level)

    def predicted(make: Callable[[], Any], records: Records) -> Array:
        found = make().fit(records.features.numpy(), _first(records)).predict(tested.features.numpy())
        return np.asarray(found, dtype=np.float64)

    kinds = {"linear": Ridge, "gradient boosting": lambda: HistGradientBoostingRegressor(random_state=0)}
    return _compared(kinds, predicted, origins, "R2", 0.0, around, len(tested))


def _first(records: Records) -> Array:
    target = records.target.double().numpy()
    return np.asarray(target.reshape(len(target), -1)[:, 0])


def _of_classes(origins: Mapping[str, Records], tested: Records, classes: int) -> Usefulness:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    wanted, units = tested.target.numpy(), units_of(tested)
    most = int(np.bincount(wanted, minlength=classes).argmax())

    def predicted(make: Callable[[], Any], records: Records) -> Array:
        seen = records.target.numpy()
        chances = np.zeros((len(tested), classes))
        if len(np.unique(seen)) < 2:
            chances[:, seen[0]] = 1.0  # of one class alone nothing else is learnt
            return chances
        model = make().fit(records.features.numpy(), seen)
        chances[:, model.classes_] = model.predict_proba(tested.features.numpy())
        return chances

    kinds = {
        "logistic regression": lambda: LogisticRegression(max_iter=500),
        "gradient boosting": lambda: HistGradientBoostingClassifier(random_state=0),
    }
    if classes == 2:
        return _compared(kinds, predicted, origins, "AUC", 0.5, _around_area(wanted, units), len(tested))

    def around(chances: Array, level: float) -> Gain:
        right = (chances.argmax(axis=1) == wanted).astype(np.float64)
        return intervals.gain(right - (wanted == most), units, level)

    return _compared(kinds, predicted, origins, "accuracy", float((wanted == most).mean()), around, len(tested))


def _around_area(wanted: NDArray[np.int64], units: NDArray[np.int64]) -> _Around:
    from sklearn.metrics import roc_auc_score

    ones, others = (len(np.unique(units[wanted == each])) for each in (1, 0))

    def around(chances: Array, level: float) -> Gain:
        area = float(roc_auc_score(wanted, chances[:, 1]))
        low, high = intervals.curve_area(area, ones, others, level)
        return Gain(area - 0.5, low - 0.5, high - 0.5)

    return around


def _compared(
    kinds: Mapping[str, Callable[[], Any]],
    predicted: Callable[[Callable[[], Any], Records], Array],
    origins: Mapping[str, Records],
    measure: str,
    constant: float,
    around: _Around,
    records: int,
) -> Usefulness:
    """The kind is chosen by what it learns from real records: the table has no say in it."""
    predictions = {
        kind: {name: predicted(make, each) for name, each in origins.items()} for kind, make in kinds.items()
    }
    sure = {kind: {name: around(each, SURE) for name, each in by.items()} for kind, by in predictions.items()}
    best = max(sure, key=lambda kind: sure[kind][REAL].value)
    likely = {name: around(each, LEVEL) for name, each in predictions[best].items()}
    return Usefulness(
        best,
        measure,
        records,
        constant,
        {name: constant + each.value for name, each in likely.items()},
        {name: Interval(constant + each.low, constant + each.high) for name, each in likely.items()},
        sure[best],
        {f"{kind}, {measure}": {name: constant + each.value for name, each in by.items()} for kind, by in sure.items()},
    )
