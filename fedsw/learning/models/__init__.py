"""The models of the experiments: layers that clipping knows, initialised from an explicit seed."""

from fedsw.learning.models._image_networks import DCGAN as DCGAN
from fedsw.learning.models._image_networks import Adaptor as Adaptor
from fedsw.learning.models._image_networks import AdversarialDCGAN as AdversarialDCGAN
from fedsw.learning.models._image_networks import Critic as Critic
from fedsw.learning.models._image_networks import ImageAutoencoder as ImageAutoencoder
from fedsw.learning.models._image_networks import PublishedAdaptor as PublishedAdaptor
from fedsw.learning.models._perceptrons import ACTIVATIONS as ACTIVATIONS
from fedsw.learning.models._perceptrons import EncoderDecoder as EncoderDecoder
from fedsw.learning.models._perceptrons import Particles as Particles
from fedsw.learning.models._perceptrons import TransportedAdaptor as TransportedAdaptor
from fedsw.learning.models._perceptrons import UnitAutoencoder as UnitAutoencoder
from fedsw.learning.models._perceptrons import logistic as logistic
from fedsw.learning.models._perceptrons import mlp as mlp
from fedsw.learning.models.coded import Centred as Centred
from fedsw.learning.models.coded import Coding as Coding
from fedsw.learning.models.coded import Hats as Hats
from fedsw.learning.models.initial import Seed as Seed
from fedsw.learning.models.initial import count_parameters as count_parameters
from fedsw.learning.models.initial import flatten as flatten
from fedsw.learning.models.initial import load_flat as load_flat
from fedsw.learning.models.labelled import BlockedImages as BlockedImages
from fedsw.learning.models.labelled import Conditional as Conditional
from fedsw.learning.models.labelled import DecodedImages as DecodedImages
from fedsw.learning.models.labelled import ImageGenerator as ImageGenerator
from fedsw.learning.models.labelled import LabelledImages as LabelledImages
from fedsw.learning.models.labelled import VectorGenerator as VectorGenerator
