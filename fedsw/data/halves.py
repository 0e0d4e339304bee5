"""Data sets cut in a public and a private half, and classes beside features."""

from __future__ import annotations

import dataclasses

import torch
from torch.nn import functional as F

from fedsw.data.records import Dataset, Records


def public_half(dataset: Dataset) -> Records:
    """The first half of the training records, which belongs to nobody: encoders may learn from it."""
    return dataset.train.take(torch.arange(len(dataset.train) // 2))


def private_half(dataset: Dataset) -> Dataset:
    """The data set with the second half of its training records alone; the held-out ones stay.

    Source: SPF, Section 5.3, which cuts MNIST and Fashion-MNIST like this.
    """
    own = torch.arange(len(dataset.train) // 2, len(dataset.train))
    return dataclasses.replace(dataset, train=dataset.train.take(own))


def with_classes(dataset: Dataset, length: float) -> Dataset:
    """The records with their class beside their features: one-hot, times `length`.

    What is released of such a record's features is released of its class as well, under the same guarantee.

    Raises:
        ValueError: if the data set has no classes, or the length is not above 0.
    """
    if not dataset.classes:
        raise ValueError(f"{dataset.name} has no classes to put beside its features")
    if not length > 0:
        raise ValueError(f"the length of a class's code is {length}; it must be above 0")

    def beside(records: Records) -> Records:
        codes = length * F.one_hot(records.target, len(dataset.classes)).to(records.features)
        return dataclasses.replace(records, features=torch.cat([records.features, codes], dim=1))

    names = (*dataset.feature_names, *(f"class({name})" for name in dataset.classes))
    return dataclasses.replace(dataset, train=beside(dataset.train), test=beside(dataset.test), feature_names=names)
