"""What a made-up table is worth: classifiers that learn from it, and total variation of its marginals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.synthetic_tables.sets import Table
from fedsw.data import Records

CLASSIFIERS = ("logistic", "boosting")


def scores(made: Records, held_out: Records) -> dict[str, float]:
    """Accuracy and AUC on held-out records of two classifiers that learnt from made-up ones."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, roc_auc_score

    x, y, found = held_out.features.numpy(), held_out.target.numpy(), {}
    models = (LogisticRegression(max_iter=300), HistGradientBoostingClassifier(random_state=0))
    for name, model in zip(CLASSIFIERS, models, strict=True):
        model.fit(made.features.numpy(), made.target.numpy())
        found[f"{name}_accuracy"] = round(float(accuracy_score(y, model.predict(x))), 4)
        found[f"{name}_auc"] = round(float(roc_auc_score(y, model.predict_proba(x)[:, 1])), 4)
    return found


def constant(table: Table) -> dict[str, float]:
    """The scores of always saying the class that most private records have."""
    most = int(np.bincount(table.private.target.numpy()).argmax())
    accuracy = round(float((table.held_out.target.numpy() == most).mean()), 4)
    return {f"{name}_{what}": value for name in CLASSIFIERS for what, value in (("accuracy", accuracy), ("auc", 0.5))}


def variation(made: Records, table: Table) -> dict[str, float]:
    """The mean total variation of single columns and of pairs of them to held-out records, the class among them."""
    sizes, codes = table.sizes, [table.codes(records).numpy() for records in (made, table.held_out)]

    def law(own: Any, columns: Sequence[int]) -> Any:
        place = np.ravel_multi_index([own[:, k] for k in columns], [sizes[k] for k in columns])
        return np.bincount(place, minlength=int(np.prod([sizes[k] for k in columns]))) / len(own)

    found = {}
    for name, count in (("one_way", 1), ("two_way", 2)):
        apart = [
            np.abs(law(codes[0], chosen) - law(codes[1], chosen)).sum() / 2
            for chosen in itertools.combinations(range(len(sizes)), count)
        ]
        found[name] = round(float(np.mean(apart)), 4)
    return found
