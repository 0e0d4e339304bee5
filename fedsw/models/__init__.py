"""The models of the experiments: layers that clipping knows, initialised from an explicit seed."""

from fedsw.models.conditional import Conditional, ImageGenerator, VectorGenerator
from fedsw.models.dcgan import DCGAN, AdversarialDCGAN, Critic
from fedsw.models.encoded import UnitAutoencoder
from fedsw.models.flat import count_parameters, flatten, load_flat
from fedsw.models.images import Adaptor, ImageAutoencoder
from fedsw.models.initial import Seed
from fedsw.models.labelled import BlockedImages, DecodedImages, LabelledImages
from fedsw.models.particles import Particles
from fedsw.models.perceptrons import ACTIVATIONS, EncoderDecoder, generator, logistic, mlp
from fedsw.models.published import PublishedAdaptor
from fedsw.models.transported import TransportedAdaptor

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
    "generator",
    "load_flat",
    "logistic",
    "mlp",
]
