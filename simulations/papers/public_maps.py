"""A feature map that was learnt from a public set of another kind: what public data add to a sketch."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from fedsw._tools.randomness import Stream
from fedsw.data import usps
from fedsw.learning.models import flatten
from fedsw.learning.models.labelled import proportions_of
from fedsw.learning.sketches.learnt import Classifier, Layer, LearntLayer, Lessons, flat_bytes, taught
from simulations.papers.computed.real import RealImages

_CLASSES = 10
_MARGIN = 7
"""Of this many parts of a side, one on each side of a digit is empty: MNIST's stand so, USPS's fill their image."""


@dataclass(frozen=True)
class LayerOfUsps:
    """A layer of a LeNet that was taught USPS's digits: public numbers, whatever the private records are.

    Attributes:
        layer: "early" or "late", as of `fedsw.learning.sketches.learnt.LearntLayer`.
        hidden: width of its hidden layer.
        steps: that it was taught in.
    """

    layer: Layer = "late"
    hidden: int = 128
    steps: int = Lessons.steps

    def width(self, features: int) -> int:
        """Numbers of the layer."""
        return self._learnt(b"").width(features)

    def built(self, features: int, stream: Stream) -> nn.Module:
        """The layer of square images (n, p); nothing comes from the stream.

        Raises:
            FileNotFoundError: if USPS is neither in the data folder nor to be had.
        """
        return self._learnt(_weights(math.isqrt(features), self.hidden, self.steps)).built(features, stream)

    def _learnt(self, weights: bytes) -> LearntLayer:
        return LearntLayer(_CLASSES, self.hidden, self.layer, weights)


@functools.cache
def _weights(side: int, hidden: int, steps: int) -> bytes:
    """Of the LeNet, taught with shifts, noise and softened labels, as those between stages are."""
    margin = side // _MARGIN
    train = usps(side=side - 2 * margin).train
    images = RealImages(framed(train.features, margin), train.target)
    pupil = Classifier(side**2, _CLASSES, hidden)
    return flat_bytes(flatten(taught(pupil, images, proportions_of(images), 1, Lessons(steps=steps))))


def framed(images: Tensor, margin: int) -> Tensor:
    """Square images (n, (side + 2 margin)^2) of images (n, side^2), among zeros."""
    side = math.isqrt(images.shape[1])
    return F.pad(images.reshape(-1, side, side), (margin,) * 4).flatten(1)
