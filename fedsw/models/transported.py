"""A classifier that learns from public images moved to where private ones are; those move nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw.models.initial import Seed, convolution, generator_of, linear


class TransportedAdaptor(nn.Module):
    """Public images are transported, compared with private ones at a smaller side, and classified; both in [0, 1].

    The transport is an affine map of the plane (6 numbers) and a 5x5 filter with an offset (26 numbers); it begins as
    the identity. Private images are compared as they are, so that no private record passes through a trained parameter
    and the target of the comparison stays where it is. The classifier (convolutions of stride 2: 5x5, 16 filters, and
    3x3, 32 filters; a linear layer of 64 units, each with ReLU, and one of `classes` units) learns from transported
    public images and their labels; what it learns from them does not flow back into the transport.

    Args:
        compared: numbers of an image that are compared: its means over squares, times their side.

    Raises:
        ValueError: if the side is not a multiple of 4, or `compared` no square of a side that divides it.
    """

    def __init__(self, side: int, classes: int, compared: int, *, seed: Seed = 0) -> None:
        super().__init__()
        if side < 4 or side % 4:
            raise ValueError(f"side = {side}; the classifier halves the image twice: use a multiple of 4")
        if (small := math.isqrt(compared)) < 1 or small**2 != compared or side % small:
            raise ValueError(f"compared = {compared}; give the square of a side that divides {side}")
        generator, self._side, self._block = generator_of(seed), side, side // small
        self.plane = linear(1, 6, generator)
        self.filter = convolution(1, 1, 5, generator)
        with torch.no_grad():
            self.plane.weight.zero_()
            self.plane.bias.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]))
            self.filter.weight.zero_()
            self.filter.weight[0, 0, 2, 2] = 1.0
            if self.filter.bias is not None:
                self.filter.bias.zero_()
        self.plane.weight.requires_grad_(False)
        self.classifier = nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            *(convolution(1, 16, 5, generator, stride=2), nn.ReLU()),
            *(convolution(16, 32, 3, generator, stride=2), nn.ReLU(), nn.Flatten(1)),
            *(linear(32 * (side // 4) ** 2, 64, generator), nn.ReLU(), linear(64, classes, generator)),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What is compared (n, compared), and logits (n, classes), of private images (n, side^2) as they are."""
        return self.seen(images), self.classifier(images)

    def public(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What is compared (m, compared), and logits (m, classes), of public images (m, side^2), transported."""
        moved = self.transported(images)
        return self.seen(moved), self.classifier(moved.detach())

    def transported(self, images: Tensor) -> Tensor:
        """Public images (m, side^2), moved."""
        maps = self.plane(images.new_ones((len(images), 1))).reshape(-1, 2, 3)
        square = images.reshape(-1, 1, self._side, self._side)
        grid = F.affine_grid(maps, list(square.shape), align_corners=False)
        placed = F.grid_sample(square, grid, align_corners=False, padding_mode="zeros")
        found: Tensor = self.filter(placed).flatten(1)
        return found

    def seen(self, images: Tensor) -> Tensor:
        """What is compared (n, compared) of images (n, side^2); no parameter takes part."""
        square = images.reshape(-1, 1, self._side, self._side)
        return F.avg_pool2d(square, self._block).flatten(1) * self._block
