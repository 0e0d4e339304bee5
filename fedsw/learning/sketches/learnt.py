"""Maps that were learnt from what is released already: layers of a classifier of a declared architecture."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw._tools.randomness import Stream
from fedsw.learning.models.initial import Seed, convolution, count_parameters, generator_of, linear, load_flat
from fedsw.learning.models.labelled import generate, seeded_generator
from fedsw.learning.sketches.maps import Seen, SharedMap, looked

Layer = Literal["early", "late"]
_CHANNELS = (8, 16)
_FILTER = 5


class Classifier(nn.Module):
    """A small classifier with layers that a later sketch looks at: LeNet for images, a perceptron for other features.

    Images with sides of a multiple of 4: two 5x5 convolutions of 8 and 16 filters, each with ReLU and the largest of
    2x2 pixels, then a hidden layer. Other features: two hidden layers. Records are treated one by one. The ``widths``
    are the numbers of the "early" layer (the second pooled one, or the first hidden one) and of the "late" one.

    Source: LeCun, Bottou, Bengio, Haffner 1998, with ReLU and fewer layers.
    """

    def __init__(self, features: int, classes: int, hidden: int, *, seed: Seed = 0) -> None:
        super().__init__()
        generator, (first, second), quarter = generator_of(seed), _CHANNELS, math.isqrt(features) // 4
        if (4 * quarter) ** 2 == features:
            early = second * quarter**2
            self.layers = nn.Sequential(
                nn.Unflatten(1, (1, 4 * quarter, 4 * quarter)),
                *(convolution(1, first, _FILTER, generator), nn.ReLU(), nn.MaxPool2d(2)),
                *(convolution(first, second, _FILTER, generator), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(1)),
            )
        else:
            early = hidden
            self.layers = nn.Sequential(linear(features, hidden, generator), nn.ReLU())
        self.last, self.top = linear(early, hidden, generator), linear(hidden, classes, generator)
        self.widths: dict[Layer, int] = {"early": early, "late": hidden}

    def seen(self, features: Tensor, layer: Layer) -> Tensor:
        """Activations (n, width) of records (n, p) in a layer."""
        early: Tensor = self.layers(features)
        return early if layer == "early" else self.late(early)

    def late(self, early: Tensor) -> Tensor:
        """Activations (n, hidden) of the late layer, from those of the early one."""
        return F.relu(self.last(early))

    def forward(self, features: Tensor) -> Tensor:
        """Scores (n, classes) of records (n, p)."""
        scores: Tensor = self.top(self.seen(features, "late"))
        return scores


@dataclass(frozen=True, repr=False)
class LearntLayer:
    """A layer of a `Classifier`, as a map of features.

    What it is trained on is public or released, and it travels as weights of this architecture, never as code: float32
    numbers, one after the other; none for zeros, where only sizes matter. A part that may take any map
    (`fedsw.learning.sketches.parts`) bounds what it makes of a record, whatever the weights are.
    """

    classes: int
    hidden: int = 64
    layer: Layer = "late"
    weights: bytes = field(default=b"")

    def __repr__(self) -> str:
        digest = hashlib.sha256(self.weights).hexdigest()
        return f"Learnt({self.classes}, {self.hidden}, {self.layer!r}, sha256 {digest})"

    def width(self, features: int) -> int:
        """Numbers of the layer."""
        return Classifier(features, self.classes, self.hidden).widths[self.layer]

    def built(self, features: int, stream: Stream) -> nn.Module:
        """The layer of features (n, p), with its weights; nothing comes from the stream.

        ValueError if there are more or fewer weights than the architecture has.
        """
        network = Classifier(features, self.classes, self.hidden)
        wanted = count_parameters(network)
        flat = np.frombuffer(self.weights, dtype="<f4").copy() if self.weights else np.zeros(wanted, dtype="<f4")
        if len(flat) != wanted:
            raise ValueError(f"a learnt map came with {len(flat)} weights; its architecture has {wanted}")
        load_flat(network, torch.from_numpy(flat))
        return _Layer(network.requires_grad_(False), self)


class _Layer(SharedMap):
    def __init__(self, network: Classifier, chosen: LearntLayer) -> None:
        super().__init__()
        self.network, self.key = network, chosen
        self.below = _Layer(network, replace(chosen, layer="early")) if chosen.layer == "late" else None

    def of(self, rows: Tensor, seen: Seen) -> Tensor:
        if self.below is None:
            return self.network.seen(rows, "early")
        return self.network.late(looked(self.below, rows, seen))


def flat_bytes(weights: Tensor) -> bytes:
    """Weights (v,) as `LearntLayer.weights`."""
    return weights.detach().cpu().to(torch.float32).numpy().astype("<f4").tobytes()


@dataclass(frozen=True)
class Lessons:
    """How a classifier is trained on what a generator makes; all of it is public.

    Images are moved at random by up to ``shifts`` pixels each way, ``noise`` of this standard deviation is
    added to every number, and labels are smoothed. The learning rate of Adam falls to 0 along a cosine.
    """

    steps: int = 700
    batch: int = 200
    shifts: int = 2
    noise: float = 0.1
    smoothing: float = 0.1
    learning_rate: float = 0.003


Pupil = TypeVar("Pupil", bound=nn.Module)


def taught(network: Pupil, teacher: nn.Module, proportions: Tensor, groups: int, lessons: Lessons) -> Pupil:
    """Train a classifier on fresh samples of a generator, moved and noised, with softened labels.

    Guarantee: post-processing of what the generator learnt from. Samples, moves and noise depend on the steps only.

    The network gives scores (n, classes) of records (n, p), and is changed in place; the teacher is a
    `labelled.Conditional` generator in its precision and on its device; ``proportions`` (cells,) say how
    often each cell is made, ``groups`` how many cells a label has.
    """
    side = math.isqrt(next(iter(generate(teacher, proportions, 1))).shape[1])
    optimizer = torch.optim.Adam(network.parameters(), lr=lessons.learning_rate)
    for step in range(lessons.steps):
        for group in optimizer.param_groups:
            group["lr"] = lessons.learning_rate * (1 + math.cos(math.pi * step / lessons.steps)) / 2
        seen, cells = generate(teacher, proportions, lessons.batch, seed=step)
        generator = seeded_generator(step, "lessons", 0)
        if side**2 == seen.shape[1]:
            rolled = torch.randint(-lessons.shifts, lessons.shifts + 1, (2,), generator=generator).tolist()
            seen = torch.roll(seen.reshape(-1, side, side), rolled, dims=(1, 2)).flatten(1)
        seen = seen + (lessons.noise * torch.randn(seen.shape, generator=generator)).to(seen)
        labels = torch.div(cells, groups, rounding_mode="floor")
        loss = F.cross_entropy(network(seen), labels, label_smoothing=lessons.smoothing)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()
    return network.eval()
