"""What the labelled images of a generator are worth: classifiers trained on them, tested on real held-out ones."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedsw.learning.models import LabelledImages, Particles
from fedsw.learning.tasks.generated_samples import classifier_accuracy
from simulations.papers.finished import Finished
from simulations.papers.store import Measured

_GENERATED = 60_000
_CHUNK = 2_000
_SHOWN = 8
_FOR_LOGISTIC = 20_000


def accuracy(run: Finished) -> Measured:
    """`perceptron_accuracy` and `logistic_accuracy` on held-out images of classifiers trained on 60 000 generated ones.

    They are as many as there are private images at most. The labels come with the images: nothing but the released
    generator and held-out records is looked at. `images` (classes, 8, side^2) has samples of every class, as bytes.

    Source: RR, Section 6.3.
    """
    classes = run.problem.classes
    made, labels = generated(run, min(_GENERATED, len(run.dataset.train)))
    test = run.dataset.test
    real = test.features[:, :-classes]
    values = {
        "perceptron_accuracy": classifier_accuracy(made, labels, real, test.target, epochs=10),
        "logistic_accuracy": logistic_accuracy(made[:_FOR_LOGISTIC], labels[:_FOR_LOGISTIC], real, test.target),
    }
    shown = [made[labels == each][:_SHOWN] for each in range(classes)]
    return Measured(values, {"images": np.stack([as_bytes(each) for each in shown])})


def beside_sketches(run: Finished) -> Measured:
    """The numbers of `synthesis.labelled`, for images that carry their class beside them: of a generator or a cloud.

    `accuracy_generated`: of a perceptron of width 100 on held-out images, trained on 60 000 generated ones, or on as
    many points as there are, over and over. Also `bytes`, sent to the server, and `minutes` of the whole run. `images`
    (classes * 4, side^2) has samples of every class, as bytes.
    """
    classes, summary, test = run.problem.classes, run.record.summary, run.dataset.test
    count = min(_GENERATED, len(run.dataset.train))
    if isinstance(run.model, Particles):
        points = run.model.points.detach()
        made, labels = points[:, :-classes], points[:, -classes:].argmax(dim=1)
        times = -(-count // len(points))
        made, labels = made.repeat(times, 1)[:count], labels.repeat(times)[:count]
    else:
        made, labels = generated(run, count)
    accuracy = classifier_accuracy(made, labels, test.features[:, :-classes], test.target, epochs=5)
    shown = torch.zeros(classes, 4, made.shape[1])
    for each in range(classes):
        own = made[labels == each][:4]
        shown[each, : len(own)] = own
    values = {"accuracy_generated": accuracy, "bytes": summary["bytes_up"], "minutes": summary["seconds"] / 60}
    return Measured(values, {"images": as_bytes(shown.flatten(0, 1))})


def generated(run: Finished, count: int) -> tuple[Tensor, Tensor]:
    """Images (count, side^2) of the released generator and their classes (count,), from public inputs."""
    model, latents = cast(LabelledImages, run.model), run.problem.latents(count, "measured")
    with torch.no_grad():
        images, labels = zip(*(model.labelled(part) for part in torch.split(latents, _CHUNK)), strict=True)
    return torch.cat(images).float(), torch.cat(labels)


def logistic_accuracy(images: Tensor, labels: Tensor, real: Tensor, target: Tensor) -> float:
    """Accuracy on real images of a logistic regression that was fitted to generated ones."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=100).fit(images.numpy(), labels.numpy())
    return float(model.score(real.numpy(), target.numpy()))


def as_bytes(images: Tensor) -> np.ndarray:
    """Images in [0, 1] as bytes."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
