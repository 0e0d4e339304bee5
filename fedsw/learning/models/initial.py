"""Layers with initial parameters from a seed, and all parameters as one flat vector."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Seed = int | torch.Generator

Layer = TypeVar("Layer", bound=nn.Linear | nn.Conv2d | nn.ConvTranspose2d)


def generator_of(seed: Seed) -> torch.Generator:
    """A CPU generator of that seed, or the one given."""
    return seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)


def linear(inputs: int, units: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer, weights and biases uniform on +-1/sqrt(inputs)."""
    return _drawn(lambda: nn.Linear(inputs, units), generator)


def convolution(
    channels: int,
    filters: int,
    kernel: int,
    generator: torch.Generator,
    *,
    stride: int = 1,
    bias: bool = True,
    padded: bool = True,
) -> nn.Conv2d:
    """A 2-D convolution, uniform on +-1/sqrt(fan-in); padded it keeps the side, or divides it by the stride."""
    padding = kernel // 2 if padded else 0
    return _drawn(lambda: nn.Conv2d(channels, filters, kernel, stride=stride, padding=padding, bias=bias), generator)


def doubling(channels: int, filters: int, generator: torch.Generator) -> nn.ConvTranspose2d:
    """A transposed 2x2 convolution of stride 2, which doubles the side; uniform on +-1/sqrt(4 filters)."""
    return _drawn(lambda: nn.ConvTranspose2d(channels, filters, 2, stride=2), generator)


class DoubledConvolution(nn.Conv2d):
    """A convolution of an image that is doubled by repetition, computed before it is doubled.

    A filter meets every number of the small image several times: for each of the four pixels that one becomes, those
    weights are added up first, so that filters are of side 3 where they had 5. Up to rounding it is
    `nn.UpsamplingNearest2d(2)` followed by the convolution, in less than half of its products.
    """

    met: Tensor

    def __init__(self, channels: int, filters: int, kernel: int) -> None:
        super().__init__(channels, filters, kernel, padding=kernel // 2)
        steps, radius = torch.arange(kernel) - kernel // 2, (kernel // 2 + 1) // 2
        places = torch.arange(-radius, radius + 1)
        pixels = torch.div(torch.arange(2).unsqueeze(1) + steps, 2, rounding_mode="floor")
        self.register_buffer("met", (pixels.unsqueeze(1) == places.unsqueeze(1)).float(), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Images (m, filters, 2 side, 2 side) of images (m, channels, side, side)."""
        sides = self.met.shape[1]
        added = torch.einsum("ajd,bke,oide->oabijk", self.met, self.met, self.weight)
        biases = None if self.bias is None else self.bias.repeat_interleave(4)
        four = F.conv2d(input, added.reshape(-1, self.in_channels, sides, sides), biases, padding=sides // 2)
        return F.pixel_shuffle(four, 2)


def doubled_convolution(channels: int, filters: int, kernel: int, generator: torch.Generator) -> DoubledConvolution:
    """A convolution of a doubled image, uniform on +-1/sqrt(fan-in), as `convolution` draws it."""
    return _drawn(lambda: DoubledConvolution(channels, filters, kernel), generator)


def xavier(layer: Layer, generator: torch.Generator) -> Layer:
    """The layer with weights uniform on +-sqrt(6 / (a + b)) and biases 0, for a weight of a outputs and b inputs.

    A convolution counts its channels only, not the pixels of its kernel: a 3x3 one starts with weights three times
    those of Glorot and Bengio 2010, which keeps an image alive through convolutions without normalisation.
    """
    bound = math.sqrt(6 / (layer.weight.shape[0] + layer.weight.shape[1]))
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        if layer.bias is not None:
            layer.bias.zero_()
    return layer


def _drawn(build: Callable[[], Layer], generator: torch.Generator) -> Layer:
    with torch.random.fork_rng(devices=[]):  # torch initialises from its global generator; put it back
        layer = build()
    bound = 1 / math.sqrt(layer.weight[0].numel())
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return layer


def count_parameters(module: nn.Module) -> int:
    """r, the number of trainable numbers of a module."""
    return sum(parameter.numel() for parameter in _trainable(module).values())


def flatten(module: nn.Module) -> Tensor:
    """The trainable parameters as one new vector (r,), in the order of `module.parameters()`, detached.

    ValueError if the module has none.
    """
    parameters = _trainable(module)
    if not parameters:
        raise ValueError(f"{type(module).__name__} has no trainable parameter: there is nothing to learn")
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters.values()])


def load_flat(module: nn.Module, vector: Tensor) -> None:
    """Overwrite the trainable parameters with a vector (r,) in the order of `flatten`, cast to their types.

    ValueError if the vector has another shape; the module is then unchanged.
    """
    with torch.no_grad():
        for parameter, part in parted(module, vector.detach()):
            parameter.copy_(part)


def parted(module: nn.Module, vector: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
    """Each trainable parameter with its part, in its own shape, of a vector (r,) in the order of `flatten`.

    ValueError if the vector has another shape.
    """
    trainable, count = _trainable(module), count_parameters(module)
    if tuple(vector.shape) != (count,):
        names = ", ".join(f"{name} {tuple(parameter.shape)}" for name, parameter in trainable.items())
        raise ValueError(
            f"a vector of shape {tuple(vector.shape)} does not fit {type(module).__name__} with "
            f"{count} trainable numbers ({names}); flatten() of the same model gives one that does"
        )
    parts = torch.split(vector, [parameter.numel() for parameter in trainable.values()])
    return [(weights, part.reshape(weights.shape)) for weights, part in zip(trainable.values(), parts, strict=True)]


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def require_doubled_twice(side: int, channels: tuple[int, int], **sizes: int) -> None:
    """Refuse sizes for a generator that doubles its image twice: a side that is not a multiple of 4, or one below 1."""
    require_multiple(side, 4, "the image is doubled twice")
    require_positive(**sizes, first_channels=channels[0], second_channels=channels[1])


def require_multiple(side: int, of: int, why: str) -> None:
    """Refuse a side of images that is not a positive multiple of a number, saying why it must be."""
    if side < of or side % of:
        raise ValueError(f"side = {side}; {why}: use a multiple of {of}")


def require_positive(**sizes: int) -> None:
    """Refuse sizes below 1, naming the first of them."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} = {size}; it must be at least 1")
