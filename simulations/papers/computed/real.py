"""What classifiers that judge generated images come to without a generator: taught real ones, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedsw.data import Dataset, digits, fashion_mnist, mnist
from simulations.papers.measures.synthesis import PUPILS, by_a_perceptron, by_lessons
from simulations.papers.store import Measured

_SETS: dict[str, Callable[[], Dataset]] = {"mnist": mnist, "fashion-mnist": fashion_mnist, "digits": digits}


class RealImages(nn.Module):
    """A generator that draws from the images that it is given, uniformly among those of a class.

    Args:
        images: (n, p).
        labels: (n,) int64; every class has an image.

    Attributes:
        latent, cells: see `fedsw.learning.models.labelled.Conditional`.
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        super().__init__()
        self.latent, self.cells = 1, int(labels.max()) + 1
        self.precision = nn.Parameter(torch.zeros((), dtype=images.dtype), requires_grad=False)
        counts = torch.bincount(labels, minlength=self.cells)
        self.images: Tensor
        self.counts: Tensor
        self.starts: Tensor
        self.register_buffer("images", images[labels.argsort(stable=True)])
        self.register_buffer("counts", counts)
        self.register_buffer("starts", counts.cumsum(dim=0) - counts)

    def forward(self, noise: Tensor, cells: Tensor) -> Tensor:
        """Images (m, p) of cells (m,), chosen by standard normal noise (m, 1)."""
        part = torch.special.ndtr(noise[:, 0].to(torch.float64))
        count = self.counts[cells]
        place = torch.minimum((part * count).long(), count - 1)
        return self.images[self.starts[cells] + place]


def classifier(source: str, name: str, lessons: int) -> Measured:
    """Accuracy on held-out images of a classifier of `measures.synthesis`, taught as there, but with real images.

    It is named as that of generated images is: `accuracy_generated`, `accuracy_shifted` or `accuracy_lenet`. Training
    images are looked at as they are, without privacy.

    Args:
        source: "mnist", "fashion-mnist" or "digits".
        name: "generated" for the perceptron that sees every image as it is; or one that is taught with shifts.
        lessons: batches of 200 for that.
    """
    data = _SETS[source]()
    train, test = data.train, data.test
    if name not in PUPILS:
        return Measured({f"accuracy_{name}": by_a_perceptron(train.features, train.target, test.features, test.target)})
    real = RealImages(train.features, train.target)
    proportions, given = real.counts.to(torch.float64) / len(train.target), {"classes": real.cells, "steps": lessons}
    return Measured({f"accuracy_{name}": by_lessons(name, real, proportions, test.features, test.target, **given)})


def constant(source: str) -> Measured:
    """The same for whoever always says the most frequent label of the training images."""
    data = _SETS[source]()
    said = torch.bincount(data.train.target).argmax()
    accuracy = float((data.test.target == said).double().mean())
    return Measured({f"accuracy_{name}": accuracy for name in ("generated", *PUPILS)})
