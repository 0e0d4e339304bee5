"""An experiment made concrete: its data, model, outputs, losses and objective, the same at server and clients."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw import clipping, data, models
from fedsw.data import Records
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sources import load_shape
from fedsw.objectives import Clip, Objective
from fedsw.objectives.matching import Counterpart, Matching
from fedsw.randomness import Label, Stream
from fedsw.tasks import heads
from fedsw.transport.denoise import image_side
from fedsw.transport.sliced import direction_shape, directions, project


@dataclass(frozen=True)
class Problem:
    """What one record goes through: features -> model -> outputs (n, d) of the penalty, and a loss per record."""

    experiment: Experiment
    objective: Objective | Matching
    clip: Clip
    features: int
    groups: tuple[str, ...]
    classes: int
    dimension: int
    parameters: int

    @classmethod
    def from_experiment(cls, experiment: Experiment, data_dir: str | None = None) -> Problem:
        """The task of an experiment; builds the model once, to check it and count its parameters.

        Raises:
            ExperimentError, clipping.UnsupportedModule: naming what cannot be trained privately, and what can.
            FileNotFoundError: if the data set's files are missing.
        """
        shape = load_shape(experiment, data_dir)
        features, groups, classes = shape.features, shape.groups, shape.classes
        dimension = _dimension(experiment, features, classes)
        _require_images(experiment, features)
        asked = experiment.clip
        clip = Clip(output=asked.output, jacobian=asked.jacobian, loss=asked.loss)
        model = _build(experiment, features, dimension, classes)
        if experiment.model.kind != "particles":
            clipping.check(model)
        return cls(
            experiment,
            _objective(experiment, len(groups), classes),
            clip,
            features,
            groups,
            classes,
            dimension,
            models.count_parameters(model),
        )

    @classmethod
    @functools.lru_cache(maxsize=64)
    def from_json(cls, experiment_json: str, data_dir: str | None = None) -> Problem:
        """The task of an experiment that came as JSON (from the server's greeting)."""
        return cls.from_experiment(Experiment.model_validate_json(experiment_json), data_dir)

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        """Precision of the model and of what travels."""
        return torch.float64 if self.experiment.training.precision == "float64" else torch.float32

    @functools.cached_property
    def device(self) -> torch.device:
        """Where the model runs."""
        wanted = self.experiment.training.device
        if wanted == "cuda" and not torch.cuda.is_available():
            raise ExperimentError("training.device is 'cuda' but this machine offers none to torch; use 'cpu'")
        return torch.device(wanted)

    def build_model(self) -> nn.Module:
        """A freshly initialised model: the same for the same model seed."""
        model = _build(self.experiment, self.features, self.dimension, self.classes)
        return model.to(self.device, self.dtype)

    def prepared(self, model: nn.Module, theta: Tensor) -> nn.Module:
        """The model with the flat parameters `theta` loaded."""
        models.load_flat(model, theta.to(self.device))
        return model

    def inputs(self, records: Records) -> Tensor:
        """Features as the model takes them."""
        features = records.features.to(self.device, self.dtype)
        norm = self.experiment.data.row_norm
        return features if norm is None else norm * F.normalize(features, dim=1)

    def chunks(self, records: Records) -> Iterator[Records]:
        """The records in pieces of at most `micro_batch`, in order."""
        size = self.experiment.training.micro_batch
        for start in range(0, len(records), size):
            yield records if len(records) <= size else records.take(np.arange(start, min(start + size, len(records))))

    def outputs(self, raw: Tensor | tuple[Tensor, ...]) -> Tensor:
        """The penalty's outputs (n, d), centred and *unprojected*: the Jacobian that is clipped is theirs."""
        kind, centre = self.experiment.objective.task, self.experiment.clip.centre
        return heads.outputs(kind, raw, classes=self.classes) - centre

    def projected(self, raw: Tensor | tuple[Tensor, ...]) -> Tensor:
        """The outputs inside the ball of radius M: what a client may send under `central`."""
        return self.inside(self.outputs(raw))

    def inside(self, outputs: Tensor) -> Tensor:
        """Outputs (n, d) projected on the ball of radius M, as they travel."""
        return project(outputs, self.clip.output).to(self.dtype).cpu()

    def no_outputs(self) -> Tensor:
        """The outputs of an empty batch."""
        return torch.zeros((0, self.dimension), dtype=self.dtype)

    def losses(self, raw: Tensor | tuple[Tensor, ...], records: Records) -> Tensor:
        """Task loss of every record (n,); see `fedsw.tasks.heads.losses`."""
        return heads.losses(
            self.experiment.objective.task,
            raw,
            features=self.inputs(records),
            target=records.target.to(self.device),
            classes=self.classes,
        )

    def fixed_outputs(self, records: Records) -> Tensor:
        """Outputs of records that no parameter moves (a generator's target), inside the ball of radius M."""
        return project(self.inputs(records) - self.experiment.clip.centre, self.clip.output).to(self.dtype).cpu()

    @property
    def private_parameters(self) -> bool:
        """Whether private records pass through the trained parameters, so that clients contribute gradients."""
        return isinstance(self.objective, Objective) or self.objective.private_parameters

    def latents(self, count: int, *purpose: Label) -> Tensor:
        """Standard normal inputs (count, latent) of a generator: public, seeded apart from data, sampling and noise."""
        latent = self.experiment.model.latent
        normals = Stream.seeded(self.experiment.slicing.seed, "latents", *purpose).normals(count * latent)
        return torch.from_numpy(normals).reshape(count, latent).to(self.device, self.dtype)

    def directions(self, round_: int, attempt: int) -> Tensor:
        """The directions of an attempt: public, seeded apart from data, sampling and noise; (d, k) float64."""
        slicing = self.experiment.slicing
        if self.dimension == 1:
            return directions(1, 1)
        shape = direction_shape(self.dimension, slicing.directions, slicing.scheme)
        stream = Stream.seeded(slicing.seed, "directions", round_, attempt)
        normals = torch.from_numpy(stream.normals(shape[0] * shape[1]).reshape(shape))
        return directions(self.dimension, slicing.directions, normals=normals, scheme=slicing.scheme)

    def cells_of(self, records: Records) -> tuple[NDArray[np.int64], ...]:
        """Positions of the records of every cell (stratum of sampling), in the objective's order."""
        cell = self.objective.cell_of(records.sensitive, records.target).numpy()
        return tuple(np.flatnonzero(cell == index) for index in range(len(self.objective.cells)))

    def validate(self, records: Records, *, name: str) -> None:
        """Check a node's records before anything is spent; see `data.validate`."""
        data.validate(records, name, groups=self.groups)

    def seeded_batch_key(self, round_: int, attempt: int) -> bytes:
        """The shared batch key of an attempt in a seeded (nominal) run."""
        assert self.experiment.seed is not None
        return Stream.seeded(self.experiment.seed, "batch", round_, attempt).words(4).tobytes()


def _require_images(experiment: Experiment, features: int) -> None:
    if experiment.privacy.trust == "local-release" and experiment.local.dct:
        try:
            image_side(features)
        except ValueError as fault:
            raise ExperimentError(f"local.dct is true, and {fault} Set local.dct to false") from None


def _objective(experiment: Experiment, groups: int, classes: int) -> Objective | Matching:
    goal, clip = experiment.objective, experiment.clip
    if goal.penalty == "prior-matching":
        return Matching("prior", goal.alpha, goal.prior_radius)
    if goal.penalty == "distribution-matching":
        counterpart: Counterpart = "generator" if goal.task == "generation" else "domain"
        return Matching(counterpart, goal.alpha, clip.output, both=goal.protected == "both")
    odds = goal.penalty == "equality-of-odds"
    return Objective(penalty=goal.penalty, groups=groups, classes=classes if odds else 1, alpha=goal.alpha)


def _dimension(experiment: Experiment, features: int, classes: int) -> int:
    task = experiment.objective.task
    if task in ("representation", "autoencoder", "adaptation"):
        return experiment.model.latent
    if task == "generation":
        return features
    if task == "regression":
        return 2
    return 1 if classes == 2 else classes


def _build(experiment: Experiment, features: int, outputs: int, classes: int) -> nn.Module:
    spec = experiment.model
    if spec.kind == "logistic":
        return models.logistic(features, outputs, seed=spec.seed)
    if spec.kind == "mlp":
        return models.mlp(features, spec.hidden, outputs, activation=spec.activation, seed=spec.seed)
    if spec.kind == "generator":
        return models.generator(spec.latent, spec.hidden, outputs, activation=spec.activation, seed=spec.seed)
    if spec.kind == "particles":
        return models.Particles(spec.particles, outputs, seed=spec.seed)
    if spec.kind == "image-autoencoder":
        return models.ImageAutoencoder(math.isqrt(features), spec.latent, seed=spec.seed)
    if spec.kind == "adaptor":
        return models.Adaptor(math.isqrt(features), spec.latent, classes, seed=spec.seed)
    return models.EncoderDecoder(features, spec.hidden, spec.latent, activation=spec.activation, seed=spec.seed)
