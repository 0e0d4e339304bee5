"""The models of the experiments: layers that clipping knows, initialised from an explicit seed."""

from fedsw.models.conditional import Conditional, ImageGenerator, VectorGenerator
from fedsw.models.dcgan import DCGAN, AdversarialDCGAN, Critic
from fedsw.models.flat import count_parameters, flatten, load_flat
from fedsw.models.images import Adaptor, ImageAutoencoder
from fedsw.models.initial import Seed
from fedsw.models.particles import Particles
from fedsw.models.perceptrons import ACTIVATIONS, EncoderDecoder, generator, logistic, mlp

__all__ = [
    "ACTIVATIONS",
    "DCGAN",
    "Adaptor",
    "AdversarialDCGAN",
    "Conditional",
    "Critic",
    "EncoderDecoder",
    "ImageAutoencoder",
    "ImageGenerator",
    "Particles",
    "Seed",
    "VectorGenerator",
    "count_parameters",
    "flatten",
    "generator",
    "load_flat",
    "logistic",
    "mlp",
]
