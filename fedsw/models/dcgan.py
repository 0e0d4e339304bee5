"""The generator of DCGAN for square images, and with it the critic of an adversarial distance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsw.models.initial import Seed, generator_of

_FILTERS = (128, 64)
_SLOPE = 0.2
_WEIGHT, _SCALE = 0.02, 0.02


class DCGAN(nn.Module):
    """Images (n, side^2) in (0, 1) of standard normal noise (n, latent), which is first made uniform on [0, 1].

    A linear layer to `filters[0]` images of side / 2^k, k = len(filters), then k transposed 4x4 convolutions of stride
    2 to `filters[1:]` images and to one; BatchNorm and ReLU after every layer but the last, which ends in
    (1 + tanh) / 2. The first BatchNorm is of every pixel of every filter by itself, so that what all samples share
    (uniform noise has mean 1/2) does not drown what tells them apart. BatchNorm takes the statistics of the batch at
    hand, in evaluation too, and keeps none: the parameters are the whole model. It mixes samples, so this is for trust
    models under which no private record passes through the model.

    Args:
        side: of the images, a multiple of 2^k.
        latent: width of the noise.
        filters: of the layers, the first first.
        seed: of the initial weights, normal with deviation .02 (BatchNorm's about 1).

    Raises:
        ValueError: if a size is below 1, or the side is not a multiple of 2^k.

    Source: Radford, Metz, Chintala 2015; RCO, Section 5.4, for uniform noise of 100 dimensions.
    """

    def __init__(self, side: int, latent: int = 100, filters: Sequence[int] = _FILTERS, *, seed: Seed = 0) -> None:
        super().__init__()
        filters = tuple(filters) or _FILTERS
        factor = 2 ** len(filters)
        if side < factor or side % factor:
            raise ValueError(
                f"side = {side}; {len(filters)} layers of filters double the image {len(filters)} times: use a "
                f"multiple of {factor}"
            )
        for name, size in {"latent": latent, **{f"filters[{i}]": size for i, size in enumerate(filters)}}.items():
            if size < 1:
                raise ValueError(f"{name} = {size}; it must be at least 1")
        smallest = side // factor
        with torch.random.fork_rng(devices=[]):  # torch initialises from its global generator; put it back
            layers: list[nn.Module] = [
                nn.Linear(latent, filters[0] * smallest**2, bias=False),
                nn.BatchNorm1d(filters[0] * smallest**2, track_running_stats=False),
                nn.ReLU(),
                nn.Unflatten(1, (filters[0], smallest, smallest)),
            ]
            for before, after in zip(filters[:-1], filters[1:], strict=True):
                layers += [_doubled(before, after), nn.BatchNorm2d(after, track_running_stats=False), nn.ReLU()]
            layers += [_doubled(filters[-1], 1), nn.Flatten(1), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        _draw(self, generator_of(seed))

    def forward(self, noise: Tensor) -> Tensor:
        """Images (n, side^2) of noise (n, latent)."""
        images: Tensor = self.layers(torch.special.ndtr(noise))
        return (1 + images) / 2


class Critic(nn.Module):
    """A number for each image: 4x4 convolutions of stride 2 with leaky ReLU, then a linear layer; no normalisation.

    Args:
        side: of the images, a multiple of 2^k.
        filters: of the k convolutions, the last first: those of the generator it meets.
        seed: of the initial weights, normal with deviation .02.

    Source: Gulrajani and others 2017 (a penalty on gradients forbids BatchNorm); Radford, Metz, Chintala 2015.
    """

    def __init__(self, side: int, filters: Sequence[int] = _FILTERS, *, seed: Seed = 0) -> None:
        super().__init__()
        sizes = (1, *reversed(tuple(filters) or _FILTERS))
        layers: list[nn.Module] = [nn.Unflatten(1, (1, side, side))]
        smallest = side // 2 ** (len(sizes) - 1)
        with torch.random.fork_rng(devices=[]):
            for before, after in zip(sizes[:-1], sizes[1:], strict=True):
                layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.LeakyReLU(_SLOPE)]
            layers += [nn.Flatten(1), nn.Linear(sizes[-1] * smallest**2, 1)]
        self.layers = nn.Sequential(*layers)
        _draw(self, generator_of(seed))

    def forward(self, images: Tensor) -> Tensor:
        """Values (n,) of images (n, side^2)."""
        values: Tensor = self.layers(images)
        return values.squeeze(1)


class AdversarialDCGAN(nn.Module):
    """A `DCGAN` and the `Critic` that it is trained against; called, it is the generator alone.

    Attributes:
        generator: noise (n, latent) to images (n, side^2).
        critic: images to values (n,).

    Raises:
        ValueError: as `DCGAN`.
    """

    def __init__(self, side: int, latent: int = 100, filters: Sequence[int] = _FILTERS, *, seed: Seed = 0) -> None:
        super().__init__()
        draws = generator_of(seed)
        self.generator = DCGAN(side, latent, filters, seed=draws)
        self.critic = Critic(side, filters, seed=draws)

    def forward(self, noise: Tensor) -> Tensor:
        """Images (n, side^2) of noise (n, latent)."""
        images: Tensor = self.generator(noise)
        return images


def _doubled(before: int, after: int) -> nn.ConvTranspose2d:
    """A transposed convolution to images of twice the side."""
    return nn.ConvTranspose2d(before, after, 4, stride=2, padding=1, bias=False)


def _draw(module: nn.Module, generator: torch.Generator) -> None:
    """DCGAN's initial weights, from this generator alone."""
    for child in module.modules():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(child.weight, 1.0, _SCALE, generator=generator)
            nn.init.zeros_(child.bias)
        elif isinstance(child, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(child.weight, 0.0, _WEIGHT, generator=generator)
            if child.bias is not None:
                nn.init.zeros_(child.bias)
