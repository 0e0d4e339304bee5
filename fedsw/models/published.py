"""The digit network that RR adapted."""

from __future__ import annotations

from torch import Tensor, nn

from fedsw.models.initial import Seed, bare_convolution, generator_of, linear

_FILTERS = 20


class PublishedAdaptor(nn.Module):
    """Features in (0, 1) of images, which are compared across domains, and a classifier of them.

    Features: 5x5 convolutions without padding of 32 and 20 filters, each followed by 2x2 maxima, with ReLU and
    a sigmoid. Classifier: 100 ReLU units. The authors' dropout is left out: records are treated one by one, the
    same way twice.

    Raises:
        ValueError: if the side is below 16.

    Source: RR, Section 6.2, and the authors' code (github.com/arakotom/dp_swd, da_models.py).
    """

    def __init__(self, side: int, classes: int, *, seed: Seed = 0) -> None:
        super().__init__()
        if side < 16:
            raise ValueError(f"side = {side}; two 5x5 convolutions without padding need 16 or more")
        generator = generator_of(seed)
        self.encoder = nn.Sequential(
            *(nn.Unflatten(1, (1, side, side)), bare_convolution(1, 32, 5, generator), nn.MaxPool2d(2), nn.ReLU()),
            *(bare_convolution(32, _FILTERS, 5, generator), nn.MaxPool2d(2), nn.Sigmoid(), nn.Flatten(1)),
        )
        width = self.features(side)
        self.classifier = nn.Sequential(linear(width, 100, generator), nn.ReLU(), linear(100, classes, generator))

    @staticmethod
    def features(side: int) -> int:
        """How many numbers an image is compared by: 320 for 28x28 pixels."""
        return _FILTERS * (((side - 4) // 2 - 4) // 2) ** 2

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, d) and logits (n, classes) of images (n, side^2)."""
        features = self.encoder(images)
        return features, self.classifier(features)
