"""How a synthetic table compares with held-out records, which no guarantee covers; never with private ones."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw.columns.coded import Coded
from fedsw.data import Records
from fedsw.data.codes import codes_of
from fedsw.randomness import Stream
from fedsw.transport.sliced import directions, sliced_w2

_MOST = 4000
"""Rows of either side that distances look at."""


@dataclass(frozen=True)
class Fidelity:
    """What is like held-out records, each beside what one half of these is for the other: the best to be expected.

    Attributes:
        marginals: total variation between the laws of every column's codes, by column.
        pairs: the same of every two columns, their mean.
        marginals_of_halves, pairs_of_halves: means between two halves of the held-out records.
        correlations: largest change of a correlation (Cramer's V of codes) of two columns, and their names.
        sw2, sw2_of_halves: sliced W2 between encoded features.
        nearest, nearest_of_halves: median and lowest percentile of the distance to the nearest held-out record.
        usefulness: scores on one half of the held-out records, by classifier, of training on the synthetic rows and on
            the other half.
        rates: how often the last class is in each group, synthetic and held-out.
    """

    records: int
    marginals: dict[str, float]
    marginals_of_halves: float
    pairs: float
    pairs_of_halves: float
    correlations: tuple[float, str, str]
    sw2: float
    sw2_of_halves: float
    nearest: tuple[float, float]
    nearest_of_halves: tuple[float, float]
    usefulness: dict[str, dict[str, float]]
    rates: dict[str, tuple[float, float]]

    def plain(self) -> dict[str, Any]:
        """The same as a mapping."""
        return asdict(self)


def fidelity(
    synthetic: Records, held_out: Records, coded: tuple[Coded, ...], *, groups: tuple[str, ...], classes: int
) -> Fidelity:
    """Compare synthetic rows with held-out records.

    Guarantee: none for the held-out records; what is returned are un-noised functions of them.

    Raises:
        ModuleNotFoundError: without scikit-learn (the extra `app`).
        ValueError: with fewer than four held-out records.
    """
    if len(held_out) < 4:
        raise ValueError(f"{len(held_out)} held-out records; a comparison takes at least 4")
    order = torch.from_numpy(np.argsort(Stream.seeded(0, "halves of held-out records").words(len(held_out))))
    one, other = held_out.take(order[::2]), held_out.take(order[1::2])
    made, real, first, second = (codes_of(each, coded).numpy() for each in (synthetic, held_out, one, other))
    sizes = [each.size for each in coded]
    names = [each.name for each in coded]
    few, few_one, few_other = (_first(each) for each in (synthetic, one, other))
    marginals = [_variation(_counts(made, [k], sizes), _counts(real, [k], sizes)) for k in range(len(coded))]
    halves = [_variation(_counts(first, [k], sizes), _counts(second, [k], sizes)) for k in range(len(coded))]
    return Fidelity(
        records=len(held_out),
        marginals=dict(zip(names, marginals, strict=True)),
        marginals_of_halves=float(np.mean(halves)),
        pairs=_pairs(made, real, sizes),
        pairs_of_halves=_pairs(first, second, sizes),
        correlations=_correlations(made, real, sizes, names),
        sw2=_sliced(few, few_other),
        sw2_of_halves=_sliced(few_one, few_other),
        nearest=_nearest(few, few_other),
        nearest_of_halves=_nearest(few_one, few_other),
        usefulness=_usefulness({"synthetic": synthetic, "real": one}, other, classes),
        rates=_rates(synthetic, held_out, groups) if classes > 1 else {},
    )


def _first(records: Records) -> Records:
    return records.take(torch.arange(min(_MOST, len(records))))


def _counts(codes: NDArray[np.int64], columns: list[int], sizes: list[int]) -> NDArray[np.float64]:
    """The law of some columns' codes together, as one vector."""
    place = np.zeros(len(codes), dtype=np.int64)
    for column in columns:
        place = place * sizes[column] + codes[:, column]
    total = int(np.prod([sizes[column] for column in columns]))
    return np.bincount(place, minlength=total) / len(codes)


def _variation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.abs(one - other).sum() / 2)


def _pairs(one: NDArray[np.int64], other: NDArray[np.int64], sizes: list[int]) -> float:
    both = itertools.combinations(range(len(sizes)), 2)
    found = [_variation(_counts(one, [*pair], sizes), _counts(other, [*pair], sizes)) for pair in both]
    return float(np.mean(found)) if found else 0.0


def _correlations(
    one: NDArray[np.int64], other: NDArray[np.int64], sizes: list[int], names: list[str]
) -> tuple[float, str, str]:
    worst = (0.0, "", "")
    for i, j in itertools.combinations(range(len(sizes)), 2):
        found = [_cramers_v(_counts(each, [i, j], sizes).reshape(sizes[i], sizes[j])) for each in (one, other)]
        worst = max(worst, (abs(found[0] - found[1]), names[i], names[j]))
    return worst


def _cramers_v(law: NDArray[np.float64]) -> float:
    """Cramer's V of a joint law (a, b): 0 for independent columns, 1 where one follows from the other."""
    law = law[law.sum(axis=1) > 0][:, law.sum(axis=0) > 0]
    if min(law.shape) < 2:
        return 0.0
    apart = np.outer(law.sum(axis=1), law.sum(axis=0))
    return float(np.sqrt((np.square(law - apart) / apart).sum() / (min(law.shape) - 1)))


def _sliced(one: Records, other: Records) -> float:
    width = one.features.shape[1]
    normals = torch.from_numpy(Stream.seeded(0, "slices of a table").normals(width * 100)).reshape(width, 100)
    theta = directions(width, 100, normals=normals, scheme="iid")
    return float(sliced_w2(one.features.double(), other.features.double(), theta))


def _nearest(one: Records, other: Records) -> tuple[float, float]:
    """Median and lowest percentile of the distances from one side's features to the nearest of the other's."""
    found = torch.cat([torch.cdist(part, other.features).amin(dim=1) for part in torch.split(one.features, 500)])
    return float(found.median()), float(torch.quantile(found, 0.01))


def _usefulness(trained_on: dict[str, Records], tested: Records, classes: int) -> dict[str, dict[str, float]]:
    """Scores of two kinds of models by what they were trained on: accuracy, AUC of two classes, or R2 of numbers."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

    if tested.is_classification and classes < 2:
        return {}
    found: dict[str, dict[str, float]] = {}
    x, y = tested.features.numpy(), tested.target.numpy()
    for origin, records in trained_on.items():
        seen, answers = records.features.numpy(), records.target.numpy()
        if not tested.is_classification:
            answers, wanted = answers.reshape(len(answers), -1)[:, 0], y.reshape(len(y), -1)[:, 0]
            models = {"linear": Ridge(), "gradient boosting": HistGradientBoostingRegressor(random_state=0)}
            scores = {
                name: {"r2": r2_score(wanted, each.fit(seen, answers).predict(x))} for name, each in models.items()
            }
        elif len(np.unique(answers)) < 2:
            continue
        else:
            scores = {}
            kinds = {"logistic regression": LogisticRegression(max_iter=500)}
            kinds["gradient boosting"] = HistGradientBoostingClassifier(random_state=0)
            for name, each in kinds.items():
                each.fit(seen, answers)
                scores[name] = {"accuracy": accuracy_score(y, each.predict(x))}
                if classes == 2 and len(np.unique(y)) == 2:
                    scores[name]["auc"] = roc_auc_score(y, each.predict_proba(x)[:, 1])
        for name, score in scores.items():
            for measure, value in score.items():
                found.setdefault(f"{name}, {measure}", {})[origin] = float(value)
    return found


def _rates(synthetic: Records, held_out: Records, groups: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """How often the last class is in each group, of both tables; nan where nobody is."""
    last = int(held_out.target.max())
    return {
        name: (
            float((synthetic.target[synthetic.sensitive == group] == last).double().mean()),
            float((held_out.target[held_out.sensitive == group] == last).double().mean()),
        )
        for group, name in enumerate(groups)
    }
