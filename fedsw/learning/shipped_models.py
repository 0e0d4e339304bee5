"""The models that are shipped, by name: how they are made, what they are for, and which settings they read.

An entry is a function given to `model`, which makes a network of a section [model] and of `ModelSizes`; the networks
are in `fedsw.learning.models`, and are imported when one is made. `OWN` is the entry of what is named as `module:name`.
`fedsw.experiment.task_kinds.MODELS` has all of them.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedsw._tools.later import Later
from fedsw._tools.own_objects import load_object, named
from fedsw.data.settings import SOURCES
from fedsw.experiment import ExperimentError
from fedsw.experiment.choices import Settings
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import MODELS, ModelKind, ModelSizes, Role, shipped_task

if TYPE_CHECKING:
    from torch import nn

    from fedsw.learning import models as networks
else:
    networks = Later("fedsw.learning.models")

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


def _two_channels(settings: Settings) -> str | None:
    spec = settings.model
    if len(spec.hidden) in (0, 2):
        return None
    return (
        f"model.hidden is {list(spec.hidden)}; model.kind {spec.kind!r} has two layers of channels: give two numbers, "
        "or none"
    )


# Predictors. A layer of hats of columns, or of fixed filters, is in front of the additive one and of scattering.
_linear = model("logistic", "predictor", reads=("inputs",), linear=True, chosen=("inputs",))(
    lambda spec, sizes: networks.logistic(sizes.features, sizes.outputs, seed=spec.seed)
)
model("additive", "predictor", reads=("knots", "bins"), linear=True, columns=True, chosen=("knots",))(_linear)
model("scattering", "predictor", reads=("orders",), square=True, linear=True, filtered=True, misfit=_of_images)(_linear)
model("mlp", "predictor", reads=(*_LAYERS, "inputs"))(
    lambda spec, sizes: networks.mlp(
        sizes.features, spec.hidden, sizes.outputs, activation=spec.activation, seed=spec.seed
    )
)

# Autoencoders and representations
model("image-autoencoder", "autoencoder", reads=("latent", "inputs"), square=True)(
    lambda spec, sizes: networks.ImageAutoencoder(math.isqrt(sizes.features), spec.latent, seed=spec.seed)
)
model("encoder-decoder", "autoencoder", "representation", reads=(*_LAYERS, "latent", "inputs"))(
    lambda spec, sizes: networks.EncoderDecoder(
        sizes.features, spec.hidden, spec.latent, activation=spec.activation, seed=spec.seed
    )
)

# Generators, judged by a distance to records
model("generator", "generator", reads=(*_LAYERS, "latent", "inputs"))(
    lambda spec, sizes: networks.mlp(
        spec.latent, spec.hidden, sizes.outputs, activation=spec.activation, seed=spec.seed
    )
)
model("dcgan", "generator", reads=(*_LAYERS, "latent", "inputs"), square=True, mixes=True)(
    lambda spec, sizes: networks.DCGAN(math.isqrt(sizes.outputs), spec.latent, spec.hidden, seed=spec.seed)
)
model("adversarial-dcgan", "generator", reads=(*_LAYERS, "latent", "inputs"), square=True, mixes=True, critic=True)(
    lambda spec, sizes: networks.AdversarialDCGAN(math.isqrt(sizes.outputs), spec.latent, spec.hidden, seed=spec.seed)
)
model("labelled-images", "generator", reads=("latent", "code", "inputs"), beside="codes")(
    lambda spec, sizes: networks.LabelledImages(**_beside_codes(spec, sizes))
)
model(
    "blocked-images",
    "generator",
    reads=("latent", "code", "inputs"),
    fixed=True,
    beside="codes",
    dimension=lambda spec, shape: shape.classes * (shape.features - shape.classes),
)(lambda spec, sizes: networks.BlockedImages(**_beside_codes(spec, sizes)))
model("decoded-images", "generator", reads=("latent", "inputs"), square=True)(
    lambda spec, sizes: networks.DecodedImages(math.isqrt(sizes.features), spec.latent, seed=spec.seed)
)
model("particles", "generator", reads=(*_LAYERS, "particles", "latent", "inputs"), points=True, beside="any")(
    lambda spec, sizes: networks.Particles(spec.particles, sizes.outputs, seed=spec.seed)
)

# Synthesizers, which learn from a sketch
model("vector-generator", "synthesizer", reads=(*_LAYERS, "latent", "inputs"))(
    lambda spec, sizes: networks.VectorGenerator(
        sizes.features, sizes.classes, latent=spec.latent, hidden=spec.hidden or _WIDE, seed=spec.seed
    )
)
model("image-generator", "synthesizer", reads=(*_LAYERS, "latent", "inputs"), square=True, misfit=_two_channels)(
    lambda spec, sizes: networks.ImageGenerator(**_of_channels(spec, sizes))
)
model("residual-generator", "synthesizer", reads=(*_LAYERS, "latent", "inputs"), square=True, misfit=_two_channels)(
    lambda spec, sizes: networks.ResidualImages(**_of_channels(spec, sizes))
)


@model("table-generator", "synthesizer", reads=(*_LAYERS, "latent", "inputs"), table=True)
def _rows_of_tables(spec: Model, sizes: ModelSizes) -> nn.Module:
    if not sizes.codes:
        raise ExperimentError(
            f"model.kind {spec.kind!r} makes rows of a declared table that a sketch of kind 'table' measures; there "
            "is none: use another kind"
        )
    hidden = spec.hidden or _WIDE
    return networks.TableGenerator(sizes.codes, sizes.classes, latent=spec.latent, hidden=hidden, seed=spec.seed)


# Adaptors of a domain to a public one
model("adaptor", "adaptor", reads=("latent", "inputs"), square=True)(
    lambda spec, sizes: networks.Adaptor(math.isqrt(sizes.features), spec.latent, sizes.classes, seed=spec.seed)
)
model("transported-adaptor", "adaptor", reads=("latent", "inputs"), square=True, fixed=True)(
    lambda spec, sizes: networks.TransportedAdaptor(
        math.isqrt(sizes.features), sizes.classes, spec.latent, seed=spec.seed
    )
)
model(
    "published-adaptor",
    "adaptor",
    reads=("latent", "inputs"),
    square=True,
    dimension=lambda spec, shape: networks.PublishedAdaptor.features(math.isqrt(shape.features)),
)(lambda spec, sizes: networks.PublishedAdaptor(math.isqrt(sizes.features), sizes.classes, seed=spec.seed))


def _beside_codes(spec: Model, sizes: ModelSizes) -> dict[str, Any]:
    side = math.isqrt(sizes.features - sizes.classes)
    return {"side": side, "classes": sizes.classes, "weight": spec.code, "latent": spec.latent, "seed": spec.seed}


def _of_channels(spec: Model, sizes: ModelSizes) -> dict[str, Any]:
    from fedsw.mathematics.transport.denoise import image_side

    channels, side = (spec.hidden[0], spec.hidden[1]) if spec.hidden else _CHANNELS, image_side(sizes.features)
    return {"side": side, "cells": sizes.classes, "latent": spec.latent, "channels": channels, "seed": spec.seed}


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
