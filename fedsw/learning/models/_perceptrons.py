"""Perceptrons: classifiers, generators, and pairs that meet in a latent space."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw._tools.randomness import Stream
from fedsw.learning.models.initial import (
    Seed,
    convolution,
    generator_of,
    linear,
    require_multiple,
    require_positive,
)
from fedsw.learning.models.labelled import DecodedImages

ACTIVATIONS: Mapping[str, type[nn.Module]] = MappingProxyType({"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU})


class EncoderDecoder(nn.Module):
    """Two perceptrons that meet in a latent space, from one seed; see `mlp` for the arguments.

    The decoder's hidden layers mirror the encoder's. Each runs once a pass, as clipping requires.
    """

    def __init__(
        self, features: int, hidden: Sequence[int], latent: int, *, activation: str = "tanh", seed: Seed = 0
    ) -> None:
        super().__init__()
        generator = generator_of(seed)
        self.encoder = mlp(features, hidden, latent, activation=activation, seed=generator)
        self.decoder = mlp(latent, tuple(hidden)[::-1], features, activation=activation, seed=generator)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Latent (n, latent) and reconstruction (n, features) of features (n, features)."""
        latent = self.encoder(features)
        return latent, self.decoder(latent)


def logistic(features: int, outputs: int = 1, *, seed: Seed = 0) -> nn.Sequential:
    """A linear model (n, features) -> (n, outputs); with one output, the logit of class 1."""
    return mlp(features, (), outputs, seed=seed)


def mlp(
    features: int, hidden: Sequence[int], outputs: int = 1, *, activation: str = "relu", seed: Seed = 0
) -> nn.Sequential:
    """A perceptron (n, features) -> (n, outputs) that ends in a linear layer: logits, raw predictions, points of noise.

    Weights and biases are uniform on +-1/sqrt(fan-in), torch's default, drawn from `seed` only, an integer or a CPU
    generator to go on drawing from: torch's global generator is neither read nor moved, and the model is the same on
    every machine. The activation is after every hidden layer; without any the model is linear.
    """
    if activation not in ACTIVATIONS:
        near = difflib.get_close_matches(activation, ACTIVATIONS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"activation {activation!r} is unknown: did you mean {near!r}? Known: {', '.join(ACTIVATIONS)}"
        )
    widths = {"features": features, **{f"hidden[{i}]": w for i, w in enumerate(hidden)}, "outputs": outputs}
    require_positive(**widths)
    generator = generator_of(seed)
    sizes = list(widths.values())
    layers: list[nn.Module] = []
    for inputs, units in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [linear(inputs, units, generator), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


class Particles(nn.Module):
    """A cloud of m points of R^p, drawn from a centred Gaussian of deviation `scale` and then moved.

    Its points are a bare parameter, which `clipping.check` refuses: no private record passes through them, so
    there is no Jacobian of a record to clip. They may only be moved by what was released (slices or quantiles that
    carry their noise already).
    """

    def __init__(self, count: int, dimension: int, *, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        require_positive(count=count, dimension=dimension)
        if not 0 < scale < math.inf:
            raise ValueError(f"scale = {scale}; it must be finite and above 0")
        normals = Stream.seeded(seed, "particles").normals(count * dimension).reshape(count, dimension)
        self.points = nn.Parameter(torch.from_numpy(scale * normals).to(torch.float32))

    def forward(self) -> Tensor:
        """The points (count, dimension)."""
        return self.points


class UnitAutoencoder(nn.Module):
    """Square images, of an even side of 6 or more, to codes on the unit sphere, and back.

    Encoder: convolutions of (filters, kernel, stride) (3, 3, 1), (32, 4, 2) without padding, (32, 3, 1) and
    (32, 3, 1), each with ReLU, and a linear layer to the code, which is divided by its length. Decoder:
    `fedsw.learning.models.labelled.DecodedImages`.

    Source: SPF, Appendix C.1, with images at their own side (28) where SPF pads them to 32.
    """

    def __init__(self, side: int, latent: int, *, seed: Seed = 0) -> None:
        super().__init__()
        if side < 6 or side % 2:
            raise ValueError(f"side = {side}; the encoder halves the image: use an even side of 6 or more")
        generator, inner = generator_of(seed), (side - 4) // 2 + 1
        self.encoder = nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            *(convolution(1, 3, 3, generator), nn.ReLU()),
            *(convolution(3, 32, 4, generator, stride=2, padded=False), nn.ReLU()),
            *(convolution(32, 32, 3, generator), nn.ReLU(), convolution(32, 32, 3, generator), nn.ReLU()),
            *(nn.Flatten(1), linear(32 * inner**2, latent, generator)),
        )
        self.decoder = DecodedImages(side, latent, seed=generator)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (n, latent) and reconstructed images (n, side^2) of images (n, side^2)."""
        codes = self.encode(images)
        return codes, self.decode(codes)

    def encode(self, images: Tensor) -> Tensor:
        """Codes (n, latent) of length 1."""
        codes: Tensor = F.normalize(self.encoder(images), dim=1)
        return codes

    def decode(self, codes: Tensor) -> Tensor:
        """Images (n, side^2) in (0, 1) of codes (n, latent), whatever their length."""
        images: Tensor = self.decoder(F.normalize(codes, dim=1))
        return images


class TransportedAdaptor(nn.Module):
    """Public images are transported, compared with private ones at a smaller side, and classified; both in [0, 1].

    The transport is an affine map of the plane (6 numbers) and a 5x5 filter with an offset (26 numbers); it begins as
    the identity. Private images are compared as they are, so that no private record passes through a trained parameter
    and the target of the comparison stays where it is. The classifier (convolutions of stride 2: 5x5, 16 filters, and
    3x3, 32 filters; a linear layer of 64 units, each with ReLU, and one of `classes` units) learns from transported
    public images and their labels; what it learns from them does not flow back into the transport. So many numbers are
    ``compared``: an image's means over squares, times their side.
    """

    def __init__(self, side: int, classes: int, compared: int, *, seed: Seed = 0) -> None:
        super().__init__()
        require_multiple(side, 4, "the classifier halves the image twice")
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
        """Return compared outputs (n, compared) and logits (n, classes) of private images (n, side^2) as they are."""
        return self.seen(images), self.classifier(images)

    def public(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return compared outputs (m, compared) and logits (m, classes) of public images (m, side^2), transported."""
        moved = self.transported(images)
        return self.seen(moved), self.classifier(moved.detach())

    def transported(self, images: Tensor) -> Tensor:
        """Public images (m, side^2), moved."""
        maps = self.plane(images.new_ones((len(images), 1))).reshape(-1, 2, 3)
        square = images.reshape(-1, 1, self._side, self._side)
        grid = F.affine_grid(maps, list(square.shape), align_corners=False)
        placed = F.grid_sample(square, grid, align_corners=False, padding_mode="zeros")
        filtered: Tensor = self.filter(placed).flatten(1)
        return filtered

    def seen(self, images: Tensor) -> Tensor:
        """Return the compared outputs (n, compared) of images (n, side^2); no parameter takes part."""
        square = images.reshape(-1, 1, self._side, self._side)
        return F.avg_pool2d(square, self._block).flatten(1) * self._block
