"""Frechet distances of generators' samples and of decoded particles, in features learnt from public images."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsw.data import Dataset
from fedsw.data.sources import load_images
from fedsw.learning.encoded import public_autoencoder
from simulations.papers.finished import Finished
from simulations.papers.measures.frechet import features_of, frechet, lenet_features
from simulations.papers.store import Measured

_SAMPLES = 5_000
_CHUNK = 2_000
_SHOWN = 40


def samples(run: Finished) -> Measured:
    """`frechet_lenet`, of 5000 generated images to one half of the held-out ones, in features of a LeNet of the other.

    No more images are generated than are held out. The LeNet is that of `measures.frechet`: it learnt from the labelled
    held-out images at even positions, which are public, and the distance is to those at odd positions; no private
    record is looked at. Codes are decoded by the public autoencoder first. It is not the FID. `images` (40, side^2) has
    samples, as bytes.
    """
    dataset = load_images(run.experiment.data)
    network, real = _lenet(dataset.name, dataset)
    made = images_of(run, min(_SAMPLES, len(dataset.test)))
    shown = (made[:_SHOWN].clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return Measured({"frechet_lenet": frechet(features_of(network, made), real)}, {"images": shown})


def images_of(run: Finished, count: int) -> Tensor:
    """Generated images (m, side^2), m at most `count`: a generator's samples, or decoded particles."""
    spec = run.experiment.data
    with torch.no_grad():
        if run.experiment.model.kind != "particles":
            latents = run.problem.latents(count, "measured")
            return torch.cat([run.model(part) for part in torch.split(latents, _CHUNK)]).float()
        codes = run.model()[:count]
        if spec.encoded is None:
            return torch.as_tensor(codes).float()
        decoder = public_autoencoder(load_images(spec), spec.encoded, spec.encoder_epochs)
        return torch.cat([decoder.decode(part) for part in torch.split(codes, _CHUNK)]).float()


@functools.lru_cache(maxsize=4)
def _lenet(name: str, dataset: Dataset) -> tuple[nn.Module, NDArray[np.float64]]:
    images, labels = dataset.test.features, dataset.test.target
    network = lenet_features(images[::2], labels[::2], classes=len(dataset.classes))
    return network, features_of(network, images[1::2])
