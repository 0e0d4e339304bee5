"""Pictures of an autoencoder: held-out images and what becomes of them, images of the prior, interpolations, codes.

All are of held-out records and of the prior: no private record is read.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simulations.papers.finished import Finished
from simulations.papers.measures.autoencoders import decoded, encoded, first_of_each, inside, prior
from simulations.papers.store import Measured

STEPS = 10
"""Images of an interpolation, its two ends among them."""

_GENERATED = 100
_CODES = 2000
_GREYS = 16


def pictures(run: Finished) -> Measured:
    """Images in 16 greys, uint8, rows of pixels.

    `originals` (c, p) and `reconstructed` (c, p): the earliest held-out image of each class; `generated` (100, p);
    `interpolated` (c (c - 1) / 2, 10, p): what lies between their codes, for every pair of classes in order.
    """
    test = run.dataset.test
    images = test.features[first_of_each(test.target)]
    codes = encoded(run, images)
    between = interpolations(codes)
    found = decoded(run, between.reshape(-1, codes.shape[1]))
    return Measured(
        arrays={
            "originals": _greys(images),
            "reconstructed": _greys(decoded(run, codes)),
            "generated": _greys(decoded(run, prior(run, _GENERATED, "pictures"))),
            "interpolated": _greys(found).reshape(*between.shape[:2], -1),
        }
    )


def interpolations(codes: Tensor) -> Tensor:
    """The straight lines between every two codes (c, d): (c (c - 1) / 2, 10, d), pairs i < j in order, i first."""
    share = torch.linspace(0, 1, STEPS, dtype=codes.dtype).reshape(-1, 1)
    lines = [(1 - share) * codes[i] + share * codes[j] for i, j in combinations(range(len(codes)), 2)]
    return torch.stack(lines)


def codes(run: Finished) -> Measured:
    """Codes (n, d) of the first held-out images as `codes`, projected as in training, and their `labels` (n,)."""
    test = run.dataset.test
    found = inside(run, encoded(run, test.features[:_CODES]))
    return Measured(
        arrays={"codes": found.numpy().astype(np.float16), "labels": test.target[:_CODES].numpy().astype(np.uint8)}
    )


def _greys(images: Tensor) -> NDArray[Any]:
    """Bytes of 16 levels, which compress well."""
    level = 255 // (_GREYS - 1)
    return np.asarray((images.clamp(0, 1) * (_GREYS - 1)).round().numpy() * level, dtype=np.uint8)
