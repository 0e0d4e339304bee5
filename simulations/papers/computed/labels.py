"""A labelled image set inside the guarantee: a class-conditional generator trained on one noised sketch of MNIST."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsw.accounting import Ledger
from fedsw.data.images import DIGITS, MNIST_SIDE, mnist
from fedsw.data.records import Records
from fedsw.models.labelled import ImageGenerator
from fedsw.runs.files import LEDGER
from fedsw.single.sketching import plan_sketch, release_sketch
from fedsw.sketches.fit import FitSettings, fit_generator, generate, sketch_distance
from fedsw.sketches.law import Law, Sketcher
from fedsw.sketches.noised import NoisedSketch
from fedsw.sketches.parts import GaussianKernel
from fedsw.tasks.generation import accuracy_of, image_classifier
from simulations.papers.store import Measured

BANDWIDTHS = (1.5, 2.5, 4.0, 7.0)
_SHOWN, _COMPARED = 8, 4000


def of_one_sketch(
    epsilon: float, delta: float, pairs: int, steps: int, batch: int, count: int, seeds: int = 2
) -> Measured:
    """Accuracy on held-out digits of perceptrons of width 100, trained on labelled images that may be released.

    `accuracy_generated` is the mean over `seeds` trainings of the perceptron. `pictures` (10 * 8, 784) uint8 has eight
    images of each digit in order.

    Guarantee: (epsilon, delta)-differential privacy of each private digit, its label included, for its replacement:
    one release of a sketch with secret noise; generator, images and labels are post-processing.

    Args:
        epsilon, delta: of the one release.
        pairs: of frequencies of a Gaussian kernel with bandwidths 1.5, 2.5, 4 and 7 on pixels.
        steps, batch: of the generator's training.
        count: labelled images that the perceptrons learn from.

    Source: Harder, Adamczewski, Park 2021 (DP-MERF), with fedsw's sensitivity and exact accounting.
    """
    began, data = time.perf_counter(), mnist()
    sketcher = Law(MNIST_SIDE**2, (GaussianKernel(BANDWIDTHS, pairs),), classes=len(DIGITS), seed=0).drawn()
    sketch = released(data.train, sketcher, epsilon=epsilon, delta=delta)
    network = fit_generator(
        sketch, ImageGenerator(MNIST_SIDE, len(DIGITS)), FitSettings(steps, batch=batch), sketcher=sketcher
    )
    images, labels = generate(network, sketch.proportions, count)
    found = []
    for seed in range(seeds):
        model = image_classifier(images, labels, classes=len(DIGITS), epochs=10, seed=seed)
        found.append(accuracy_of(model, data.test.features, data.test.target))
    compared = sketch_distance(sketch, images[:_COMPARED], labels[:_COMPARED], sketcher=sketcher)
    return Measured(
        {
            "accuracy_generated": statistics.fmean(found),
            "generated_by_seed": found,
            "epsilon": epsilon,
            "delta": delta,
            "sigma": sketch.sigma,
            "distance": compared,
            "whole_seconds": time.perf_counter() - began,
        },
        {"pictures": _pictures(images, labels)},
    )


def released(
    records: Records, sketcher: Sketcher, *, epsilon: float, delta: float, seed: int | None = None
) -> NoisedSketch:
    """One release of all records with their labels, charged to a ledger of its own.

    Guarantee: that of `fedsw.release_sketch`; with a seed the noise can be repeated, and epsilon is nominal.
    """
    plan = plan_sketch(sketcher.law, records=len(records), epsilon=epsilon, delta=delta, seed=seed)
    with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / LEDGER, plan) as ledger:
        return release_sketch(sketcher, records.features, records.target, plan, ledger)


def _pictures(images: Tensor, labels: Tensor) -> np.ndarray:
    chosen = torch.cat([torch.nonzero(labels == digit)[:_SHOWN, 0] for digit in range(len(DIGITS))])
    return np.asarray((images[chosen].clamp(0, 1) * 255).round().numpy(), dtype=np.uint8)
