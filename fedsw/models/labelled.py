"""Generators of images with their classes beside them, and of images alone: no private record passes through them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw.models.channels import Unflattened
from fedsw.models.initial import Seed, convolution, doubling, generator_of, linear

_GROUPS = 4


class LabelledImages(nn.Module):
    """Images in (0, 1) and one-hot classes of length `weight` beside them, (m, side^2 + classes), of normal inputs.

    The last `classes` coordinates of an input say which class it is, the largest one: classes are uniform, and public.
    A linear layer of the others and the one-hot class to `channels[0]` images of a quarter of the side, then two 5x5
    convolutions, the image doubled by repetition before each; GroupNorm and ReLU after every layer but the last,
    which ends in a sigmoid. Samples are made one by one.

    Attributes:
        side: of the images.
        classes: how many.
        weight: the length of a class's code.

    Raises:
        ValueError: if the side is not a multiple of 4, the inputs have no coordinate beside the classes', or the
            channels are no multiples of 4.

    Source: Harder, Adamczewski, Park 2021, for the architecture, with other widths and GroupNorm for BatchNorm; RR,
        Section 6.3, which takes it over.
    """

    def __init__(
        self,
        side: int,
        classes: int,
        *,
        weight: float = 1.0,
        latent: int = 20,
        channels: tuple[int, int] = (16, 8),
        seed: Seed = 0,
    ) -> None:
        super().__init__()
        if side < 4 or side % 4:
            raise ValueError(f"side = {side}; the image is doubled twice: use a multiple of 4")
        if classes < 1 or latent <= classes:
            raise ValueError(f"latent = {latent}; {classes} of them choose the class, and the image needs more")
        if any(each < _GROUPS or each % _GROUPS for each in channels):
            raise ValueError(f"channels = {channels}; they are normalised in {_GROUPS} groups: use multiples of it")
        self.side, self.classes, self.weight = side, classes, weight
        generator, quarter, (first, second) = generator_of(seed), side // 4, channels
        self.layers = nn.Sequential(
            *(linear(latent, first * quarter**2, generator), Unflattened(first, quarter)),
            *(nn.GroupNorm(_GROUPS, first), nn.ReLU(), nn.UpsamplingNearest2d(scale_factor=2)),
            *(convolution(first, second, 5, generator), nn.GroupNorm(_GROUPS, second), nn.ReLU()),
            *(nn.UpsamplingNearest2d(scale_factor=2), convolution(second, 1, 5, generator)),
            *(nn.Flatten(1), nn.Sigmoid()),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Images with their classes' codes (m, side^2 + classes) of standard normal inputs (m, latent)."""
        images, codes = self._made(inputs)
        return torch.cat([images, self.weight * codes], dim=1)

    def labelled(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Images (m, side^2) and their classes (m,) int64 of standard normal inputs (m, latent)."""
        images, codes = self._made(inputs)
        return images, codes.argmax(dim=1)

    def _made(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        noise, chosen = inputs[:, : -self.classes], inputs[:, -self.classes :]
        codes = F.one_hot(chosen.argmax(dim=1), self.classes).to(inputs)
        return self.layers(torch.cat([noise, codes], dim=1)), codes


class BlockedImages(LabelledImages):
    """The same generator, compared in blocks: an image stands in the block of its class, and all others are 0.

    Random directions then meet every class with weights of their own, so that a mean of projections tells of every
    class's mean image; of images beside their codes only the second moments do. An image is as long in its block as
    it was, so one that is replaced, class included, moves by at most the diameter of the images' own ball.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Images in their classes' blocks (m, classes side^2) of standard normal inputs (m, latent)."""
        return _in_blocks(*self._made(inputs))

    def seen(self, features: Tensor) -> Tensor:
        """Records (n, side^2 + classes), images with codes beside them, in blocks (n, classes side^2)."""
        images, codes = features[:, : -self.classes], features[:, -self.classes :]
        return _in_blocks(images, codes / self.weight)

    def beside(self, blocks: Tensor) -> Tensor:
        """Images in blocks (n, classes side^2) with their codes beside them (n, side^2 + classes): `seen` undone."""
        parts = blocks.reshape(len(blocks), self.classes, -1)
        codes = F.one_hot(parts.abs().sum(dim=2).argmax(dim=1), self.classes).to(blocks)
        return torch.cat([parts.sum(dim=1), self.weight * codes], dim=1)


def _in_blocks(images: Tensor, codes: Tensor) -> Tensor:
    """Outer products (n, classes side^2) of images (n, side^2) and one-hot codes (n, classes)."""
    return (codes.unsqueeze(2) * images.unsqueeze(1)).flatten(1)


class DecodedImages(nn.Module):
    """Square images (m, side^2) in (0, 1) of inputs (m, latent): the decoder of SPF's autoencoder as a generator.

    A linear layer to 32 images of half the side, two 3x3 convolutions of 32 filters, a transposed 2x2 one of stride 2,
    each with ReLU, and a 3x3 convolution to one channel with a sigmoid.

    Raises:
        ValueError: if the side is not even.

    Source: SPF, Appendix C.1, with the images at their own side (28) where SPF pads them to 32.
    """

    def __init__(self, side: int, latent: int, *, filters: int = 32, seed: Seed = 0) -> None:
        super().__init__()
        if side < 2 or side % 2:
            raise ValueError(f"side = {side}; the decoder doubles the image once: use an even side")
        generator, half = generator_of(seed), side // 2
        self.layers = nn.Sequential(
            *(linear(latent, filters * half**2, generator), nn.ReLU(), nn.Unflatten(1, (filters, half, half))),
            *(convolution(filters, filters, 3, generator), nn.ReLU()),
            *(convolution(filters, filters, 3, generator), nn.ReLU()),
            *(doubling(filters, filters, generator), nn.ReLU()),
            *(convolution(filters, 1, 3, generator), nn.Flatten(1), nn.Sigmoid()),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Images (m, side^2) of inputs (m, latent)."""
        images: Tensor = self.layers(inputs)
        return images
