"""The 8x8 digits that come with scikit-learn: real images without a file to find."""

from __future__ import annotations

import numpy as np
import torch

from fedsw.data.images import DIGITS, image_dataset
from fedsw.data.records import Dataset

PRIVATE = 1_437


def digits(*, seed: int = 0) -> Dataset:
    """The 1797 handwritten digits of 8x8 pixels that scikit-learn carries, 1437 of them private.

    Features are the 64 pixels row by row in [0, 1] (16 grey levels and 0, divided by 16), the target is the
    digit. The split is a permutation decided by `seed`, which is public; the published order is by writer. A
    record's id is its place in the published order.

    Args:
        seed: seed of the split.

    Raises:
        ModuleNotFoundError: if scikit-learn is not installed.

    Source: UCI "Optical Recognition of Handwritten Digits", test part (E. Alpaydin, C. Kaynak 1998).
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as fault:
        raise ModuleNotFoundError(
            "the data set 'digits' comes with scikit-learn, which is not installed: `pip install scikit-learn`"
        ) from fault
    pixels, labels = load_digits(return_X_y=True)
    order = torch.from_numpy(np.random.RandomState(seed).permutation(len(labels)))
    features = torch.from_numpy(pixels.astype(np.float32)) / 16
    target = torch.from_numpy(labels.astype(np.int64))
    private, held_out = order[:PRIVATE].sort().values, order[PRIVATE:].sort().values
    return image_dataset(
        "digits",
        (features[private], target[private], private),
        (features[held_out], target[held_out], held_out),
        classes=DIGITS,
    )
