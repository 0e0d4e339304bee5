"""The models that are shipped, by name: how they are made, what they are for, and which settings they read.

An entry is a function under `model`, which makes a network of a section [model] and of `ModelSizes`; the networks are
in `fedsw.learning.models`, and are imported when one is made. `OWN` is the entry of what is named as `module:name`.
`fedsw.experiment.task_kinds.MODELS` has all of them.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedsw._tools.own_objects import load_object, named
from fedsw.data.settings import SOURCES
from fedsw.experiment import ExperimentError
from fedsw.experiment.choices import Settings
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import MODELS, ModelKind, ModelSizes, Role, shipped_task

if TYPE_CHECKING:
    from torch import nn

    from fedsw.data.sources import Shape

_WIDE = (200, 200)
"""Hidden layers of a generator that learns from a sketch, where none are given."""
_CHANNELS = (32, 16)
"""Channels of one of images, likewise."""
_LAYERS = ("hidden", "activation")

Maker = Callable[[Model, ModelSizes], "nn.Module"]


def model(name: str, *roles: Role, reads: tuple[str, ...], **facts: Any) -> Callable[[Maker], Maker]:
    """Register the function below as a kind of model by its name; `ModelKind` says what the facts are."""

    def entry(make: Maker) -> Maker:
        MODELS.register(name, ModelKind(make, roles, reads, **facts))
        return make

    return entry


@model("logistic", "predictor", reads=("inputs",), linear=True, chosen=("inputs",))
def _logistic(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import logistic

    return logistic(sizes.features, sizes.outputs, seed=spec.seed)


@model("additive", "predictor", reads=("knots", "bins"), linear=True, columns=True, chosen=("knots",))
def _additive(spec: Model, sizes: ModelSizes) -> nn.Module:
    return _logistic(spec, sizes)


def _of_images(settings: Settings) -> str | None:
    data, kind = settings.data, f"model.kind {settings.model.kind!r}"
    task = shipped_task(settings.objective.task)
    if task is None or not task.facts.classifies:
        return f"{kind} is for objective.task 'classification', not {settings.objective.task!r}"
    if not data.own and not SOURCES.get(data.source).images:
        images = ", ".join(repr(name) for name in SOURCES if SOURCES.get(name).images)
        return f"{kind} sees images, and data.source {data.source!r} has none: use {images}, or images of your own"
    if data.encoded is not None or data.code is not None:
        name = "encoded" if data.encoded is not None else "code"
        return f"{kind} sees pixels, and data.{name} puts other numbers in their place, or beside them: leave it out"
    return None


@model("scattering", "predictor", reads=("orders",), square=True, linear=True, filtered=True, misfit=_of_images)
def _scattering(spec: Model, sizes: ModelSizes) -> nn.Module:
    return _logistic(spec, sizes)


@model("mlp", "predictor", reads=(*_LAYERS, "inputs"))
def _mlp(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import mlp

    return mlp(sizes.features, spec.hidden, sizes.outputs, activation=spec.activation, seed=spec.seed)


@model("image-autoencoder", "autoencoder", reads=("latent", "inputs"), square=True)
def _image_autoencoder(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import ImageAutoencoder

    return ImageAutoencoder(math.isqrt(sizes.features), spec.latent, seed=spec.seed)


@model("encoder-decoder", "autoencoder", "representation", reads=(*_LAYERS, "latent", "inputs"))
def _encoder_decoder(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import EncoderDecoder

    return EncoderDecoder(sizes.features, spec.hidden, spec.latent, activation=spec.activation, seed=spec.seed)


@model("generator", "generator", reads=(*_LAYERS, "latent", "inputs"))
def _generator(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import mlp

    return mlp(spec.latent, spec.hidden, sizes.outputs, activation=spec.activation, seed=spec.seed)


@model("dcgan", "generator", reads=(*_LAYERS, "latent", "inputs"), square=True, mixes=True)
def _dcgan(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import DCGAN

    return DCGAN(math.isqrt(sizes.outputs), spec.latent, spec.hidden, seed=spec.seed)


@model("adversarial-dcgan", "generator", reads=(*_LAYERS, "latent", "inputs"), square=True, mixes=True, critic=True)
def _adversarial_dcgan(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import AdversarialDCGAN

    return AdversarialDCGAN(math.isqrt(sizes.outputs), spec.latent, spec.hidden, seed=spec.seed)


@model("labelled-images", "generator", reads=("latent", "code", "inputs"), beside="codes")
def _labelled_images(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import LabelledImages

    side = math.isqrt(sizes.features - sizes.classes)
    return LabelledImages(side, sizes.classes, weight=spec.code, latent=spec.latent, seed=spec.seed)


def _in_blocks(spec: Model, shape: Shape) -> int:
    return shape.classes * (shape.features - shape.classes)


@model(
    "blocked-images",
    "generator",
    reads=("latent", "code", "inputs"),
    fixed=True,
    beside="codes",
    dimension=_in_blocks,
)
def _blocked_images(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import BlockedImages

    side = math.isqrt(sizes.features - sizes.classes)
    return BlockedImages(side, sizes.classes, weight=spec.code, latent=spec.latent, seed=spec.seed)


@model("decoded-images", "generator", reads=("latent", "inputs"), square=True)
def _decoded_images(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import DecodedImages

    return DecodedImages(math.isqrt(sizes.features), spec.latent, seed=spec.seed)


@model("particles", "generator", reads=(*_LAYERS, "particles", "latent", "inputs"), points=True, beside="any")
def _particles(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import Particles

    return Particles(spec.particles, sizes.outputs, seed=spec.seed)


@model("vector-generator", "synthesizer", reads=(*_LAYERS, "latent", "inputs"))
def _vector_generator(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import VectorGenerator

    hidden = spec.hidden or _WIDE
    return VectorGenerator(sizes.features, sizes.classes, latent=spec.latent, hidden=hidden, seed=spec.seed)


def _two_channels(settings: Settings) -> str | None:
    spec = settings.model
    if len(spec.hidden) in (0, 2):
        return None
    return (
        f"model.hidden is {list(spec.hidden)}; model.kind {spec.kind!r} has two layers of channels: give two numbers, "
        "or none"
    )


@model("image-generator", "synthesizer", reads=(*_LAYERS, "latent", "inputs"), square=True, misfit=_two_channels)
def _image_generator(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import ImageGenerator

    return ImageGenerator(*_image_sizes(sizes), latent=spec.latent, channels=_channels(spec), seed=spec.seed)


@model("residual-generator", "synthesizer", reads=(*_LAYERS, "latent", "inputs"), square=True, misfit=_two_channels)
def _residual_generator(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models.image_networks import ResidualImages

    return ResidualImages(*_image_sizes(sizes), latent=spec.latent, channels=_channels(spec), seed=spec.seed)


def _image_sizes(sizes: ModelSizes) -> tuple[int, int]:
    from fedsw.mathematics.transport.denoise import image_side

    return image_side(sizes.features), sizes.classes


def _channels(spec: Model) -> tuple[int, int]:
    return (spec.hidden[0], spec.hidden[1]) if spec.hidden else _CHANNELS


@model("table-generator", "synthesizer", reads=(*_LAYERS, "latent", "inputs"), table=True)
def _table_generator(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models.table_generator import TableGenerator

    if not sizes.codes:
        raise ExperimentError(
            f"model.kind {spec.kind!r} makes rows of a declared table that a sketch of kind 'table' measures; there "
            "is none: use another kind"
        )
    hidden = spec.hidden or _WIDE
    return TableGenerator(sizes.codes, sizes.classes, latent=spec.latent, hidden=hidden, seed=spec.seed)


@model("adaptor", "adaptor", reads=("latent", "inputs"), square=True)
def _adaptor(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import Adaptor

    return Adaptor(math.isqrt(sizes.features), spec.latent, sizes.classes, seed=spec.seed)


@model("transported-adaptor", "adaptor", reads=("latent", "inputs"), square=True, fixed=True)
def _transported_adaptor(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import TransportedAdaptor

    return TransportedAdaptor(math.isqrt(sizes.features), sizes.classes, spec.latent, seed=spec.seed)


def _published(spec: Model, shape: Shape) -> int:
    from fedsw.learning.models import PublishedAdaptor

    return PublishedAdaptor.features(math.isqrt(shape.features))


@model("published-adaptor", "adaptor", reads=("latent", "inputs"), square=True, dimension=_published)
def _published_adaptor(spec: Model, sizes: ModelSizes) -> nn.Module:
    from fedsw.learning.models import PublishedAdaptor

    return PublishedAdaptor(math.isqrt(sizes.features), sizes.classes, seed=spec.seed)


def _own(spec: Model, sizes: ModelSizes) -> nn.Module:
    """A model of the user's own, a copy of a module or what a function or class makes, the same wherever it is made."""
    import torch
    from torch import nn

    offered = {"features": sizes.features, "outputs": sizes.outputs, "classes": sizes.classes, "seed": spec.seed}
    factory, name = load_object(spec.kind, what="model.kind"), named("model.kind", spec.kind)
    if isinstance(factory, nn.Module):
        if spec.arguments:
            raise ExperimentError(f"model.arguments are given, and {name} is a module, made already")
        return copy.deepcopy(factory)
    if not callable(factory):
        raise ExperimentError(
            f"{name} is a {type(factory).__name__}; give an nn.Module, or a function or class that makes one"
        )
    arguments = {**_taken(factory, offered), **spec.arguments}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        try:
            made = factory(**arguments)
        except Exception as fault:  # the user's own code
            raise ExperimentError(
                f"{name} made no model of {arguments} ({type(fault).__name__}: {fault}); "
                "model.arguments are what it is called with"
            ) from fault
    if not isinstance(made, nn.Module):
        raise ExperimentError(f"{name} made a {type(made).__name__}; it must make an nn.Module")
    return made


def _taken(function: Callable[..., Any], offered: Mapping[str, int]) -> dict[str, int]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        parameter.name: offered[parameter.name]
        for parameter in parameters
        if parameter.kind in named and parameter.name in offered
    }


OWN = ModelKind(_own, (), ("arguments", "latent", "inputs"))
"""The entry of a model of one's own, which goes with every task; its settings are in model.arguments."""
