"""An experiment made concrete: its data, model, outputs, losses and objective, the same at server and clients."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw import data
from fedsw._tools.own_objects import is_reference, named
from fedsw._tools.randomness import Label, Stream
from fedsw.data import Records
from fedsw.data.made_up import made_up_inputs
from fedsw.data.records import with_features
from fedsw.data.sources import Shape, load_shape
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.penalty_names import PENALTIES, penalties_of
from fedsw.experiment.sections import ReleaseSettings
from fedsw.experiment.task_kinds import MODELS
from fedsw.learning import models
from fedsw.learning.objectives import Clip, WeightedSum, contribution_bound
from fedsw.learning.objectives.penalties import ToModel, ToSample
from fedsw.learning.sketches.from_settings import Stage, drawn, law_of
from fedsw.learning.tasks import own_task as own
from fedsw.learning.tasks._coding import (
    Mapped,
    coded_once,
    coding_of,
    layer_of,
    placed,
    reads_places,
    remeasured,
    written,
)
from fedsw.learning.tasks.compared import compared_by, objective_of, require_stated
from fedsw.learning.tasks.divergence import divergence
from fedsw.learning.tasks.needs import of_shape, require_possible
from fedsw.learning.tasks.objective import ClippedObjective, OutputSlices
from fedsw.learning.tasks.own_task import made_up_features, task_of
from fedsw.learning.tasks.tally import Counts, RegressionSums
from fedsw.learning.tasks.task import Inputs, Raw, Task
from fedsw.mathematics import clipping
from fedsw.mathematics.clipping.rules import HatLinear
from fedsw.mathematics.transport.denoise import image_side
from fedsw.mathematics.transport.sliced import project

_SLICING_MEMORY = 2**30
"""Bytes that ranks of outputs may take at once, four times those of one distance: a round has its own process."""
_NO_LIMIT = 1e12
"""The clip of `clip.mode` "none": finite, squares in float32 too, and far above what a model computes."""


_CODED_AT_ONCE = 2_048
"""Records that are coded together."""
_DECLARED = 8
"""Records that are made up by the declaration of columns, to try code of a user's own on."""


class _Prepares(Mapped, Protocol):
    """A `fedsw.learning.moments.preparation.Preparation`."""

    @property
    def scale(self) -> float: ...

    def apply(self, inputs: Tensor) -> Tensor: ...

    def flat(self) -> Tensor: ...


@dataclass(frozen=True)
class Problem:
    """A record's way through a run: features, prepared by released moments -> outputs (n, d), and a loss each.

    Where records come ``ready`` their features are what the model takes: coded once, and prepared (`readied`). Where
    they come by ``places`` of columns, the model is a `HatLinear` of these.
    """

    experiment: Experiment
    task: Task
    objective: WeightedSum
    clip: Clip
    shape: Shape
    dimension: int
    parameters: int
    preparation: _Prepares | None = None
    ready: bool = False
    places: bool = False

    @classmethod
    def from_experiment(cls, experiment: Experiment, data_dir: str | None = None) -> Problem:
        """The problem of an experiment; makes the model, to check it (`tasks.own_task`) and count its parameters.

        ExperimentError or clipping.UnsupportedModule, naming what cannot be trained privately, and what can, or a
        setting that this machine has no memory for; FileNotFoundError if the data set's files are missing.
        """
        task = task_of(experiment)
        require_possible(experiment, task)
        shape = load_shape(experiment.record_source, data_dir)
        dimension = task.dimension(shape, experiment.model)
        if not isinstance(dimension, int) or dimension < 1:
            raise ExperimentError(
                f"objective.task {experiment.objective.task!r} has outputs of dimension {dimension}, with "
                f"{shape.classes} classes and {shape.targets} targets; it must be at least 1"
            )
        if isinstance(experiment.local, ReleaseSettings) and experiment.local.dct:
            try:
                image_side(shape.features)
            except ValueError as fault:
                raise ExperimentError(f"local.dct is true, and {fault} Set local.dct to false") from None
        groups = len(shape.groups)
        proven = Counts(groups, shape.classes) if shape.classes else RegressionSums(groups, shape.targets)
        wide = (1, 2) if shape.classes == 2 else (shape.classes or shape.targets,)
        # Exactly that: a class derived from it may sum more than the bound that it inherits is for, and a record that
        # is beyond other groups, classes or outputs would raise in a round, after the charge.
        if experiment.data.held_out_released and (task.tally(shape) != proven or dimension not in wide):
            raise ExperimentError(
                f"data.held_out_to 'everybody' asks what may be counted of kept records, and objective.task "
                f"{experiment.objective.task!r} names nothing with a bound that is proven for these data (as "
                f"classification and regression do: {proven}, of outputs of dimension {wide[-1]}); set it to 'operator'"
            )
        clip = _clip_of(experiment)
        model = of_shape(experiment, shape, task.width(shape, experiment.model))
        kind = MODELS.get(experiment.model.kind)
        if not experiment.privacy.model.meets_no_record(kind, task.facts.other_side):  # else nothing of it is clipped
            clipping.check(model)
        objective = _objective(experiment, task, shape)
        if experiment.privacy.hides_sizes and len(objective.cells) != 1:
            raise ExperimentError(
                f"privacy.relation is {experiment.privacy.relation!r}, and data.source {experiment.data.source!r} has "
                f"{len(objective.cells)} groups: they are strata, and their sizes are secret. Set objective.penalty to "
                "'none', or use 'replace-one'"
            )
        problem = cls(experiment, task, objective, clip, shape, dimension, models.count_parameters(model))
        for number in range(1, 1 + experiment.stages):  # drawing refuses what it cannot measure of these records
            drawn(law_of(experiment, shape, Stage(number)), problem.dtype, problem.device)
        if not experiment.stages:
            problem._try_out(model)
        if len(problem.clipped.compared) > 1:
            problem._try_heads(model)
        problem._require_stated()
        return problem

    @classmethod
    @functools.lru_cache(maxsize=64)
    def from_json(cls, experiment_json: str, data_dir: str | None = None) -> Problem:
        """The problem of an experiment that came as JSON (from the server's greeting)."""
        return cls.from_experiment(Experiment.model_validate_json(experiment_json), data_dir)

    @property
    def features(self) -> int:
        """Number of inputs of the model: of a record's features, or of what they are coded as."""
        return self.shape.features if self.coding is None else self.coding.width

    @functools.cached_property
    def coding(self) -> models.Coding | None:
        """The public map of a record's features to inputs of the model; None if it takes them as they are."""
        made = coding_of(self.experiment)
        return None if made is None else copy.deepcopy(made).to(self.device)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups."""
        return self.shape.groups

    @property
    def classes(self) -> int:
        """Number of classes; 0 for numbers."""
        return self.shape.classes

    @property
    def positive(self) -> int | None:
        """The class that ratios between groups are of; None if it is not a class in particular."""
        return self.shape.positive

    @property
    def units(self) -> tuple[float, float] | None:
        """Lower bound and width of the one declared number to predict; None if errors are in coded units."""
        return self.shape.units

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        """Precision of the model and of what travels."""
        return torch.float64 if self.experiment.training.precision == "float64" else torch.float32

    @functools.cached_property
    def device(self) -> torch.device:
        """Where the model runs, ranks are found and contributions are added."""
        return _device("training.device", self.experiment.training.device)

    @functools.cached_property
    def accounting_device(self) -> torch.device:
        """Where the server computes epsilon: privacy.device, or where the model runs."""
        wanted = self.experiment.privacy.device
        return self.device if wanted is None else _device("privacy.device", wanted)

    def build_model(self) -> nn.Module:
        """A freshly initialised model: the same for the same model seed."""
        width = self.task.width(self.shape, self.experiment.model)
        model = of_shape(self.experiment, self.shape, width)
        if not self.places:
            model = model.to(self.device, self.dtype)
            if is_reference(self.experiment.model.kind):  # tried when the problem was made, on the same records
                clipping.remember(model, [self.made_up_inputs().to(self.device, self.dtype)])
            return model
        layer = self._layer(width)
        models.load_flat(layer, models.flatten(model))
        return layer

    def prepared(self, model: nn.Module, theta: Tensor) -> nn.Module:
        """The model with the flat parameters `theta` loaded."""
        models.load_flat(model, theta.to(self.device))
        return model

    def inputs(self, records: Records) -> Tensor:
        """Features (n, p) as the model takes them."""
        if self.places:
            return records.features
        features = records.features.to(self.device, self.dtype)
        if self.ready:
            return features
        norm = self.experiment.data.row_norm
        features = features if norm is None else norm * F.normalize(features, dim=1)
        if self.coding is None:
            return features if self.preparation is None else self.preparation.apply(features)
        numbers = features.new_empty((len(features), self.coding.width))
        for rows, out in zip(torch.split(features, _CODED_AT_ONCE), torch.split(numbers, _CODED_AT_ONCE), strict=True):
            self.coding.write(rows, out)  # through both maps while it is in the processor's cache
            if self.preparation is not None:
                out.copy_(self.preparation.apply(out))
        return numbers

    @property
    def keeps(self) -> bool:
        """True if records are coded at such a cost that their holder does it once."""
        return self.coding is not None and self.coding.kept

    def of_holder(self) -> Problem:
        """The problem at a holder of records: with codes that are made once, and of hats, if possible, places."""
        places = reads_places(self.experiment, self.task, self.objective, self.coding, self.device)
        return replace(self, ready=places or self.keeps, places=places)

    def readied(self, records: Records) -> Records:
        """The records with what the model takes of them for features, for a problem that is ``ready``."""
        if self.places:
            return with_features(records, placed(self.coding, self._layer(1), records.features.to(self.dtype)))
        plain = replace(self, ready=False, preparation=None)
        about = (self.experiment.data.row_norm, plain.coding and plain.coding.names, self.dtype, str(self.device))
        codes = coded_once(records.features, about, lambda: plain.inputs(records).cpu())
        return self.prepared_codes(with_features(records, codes))

    def prepared_codes(self, codes: Records) -> Records:
        """Records as `readied` makes them, from those that it made before there was a preparation."""
        if self.places:
            return with_features(codes, remeasured(self._layer(1), codes.features))
        features = codes.features.to(self.device, self.dtype)
        return with_features(codes, (features if self.preparation is None else self.preparation.apply(features)).cpu())

    def numbers(self, records: Records) -> Tensor:
        """The numbers (n, w) that moments are of, before any map: what the model takes, or what places stand for."""
        return written(self._layer(1), records.features, self.dtype) if self.places else self.inputs(records)

    def _layer(self, outputs: int) -> HatLinear:
        return layer_of(self.coding, outputs, self.dtype, self.preparation)

    def under(self, preparation: _Prepares) -> Problem:
        """The problem of prepared features, with clips of Jacobians and loss gradients in their scale."""
        raw, scale = _clip_of(self.experiment), preparation.scale
        clip = replace(raw, jacobian=scale * raw.jacobian, loss=scale * raw.loss)
        return replace(self, clip=clip, preparation=preparation)

    def unprepared(self) -> Problem:
        """The problem of features as they are, as released models take them."""
        return replace(self, clip=_clip_of(self.experiment), preparation=None)

    def given(self, records: Records) -> Inputs:
        """Records as the model takes them, with what they are compared with."""
        return Inputs(self.inputs(records), records.target.to(self.device), self.shape)

    def imagined(self, latents: Tensor) -> Inputs:
        """A generator's own inputs (n, latent), which no record belongs to."""
        return Inputs(latents, torch.zeros((len(latents), 0), device=self.device), self.shape)

    @functools.cached_property
    def clipped(self) -> ClippedObjective:
        """The objective with its clips: what is computed of a batch where its records are."""
        settings, slicing = self.experiment, self.experiment.slicing
        return ClippedObjective(
            self.objective,
            compared_by(self.objective, self.dimension, self.clip),
            self.clip,
            self.task,
            self.given,
            OutputSlices(slicing.directions, slicing.scheme, slicing.seed, slicing.ties, _SLICING_MEMORY),
            settings.clip.of_jacobians,
            settings.privacy.bound,
            settings.training.micro_batch,
            self.device,
            hides_sizes=settings.privacy.hides_sizes,
            reports_loss=settings.unsafe_metrics,
        )

    @property
    def columns(self) -> int:
        """Columns of the outputs that travel: those of all penalties."""
        return sum(compared.width for compared in self.clipped.compared)

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """The task's outputs (n, d), centred and *unprojected*: the Jacobian that is clipped is theirs."""
        with clipping.unchanged(self.task):
            return self.task.outputs(raw, batch) - self.experiment.clip.centre

    def most_pulled(self, cotangents: Tensor, task_weight: float) -> float:
        """The most that a contribution weighs for rows (n, columns), if it clips as asked; see `contribution_bound`."""
        bounds = [contribution_bound([cotangents[:, part.columns]], part.clip, 0.0) for part in self.clipped.compared]
        return sum(bounds) + len(cotangents) * task_weight * self.clip.loss

    def no_cotangents(self, count: int) -> Tensor:
        """Cotangents of records that are compared with nothing: zeros of shape (count, columns), of no memory."""
        return torch.zeros((1, 1), dtype=torch.float64).expand(count, self.columns)

    def fixed_outputs(self, records: Records) -> Tensor:
        """Outputs (n, d) of records that no parameter moves (a generator's target), inside the ball of radius M."""
        return project(self.fixed_points(records), self.clip.output).to(self.dtype).cpu()

    def fixed_points(self, records: Records) -> Tensor:
        """The same (n, d) about the clip's centre, not projected: features as they are, or as the model shows them."""
        inputs = self.inputs(records)
        if self._shown is not None:
            inputs = self._shown(inputs)
        return inputs - self.experiment.clip.centre

    @functools.cached_property
    def _shown(self) -> Callable[[Tensor], Tensor] | None:
        """The model's own view of records that no parameter moves; None if features are compared as they are."""
        if not MODELS.get(self.experiment.model.kind).fixed:
            return None
        return cast(Callable[[Tensor], Tensor], self.build_model().seen)

    @property
    def private_parameters(self) -> bool:
        """True if private records pass through the trained parameters, so that clients contribute gradients."""
        return self.objective.private_parameters

    def latents(self, count: int, *purpose: Label) -> Tensor:
        """Standard normal inputs (count, latent) of a generator: public, seeded apart from data, sampling and noise."""
        latent = self.experiment.model.latent
        normals = Stream.seeded(self.experiment.slicing.seed, "latents", *purpose).normals(count * latent)
        return torch.from_numpy(normals).reshape(count, latent).to(self.device, self.dtype)

    def cells_of(self, records: Records) -> tuple[NDArray[np.int64], ...]:
        """Positions (n_j,) of the records of every cell j (stratum of sampling), in the objective's order."""
        cell = self.objective.cell_of(records.sensitive, records.target).numpy()
        return tuple(np.flatnonzero(cell == index) for index in range(len(self.objective.cells)))

    def validate(self, records: Records, *, name: str) -> None:
        """Check a node's records before anything is spent, classes with the data set; see `data.validate`."""
        data.validate(records, name, groups=self.groups)

    def _require_stated(self) -> None:
        """Try bounds that a user states, and refuse them where ranks come from tables, which no derivative is given."""
        trust = self.experiment.privacy.model
        if self.objective.lone is None and not trust.own_bounds:
            raise ExperimentError(
                f"trust {trust.name!r} takes one of the shipped penalties, and objective.penalty "
                f"{self.experiment.objective.penalty!r} is none: use 'central' or 'distributed'"
            )
        if self.objective.word == "proven":
            return
        if self.objective.word not in trust.own_bounds:
            named = [name for _, name in penalties_of(self.experiment) if PENALTIES.get(name).word != "proven"]
            own_penalties = ", ".join(map(repr, named))
            raise ExperimentError(
                f"a penalty of your own ({own_penalties}) with a derivative and a bound needs outputs, and under trust "
                f"{self.experiment.privacy.trust!r} no party has them: use 'central', or a penalty of `parts`"
            )
        if not self.experiment.clip.open:
            require_stated(self.objective, self.dimension, self.clip)

    def _try_heads(self, model: nn.Module) -> None:
        """Look at the outputs that further penalties compare, on made-up records."""
        features, targets = made_up_features(self.experiment.model.seed, self.features), self.shape.targets
        none = torch.zeros((len(features), targets)) if targets else torch.zeros(len(features), dtype=torch.int64)
        batch = Inputs(features, none, self.shape)
        with torch.no_grad():
            raw = model(features)
        for number, compared in enumerate(self.clipped.compared):
            try:
                values = compared.penalty.selected(raw, batch, self.task.outputs)
            except ValueError as fault:
                raise ExperimentError(f"objective.also[{number - 1}]: {fault}") from None
            if tuple(values.shape) != (len(features), compared.width):
                raise ExperimentError(
                    f"objective.also[{number - 1}] compares outputs of shape {tuple(values.shape)} for {len(features)} "
                    f"records; its dimension is {compared.width}"
                )

    def made_up_inputs(self) -> Tensor:
        """A few inputs (3, p) float32 as a model takes them, made up: no record's."""
        seed = self.experiment.model.seed
        if self.task.facts.other_side == "generator":
            return made_up_features(seed, self.experiment.model.latent)
        features, norm = made_up_features(seed, self.features), self.experiment.data.row_norm
        return features if norm is None else norm * F.normalize(features, dim=1)

    def _declared_inputs(self) -> Tensor | None:
        """Inputs (m, p) drawn as their columns are declared; None if none are, or the model takes others."""
        columns, experiment = self.experiment.data.columns, self.experiment
        if columns is None or columns.inputs != self.features or self.task.facts.other_side == "generator":
            return None
        features = torch.from_numpy(made_up_inputs(columns, _DECLARED, seed=experiment.model.seed))
        return features if experiment.data.row_norm is None else experiment.data.row_norm * F.normalize(features, dim=1)

    def diverged(self, theta: Tensor) -> str | None:
        """Say why a model with these weights (r,) learns no more, by them and made-up inputs; None while it may."""
        takes_none = MODELS.get(self.experiment.model.kind).points

        def answer() -> Any:
            return self.prepared(self.build_model(), theta)(self.made_up_inputs().to(self.device, self.dtype))

        return divergence([theta.to(self.dtype)], None if takes_none else answer)

    def _try_out(self, model: nn.Module) -> None:
        """Run a model or a task of a user's own on made-up inputs, and make it again: see `own_task`."""
        spec, goal = self.experiment.model, self.experiment.objective
        custom = any(PENALTIES.get(penalty).custom for _, penalty in penalties_of(self.experiment))
        if not (is_reference(goal.task) or is_reference(spec.kind) or custom):
            return
        name = f"{named('objective.task', goal.task)} with {named('model.kind', spec.kind)}"
        features = self.made_up_inputs()
        width = self.task.width(self.shape, spec)
        if not MODELS.get(spec.kind).points:
            alpha = 1.0 if self.task.facts.other_side == "generator" else goal.alpha
            own.require_fit(
                self.task, model, features, self.shape, dimension=self.dimension, width=width, alpha=alpha, name=name,
                heads=lambda raw, batch: [self.clipped.heads(raw, batch)] if custom else (),
                declared=self._declared_inputs(),
            )  # fmt: skip
        if is_reference(spec.kind):
            own.require_same_frozen(model, of_shape(self.experiment, self.shape, width), name=name)

    def seeded_batch_key(self, round_: int, attempt: int) -> bytes:
        """The shared batch key of an attempt in a seeded (nominal) run."""
        assert self.experiment.seed is not None
        return Stream.seeded(self.experiment.seed, "batch", round_, attempt).words(4).tobytes()


def _device(setting: str, wanted: str) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ExperimentError(f"{setting} is 'cuda' but this machine offers none to torch; use 'cpu'")
    return torch.device(wanted)


def _clip_of(experiment: Experiment) -> Clip:
    clip = experiment.clip
    return Clip(*(_NO_LIMIT,) * 3) if clip.open else Clip(clip.output, clip.jacobian, clip.loss)


def _objective(experiment: Experiment, task: Task, shape: Shape) -> WeightedSum:
    goal, other_side = experiment.objective, task.facts.other_side
    kind = PENALTIES.get(goal.penalty)
    if goal.also or kind.custom or (kind.compares, other_side) in (("groups", None), ("nothing", None)):
        return objective_of(experiment, shape)
    centre = experiment.clip.centre
    if (kind.compares, other_side) == ("sample", "prior"):
        return WeightedSum((ToSample(goal.alpha, centre=centre, radius=goal.prior_radius, order=goal.order),))
    if kind.compares == "records" and other_side in ("generator", "domain"):
        limit = _NO_LIMIT if experiment.clip.open else experiment.clip.output
        fixed = MODELS.get(experiment.model.kind).fixed and other_side == "domain"
        both = goal.protected == "both"
        return WeightedSum((ToModel(goal.alpha, None, None, None, centre, other_side, limit, both, fixed),))
    raise ExperimentError(
        f"objective.penalty {goal.penalty!r} compares {kind.compares}, and objective.task {goal.task!r} has "
        f"{'groups' if other_side is None else f'a {other_side} on its other side'}; name a penalty of that"
    )
