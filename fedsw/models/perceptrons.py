"""Perceptrons: classifiers, generators, and pairs that meet in a latent space."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import Tensor, nn

from fedsw.models.initial import Seed, generator_of, linear

ACTIVATIONS: Mapping[str, type[nn.Module]] = MappingProxyType({"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU})


class EncoderDecoder(nn.Module):
    """Two perceptrons that meet in a latent space.

    The decoder's hidden layers mirror the encoder's. Each runs once a pass, as clipping requires.

    Raises:
        ValueError: as `mlp` does.
    """

    def __init__(
        self,
        features: int,
        hidden: Sequence[int],
        latent: int,
        *,
        activation: str = "tanh",
        seed: Seed = 0,
    ) -> None:
        """Build both from one seed; see `mlp` for the arguments."""
        super().__init__()
        generator = generator_of(seed)
        self.encoder = mlp(features, hidden, latent, activation=activation, seed=generator)
        self.decoder = mlp(latent, tuple(hidden)[::-1], features, activation=activation, seed=generator)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Latent (n, latent) and reconstruction (n, features) of features (n, features)."""
        latent = self.encoder(features)
        return latent, self.decoder(latent)


def logistic(features: int, outputs: int = 1, *, seed: Seed = 0) -> nn.Sequential:
    """A linear model (n, features) -> (n, outputs); with one output, the logit of class 1.

    Raises:
        ValueError: as `mlp` does.
    """
    return mlp(features, (), outputs, seed=seed)


def generator(
    latent: int,
    hidden: Sequence[int],
    features: int,
    *,
    activation: str = "relu",
    seed: Seed = 0,
) -> nn.Sequential:
    """A perceptron that turns noise (n, latent) into points (n, features); the ring's is (2; 128, 64, 64; 2).

    Raises:
        ValueError: as `mlp` does.

    Source: RLL, Appendix D.2, for the widths.
    """
    return mlp(latent, hidden, features, activation=activation, seed=seed)


def mlp(
    features: int,
    hidden: Sequence[int],
    outputs: int = 1,
    *,
    activation: str = "relu",
    seed: Seed = 0,
) -> nn.Sequential:
    """A perceptron (n, features) -> (n, outputs) that ends in a linear layer: logits or raw predictions.

    Weights and biases are uniform on +-1/sqrt(fan-in), torch's default, drawn from `seed` alone: torch's
    global generator is neither read nor moved, and the model is the same on every machine.

    Args:
        features: width of the input.
        hidden: widths of the hidden layers; none gives a linear model.
        outputs: width of the output.
        activation: "relu", "tanh" or "elu", after every hidden layer.
        seed: an integer, or a CPU generator to go on drawing from.

    Raises:
        ValueError: if a width is below 1 or the activation is unknown.
    """
    if activation not in ACTIVATIONS:
        near = difflib.get_close_matches(activation, ACTIVATIONS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"activation {activation!r} is unknown: did you mean {near!r}? Known: {', '.join(ACTIVATIONS)}"
        )
    widths = {"features": features, **{f"hidden[{i}]": w for i, w in enumerate(hidden)}, "outputs": outputs}
    for name, width in widths.items():
        if width < 1:
            raise ValueError(f"{name} = {width}; a layer has at least 1 unit")
    generator = generator_of(seed)
    sizes = list(widths.values())
    layers: list[nn.Module] = []
    for inputs, units in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [linear(inputs, units, generator), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])
