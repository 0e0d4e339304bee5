"""Layers initialised from an explicit generator: torch's global one is neither read nor moved."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

Seed = int | torch.Generator

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


def generator_of(seed: Seed) -> torch.Generator:
    """A CPU generator of that seed, or the one given."""
    return seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)


def linear(inputs: int, units: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer, weights and biases uniform on +-1/sqrt(inputs)."""
    return _drawn(lambda: nn.Linear(inputs, units), generator)


def convolution(
    channels: int, filters: int, kernel: int, generator: torch.Generator, *, stride: int = 1, bias: bool = True
) -> nn.Conv2d:
    """A 2-D convolution that keeps the side (or divides it by the stride), uniform on +-1/sqrt(fan-in)."""
    return _drawn(
        lambda: nn.Conv2d(channels, filters, kernel, stride=stride, padding=kernel // 2, bias=bias), generator
    )


def doubling(channels: int, filters: int, generator: torch.Generator) -> nn.ConvTranspose2d:
    """A transposed 2x2 convolution of stride 2, which doubles the side; uniform on +-1/sqrt(4 filters)."""
    return _drawn(lambda: nn.ConvTranspose2d(channels, filters, 2, stride=2), generator)


def bare_convolution(
    channels: int, filters: int, kernel: int, generator: torch.Generator, *, stride: int = 1
) -> nn.Conv2d:
    """A 2-D convolution without padding, (side - kernel) / stride + 1 wide; uniform on +-1/sqrt(fan-in)."""
    return _drawn(lambda: nn.Conv2d(channels, filters, kernel, stride=stride), generator)


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
