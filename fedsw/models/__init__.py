"""The models of the experiments: layers that clipping knows, initialised from an explicit seed."""

from fedsw.models.images import DCGAN, Adaptor, AdversarialDCGAN, Critic, ImageAutoencoder, PublishedAdaptor
from fedsw.models.initial import Seed, count_parameters, flatten, load_flat
from fedsw.models.labelled import (
    BlockedImages,
    Conditional,
    DecodedImages,
    ImageGenerator,
    LabelledImages,
    VectorGenerator,
)
from fedsw.models.perceptrons import (
    ACTIVATIONS,
    EncoderDecoder,
    Particles,
    TransportedAdaptor,
    UnitAutoencoder,
    logistic,
    mlp,
)

__all__ = [
    "ACTIVATIONS",
    "DCGAN",
    "Adaptor",
    "AdversarialDCGAN",
    "BlockedImages",
    "Conditional",
    "Critic",
    "DecodedImages",
    "EncoderDecoder",
    "ImageAutoencoder",
    "ImageGenerator",
    "LabelledImages",
    "Particles",
    "PublishedAdaptor",
    "Seed",
    "TransportedAdaptor",
    "UnitAutoencoder",
    "VectorGenerator",
    "count_parameters",
    "flatten",
    "load_flat",
    "logistic",
    "mlp",
]
