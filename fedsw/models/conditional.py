"""Generators of labelled samples: networks of noise and a cell. No private record passes through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw.models.channels import Unflattened, innermost
from fedsw.models.initial import Seed, convolution, generator_of, linear


class Conditional(Protocol):
    """What a class-conditional generator is: a module of these sizes, called with noise and cells."""

    latent: int
    cells: int

    def __call__(self, noise: Tensor, cells: Tensor) -> Tensor:
        """Samples (m, features) of standard normal noise (m, latent) and cells (m,) int64."""


class Proportioned(nn.Module):
    """A generator that knows how often each cell is to be generated.

    Attributes:
        proportions: (cells,), a buffer: equal parts until a release says more. Training does not read it.
    """

    proportions: Tensor

    def __init__(self, latent: int, cells: int) -> None:
        super().__init__()
        self.latent, self.cells = latent, cells
        self.register_buffer("proportions", torch.full((cells,), 1 / cells))


class ImageGenerator(Proportioned):
    """Square images (m, side^2) in (0, 1) of noise and a cell.

    A linear layer of noise and the one-hot cell to `channels[0]` images of a quarter of the side, then two 5x5
    convolutions, the image doubled by repetition before each; BatchNorm and ReLU after every layer but the last, which
    ends in a sigmoid. BatchNorm mixes the samples of a batch: it is for networks that only see noise.

    Attributes:
        latent: width of the noise.
        cells: how many there are.

    Raises:
        ValueError: if the side is not a multiple of 4, or a size is below 1.

    Source: Harder, Adamczewski, Park 2021, for the architecture, with other widths.
    """

    def __init__(
        self, side: int, cells: int, *, latent: int = 10, channels: tuple[int, int] = (32, 16), seed: Seed = 0
    ) -> None:
        if side < 4 or side % 4:
            raise ValueError(f"side = {side}; the image is doubled twice: use a multiple of 4")
        _require_positive(cells=cells, latent=latent, first_channels=channels[0], second_channels=channels[1])
        super().__init__(latent, cells)
        generator, quarter, (first, second) = generator_of(seed), side // 4, channels
        self.layers = nn.Sequential(
            *(linear(latent + cells, first * quarter**2, generator), nn.BatchNorm1d(first * quarter**2), nn.ReLU()),
            *(Unflattened(first, quarter), nn.UpsamplingNearest2d(scale_factor=2)),
            *(convolution(first, second, 5, generator), nn.BatchNorm2d(second), nn.ReLU()),
            *(nn.UpsamplingNearest2d(scale_factor=2), convolution(second, 1, 5, generator)),
            *(nn.Flatten(1), nn.Sigmoid()),
        )
        innermost(self)

    def forward(self, noise: Tensor, cells: Tensor) -> Tensor:
        """Images (m, side^2) of noise (m, latent) and cells (m,)."""
        images: Tensor = self.layers(_given(noise, cells, self.cells))
        return images


class VectorGenerator(Proportioned):
    """Points (m, features) of noise and a cell: a perceptron with BatchNorm and ReLU after every hidden layer.

    Args:
        features: columns of a point.
        cells: how many there are.
        latent: width of the noise.
        hidden: widths of the hidden layers.
        codes: ranges (first, end) of columns that are one-hot codes; a softmax over each makes relaxed codes.
        seed: of the initial weights.

    Raises:
        ValueError: if a size is below 1, or the ranges overlap or leave the columns.
    """

    def __init__(
        self,
        features: int,
        cells: int,
        *,
        latent: int = 10,
        hidden: Sequence[int] = (200, 200),
        codes: Sequence[tuple[int, int]] = (),
        seed: Seed = 0,
    ) -> None:
        widths = {f"hidden[{i}]": width for i, width in enumerate(hidden)}
        _require_positive(features=features, cells=cells, latent=latent, **widths)
        ends = [0, *(place for pair in sorted(codes) for place in pair), features]
        if ends != sorted(ends) or any(first >= end for first, end in codes):
            raise ValueError(f"codes are {list(codes)}; give ranges of the columns 0 .. {features} without overlap")
        super().__init__(latent, cells)
        self.codes = tuple(sorted(codes))
        generator = generator_of(seed)
        sizes = [latent + cells, *hidden]
        layers: list[nn.Module] = []
        for inputs, units in zip(sizes[:-1], sizes[1:], strict=True):
            layers += [linear(inputs, units, generator), nn.BatchNorm1d(units), nn.ReLU()]
        self.layers = nn.Sequential(*layers, linear(sizes[-1], features, generator))

    def forward(self, noise: Tensor, cells: Tensor) -> Tensor:
        """Points (m, features) of noise (m, latent) and cells (m,)."""
        points: Tensor = self.layers(_given(noise, cells, self.cells))
        if not self.codes:
            return points
        parts, place = [], 0
        for first, end in self.codes:
            parts += [points[:, place:first], torch.softmax(points[:, first:end], dim=1)]
            place = end
        return torch.cat([*parts, points[:, place:]], dim=1)


def _given(noise: Tensor, cells: Tensor, count: int) -> Tensor:
    return torch.cat([noise, F.one_hot(cells, count).to(noise)], dim=1)


def _require_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} = {size}; it must be at least 1")
