"""What the labelled samples of a sketch's generator are worth, and what they cost."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedsw.models.labelled import generate, proportions_of
from fedsw.tasks.generation import classifier_accuracy
from simulations.papers.finished import Finished
from simulations.papers.store import Measured

_EPOCHS = 5
_SHOWN = 4


def labelled(run: Finished) -> Measured:
    """`accuracy_generated`: of a perceptron of width 100, trained on generated labelled images, on real held-out ones.

    As many images as `sketch.generated` are generated, in the released proportions of the labels. Also `bytes`, sent to
    the server, and `minutes` of the whole run. `images` (classes * 4, side^2) has samples of every class, as bytes,
    class by class. Nothing but the released generator and held-out records is looked at.
    """
    classes, summary = run.problem.classes, run.record.summary
    made, labels = generate(run.model, proportions_of(run.model), run.experiment.sketch.generated)
    test = run.dataset.test
    accuracy = classifier_accuracy(made.float(), labels, test.features, test.target, epochs=_EPOCHS)
    shown = [_bytes(made[labels == each][:_SHOWN]) for each in range(classes)]
    values = {
        "accuracy_generated": accuracy,
        "bytes": summary["bytes_up"],
        "minutes": summary["seconds"] / 60,
    }
    return Measured(values, {"images": np.concatenate(shown)})


def _bytes(images: Tensor) -> np.ndarray:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
