"""Convolutional models of square images that come as rows of pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsw.models.initial import Seed, convolution, generator_of, linear, xavier

_SLOPE = 0.2


class ImageAutoencoder(nn.Module):
    """The autoencoder of the private sliced-Wasserstein autoencoder, for images whose side is a multiple of 4.

    Encoder: three 3x3 convolutions without bias (8, 16, 16 filters, leaky ReLU of slope 0.2), 2x2 means after the
    first two, then linear layers of 128, 64 and `latent` units with ReLU between them. Decoder: linear layers of
    64, 128 and side^2 units, each with ReLU, then the convolutions mirrored (16, 8, 1 filters), with the image
    doubled by repetition before the second and the third. For 28x28 images and 6 latent dimensions that is 226 086
    parameters, as in the paper. Records are treated one by one and each layer runs once, as clipping requires.

    Attributes:
        encoder: images (n, side^2) to codes (n, latent).
        decoder: codes to logits of the pixels (n, side^2).

    Raises:
        ValueError: if the side is not a multiple of 4, or `latent` is below 1.

    Source: RLL, Table 3, and the authors' notebook `notebook_swae.ipynb` (github.com/rvitores/
        LearningDPslicedWasserstein) for what the table leaves open: slope, mean pooling, nearest-neighbour doubling,
        no bias in convolutions, the initialisation (`xavier`). One deviation: the forward pass ends before the
        sigmoid, since the cross-entropy of logits is exact where the notebook's, of probabilities, is cut off at 1e-6.
    """

    def __init__(self, side: int = 28, latent: int = 6, *, seed: Seed = 0) -> None:
        super().__init__()
        if side < 4 or side % 4:
            raise ValueError(f"side = {side}; the image autoencoder halves it twice: use a multiple of 4")
        _require_positive(latent=latent)
        generator, quarter = generator_of(seed), side // 4

        def conv(channels: int, filters: int) -> nn.Conv2d:
            return xavier(convolution(channels, filters, 3, generator, bias=False), generator)

        def full(inputs: int, units: int) -> nn.Linear:
            return xavier(linear(inputs, units, generator), generator)

        self.encoder = nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            *(conv(1, 8), nn.LeakyReLU(_SLOPE), nn.AvgPool2d(2)),
            *(conv(8, 16), nn.LeakyReLU(_SLOPE), nn.AvgPool2d(2)),
            *(conv(16, 16), nn.LeakyReLU(_SLOPE), nn.Flatten(1)),
            *(full(side**2, 128), nn.ReLU(), full(128, 64), nn.ReLU(), full(64, latent)),
        )
        self.decoder = nn.Sequential(
            *(full(latent, 64), nn.ReLU(), full(64, 128), nn.ReLU(), full(128, side**2), nn.ReLU()),
            nn.Unflatten(1, (16, quarter, quarter)),
            *(conv(16, 16), nn.LeakyReLU(_SLOPE), nn.UpsamplingNearest2d(scale_factor=2)),
            *(conv(16, 8), nn.LeakyReLU(_SLOPE), nn.UpsamplingNearest2d(scale_factor=2)),
            *(conv(8, 1), nn.Flatten(1)),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (n, latent) and logits of the reconstructed pixels (n, side^2) of images (n, side^2)."""
        codes = self.encoder(images)
        return codes, self.decoder(codes)

    def encode(self, images: Tensor) -> Tensor:
        """Codes (n, latent)."""
        codes: Tensor = self.encoder(images)
        return codes

    def decode(self, codes: Tensor) -> Tensor:
        """Logits (n, side^2) of the pixels."""
        logits: Tensor = self.decoder(codes)
        return logits

    def images(self, codes: Tensor) -> Tensor:
        """Pixels in [0, 1] (n, side^2): the sigmoid of `decode`."""
        return torch.sigmoid(self.decode(codes))


class Adaptor(nn.Module):
    """A classifier of images whose features are compared across domains.

    Encoder: two convolutions of stride 2 (5x5, 16 filters; 3x3, 32 filters), a linear layer of 128 units, each with
    ReLU, and a linear layer of `features` units. The classifier is linear on the features.

    Raises:
        ValueError: if a size is below 1.
    """

    def __init__(self, side: int, features: int, classes: int, *, seed: Seed = 0) -> None:
        super().__init__()
        _require_positive(side=side, features=features, classes=classes)
        generator, quarter = generator_of(seed), -(-side // 4)
        self.encoder = nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            *(convolution(1, 16, 5, generator, stride=2), nn.ReLU()),
            *(convolution(16, 32, 3, generator, stride=2), nn.ReLU(), nn.Flatten(1)),
            *(linear(32 * quarter**2, 128, generator), nn.ReLU(), linear(128, features, generator)),
        )
        self.classifier = linear(features, classes, generator)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, features) and logits (n, classes) of images (n, side^2)."""
        features = self.encoder(images)
        return features, self.classifier(features)


def _require_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} = {size}; it must be at least 1")
