"""Directions that everybody may know: from a public seed, apart from data, sampling and noise."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsw.randomness import Label, Stream
from fedsw.transport.sliced import Scheme, direction_shape, directions


def public_directions(d: int, k: int, scheme: Scheme, seed: int, *purpose: Label) -> Tensor:
    """Unit columns (d, k), float64, the same for everybody with the seed; the single direction 1 where d is 1."""
    if d == 1:
        return directions(1, 1)
    rows, columns = direction_shape(d, k, scheme)
    normals = Stream.seeded(seed, *purpose).normals(rows * columns).reshape(rows, columns)
    return directions(d, k, normals=torch.from_numpy(normals), scheme=scheme)
