"""RLL's autoencoder inside the guarantee, labels too: generator, images and network come from one noised sketch."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsw._tools.randomness import Stream
from fedsw.data.image_sets import MNIST_SIDE
from fedsw.data.records import Records
from fedsw.learning.models.image_networks import ImageAutoencoder
from fedsw.learning.models.labelled import ImageGenerator
from fedsw.learning.sketches.fit import FitSettings, fit_generator, generate, sketch_distance
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.parts import GaussianKernel
from fedsw.learning.sketches.sketch_law import Law, Sketcher
from fedsw.learning.tasks.generated_samples import accuracy_of, image_classifier, uniform_ball
from fedsw.privacy.accounting import Ledger
from fedsw.runs.run_files import RunFile
from fedsw.runs.single.sketching import plan_sketch, release_sketch
from simulations.papers.computed.classwise import SOURCES
from simulations.papers.measures.autoencoders import in_parts
from simulations.papers.measures.labelled import as_bytes
from simulations.papers.store import Measured

BANDWIDTHS = (1.5, 2.5, 4.0, 7.0)
_SHOWN, _COMPARED = 8, 4000
_LATENT, _DIRECTIONS, _ALPHA, _RATE = 6, 50, 0.1, 2e-3


def of_one_sketch(
    *,
    cases: Sequence[Mapping[str, Any]],
    delta: float,
    pairs: int,
    steps: int,
    batch: int,
    count: int,
    epochs: int,
    seeds: int = 2,
) -> Measured:
    """Accuracy on held-out images of perceptrons of width 100, trained on labelled images that may be released.

    A case has a `name`, a `source` and an `epsilon`. Values of each, means over `seeds` trainings of the perceptron on
    `count` generated images: `<case>_perceptron`, tested on held-out images, and `<case>_reconstructed`, tested on what
    an autoencoder makes of these; it was trained on the generated images for `epochs`. Arrays: `<case>_images`
    (classes, 8, 784), bytes.

    Guarantee: (epsilon, delta)-differential privacy of each private image, its label included, for its replacement:
    one release of a sketch with secret noise; generator, images, labels and autoencoder are post-processing.

    Args:
        pairs: of frequencies of a Gaussian kernel with bandwidths 1.5, 2.5, 4 and 7 on pixels.
        steps, batch: of the generator's training.

    Source: Harder, Adamczewski, Park 2021 (DP-MERF), with fedsw's sensitivity and exact accounting.
    """
    made = [_one(case, delta, pairs, steps, batch, count, epochs, seeds) for case in cases]
    return Measured(
        {name: value for each in made for name, value in each.values.items()},
        {name: images for each in made for name, images in each.arrays.items()},
    )


def _one(
    case: Mapping[str, Any], delta: float, pairs: int, steps: int, batch: int, count: int, epochs: int, seeds: int
) -> Measured:
    """One case of `of_one_sketch`."""
    began, name, data = time.perf_counter(), case["name"], SOURCES[case["source"]]()
    classes = int(data.train.target.max()) + 1
    sketcher = Law(MNIST_SIDE**2, (GaussianKernel(BANDWIDTHS, pairs),), classes=classes, seed=0).drawn()
    sketch = released(data.train, sketcher, epsilon=case["epsilon"], delta=delta)
    network = fit_generator(
        sketch, ImageGenerator(MNIST_SIDE, classes), FitSettings(steps, batch=batch), sketcher=sketcher
    )
    images, labels = generate(network, sketch.proportions, count)
    remade = _remade(fitted_autoencoder(images.clamp(0, 1), epochs=epochs, batch=batch), data.test.features)
    generated, reconstructed = [], []
    for seed in range(seeds):
        model = image_classifier(images, labels, classes=classes, epochs=10, seed=seed)
        generated.append(accuracy_of(model, data.test.features, data.test.target))
        reconstructed.append(accuracy_of(model, remade, data.test.target))
    return Measured(
        {
            f"{name}_perceptron": statistics.fmean(generated),
            f"{name}_reconstructed": statistics.fmean(reconstructed),
            f"{name}_sigma": sketch.sigma,
            f"{name}_distance": sketch_distance(sketch, images[:_COMPARED], labels[:_COMPARED], sketcher=sketcher),
            f"{name}_seconds": time.perf_counter() - began,
        },
        {f"{name}_images": np.stack([as_bytes(images[labels == each][:_SHOWN]) for each in range(classes)])},
    )


def fitted_autoencoder(images: Tensor, *, epochs: int, batch: int, seed: int = 0) -> ImageAutoencoder:
    """RLL's network for released images (n, 784) in [0, 1], its codes drawn to the uniform law of the unit ball.

    Guarantee: none of its own; what images may be released, it is made of.
    """
    network = ImageAutoencoder(MNIST_SIDE, _LATENT, seed=seed)
    torch.manual_seed(seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=_RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * math.ceil(len(images) / batch))
    prior = Stream.seeded(seed, "prior of released images")
    for _ in range(epochs):
        for part in torch.split(torch.randperm(len(images)), batch):
            codes = network.encoder(images[part])
            theta = F.normalize(torch.randn(_LATENT, _DIRECTIONS), dim=0)
            points = uniform_ball(len(part), _LATENT, 1.0, prior).float()
            gap = (codes @ theta).sort(dim=0).values - (points @ theta).sort(dim=0).values
            loss = F.binary_cross_entropy_with_logits(network.decoder(codes), images[part])
            optimiser.zero_grad()
            torch.autograd.backward(loss + _ALPHA * gap.square().mean())
            optimiser.step()
            falling.step()
    return network


def _remade(network: ImageAutoencoder, images: Tensor) -> Tensor:
    return in_parts(lambda part: torch.sigmoid(network.decoder(network.encoder(part))), images)


def released(
    records: Records, sketcher: Sketcher, *, epsilon: float, delta: float, seed: int | None = None
) -> NoisedSketch:
    """One release of all records with their labels, charged to a ledger of its own.

    Guarantee: that of `fedsw.release_sketch`; with a seed the noise can be repeated, and epsilon is nominal.
    """
    plan = plan_sketch(sketcher.law, records=len(records), epsilon=epsilon, delta=delta, seed=seed)
    with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / RunFile.LEDGER, plan) as ledger:
        return release_sketch(sketcher, records.features, records.target, plan, ledger)
