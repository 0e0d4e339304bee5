"""Xian et al.'s private fair post-processing with the targets themselves as scores, as their notebooks run it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw import data
from fedsw.data import Dataset
from fedsw.desk.baselines.processed import GROUP, bounded_histograms, release_histograms
from fedsw.learning.tasks import metrics
from fedsw.mathematics.transport.barycentre import distributions_of, fair_maps
from fedsw.privacy.accounting import Ledger
from fedsw.runs.run_files import RunFile
from simulations.papers.store import Measured

_LOADERS = {"law-school": data.law_school, "communities": data.communities}
_LENGTHS = {"law-school": 3.0, "communities": 1.0}
"""Of the range of targets, of which [0, 1] is ours."""

_DELTA = 1e-6
"""Of the accounts, which are pure and do not use it."""


def targets_as_scores(
    *,
    sources: Sequence[str],
    epsilons: Sequence[float],
    bins: int,
    radius: float,
    splits: int,
    data_dir: str | None = None,
) -> Measured:
    """(mean squared error, Kolmogorov-Smirnov distance) on the held-out part, means over splits.

    Values are `<source>_mse_<epsilon>` and `<source>_ks_<epsilon>`, and `<source>_ks_none` without processing. Every
    release is charged to an account of its own: all of them on the same records compose.
    """
    values: dict[str, float] = {}
    for source in sources:
        name = source.replace("-", "_")
        sets = [_LOADERS[source](data_dir, split_seed=seed) for seed in range(splits)]
        values[f"{name}_ks_none"] = float(np.mean([_ks(_scores(each), each) for each in sets]))
        for epsilon in epsilons:
            found = np.array([_processed(each, epsilon, bins, radius, seed) for seed, each in enumerate(sets)])
            mse, ks = found.mean(axis=0)
            values |= {
                f"{name}_mse_{epsilon:g}": float(mse * _LENGTHS[source] ** 2),
                f"{name}_ks_{epsilon:g}": float(ks),
            }
    return Measured(values)


def _processed(dataset: Dataset, epsilon: float, bins: int, radius: float, seed: int) -> tuple[float, float]:
    edges, private = np.linspace(0.0, 1.0, bins + 1), dataset.train
    scores = private.target[:, 0].double().numpy()
    bounded = bounded_histograms(scores, private.sensitive.numpy(), edges, count=len(dataset.groups))
    with TemporaryDirectory() as folder:
        limits = {"groups": [GROUP], "delta": _DELTA, "epsilon": epsilon, "accountant": "laplace"}
        with Ledger.create(Path(folder) / RunFile.LEDGER, **limits) as ledger:  # type: ignore[arg-type]
            counts = release_histograms(bounded, epsilon, ledger)
    maps = fair_maps(*distributions_of(counts), edges, radius)
    own = _scores(dataset)
    fair = maps(own, dataset.test.sensitive.numpy(), np.random.default_rng(seed))
    return float(np.square(fair - own).mean()), _ks(fair, dataset)


def _scores(dataset: Dataset) -> NDArray[np.float64]:
    return dataset.test.target[:, 0].double().numpy()


def _ks(scores: NDArray[np.float64], dataset: Dataset) -> float:
    groups = len(dataset.groups)
    return metrics.kolmogorov_smirnov(torch.from_numpy(scores), dataset.test.sensitive, groups=groups)
