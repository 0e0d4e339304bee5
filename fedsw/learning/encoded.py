"""Records as codes of an autoencoder that learnt from the public half of a data set, trained once and kept."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import os
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional as F

from fedsw._tools import files
from fedsw._tools.randomness import Stream
from fedsw.data import Dataset, Records
from fedsw.data.image_sets import private_half, public_half
from fedsw.learning.models._perceptrons import UnitAutoencoder

_BATCH = 128
_LEARNING_RATE = 1e-3
_CHUNK = 2048


def encoded(dataset: Dataset, latent: int, epochs: int) -> Dataset:
    """The private half of a data set of images, as codes (n, latent) on the unit sphere; so are its held-out images.

    The encoder looks at the public half alone and at no private record, so that a code is a function of its own record:
    what protects codes protects records. Source: SPF, Section 5.3.
    """
    model = public_autoencoder(dataset, latent, epochs)

    def codes(records: Records) -> Records:
        with torch.no_grad():
            parts = [model.encode(part) for part in torch.split(records.features, _CHUNK)]
        return dataclasses.replace(records, features=torch.cat(parts))

    private = private_half(dataset)
    names = tuple(f"code({index})" for index in range(latent))
    return dataclasses.replace(private, train=codes(private.train), test=codes(private.test), feature_names=names)


def public_autoencoder(dataset: Dataset, latent: int, epochs: int) -> UnitAutoencoder:
    """The autoencoder of a data set's public half, in evaluation mode; from the cache if it was trained before.

    Adam at 1e-3 in batches of 128, binary cross-entropy of the pixels; the order of the records is seeded.
    """
    import pooch

    images = public_half(dataset).features
    model = UnitAutoencoder(math.isqrt(images.shape[1]), latent)
    folder = Path(os.environ.get("FEDSW_CACHE") or pooch.os_cache("fedsw")) / "autoencoders"
    path = folder / f"{_digest(images, latent, epochs)}.safetensors"
    if path.is_file():
        model.load_state_dict(load(path.read_bytes()))
        return model.eval()
    _train(model, images, epochs)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, save(model.state_dict()))
    return model.eval()


def _train(model: UnitAutoencoder, images: Tensor, epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    for epoch in range(epochs):
        order = torch.from_numpy(Stream.seeded(0, "public autoencoder", epoch).uniforms(len(images))).argsort()
        for rows in torch.split(order, _BATCH):
            _, made = model(images[rows])
            optimizer.zero_grad()
            torch.autograd.backward(F.binary_cross_entropy(made, images[rows]))
            optimizer.step()


@functools.lru_cache(maxsize=4)
def _digest(images: Tensor, latent: int, epochs: int) -> str:
    content = hashlib.sha256(images.numpy().tobytes()).hexdigest()[:16]
    return f"{content}-{latent}-{epochs}-{_BATCH}-{_LEARNING_RATE}-{UnitAutoencoder.__name__}"
