"""Laws and records for the tests of sketches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.learning.sketches import GaussianKernel, SlicedCramer
from fedsw.learning.sketches.drift import Target, distance_of_sums, drawn_distance_of_sums
from fedsw.learning.sketches.parts import Indicators
from fedsw.learning.sketches.sketch_law import BatchSums, Law, members_of

KERNEL = GaussianKernel((0.5, 1.0, 2.0), 40)
MIXED = Law(6, (GaussianKernel((1.0,), 20, columns=(0, 1, 2)), Indicators((3, 4, 5), weight=2.0)), classes=2, groups=2)
LAWS = {
    "kernel": Law(3, (KERNEL,), classes=3),
    "kernel, groups": Law(3, (KERNEL,), classes=2, groups=2, counts=0.5),
    "kernel, one cell": Law(3, (KERNEL,)),
    "cramer": Law(3, (SlicedCramer(5, 6, 4.0),), classes=2),
    "codes": Law(3, (Indicators((0, 1, 2)),), classes=2, counts=0.25),
    "codes, one cell": Law(3, (Indicators((0, 1, 2)),)),
    "mixed": MIXED,
    "many counts": Law(3, (KERNEL,), classes=3, counts=3.0),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(Stream.seeded(seed, "test data").normals(math.prod(shape))).reshape(shape)


def cells_of(law: Law, n: int, seed: int = 0) -> Tensor:
    words = Stream.seeded(seed, "test cells").uniforms(n)
    return torch.from_numpy((words * law.cells).astype("int64"))


def sums_of_vectors(vectors: Tensor, cells: Tensor, count: int) -> BatchSums:
    """The sums by cell of vectors (m, F) that are there already."""
    members = members_of(cells, count).to(vectors)
    return BatchSums(members @ vectors, members @ vectors.square().sum(dim=1), members.sum(dim=1))


def distance(target: Target, vectors: Tensor, cells: Tensor) -> Tensor:
    return distance_of_sums(target, sums_of_vectors(vectors, cells, len(target.blocks)))


def drawn_distance(target: Target, vectors: Tensor, cells: Tensor) -> Tensor:
    return drawn_distance_of_sums(target, sums_of_vectors(vectors, cells, len(target.blocks)))
