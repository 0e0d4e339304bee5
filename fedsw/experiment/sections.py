"""The sections of an experiment: every setting with its type, its limits and its default."""

from __future__ import annotations

import difflib
import math
import re
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from fedsw.columns import Columns
from fedsw.experiment.extensions import is_reference
from fedsw.experiment.held import OBJECT, is_held
from fedsw.experiment.kinds import MODELS, task_names
from fedsw.settings import ExperimentError

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
PositiveInt = Annotated[int, Field(gt=0, le=2**53, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
_OPTIMIZERS = ("sgd", "adam")
_MOST_DEEP = 8
SOURCES = ("synthetic", "adult", "ring", "gaussians", "digits", "mnist", "fashion-mnist", "usps")
"""The data sets that have a name."""

_OWN = ("files", OBJECT)
_DELTA = re.compile(r"^\s*(?P<factor>[0-9.eE+-]+)\s*/\s*n\s*(?:\^\s*(?P<power>[0-9.]+))?\s*$")


def _plain(value: Any, depth: int = 0) -> Any:
    """A value that TOML and JSON can write and read back, lists as lists."""
    if depth > _MOST_DEEP:
        raise ValueError(f"arguments are nested over {_MOST_DEEP} deep; give numbers, texts, and lists of them")
    if isinstance(value, bool | str) or (isinstance(value, int) and abs(value) <= 2**53):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    raise ValueError(f"an argument of type {type(value).__name__} is no finite number, text, truth value or list")


Arguments = Annotated[dict[str, Any], AfterValidator(_plain)]
"""Arguments by name of something of a user's own, as TOML and JSON can write them."""


def _one_of(name: str, known: tuple[str, ...], own: str) -> str:
    if name not in known and not is_reference(name):
        names = ", ".join(repr(each) for each in known)
        raise ValueError(f"Input should be {names}, or 'module:name' for {own} of your own")
    return name


class Section(BaseModel):
    """Unknown keys are refused; values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __hash__(self) -> int:
        """Of all settings; some of them are tables of arguments, which have no hash of their own."""
        return hash(self.model_dump_json())


class Held(Section):
    """What is on record of a Python object that a run's records came from: public, and no fingerprint of a record.

    Attributes:
        kind: its type, "pandas.DataFrame".
        rows: number of records of every group.
    """

    kind: str
    rows: dict[str, int]


class Data(Section):
    """Which records the clients hold.

    `data_dir` and the environment variable FEDSW_DATA say where files are; `records` is for the sources that are
    drawn from a law (synthetic, ring, gaussians), with the law's parameters for the synthetic one. `row_norm` scales
    every record's features to that l2 norm by itself (no statistic of the data is used), so that the clips hardly
    bite. `public` is the labelled public data set that domain adaptation learns from, `public_batch` records a
    round.

    With `source` "files" every client brings its own; `columns` declares what is in them, and `held_out` names the
    file at the server, if there is one, that metrics are measured on. Rows of it that a private file holds too are
    refused; `held_out_overlap` "allow" goes on, and the record then says epsilon = infinity for its reader.

    With `source` "module:name" records come from a function or an object of a Python module, and `held_out` may name
    another; with "object" they are passed to `fedsw.engines.driver.run(experiment, data=...)`, which replaces it by
    "object:" and a random name, and writes down in `objects` what is public of them.
    """

    source: str = "synthetic"
    public: Literal["mnist", "usps"] | None = None
    public_batch: PositiveInt = 512
    records: PositiveInt = 30_000
    test_records: PositiveInt = 10_000
    correlation: Annotated[float, Field(ge=0, le=1)] = 0.7
    core_features: PositiveInt = 8
    spurious_features: PositiveInt = 8
    core_variance: PositiveFloat = 0.2
    spurious_variance: PositiveFloat = 0.4
    seed: Seed = 0
    row_norm: PositiveFloat | None = None
    data_dir: str | None = None
    columns: Columns | None = None
    held_out: str | None = None
    held_out_overlap: Literal["refuse", "allow"] = "refuse"
    objects: tuple[Held, ...] = ()

    @field_validator("source")
    @classmethod
    def _known_source(cls, source: str) -> str:
        if source in SOURCES or source in _OWN or is_reference(source):
            return source
        known = (*SOURCES, *_OWN)
        near = difflib.get_close_matches(source, known, n=1)
        raise ValueError(
            f"source {source!r} is unknown; {f'nearest: {near[0]!r}; ' if near else ''}choose one of "
            f"{', '.join(known)}, or write module:name for records of your own"
        )

    @model_validator(mode="after")
    def _declared_for_files(self) -> Data:
        if self.source == "files" and self.columns is None:
            raise ValueError("source 'files' reads the columns that [data.columns] declares; it is missing")
        if not self.own and (self.columns is not None or self.held_out is not None):
            raise ValueError(
                f"columns and held_out belong to source 'files', not to {self.source!r}, or to records of your own "
                "('object', module:name); leave them out"
            )
        if self.objects and self.family != "object":
            raise ValueError(f"objects is written by a run of Python objects, not for {self.source!r}; leave it out")
        if self.held_out is None and self.held_out_overlap != "refuse" and self.source != "object":
            raise ValueError("held_out_overlap is about the file of data.held_out, and there is none; leave it out")
        return self

    @property
    def family(self) -> str:
        """Where records come from: a named data set, "files", "object" (of this process) or "module"."""
        if self.source in SOURCES or self.source == "files":
            return self.source
        return OBJECT if self.source == OBJECT or is_held(self.source) else "module"

    @property
    def own(self) -> bool:
        """Whether records are somebody's own, described by `columns`, and not a named data set."""
        return self.source not in SOURCES

    @property
    def label(self) -> str:
        """What the data is called in a report."""
        if self.family != "object":
            return self.source
        return " and ".join(dict.fromkeys(held.kind for held in self.objects)) or "own"

    @property
    def shows_private_rows(self) -> bool:
        """Whether metrics may be those of private records, un-noised: by the operator's own word."""
        return self.held_out_overlap == "allow"


class Partition(Section):
    """How the records are spread over simulated clients."""

    scheme: Literal["iid", "group", "dirichlet"] = "iid"
    concentration: PositiveFloat = 0.5
    by: Literal["sensitive", "target"] = "sensitive"
    seed: Seed = 0


class Model(Section):
    """The trained model and its initialisation seed (apart from sampling and noise).

    `latent` is the dimension of a representation, of an autoencoder's latent space or of a generator's input;
    `particles` the number of points of a flow. A `kind` "module:name" is a model of the user's own: a function or class
    that is called with `arguments`, and with those of features, outputs, classes and seed that it takes by name.
    """

    kind: str = "logistic"
    arguments: Arguments = {}
    hidden: tuple[PositiveInt, ...] = ()
    latent: PositiveInt = 2
    particles: PositiveInt = 1_000
    activation: Literal["relu", "tanh", "elu"] = "tanh"
    seed: Seed = 0

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        return _one_of(kind, tuple(MODELS), "a model")

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
        return _one_of(task, task_names(), "a task")

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
    """

    output: PositiveFloat = 1.0
    jacobian: PositiveFloat = 1.0
    loss: PositiveFloat = 5.0
    centre: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    mode: Literal["spectral", "row"] = "spectral"


class Slicing(Section):
    """Directions of the sliced distance; 1-D outputs use the single direction 1."""

    directions: PositiveInt = 50
    scheme: Literal["orthogonal", "iid"] = "orthogonal"
    ties: Literal["shared", "stable"] = "shared"
    seed: Seed = 0
    memory_limit_mb: PositiveInt = 1024


class Training(Section):
    """Rounds, batches and the optimizer; everything here is fixed in advance.

    A round's batch takes `batch_fraction` of every group (rounded down, at least one record), or `batch_size`
    records of every group where that is given.

    `averaging` in (0, 1) releases the mean of that last fraction of the iterates (post-processing, free).
    `decay` in (0, 1] lets the learning rate fall linearly to 0 over that last fraction of the rounds.
    `momentum` is Adam's first coefficient too (0.9 where it is 0); `second_moment` its second.

    `optimizer` is "sgd" or "adam" with the settings above, or any name of torch.optim ("AdamW", "RMSprop", ...) with
    `learning_rate` and its own `optimizer_arguments`; `scheduler` is any name of torch.optim.lr_scheduler, with
    `scheduler_arguments`, and moves once a round.
    """

    rounds: PositiveInt = 500
    batch_fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    batch_size: PositiveInt | None = None
    optimizer: Annotated[str, Field(pattern=r"^[A-Za-z]\w*$", max_length=60)] = "sgd"
    optimizer_arguments: Arguments = {}
    scheduler: Annotated[str, Field(pattern=r"^[A-Za-z]\w*$", max_length=60)] | None = None
    scheduler_arguments: Arguments = {}
    learning_rate: PositiveFloat = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    second_moment: Annotated[float, Field(ge=0, lt=1)] = 0.999
    averaging: Annotated[float, Field(ge=0, lt=1)] = 0.0
    decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    precision: Literal["float32", "float64"] = "float32"
    micro_batch: PositiveInt = 65_536
    device: Literal["cpu", "cuda"] = "cpu"

    @model_validator(mode="after")
    def _settings_of_the_optimizer(self) -> Training:
        own = self.optimizer in _OPTIMIZERS
        if own and self.optimizer_arguments:
            raise ValueError(
                f"optimizer_arguments are for optimizers of torch.optim by their names there ('SGD', 'AdamW', ...); "
                f"{self.optimizer!r} reads momentum and second_moment"
            )
        for name, default in (("momentum", 0.0), ("second_moment", 0.999)):
            if not own and getattr(self, name) != default:
                raise ValueError(
                    f"{name} is for 'sgd' and 'adam'; write it in optimizer_arguments of {self.optimizer!r}"
                )
        if "lr" in self.optimizer_arguments:
            raise ValueError("optimizer_arguments sets lr; that is learning_rate: leave it out")
        if self.scheduler_arguments and self.scheduler is None:
            raise ValueError("scheduler_arguments are given and no scheduler; name one of torch.optim.lr_scheduler")
        if self.scheduler is not None and self.decay:
            raise ValueError(f"scheduler {self.scheduler!r} and decay both move the learning rate; keep one")
        return self


class Privacy(Section):
    """The guarantee asked for: trust model, (epsilon, delta), bound, sampling scheme and accountant.

    `delta` is a number or an expression in the number n of private records: "0.1/n", "1/n^2".
    Either `epsilon` is given and the noise multiplier is calibrated, or `noise_multiplier` (sigma/Delta, with
    Delta the full replacement sensitivity) is given and epsilon follows.
    """

    trust: Literal["central", "none", "local-gradient", "local-slices", "local-release"] = "central"
    epsilon: float | None = 1.0
    noise_multiplier: PositiveFloat | None = None
    delta: float | str = "0.1/n"
    bound: Literal["auto", "paper", "slice", "vector"] = "auto"
    accountant: Literal[
        "pld", "gdp-clt-uniform", "gdp-clt-poisson", "rdp-wor", "bernstein", "bernstein-published", "clt"
    ] = "pld"
    sampling: Literal["global", "stratified"] = "global"
    relation: Literal["replace-one", "add-remove"] = "replace-one"

    @model_validator(mode="before")
    @classmethod
    def _follow(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping) and "epsilon" not in raw:
            if raw.get("noise_multiplier") is not None:
                return {**raw, "epsilon": None}
            if raw.get("trust") == "none":
                return {**raw, "epsilon": math.inf}
        return raw

    @field_validator("epsilon")
    @classmethod
    def _positive_epsilon(cls, epsilon: float | None) -> float | None:
        if epsilon is not None and not epsilon > 0:
            raise ValueError(f"epsilon is {epsilon}; it must be above 0 (or inf for no privacy)")
        return epsilon

    @field_validator("delta", mode="before")
    @classmethod
    def _number_or_text(cls, delta: Any) -> Any:
        if not isinstance(delta, int | float | str):
            raise ValueError("delta cannot be read; write a number, '0.1/n' or '1/n^2'")
        return delta

    @field_validator("delta")
    @classmethod
    def _readable_delta(cls, delta: float | str) -> float | str:
        if not 0 < _read_delta(delta, records=10**6) < 1:
            raise ValueError(f"delta is {delta!r}; it must lie strictly between 0 and 1, and well below 1/n")
        return delta

    @model_validator(mode="after")
    def _consistent(self) -> Privacy:
        if self.relation == "add-remove":
            raise ValueError(
                "relation 'add-remove' is refused: removing a record re-ranks every other one, and the bound "
                "of a sliced-Wasserstein gradient is proven for replacement only; use 'replace-one'"
            )
        if self.noise_multiplier is not None and self.epsilon is not None and math.isfinite(self.epsilon):
            raise ValueError("epsilon and noise_multiplier are both given; keep one (the other follows)")
        if self.noise_multiplier is None and self.epsilon is None:
            raise ValueError("neither epsilon nor noise_multiplier is given; set one")
        if self.trust == "none" and (self.noise_multiplier is not None or self.epsilon != math.inf):
            raise ValueError(
                f"trust 'none' adds no noise, so epsilon = {self.epsilon} with noise_multiplier = "
                f"{self.noise_multiplier} cannot hold; use trust 'central', or epsilon inf"
            )
        return self

    @field_serializer("epsilon", when_used="json")
    def _infinity_in_words(self, epsilon: float | None) -> float | str | None:
        return "inf" if epsilon == math.inf else epsilon

    @property
    def noisy(self) -> bool:
        """Whether a run adds noise: any trust but 'none', with a finite epsilon or a noise multiplier."""
        finite = self.epsilon is not None and math.isfinite(self.epsilon)
        return self.trust != "none" and (finite or self.noise_multiplier is not None)

    @property
    def local(self) -> bool:
        """Whether every client protects its own records, from the server too."""
        return self.trust.startswith("local-")


class Local(Section):
    """How clients protect their own records under the local trust models; docs/threat-models.md.

    Attributes:
        bins: `local-gradient`: bins of [-M, M] in the noised table of every direction and group.
        table_share: `local-gradient`: the table's share of mu^2, the rest is the contribution's.
        algorithm: `local-slices`: gradients of a sliced distance to noised slices, or a particle flow, with fresh
            slices every round or with `directions` stored slices that were noised once.
        order: q of `dp-swd`. (The losses of `local-release` take theirs from the noise: 2 for Gaussian, 1 for Laplace.)
        diffusion: lambda of a flow's own noise.
        loss: `local-release`: what the generator is trained with on the privatised records.
        norm, mechanism, calibration: the ball that released records are projected onto and their noise.
        diameter: "replacement" (2 rho), or "paper" for RCO's sup ||x||, which is not a guarantee.
        dct: release cosine coefficients of square images.
    """

    bins: PositiveInt = 32
    table_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    algorithm: Literal["dp-swd", "flow", "flow-one-release"] = "dp-swd"
    order: Literal[1, 2] = 2
    diffusion: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    loss: Literal["entropic", "plain", "sinkhorn", "wavelet"] = "entropic"
    norm: Literal["l1", "l2"] = "l2"
    mechanism: Literal["gaussian", "laplace"] = "gaussian"
    calibration: Literal["analytic", "rco"] = "analytic"
    diameter: Literal["replacement", "paper"] = "replacement"
    dct: bool = False


class Federation(Section):
    """Who takes part and how long the server waits."""

    clients: PositiveInt = 4
    min_clients: PositiveInt | None = None
    timeout: PositiveFloat = 120.0
    max_attempts: PositiveInt = 3
    threads: PositiveInt = 1


def resolve_delta(delta: float | str, *, records: int) -> float:
    """The number behind a delta such as 1e-5, "0.1/n" or "1/n^2", with n = `records`.

    Raises:
        ExperimentError: if it cannot be read or is not in (0, 1). Warns if it is 1/n or more.
    """
    value = _read_delta(delta, records=records)
    if not 0 < value < 1:
        raise ExperimentError(f"delta is {value}; it must lie strictly between 0 and 1, and well below 1/n")
    if value >= 1 / records:
        warnings.warn(
            f"delta = {value:.3g} is not below 1/n = {1 / records:.3g}: publishing a random record would "
            "satisfy it; use '0.1/n' or less",
            stacklevel=2,
        )
    return value


def _read_delta(delta: float | str, *, records: int) -> float:
    try:
        if isinstance(delta, str) and (match := _DELTA.match(delta)):
            return float(match["factor"]) / math.pow(records, float(match["power"] or 1))
        return float(delta)
    except (ValueError, ArithmeticError):
        raise ExperimentError(f"delta {delta!r} cannot be read; write a number, '0.1/n' or '1/n^2'") from None
