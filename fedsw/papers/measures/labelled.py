"""What the labelled images of a generator are worth: classifiers trained on them, tested on real held-out ones."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedsw.models import LabelledImages
from fedsw.papers.finished import Finished
from fedsw.papers.store import Measured
from fedsw.tasks.generation import classifier_accuracy

_GENERATED = 60_000
_CHUNK = 2_000
_SHOWN = 8
_FOR_LOGISTIC = 20_000


def accuracy(run: Finished) -> Measured:
    """`perceptron_accuracy` and `logistic_accuracy` on held-out images of classifiers trained on 60 000 generated ones.

    The labels come with the images: nothing but the released generator and held-out records is looked at. `images`
    (classes, 8, side^2) has samples of every class, as bytes.

    Source: RR, Section 6.3.
    """
    classes = run.problem.classes
    made, labels = generated(run, _GENERATED)
    test = run.dataset.test
    real = test.features[:, :-classes]
    values = {
        "perceptron_accuracy": classifier_accuracy(made, labels, real, test.target, epochs=10),
        "logistic_accuracy": _logistic(made[:_FOR_LOGISTIC], labels[:_FOR_LOGISTIC], real, test.target),
    }
    shown = [made[labels == each][:_SHOWN] for each in range(classes)]
    return Measured(values, {"images": np.stack([_bytes(each) for each in shown])})


def generated(run: Finished, count: int) -> tuple[Tensor, Tensor]:
    """Images (count, side^2) of the released generator and their classes (count,), from public inputs."""
    model, latents = cast(LabelledImages, run.model), run.problem.latents(count, "measured")
    with torch.no_grad():
        images, labels = zip(*(model.labelled(part) for part in torch.split(latents, _CHUNK)), strict=True)
    return torch.cat(images).float(), torch.cat(labels)


def _logistic(images: Tensor, labels: Tensor, real: Tensor, target: Tensor) -> float:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=100).fit(images.numpy(), labels.numpy())
    return float(model.score(real.numpy(), target.numpy()))


def _bytes(images: Tensor) -> np.ndarray:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
