"""Regression of one number in the units of the papers, and Xian et al.'s private post-processing of its predictions."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw.data import Records
from fedsw.desk.baselines.processed import GROUP, bounded_histograms, release_histograms
from fedsw.learning.tasks import metrics
from fedsw.mathematics.transport.barycentre import distributions_of, fair_maps
from fedsw.privacy.accounting import Ledger
from simulations.papers.finished import Finished
from simulations.papers.store import Measured

EPSILON = 1.0
"""Of the histograms' release, which composes with the run's own: pure, on top of it."""

BINS = 40
RADII = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
"""Radii beta of the Kolmogorov-Smirnov ball; 1 would leave the predictions where they are."""

_RANGE = {"synthetic": 2.0, "law-school": 3.0, "communities": 1.0}
"""Length of the papers' range of targets, of which [0, 1] is ours."""


def one_number(run: Finished) -> Measured:
    """Mean squared error, largest W2^2 and Kolmogorov-Smirnov distance between groups as `mse`, `w2`, `ks`.

    Of held-out records, in the paper's units (targets in [-1, 1] for the synthetic law).
    """
    return Measured(_scores(run, _predicted(run, run.dataset.test), run.dataset.test))


def post_processed(run: Finished) -> Measured:
    """The same after private fair post-processing, for several radii: `beta`, `mse`, `w2`, `ks`, each (betas,).

    Histograms of the run's predictions for its private records are released once, (1, 0)-differentially private, with
    an account of their own in the run's folder; run and histograms compose to (epsilon + 1, delta). All radii use the
    one release, which is kept: measuring again spends nothing.

    Source: Xian, Li, Kamath, Zhao 2024; RLL, remark C.4.
    """
    dataset, edges = run.dataset, np.linspace(0.0, 1.0, BINS + 1)
    counts = _released(run, edges)
    found = []
    own, groups = _predicted(run, dataset.test), dataset.test.sensitive.numpy()
    for number, radius in enumerate(RADII):
        maps = fair_maps(*distributions_of(counts), edges, radius)
        fair = maps(own, groups, np.random.default_rng(number))
        found.append(_scores(run, fair, dataset.test))
    arrays = {name: np.array([each[name] for each in found]) for name in found[0]}
    return Measured({"histogram_epsilon": EPSILON}, {"beta": np.array(RADII), **arrays})


def _released(run: Finished, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The noised histograms of a run: those that left before, or fresh ones that its account pays for."""
    kept = run.directory / "histograms.npy"
    if kept.is_file():
        return np.asarray(np.load(kept))
    records, delta = run.dataset.train, float(run.record.summary["delta"])
    scores = _predicted(run, records)
    bounded = bounded_histograms(scores, records.sensitive.numpy(), edges, count=len(run.dataset.groups))
    path = run.directory / "histograms-ledger.sqlite"
    with Ledger.create(path, groups=[GROUP], delta=delta, epsilon=EPSILON, accountant="laplace") as ledger:
        counts = release_histograms(bounded, EPSILON, ledger)
    np.save(kept, counts)
    return counts


def _predicted(run: Finished, records: Records) -> NDArray[np.float64]:
    """Predictions (n,) in [0, 1]."""
    with torch.no_grad():
        raw = run.model(run.problem.given(records).features)
        given = run.problem.given(records)
        return run.problem.task.outputs(raw, given)[:, 0].double().numpy()


def _scores(run: Finished, predicted: NDArray[np.float64], records: Records) -> dict[str, float]:
    length, values = _RANGE[run.experiment.data.source], torch.from_numpy(predicted)[:, None]
    groups = len(run.dataset.groups)
    return {
        "mse": length**2 * metrics.mean_squared_error(values, records.target),
        "w2": length**2 * metrics.w2_squared(values, records.sensitive, groups=groups),
        "ks": metrics.kolmogorov_smirnov(values, records.sensitive, groups=groups),
    }
