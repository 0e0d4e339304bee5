"""RLL's fair representation from the initial weights of their notebook: what the start does to Figure 19."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedsw.learning.models import EncoderDecoder
from fedsw.learning.models.initial import generator_of, xavier


def xavier_encoder_decoder(features: int, hidden: Sequence[int], latent: int, *, seed: int = 0) -> EncoderDecoder:
    """RLL's pair of perceptrons, weights uniform on ±sqrt(6 / (inputs + outputs)) and biases 0, from one seed.

    Source: the authors' notebooks (github.com/rvitores/LearningDPslicedWasserstein), whose runs all start so; the paper
        names no start.
    """
    network, generator = EncoderDecoder(features, tuple(hidden), latent, seed=seed), generator_of(seed)
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            xavier(layer, generator)
    return network
