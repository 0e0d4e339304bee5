"""The model of an experiment: one of the shipped kinds, or one of the user's own."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fedsw import models
from fedsw.experiment import ExperimentError, Model
from fedsw.experiment.extensions import load_object
from fedsw.models.conditional import ImageGenerator, VectorGenerator
from fedsw.transport.denoise import image_side

_Builder = Callable[[Model, int, int, int], nn.Module]

_SHIPPED: Mapping[str, _Builder] = {
    "logistic": lambda spec, features, outputs, classes: models.logistic(features, outputs, seed=spec.seed),
    "mlp": lambda spec, features, outputs, classes: models.mlp(
        features, spec.hidden, outputs, activation=spec.activation, seed=spec.seed
    ),
    "encoder-decoder": lambda spec, features, outputs, classes: models.EncoderDecoder(
        features, spec.hidden, spec.latent, activation=spec.activation, seed=spec.seed
    ),
    "image-autoencoder": lambda spec, features, outputs, classes: models.ImageAutoencoder(
        math.isqrt(features), spec.latent, seed=spec.seed
    ),
    "generator": lambda spec, features, outputs, classes: models.generator(
        spec.latent, spec.hidden, outputs, activation=spec.activation, seed=spec.seed
    ),
    "dcgan": lambda spec, features, outputs, classes: models.DCGAN(
        math.isqrt(outputs), spec.latent, spec.hidden, seed=spec.seed
    ),
    "adversarial-dcgan": lambda spec, features, outputs, classes: models.AdversarialDCGAN(
        math.isqrt(outputs), spec.latent, spec.hidden, seed=spec.seed
    ),
    "particles": lambda spec, features, outputs, classes: models.Particles(spec.particles, outputs, seed=spec.seed),
    "image-generator": lambda spec, features, outputs, classes: ImageGenerator(
        image_side(features),
        classes,
        latent=spec.latent,
        channels=(spec.hidden[0], spec.hidden[1]) if spec.hidden else (32, 16),
        seed=spec.seed,
    ),
    "vector-generator": lambda spec, features, outputs, classes: VectorGenerator(
        features, classes, latent=spec.latent, hidden=spec.hidden or (200, 200), seed=spec.seed
    ),
    "adaptor": lambda spec, features, outputs, classes: models.Adaptor(
        math.isqrt(features), spec.latent, classes, seed=spec.seed
    ),
    "transported-adaptor": lambda spec, features, outputs, classes: models.TransportedAdaptor(
        math.isqrt(features), classes, spec.latent, seed=spec.seed
    ),
    "published-adaptor": lambda spec, features, outputs, classes: models.PublishedAdaptor(
        math.isqrt(features), classes, seed=spec.seed
    ),
    "labelled-images": lambda spec, features, outputs, classes: models.LabelledImages(
        math.isqrt(features - classes), classes, weight=spec.code, latent=spec.latent, seed=spec.seed
    ),
    "blocked-images": lambda spec, features, outputs, classes: models.BlockedImages(
        math.isqrt(features - classes), classes, weight=spec.code, latent=spec.latent, seed=spec.seed
    ),
    "decoded-images": lambda spec, features, outputs, classes: models.DecodedImages(
        math.isqrt(features), spec.latent, seed=spec.seed
    ),
}


def build(spec: Model, features: int, outputs: int, classes: int) -> nn.Module:
    """A freshly initialised model, the same for the same settings.

    Args:
        spec: the experiment's [model].
        features: numbers that a record has (a generator's own inputs are `spec.latent`).
        outputs: numbers that the task asks for.
        classes: number of classes, 0 without; of a generator that learns from a sketch, the number of its cells.

    Raises:
        ExperimentError: if a user's own model cannot be found or made.
    """
    if spec.kind in _SHIPPED:
        return _SHIPPED[spec.kind](spec, features, outputs, classes)
    return _own(spec, {"features": features, "outputs": outputs, "classes": classes, "seed": spec.seed})


def table_generator(spec: Model, codes: Sequence[tuple[int, int]], cells: int) -> nn.Module:
    """The generator of a table: chances of every column's codes, by ranges (first, end)."""
    hidden = spec.hidden or (200, 200)
    return VectorGenerator(codes[-1][1], cells, latent=spec.latent, hidden=hidden, codes=codes, seed=spec.seed)


def _own(spec: Model, offered: Mapping[str, int]) -> nn.Module:
    """A model of the user's own: a copy of a module, or what a function or class makes.

    torch's generator is set to the model's seed while it is made, and put back: server and clients make the same model,
    whatever of it is trained.
    """
    found = load_object(spec.kind, what="model.kind")
    if isinstance(found, nn.Module):
        if spec.arguments:
            raise ExperimentError(f"model.arguments are given, and model.kind {spec.kind!r} is a module, made already")
        return copy.deepcopy(found)
    if not callable(found):
        raise ExperimentError(
            f"model.kind is {spec.kind!r}, a {type(found).__name__}; name a function or class that makes an nn.Module"
        )
    arguments = {**_taken(found, offered), **spec.arguments}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        try:
            made = found(**arguments)
        except Exception as fault:  # the user's own code
            raise ExperimentError(
                f"model.kind {spec.kind!r} made no model of {arguments} ({type(fault).__name__}: {fault}); "
                "model.arguments are what it is called with"
            ) from fault
    if not isinstance(made, nn.Module):
        raise ExperimentError(f"model.kind {spec.kind!r} made a {type(made).__name__}; it must make an nn.Module")
    return made


def _taken(function: Callable[..., Any], offered: Mapping[str, int]) -> dict[str, int]:
    """What of the offered arguments a function takes by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name: offered[each.name] for each in parameters if each.kind in named and each.name in offered}
