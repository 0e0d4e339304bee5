"""Public feature maps that a sketch may look at records through: fixed before any record is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw.randomness import Stream
from fedsw.transport.denoise import image_side


class FeatureMap(Protocol):
    """Settings of a map from features (n, p) to features (n, q) that depends on public numbers only.

    A sketch is bounded whatever the map is, so a public encoder may be one: `built` returns any module that maps every
    row by itself.
    """

    def width(self, features: int) -> int:
        """q, of p features."""

    def built(self, features: int, stream: Stream) -> nn.Module:
        """A differentiable module (n, p) -> (n, q), its fixed numbers as float64 buffers."""


@dataclass(frozen=True)
class Raw:
    """Features as they are."""

    def width(self, features: int) -> int:
        """The same number."""
        return features

    def built(self, features: int, stream: Stream) -> nn.Module:
        """The identity, of features (n, p)."""
        return nn.Identity()


@dataclass(frozen=True)
class Cosine:
    """Orthonormal two-dimensional cosine coefficients (DCT-II) of square images, low frequencies weighted higher.

    Attributes:
        decay: coefficient (r, s) is divided by (1 + r + s)^decay; 0 keeps distances, so that a Gaussian kernel is the
            same as on pixels.

    Raises:
        ValueError: if the decay is negative or not finite.
    """

    decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.decay < math.inf:
            raise ValueError(f"decay = {self.decay}; it must be finite and at least 0")

    def width(self, features: int) -> int:
        """As many coefficients as pixels; ValueError where they are no square image."""
        return image_side(features) ** 2

    def built(self, features: int, stream: Stream) -> nn.Module:
        """The transform of images (n, side^2)."""
        return _Cosines(image_side(features), self.decay)


@dataclass(frozen=True)
class Convolutions:
    """One layer of fixed random convolutions of square images, then the absolute value and a mean over 2x2 pixels.

    Attributes:
        filters: how many; each is drawn from a standard normal, without its mean, and scaled to norm 1.
        kernel: side of a filter, odd.
        stride: pixels from one place of a filter to the next.

    Raises:
        ValueError: if a size is below 1, or the kernel even or 1.
    """

    filters: int = 16
    kernel: int = 5
    stride: int = 1

    def __post_init__(self) -> None:
        for name, size in (("filters", self.filters), ("stride", self.stride)):
            if size < 1:
                raise ValueError(f"{name} = {size}; it must be at least 1")
        if self.kernel < 3 or self.kernel % 2 == 0:
            raise ValueError(f"kernel = {self.kernel}; filters without their mean have an odd side of at least 3")

    def width(self, features: int) -> int:
        """Numbers that are left of an image; ValueError where the features are no square image."""
        return self.filters * _pooled(image_side(features), self.stride) ** 2

    def built(self, features: int, stream: Stream) -> nn.Module:
        """The layer, of images (n, side^2); the filters come from the stream."""
        shape = (self.filters, 1, self.kernel, self.kernel)
        normals = torch.from_numpy(stream.normals(math.prod(shape))).reshape(shape)
        return _Convolved(normals, image_side(features), self.stride)


def cosine_matrix(side: int) -> Tensor:
    """Matrix (side, side) of the orthonormal cosine transform (DCT-II), float64: its inverse is its transpose."""
    place = torch.arange(side, dtype=torch.float64)
    angles = math.pi / side * (place + 0.5) * place.unsqueeze(1)
    matrix = torch.cos(angles) * math.sqrt(2 / side)
    matrix[0] = math.sqrt(1 / side)
    return matrix


class _Cosines(nn.Module):
    def __init__(self, side: int, decay: float) -> None:
        super().__init__()
        order = torch.arange(side, dtype=torch.float64)
        self.side = side
        self.basis: Tensor
        self.scale: Tensor
        self.register_buffer("basis", cosine_matrix(side))
        self.register_buffer("scale", (1 + order + order.unsqueeze(1)) ** -decay)

    def forward(self, images: Tensor) -> Tensor:
        squares = images.reshape(-1, self.side, self.side)
        return (self.basis @ squares @ self.basis.T * self.scale).reshape(images.shape)


class _Convolved(nn.Module):
    def __init__(self, normals: Tensor, side: int, stride: int) -> None:
        super().__init__()
        self.side, self.stride = side, stride
        filters = normals - normals.mean(dim=(2, 3), keepdim=True)
        self.filters: Tensor
        self.register_buffer("filters", filters / torch.linalg.vector_norm(filters, dim=(2, 3), keepdim=True))

    def forward(self, images: Tensor) -> Tensor:
        squares = images.reshape(-1, 1, self.side, self.side)
        padding = self.filters.shape[-1] // 2
        found = F.conv2d(squares, self.filters, stride=self.stride, padding=padding).abs()
        return F.avg_pool2d(found, 2, ceil_mode=True).flatten(1)


def _pooled(side: int, stride: int) -> int:
    return math.ceil(math.ceil(side / stride) / 2)
