"""Fréchet distances between generated and held-out images, in the features of a network that is named.

A Fréchet distance is that of the Gaussians with the features' means and covariances: its number depends on the network,
so that FID (Inception's) and the distance in a LeNet's features have names of their own. No private record is read.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsw.data import Dataset
from simulations.papers.finished import Finished
from simulations.papers.measures.autoencoders import decoded, in_parts, prior
from simulations.papers.store import Measured

INCEPTION = "FEDSW_INCEPTION"
"""The environment variable that names a TorchScript file: images (n, 3, h, w), bytes, to Inception features (n, f)."""

GENERATED = 10_000
_EPOCHS, _BATCH, _RATE = 8, 100, 1e-3


def lenet(run: Finished) -> Measured:
    """`frechet_lenet`: of 10 000 generated images to one half of the held-out ones, features of a LeNet of the other.

    No more images are generated than are held out. The LeNet learns to classify the held-out images at even positions;
    the distance is to those at odd positions.
    `frechet_lenet_floor` is the distance between these two halves.
    """
    began = time.perf_counter()
    found = decoded(run, prior(run, min(GENERATED, len(run.dataset.test)), "frechet"))
    network, own, real = _lenet_of(run.dataset.name, run.dataset)
    distance = frechet(features_of(network, found), real)
    return Measured(
        {
            "frechet_lenet": distance,
            "frechet_lenet_floor": frechet(own, real),
            "frechet_seconds": time.perf_counter() - began,
        }
    )


def inception(run: Finished) -> Measured:
    """`fid`: the same of 10 000 generated images to all held-out ones, in features of Inception.

    The weights are the user's: the variable FEDSW_INCEPTION names a TorchScript file, such as the
    `inception-2015-12-05.pt` that FID is mostly computed with (called with `return_features=True` where it takes it).
    Without it there is no number; the measure waits, and is taken when the variable is set.

    Raises:
        ValueError: if the file cannot be read as TorchScript, naming it.
    """
    given = os.environ.get(INCEPTION)
    if not given:
        words = f"FID needs Inception weights: set {INCEPTION} to a TorchScript file of images to features"
        return Measured({"fid_missing": words, "waits_for": INCEPTION})
    network = _inception(Path(given))
    real = in_parts(network, run.dataset.test.features).double().numpy()
    found = (
        in_parts(network, decoded(run, prior(run, min(GENERATED, len(run.dataset.test)), "frechet"))).double().numpy()
    )
    return Measured({"fid": frechet(found, real)})


def frechet(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The squared Fréchet distance of the Gaussians of two samples of features (n, f) and (m, f).

    |mean1 - mean2|^2 + tr(C1 + C2 - 2 (C1^1/2 C2 C1^1/2)^1/2); the last trace is the sum of the singular values of
    C1^1/2 C2^1/2, which needs no root of a product.

    Raises:
        ValueError: if a sample has fewer than two rows, or widths differ.

    Source: Heusel et al. 2017; Dowson and Landau 1982.
    """
    if one.ndim != 2 or other.ndim != 2 or one.shape[1] != other.shape[1] or min(len(one), len(other)) < 2:
        raise ValueError(f"features of shapes {one.shape} and {other.shape}; (n, f) and (m, f), n and m above 1, fit")
    means = float(np.square(one.mean(0) - other.mean(0)).sum())
    first, second = (np.atleast_2d(np.cov(each, rowvar=False)) for each in (one, other))
    overlap = np.linalg.svd(_root(first) @ _root(second), compute_uv=False).sum()
    return means + float(np.trace(first) + np.trace(second) - 2 * overlap)


def features_of(network: nn.Module, images: Tensor) -> NDArray[np.float64]:
    """Features (n, f) of images (n, p)."""
    return np.asarray(in_parts(network, images).double().numpy())


def lenet_features(images: Tensor, labels: Tensor, *, classes: int, seed: int = 0) -> nn.Module:
    """A LeNet trained on square images (n, side^2) with labels (n,), without its last layer: features (n, 84).

    Two 5x5 convolutions (6 and 16 filters) with ReLU and 2x2 maxima, then layers of 120, 84 and `classes` units; Adam
    at 1e-3, 8 passes in batches of 100. The seed decides initialisation and order.

    Source: LeCun et al. 1998, with ReLU and maxima.
    """
    side = round(images.shape[1] ** 0.5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        features = nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(1)),
            *(nn.Linear(16 * ((side // 2 - 4) // 2) ** 2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        )
        model = nn.Sequential(features, nn.Linear(84, classes))
        optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
        for _ in range(_EPOCHS):
            for batch in torch.split(torch.randperm(len(images)), _BATCH):
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(model(images[batch]), labels[batch]))
                optimizer.step()
    return features.eval()


_networks: dict[str, tuple[nn.Module, NDArray[np.float64], NDArray[np.float64]]] = {}


def _lenet_of(name: str, dataset: Dataset) -> tuple[nn.Module, NDArray[np.float64], NDArray[np.float64]]:
    """The LeNet of a data set, with the features of the images that it learnt from and of the others; made once."""
    if name not in _networks:
        images, labels = dataset.test.features, dataset.test.target
        network = lenet_features(images[::2], labels[::2], classes=len(dataset.classes))
        _networks[name] = (network, features_of(network, images[::2]), features_of(network, images[1::2]))
    return _networks[name]


@functools.lru_cache(maxsize=1)
def _inception(path: Path) -> nn.Module:
    try:
        loaded: nn.Module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, OSError) as fault:
        raise ValueError(f"{INCEPTION} = {path} is no TorchScript file ({fault}); give one of Inception") from None
    return _Coloured(loaded.eval())


class _Coloured(nn.Module):
    """Grey images (n, side^2) in [0, 1] as bytes of three equal channels, through a network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        side = round(images.shape[1] ** 0.5)
        grey = (images.reshape(-1, 1, side, side) * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
        try:
            features: Tensor = self.network(grey, return_features=True)
        except (RuntimeError, TypeError):
            features = self.network(grey)
        return features.flatten(1)


def _root(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The symmetric root of a covariance."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(values.clip(min=0))) @ vectors.T)
