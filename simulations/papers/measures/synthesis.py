"""What the labelled samples of a sketch's generator are worth, and what they cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from fedsw.learning.models import mlp
from fedsw.learning.models.labelled import generate, proportions_of
from fedsw.learning.sketches.learnt import Classifier, Lessons, taught
from fedsw.learning.tasks.generated_samples import accuracy_of, classifier_accuracy
from simulations.papers.finished import Finished
from simulations.papers.store import Measured

_EPOCHS = 5
_SHOWN = 4
_LESSONS = 3000
_LENET_HIDDEN, _WIDTH = 128, 100
PUPILS: dict[str, Callable[[int, int], nn.Module]] = {
    "lenet": lambda features, classes: Classifier(features, classes, _LENET_HIDDEN),
    "shifted": lambda features, classes: mlp(features, (_WIDTH,), classes),
}
"""What lessons are given to: untrained networks of so many features and classes."""


def labelled(run: Finished) -> Measured:
    """`accuracy_generated`: of a perceptron of width 100, trained on generated labelled images, on real held-out ones.

    As many images as `sketch.generated` are generated, in the released proportions of the labels. Also `bytes`, sent to
    the server, and `minutes` of the whole run. `images` (classes * 4, side^2) has samples of every class, as bytes,
    class by class. Nothing but the released generator and held-out records is looked at.
    """
    classes, summary = run.problem.classes, run.record.summary
    model, features, target = _placed(run)
    made, labels = generate(model, proportions_of(model), run.experiment.sketch.generated)
    accuracy = by_a_perceptron(made.float(), labels, features, target)
    shown = [_bytes(made[labels == each][:_SHOWN]) for each in range(classes)]
    values = {
        "accuracy_generated": accuracy,
        "bytes": summary["bytes_up"],
        "minutes": summary["seconds"] / 60,
    }
    return Measured(values, {"images": np.concatenate(shown)})


def with_shifts(run: Finished) -> Measured:
    """What classifiers read on held-out images that were taught with shifts, noise and softened labels.

    `accuracy_lenet`: a LeNet (`learnt.Classifier`); `accuracy_shifted`: a perceptron of width 100. Both
    see 3000 batches of 200 fresh samples of the generator; no more than three times as many as the generator took steps
    in a stage. Also what generators are chosen by: `distance`, squared, of its samples to the sketch, over all stages.
    """
    model, features, target = _placed(run)
    sketch, steps = run.record.summary["sketch"], min(_LESSONS, 3 * run.experiment.training.rounds)
    distance = sum(each["distance"] for each in (sketch, *sketch.get("later", ())))
    given = {"classes": run.problem.classes, "steps": steps}
    values = {
        f"accuracy_{name}": by_lessons(name, model, proportions_of(model), features, target, **given) for name in PUPILS
    }
    return Measured({"distance": distance, **values})


def by_a_perceptron(made: Tensor, labels: Tensor, features: Tensor, target: Tensor) -> float:
    """Accuracy on images (m, p) with labels (m,) of a perceptron of width 100 that saw images (n, p), labels (n,)."""
    return classifier_accuracy(made, labels, features, target, epochs=_EPOCHS)


def by_lessons(
    name: str, model: nn.Module, proportions: Tensor, features: Tensor, target: Tensor, *, classes: int, steps: int
) -> float:
    """Accuracy on images (m, p) with labels (m,) int64 of one of `PUPILS`; see `with_shifts`.

    Args:
        model: what draws the images of lessons. proportions: (classes,), of its classes.
        steps: batches of 200.
    """
    pupil = PUPILS[name](features.shape[1], classes).to(next(model.parameters()))
    return accuracy_of(taught(pupil, model, proportions, 1, Lessons(steps=steps)), features, target)


def _placed(run: Finished) -> tuple[nn.Module, Tensor, Tensor]:
    """The released model, held-out features and targets, on a GPU where there is one: classifiers are trained here."""
    device, test = "cuda" if torch.cuda.is_available() else "cpu", run.dataset.test
    return run.model.to(device), test.features.to(device), test.target.to(device)


def _bytes(images: Tensor) -> np.ndarray:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
