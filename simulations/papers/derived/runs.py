"""What runs of one series come to when they are compared with each other."""

from __future__ import annotations

import numpy as np

from simulations.papers.curves import objective
from simulations.papers.study import Result, Study


def accuracy_kept(study: Study) -> list[Result]:
    """`accuracy_drop`: what the accuracy of a label read off the codes loses against weight 0, at equal epsilon.

    Means over seeds.
    """
    found = []
    for series in study.series:
        for epsilon in study.along("epsilon", series):
            reference = study.numbers("code_accuracy", series, {"epsilon": epsilon, "alpha": 0.0})
            for alpha in study.along("alpha", series):
                own = study.numbers("code_accuracy", series, {"epsilon": epsilon, "alpha": alpha})
                if own and reference:
                    drop = float(np.mean(reference) - np.mean(own))
                    found.append(
                        Result(series, {"epsilon": epsilon, "alpha": alpha}, 0, {"accuracy_drop": drop}, {}, {})
                    )
    return found


def paired_spread(study: Study) -> list[Result]:
    """Means over the last half of the rounds: how far the objective spreads over seeds, and what privacy adds.

    `loss_sd`: standard deviation of the objective over seeds; `difference` and `difference_sd`: mean and standard
    deviation, over seeds, of the objective minus that of the run without privacy at the same seed.
    """
    found = []
    for series in study.series:
        for alpha in study.along("alpha", series):
            reference = {result.seed: objective(result) for result in study.of(series, alpha=alpha, epsilon="inf")}
            for epsilon in study.along("epsilon", series):
                own = {result.seed: objective(result) for result in study.of(series, alpha=alpha, epsilon=epsilon)}
                both = sorted(set(own) & set(reference))
                if len(both) < 2:
                    continue
                curves = np.stack([own[seed] for seed in both])
                late = slice(curves.shape[1] // 2, None)
                gaps = curves - np.stack([reference[seed] for seed in both])
                values = {
                    "loss_sd": float(curves.std(axis=0, ddof=1)[late].mean()),
                    "difference": float(gaps.mean(axis=0)[late].mean()),
                    "difference_sd": float(gaps.std(axis=0, ddof=1)[late].mean()),
                }
                found.append(Result(series, {"alpha": alpha, "epsilon": epsilon}, 0, values, {}, {}))
    return found
