"""Frechet distances of generated images, in features of a network trained on public images."""

from __future__ import annotations

import functools

import numpy as np
import torch
from scipy import linalg
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw.data import Dataset
from fedsw.experiment.encoded import public_autoencoder
from fedsw.experiment.sources import load_images
from fedsw.models.initial import convolution, generator_of, linear
from fedsw.papers.finished import Finished
from fedsw.papers.store import Measured
from fedsw.randomness import Stream

_SAMPLES = 5_000
_EPOCHS = 8
_BATCH = 64
_CHUNK = 2_000
_SHOWN = 40


def frechet(run: Finished) -> Measured:
    """`frechet` between 5000 generated images and the second half of the held-out ones.

    Features are the 84 last hidden units of a LeNet that was trained on the labelled first half of the held-out images,
    which is public; no private record is looked at. Codes are decoded by the public autoencoder first. It is not the
    FID, which takes Inception's features. `images` (40, side^2) has samples, as bytes.
    """
    dataset = load_images(run.experiment.data)
    half = len(dataset.test) // 2
    network = _lenet(dataset.name, dataset)
    made = images_of(run, min(_SAMPLES, half))
    real = dataset.test.features[half : half + _SAMPLES]
    with torch.no_grad():
        features = [torch.cat([network(part) for part in torch.split(each, _CHUNK)]) for each in (made, real)]
    shown = (made[:_SHOWN].clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return Measured({"frechet": frechet_distance(*features)}, {"images": shown})


def images_of(run: Finished, count: int) -> Tensor:
    """Generated images (m, side^2), m at most `count`: a generator's samples, or decoded particles."""
    spec = run.experiment.data
    with torch.no_grad():
        if run.experiment.model.kind != "particles":
            latents = run.problem.latents(count, "measured")
            return torch.cat([run.model(part) for part in torch.split(latents, _CHUNK)]).float()
        codes = run.model()[:count]
        if spec.encoded is None:
            return codes.float()
        decoder = public_autoencoder(load_images(spec), spec.encoded, spec.encoder_epochs)
        return torch.cat([decoder.decode(part) for part in torch.split(codes, _CHUNK)]).float()


def frechet_distance(first: Tensor, second: Tensor) -> float:
    """||m - m'||^2 + tr(C + C' - 2 (C C')^(1/2)) of the means and covariances of samples (m, d) and (n, d).

    Source: Dowson and Landau 1982; Heusel et al. 2017 (with Inception's features).
    """
    means, covariances = [], []
    for sample in (first, second):
        values = sample.detach().double().numpy()
        means.append(values.mean(axis=0))
        covariances.append(np.cov(values, rowvar=False))
    root = np.real(linalg.sqrtm(covariances[0] @ covariances[1]))
    gap = means[0] - means[1]
    return float(gap @ gap + np.trace(covariances[0] + covariances[1] - 2 * root))


@functools.lru_cache(maxsize=4)
def _lenet(name: str, dataset: Dataset) -> nn.Module:
    """The features (n, 84) of a LeNet trained on the first half of a data set's held-out images."""
    generator = generator_of(0)
    side = round(dataset.test.features.shape[1] ** 0.5)
    features = nn.Sequential(
        *(nn.Unflatten(1, (1, side, side)), convolution(1, 6, 5, generator), nn.ReLU(), nn.AvgPool2d(2)),
        *(convolution(6, 16, 5, generator), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(1)),
        *(linear(16 * (side // 4) ** 2, 120, generator), nn.ReLU(), linear(120, 84, generator), nn.ReLU()),
    )
    head = linear(84, len(dataset.classes), generator)
    optimizer = torch.optim.Adam([*features.parameters(), *head.parameters()], lr=1e-3)
    half = len(dataset.test) // 2
    images, labels = dataset.test.features[:half], dataset.test.target[:half]
    for epoch in range(_EPOCHS):
        order = torch.from_numpy(Stream.seeded(0, "lenet", epoch).uniforms(half)).argsort()
        for rows in torch.split(order, _BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(head(features(images[rows])), labels[rows]))
            optimizer.step()
    return features.eval()
