"""Networks of images: convolutional autoencoders, classifiers, DCGANs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw.learning.models.initial import (
    Seed,
    convolution,
    doubled_convolution,
    generator_of,
    linear,
    require_doubled_twice,
    require_multiple,
    require_positive,
    xavier,
)
from fedsw.learning.models.labelled import Proportioned, Unflattened, innermost

_SLOPE = 0.2


class ImageAutoencoder(nn.Module):
    """The autoencoder of the private sliced-Wasserstein autoencoder, for images with sides of a multiple of 4.

    Encoder: three 3x3 convolutions without bias (8, 16, 16 filters, leaky ReLU of slope 0.2), 2x2 means after the
    first two, then linear layers of 128, 64 and `latent` units with ReLU between them. Decoder: linear layers of
    64, 128 and side^2 units, each with ReLU, then the convolutions mirrored (16, 8, 1 filters), with the image
    doubled by repetition before the second and the third. For 28x28 images and 6 latent dimensions that is 226 086
    parameters, as in the paper. Records are treated one by one and each layer runs once, as clipping requires.

    Source: RLL, Table 3, and the authors' notebook `notebook_swae.ipynb` (github.com/rvitores/
        LearningDPslicedWasserstein) for what the table leaves open: slope, mean pooling, nearest-neighbour doubling,
        no bias in convolutions, the initialisation (`xavier`). One deviation: the forward pass ends before the
        sigmoid, since the cross-entropy of logits is exact where the notebook's, of probabilities, is cut off at 1e-6.
    """

    def __init__(self, side: int = 28, latent: int = 6, *, seed: Seed = 0) -> None:
        super().__init__()
        require_multiple(side, 4, "the image autoencoder halves it twice")
        require_positive(latent=latent)
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

    def decode(self, codes: Tensor) -> Tensor:
        """Logits (n, side^2) of the pixels."""
        logits: Tensor = self.decoder(codes)
        return logits


class Adaptor(nn.Module):
    """A classifier of images with features that are compared across domains.

    Encoder: two convolutions of stride 2 (5x5, 16 filters; 3x3, 32 filters), a linear layer of 128 units, each with
    ReLU, and a linear layer of `features` units. The classifier is linear on the features.
    """

    def __init__(self, side: int, features: int, classes: int, *, seed: Seed = 0) -> None:
        super().__init__()
        require_positive(side=side, features=features, classes=classes)
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


_FILTERS = (128, 64)

_WEIGHT, _SCALE = 0.02, 0.02


class DCGAN(nn.Module):
    """Images (n, side^2) in (0, 1) of standard normal noise (n, latent), which is first made uniform on [0, 1].

    A linear layer to `filters[0]` images of side / 2^k, k = len(filters), then k transposed 4x4 convolutions of stride
    2 to `filters[1:]` images and to one; BatchNorm and ReLU after every layer but the last, which ends in
    (1 + tanh) / 2. The first BatchNorm is of every pixel of every filter by itself, so that what all samples share
    (uniform noise has mean 1/2) does not drown what tells them apart. BatchNorm takes the statistics of the batch at
    hand, in evaluation too, and keeps none: the parameters are the whole model. It mixes samples, so this is for trust
    models under which no private record passes through the model. Weights begin normal with deviation .02 (BatchNorm's
    about 1).

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
        require_positive(latent=latent, **{f"filters[{i}]": size for i, size in enumerate(filters)})
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

    Filters are given the last first: those of the generator it meets. Weights begin normal with deviation .02.

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
    """A `DCGAN` and the `Critic` that it is trained against; called, it is the generator only."""

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
    return nn.ConvTranspose2d(before, after, 4, stride=2, padding=1, bias=False)


def _draw(module: nn.Module, generator: torch.Generator) -> None:
    """DCGAN's initial weights, from this generator only."""
    for child in module.modules():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(child.weight, 1.0, _SCALE, generator=generator)
            nn.init.zeros_(child.bias)
        elif isinstance(child, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(child.weight, 0.0, _WEIGHT, generator=generator)
            if child.bias is not None:
                nn.init.zeros_(child.bias)


_PUBLISHED_FILTERS = 20


class PublishedAdaptor(nn.Module):
    """Features in (0, 1) of images of side 16 or more, which are compared across domains, and a classifier of them.

    Features: 5x5 convolutions without padding of 32 and 20 filters, each followed by 2x2 maxima, with ReLU and
    a sigmoid. Classifier: 100 ReLU units. The authors' dropout is left out: records are treated one by one, the
    same way twice.

    Source: RR, Section 6.2, and the authors' code (github.com/arakotom/dp_swd, da_models.py).
    """

    def __init__(self, side: int, classes: int, *, seed: Seed = 0) -> None:
        super().__init__()
        if side < 16:
            raise ValueError(f"side = {side}; two 5x5 convolutions without padding need 16 or more")
        generator = generator_of(seed)
        self.encoder = nn.Sequential(
            *(
                nn.Unflatten(1, (1, side, side)),
                convolution(1, 32, 5, generator, padded=False),
                nn.MaxPool2d(2),
                nn.ReLU(),
            ),
            *(
                convolution(32, _PUBLISHED_FILTERS, 5, generator, padded=False),
                nn.MaxPool2d(2),
                nn.Sigmoid(),
                nn.Flatten(1),
            ),
        )
        width = self.features(side)
        self.classifier = nn.Sequential(linear(width, 100, generator), nn.ReLU(), linear(100, classes, generator))

    @staticmethod
    def features(side: int) -> int:
        """Number of features by which images are compared: 320 for 28x28 pixels."""
        return _PUBLISHED_FILTERS * (((side - 4) // 2 - 4) // 2) ** 2

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, d) and logits (n, classes) of images (n, side^2)."""
        features = self.encoder(images)
        return features, self.classifier(features)


class ResidualImages(Proportioned):
    """Square images (m, side^2) in (0, 1) of noise and a cell, by blocks that are added to what passes them.

    A linear layer of noise and the one-hot cell to `channels[0]` images of a quarter of the side, then two blocks, to
    `channels[0]` and to `channels[1]` images, each of BatchNorm, ReLU, the image doubled by repetition, a 3x3
    convolution, and the same again without doubling; what comes in is doubled, goes through a 1x1 convolution, and is
    added. BatchNorm, ReLU, a 3x3 convolution and a sigmoid end it. Every BatchNorm has scales and shifts of the cell's
    own. It mixes the samples of a batch: it is for networks that only see noise.

    Source: Miyato and Koyama 2018, the generator, with other widths; de Vries et al. 2017 for the normalisation.
    """

    def __init__(
        self, side: int, cells: int, *, latent: int = 10, channels: tuple[int, int] = (32, 16), seed: Seed = 0
    ) -> None:
        require_doubled_twice(side, channels, cells=cells, latent=latent)
        super().__init__(latent, cells)
        generator, quarter, (first, second) = generator_of(seed), side // 4, channels
        self.start = nn.Sequential(linear(latent + cells, first * quarter**2, generator), Unflattened(first, quarter))
        self.blocks = nn.ModuleList(
            [_Doubled(first, first, cells, generator), _Doubled(first, second, cells, generator)]
        )
        self.norm, self.end = _NormOfCell(second, cells), convolution(second, 1, 3, generator)
        innermost(self)

    def forward(self, noise: Tensor, cells: Tensor) -> Tensor:
        """Images (m, side^2) of noise (m, latent) and cells (m,)."""
        codes = F.one_hot(cells, self.cells).to(noise)
        images: Tensor = self.start(torch.cat([noise, codes], dim=1))
        for block in self.blocks:
            images = block(images, codes)
        ended: Tensor = self.end(self.norm(images, codes))
        return ended.flatten(1).sigmoid()


class _NormOfCell(nn.Module):
    """BatchNorm with scales and shifts of the cell's own, and ReLU."""

    def __init__(self, channels: int, cells: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.scales, self.shifts = nn.Parameter(torch.ones(cells, channels)), nn.Parameter(torch.zeros(cells, channels))

    def forward(self, images: Tensor, codes: Tensor) -> Tensor:
        scales, shifts = ((codes @ by_cell)[:, :, None, None] for by_cell in (self.scales, self.shifts))
        return F.relu(self.norm(images) * scales + shifts)


class _Doubled(nn.Module):
    def __init__(self, inputs: int, outputs: int, cells: int, generator: torch.Generator) -> None:
        super().__init__()
        self.before, self.between = _NormOfCell(inputs, cells), _NormOfCell(outputs, cells)
        self.first = doubled_convolution(inputs, outputs, 3, generator)
        self.second = convolution(outputs, outputs, 3, generator)
        self.past, self.larger = convolution(inputs, outputs, 1, generator), nn.UpsamplingNearest2d(scale_factor=2)

    def forward(self, images: Tensor, codes: Tensor) -> Tensor:
        added = self.first(self.before(images, codes))
        doubled: Tensor = self.larger(self.past(images)) + self.second(self.between(added, codes))
        return doubled
