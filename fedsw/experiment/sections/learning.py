"""What is learnt: model, objective with its penalties, clips and slices."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from fedsw.experiment.extensions import is_reference
from fedsw.experiment.kinds import MODELS, task_names
from fedsw.experiment.sections.section import Arguments, PositiveFloat, PositiveInt, Section, Seed, one_of


class Model(Section):
    """The trained model and its initialisation seed (apart from sampling and noise).

    `latent` is the dimension of a representation, of an autoencoder's latent space or of a generator's input;
    `particles` the number of points of a flow. A `kind` "module:name" is a model of the user's own: a function or class
    that is called with `arguments`, and with those of features, outputs, classes and seed that it takes by name.
    `code` is the length of the class's code beside a generated image, that of `data.code` in the records.
    """

    kind: str = "logistic"
    arguments: Arguments = {}
    hidden: tuple[PositiveInt, ...] = ()
    latent: PositiveInt = 2
    particles: PositiveInt = 1_000
    code: PositiveFloat = 1.0
    activation: Literal["relu", "tanh", "elu"] = "tanh"
    seed: Seed = 0

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        return one_of(kind, tuple(MODELS), "a model")

    @model_validator(mode="after")
    def _own_arguments(self) -> Model:
        if self.arguments and not is_reference(self.kind):
            raise ValueError(f"arguments are for a model of your own ('module:name'), not for kind {self.kind!r}")
        return self


class Also(Section):
    """One more penalty beside an objective's own, with its weight, on the task's outputs or on outputs of its own.

    `outputs` names one of the model's outputs, where it returns several by name, and `dimension` is how many columns
    it has. `radius` and `jacobian` bound these outputs; without them the experiment's clip does. A penalty to a prior
    compares with the uniform law on the ball of `prior_radius` about `centre`.
    """

    penalty: Literal["statistical-parity", "equality-of-odds", "prior-matching"]
    weight: Annotated[float, Field(ge=0, le=1)]
    outputs: str | None = None
    dimension: PositiveInt | None = None
    radius: PositiveFloat | None = None
    jacobian: PositiveFloat | None = None
    centre: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    prior_radius: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _whole(self) -> Also:
        if (self.outputs is None) != (self.dimension is None):
            raise ValueError("outputs and dimension belong together: which of the model's outputs, and its columns")
        if (self.radius is None) != (self.jacobian is None):
            raise ValueError("radius and jacobian belong together: the clip of these outputs")
        return self


class Objective(Section):
    """Task loss + penalty: (1 - alpha) * task + alpha * sliced W2^2 between groups, or to a target.

    An autoencoder matches its latent codes to a prior (uniform in the ball of `prior_radius`), a generator matches
    its samples to the private records, and adaptation matches the private records' features to public ones'.
    The guarantee is for the target's records. `protected` "both" gives a generator the noise of RLL's bound for two
    private sides, which is more; its own inputs are no secret, and the noise promises nothing about them. A `task`
    "module:name" is one of the user's own: a class derived from `fedsw.tasks.task.Task`, made with `arguments`.
    """

    task: str = "classification"
    arguments: Arguments = {}
    penalty: Literal["statistical-parity", "equality-of-odds", "prior-matching", "distribution-matching"] = (
        "statistical-parity"
    )
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    prior_radius: PositiveFloat = 1.0
    protected: Literal["target", "both"] = "target"
    also: tuple[Also, ...] = ()

    @field_validator("task")
    @classmethod
    def _known_task(cls, task: str) -> str:
        return one_of(task, task_names(), "a task")

    @model_validator(mode="after")
    def _weights(self) -> Objective:
        total = self.alpha + sum(each.weight for each in self.also)
        if total > 1 + 1e-12:
            raise ValueError(f"alpha and the weights of `also` add up to {total:g}; the task loss has the rest of 1")
        return self

    @model_validator(mode="after")
    def _own_arguments(self) -> Objective:
        if self.arguments and not is_reference(self.task):
            raise ValueError(f"arguments are for a task of your own ('module:name'), not for task {self.task!r}")
        return self


class Clip(Section):
    """Clipping: outputs to radius M about a fixed `centre`, Jacobians to L, loss gradients to C.

    The centre is public and fixed in advance; the W2 gradient is translation invariant, so a radius about the
    middle of the output range bounds the same gradient with half the noise (0.5 for probabilities).

    `mode` is how a Jacobian is clipped: "spectral" by its spectral norm, "row" with every row to L/sqrt(d) (RLL, Remark
    A.2), or "none" for the reference that neither clips nor projects, which only trust "none" can run.
    """

    output: PositiveFloat = 1.0
    jacobian: PositiveFloat = 1.0
    loss: PositiveFloat = 5.0
    centre: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    mode: Literal["spectral", "row", "none"] = "spectral"

    @property
    def open(self) -> bool:
        """Whether nothing is clipped."""
        return self.mode == "none"

    @property
    def of_jacobians(self) -> Literal["spectral", "row"]:
        """How Jacobians are clipped; without clipping to a limit that none reaches."""
        return "spectral" if self.mode == "none" else self.mode


class Slicing(Section):
    """Directions of the sliced distance; 1-D outputs use the single direction 1."""

    directions: PositiveInt = 50
    scheme: Literal["orthogonal", "iid"] = "orthogonal"
    ties: Literal["shared", "stable"] = "shared"
    seed: Seed = 0
    memory_limit_mb: PositiveInt = 1024
