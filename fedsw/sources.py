"""From an experiment's settings to its records: private and held-out ones, and a public domain where one is asked."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsw import data
from fedsw.data import Dataset
from fedsw.experiment import Data, Experiment, Partition

Target = Literal["class", "point"]

_IMAGE_SIDE = 28
"""Side at which two image sets of different sizes meet."""


def load_dataset(experiment: Experiment, data_dir: str | None = None) -> Dataset:
    """The experiment's data set, kept in memory for the other nodes of this process.

    Raises:
        FileNotFoundError: with the folders searched and what to do.
    """
    target: Target = "point" if experiment.objective.task == "regression" else "class"
    return _load(experiment.data, target, data_dir or experiment.data.data_dir)


def load_public(experiment: Experiment, data_dir: str | None = None) -> Dataset | None:
    """The public labelled data set of domain adaptation; None for other tasks.

    Raises:
        FileNotFoundError: as `load_dataset`.
    """
    spec = experiment.data
    if spec.public is None:
        return None
    return _load(spec.model_copy(update={"source": spec.public}), "class", data_dir or spec.data_dir)


def split(dataset: Dataset, partition: Partition, clients: int) -> list[NDArray[np.int64]]:
    """Positions of each client's records in the training part; disjoint, exhaustive, decided by the partition seed."""
    return data.partition(
        dataset.train,
        clients,
        scheme=partition.scheme,
        concentration=partition.concentration,
        by=partition.by,
        seed=partition.seed,
    )


@functools.lru_cache(maxsize=4)
def _load(spec: Data, target: Target, data_dir: str | None) -> Dataset:
    if spec.source == "synthetic":
        return data.synthetic(
            spec.records,
            n_test=spec.test_records,
            p=spec.correlation,
            d_core=spec.core_features,
            d_spurious=spec.spurious_features,
            var_core=spec.core_variance,
            var_spurious=spec.spurious_variance,
            target=target,
            seed=spec.seed,
        )
    if spec.source == "adult":
        return data.adult(data_dir)
    if spec.source == "ring":
        return data.ring(spec.records, spec.test_records, seed=spec.seed)
    if spec.source == "gaussians":
        return data.gaussians(spec.records, spec.test_records, seed=spec.seed)
    if spec.source == "digits":
        return data.digits(seed=spec.seed)
    images = {"mnist": data.mnist, "fashion-mnist": data.fashion_mnist, "usps": data.usps}[spec.source](data_dir)
    return images if spec.public is None else data.resized(images, _IMAGE_SIDE)
