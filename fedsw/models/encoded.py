"""The autoencoder whose unit-norm codes a flow learns."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fedsw.models.initial import Seed, bare_convolution, convolution, generator_of, linear
from fedsw.models.labelled import DecodedImages


class UnitAutoencoder(nn.Module):
    """Square images to codes on the unit sphere, and back.

    Encoder: convolutions of (filters, kernel, stride) (3, 3, 1), (32, 4, 2) without padding, (32, 3, 1) and
    (32, 3, 1), each with ReLU, and a linear layer to the code, which is divided by its length. Decoder:
    `fedsw.models.labelled.DecodedImages`.

    Raises:
        ValueError: if the side is not even, or below 6.

    Source: SPF, Appendix C.1, with images at their own side (28) where SPF pads them to 32.
    """

    def __init__(self, side: int, latent: int, *, seed: Seed = 0) -> None:
        super().__init__()
        if side < 6 or side % 2:
            raise ValueError(f"side = {side}; the encoder halves the image: use an even side of 6 or more")
        generator, inner = generator_of(seed), (side - 4) // 2 + 1
        self.encoder = nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            *(convolution(1, 3, 3, generator), nn.ReLU(), bare_convolution(3, 32, 4, generator, stride=2), nn.ReLU()),
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
