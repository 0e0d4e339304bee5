"""The models of the experiments: layers that clipping knows, initialised from an explicit seed."""

from fedsw.models.coded import Centred as Centred
from fedsw.models.coded import Coding as Coding
from fedsw.models.coded import Hats as Hats
from fedsw.models.images import DCGAN as DCGAN
from fedsw.models.images import Adaptor as Adaptor
from fedsw.models.images import AdversarialDCGAN as AdversarialDCGAN
from fedsw.models.images import Critic as Critic
from fedsw.models.images import ImageAutoencoder as ImageAutoencoder
from fedsw.models.images import PublishedAdaptor as PublishedAdaptor
from fedsw.models.initial import Seed as Seed
from fedsw.models.initial import count_parameters as count_parameters
from fedsw.models.initial import flatten as flatten
from fedsw.models.initial import load_flat as load_flat
from fedsw.models.labelled import BlockedImages as BlockedImages
from fedsw.models.labelled import Conditional as Conditional
from fedsw.models.labelled import DecodedImages as DecodedImages
from fedsw.models.labelled import ImageGenerator as ImageGenerator
from fedsw.models.labelled import LabelledImages as LabelledImages
from fedsw.models.labelled import VectorGenerator as VectorGenerator
from fedsw.models.perceptrons import ACTIVATIONS as ACTIVATIONS
from fedsw.models.perceptrons import EncoderDecoder as EncoderDecoder
from fedsw.models.perceptrons import Particles as Particles
from fedsw.models.perceptrons import TransportedAdaptor as TransportedAdaptor
from fedsw.models.perceptrons import UnitAutoencoder as UnitAutoencoder
from fedsw.models.perceptrons import logistic as logistic
from fedsw.models.perceptrons import mlp as mlp
