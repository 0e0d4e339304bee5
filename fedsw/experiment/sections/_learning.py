"""Sections of learning: training, model, objective, clip, slicing, evaluation, federation."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from fedsw._tools.own_objects import is_reference
from fedsw._tools.section import (
    Arguments,
    ClipNorm,
    PositiveFloat,
    PositiveInt,
    Section,
    Seed,
    SettingRule,
    among,
    at_most,
)
from fedsw.experiment.penalty_names import NO_PENALTY, PENALTIES, names_beside
from fedsw.experiment.task_kinds import MODELS, TASKS
from fedsw.mathematics.transport.order import require_penalty_order

_OPTIMIZERS = ("sgd", "adam")
_MOST_LAYERS = 100
_MOST_BINS = 150
"""Edges of one column."""


class Training(Section):
    """Rounds, batches and the optimizer; everything here is fixed in advance.

    `preset` "auto" leaves what is not written here, and in [clip], to rules that read public numbers alone
    (`fedsw.experiment.preset_rules`); a run's own record has what they chose.

    A round's batch takes `batch_fraction` of every group (rounded down, at least one record), or `batch_size`
    records of every group where that is given.

    `averaging` in (0, 1) releases the mean of that last fraction of the iterates (post-processing, free).
    `decay` in (0, 1] lets the learning rate fall linearly to 0 over that last fraction of the rounds.
    `momentum` is Adam's first coefficient too (0.9 where it is 0); `second_moment` its second.

    `optimizer` is "sgd" or "adam" with the settings above, or any name of torch.optim ("AdamW", "RMSprop", ...) with
    `learning_rate` and its own `optimizer_arguments`; `scheduler` is any name of torch.optim.lr_scheduler, with
    `scheduler_arguments`, and moves once a round.

    `released_norm` scales what a round released down to that l2 norm, where it is longer, before the step: it reads
    nothing but the release (RLL, Appendix D.2).

    `device` is where models run, ranks are found and contributions are added: one with float64.
    """

    preset: Literal["auto", "none"] = "none"
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
    released_norm: PositiveFloat | None = None
    precision: Literal["float32", "float64"] = "float32"
    micro_batch: PositiveInt = 65_536
    device: Literal["cpu", "cuda"] = "cpu"

    def rate_after(self, steps: int) -> float:
        """Learning rate of the step after `steps`: constant, then linear to 0 over the last `decay` of the rounds."""
        decaying = self.decay * self.rounds
        left = self.rounds - steps
        return self.learning_rate * (min(1.0, left / decaying) if decaying else 1.0)

    def noise_kept(self) -> float:
        """Standard deviation of the released parameters if every round's vector is noise of standard deviation 1.

        That is with plain gradient descent, momentum, decay and averaging, where no gradient draws the parameters back;
        0 for other optimizers and with a scheduler, which move by rules of their own.
        """
        import numpy as np  # settings are read where nothing computes

        if self.optimizer != "sgd" or self.scheduler is not None:
            return 0.0
        first = self.rounds - math.ceil(self.averaging * self.rounds) + 1
        covariance = np.zeros((3, 3))  # covariance of momentum, parameters and their average
        for step in range(1, self.rounds + 1):
            rate, part = self.rate_after(step - 1), 1 / max(1, step - first + 1)
            pushed = np.array([1.0, -rate, -part * rate])
            carried = np.outer(pushed, [self.momentum, 0.0, 0.0]) + np.diag([0.0, 1.0, 1 - part])
            carried[2, 1] = part
            covariance = carried @ covariance @ carried.T + np.outer(pushed, pushed)
        return math.sqrt(float(covariance[2, 2]))

    @field_validator("device", mode="before")
    @classmethod
    def _has_float64(cls, device: object) -> object:
        if device == "mps":
            raise ValueError(
                "'mps' has no float64, in which everything that a guarantee rests on is added; use 'cpu' or 'cuda'"
            )
        return device

    def rules(self) -> Iterator[SettingRule]:
        """See `Section`."""
        built_in, own = self.optimizer in _OPTIMIZERS, self.optimizer_arguments
        yield SettingRule(
            when=own,
            requires=not built_in,
            says="optimizer_arguments are for optimizers of torch.optim by their names there ('SGD', 'AdamW', ...); "
            f"{self.optimizer!r} reads momentum and second_moment",
        )
        for name in ("momentum", "second_moment"):
            yield SettingRule(
                when=self.changed(name),
                requires=built_in,
                says=f"{name} is for 'sgd' and 'adam'; write it in optimizer_arguments of {self.optimizer!r}",
            )
        yield SettingRule(
            when=own,
            requires="lr" not in own,
            says="optimizer_arguments sets lr; that is learning_rate: leave it out",
        )
        yield SettingRule(
            when=self.scheduler_arguments,
            requires=self.scheduler is not None,
            says="scheduler_arguments are given and no scheduler; name one of torch.optim.lr_scheduler",
        )
        yield SettingRule(
            when=self.scheduler is not None,
            requires=not self.decay,
            says=f"scheduler {self.scheduler!r} and decay both move the learning rate; keep one",
        )


class ColumnBins(Section):
    """ColumnBins of one column of numbers, by the edges between them: a number on an edge is in the bin above it."""

    column: str
    edges: Annotated[
        tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(min_length=1, max_length=_MOST_BINS)
    ]

    @model_validator(mode="after")
    def _increasing(self) -> ColumnBins:
        if any(low >= high for low, high in pairwise(self.edges)):
            raise ValueError(f"edges of column {self.column!r} must increase: sort them, and leave equal ones out")
        return self


class Model(Section):
    """The trained model and its initialisation seed (apart from sampling and noise).

    `latent` is the dimension of a representation, of an autoencoder's latent space or of a generator's input;
    `particles` the number of points of a flow. A `kind` "module:name" is a model of the user's own: a function or class
    that is called with `arguments`, and with those of features, outputs, classes and seed that it takes by name.
    `code` is the length of the class's code beside a generated image, that of `data.code` in the records.

    An "additive" model is a sum of functions of one declared column each: straight lines between so many `knots` of a
    number (`knots` of a column says where they are), a value for every category, and one for a missing cell. The
    functions of columns in `bins` are level in a bin, and jump: `privacy.histograms` finds such bins. `inputs`
    "centred" gives the other models columns about the middle of their bounds, scaled so that the farthest that a record
    can be is 4.5 away; "constant-first" does the same, and where `privacy.moments` are released they are those of the
    target only, so that a linear model starts at the best constant. "by-noise" takes columns as they
    are, after moments, and brings them to a length at which the known noise of all rounds moves a number's answers by
    0.3 of what the target varies, at a learning rate of 0.001.

    "scattering" is a linear model of what fixed filters see in an image: moduli of wavelets, averaged on a grid, of the
    first order (784 numbers of a record) or of both `orders` (1 040).
    """

    kind: Annotated[str, among(lambda: MODELS, "a model")] = "logistic"
    arguments: Arguments = {}
    hidden: Annotated[tuple[PositiveInt, ...], at_most(_MOST_LAYERS, "layers")] = ()
    latent: PositiveInt = 2
    particles: PositiveInt = 1_000
    code: PositiveFloat = 1.0
    activation: Literal["relu", "tanh", "elu"] = "tanh"
    knots: Annotated[int, Field(ge=2, le=64, strict=True)] = 5
    bins: Annotated[tuple[ColumnBins, ...], at_most(1_000, "columns")] = ()
    orders: Annotated[int, Field(ge=1, le=2, strict=True)] = 2
    inputs: Literal["plain", "centred", "constant-first", "by-noise"] = "plain"
    seed: Seed = 0


Order = Annotated[float, AfterValidator(require_penalty_order)]
"""The order p of a penalty that is a distance W_p^p."""


class Also(Section):
    """One more penalty beside an objective's own, with its weight, on the task's outputs or on outputs of its own.

    `outputs` names one of the model's outputs, where it returns several by name, and `dimension` is how many columns
    it has. `radius` and `jacobian` bound these outputs; without them the experiment's clip does. A penalty to a prior
    compares with the uniform law on the ball of `prior_radius` about `centre`; `order` is as in [objective].
    """

    penalty: Annotated[str, among(names_beside, "a penalty")]
    weight: Annotated[float, Field(ge=0, le=1)]
    outputs: str | None = None
    dimension: PositiveInt | None = None
    radius: ClipNorm | None = None
    jacobian: ClipNorm | None = None
    centre: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    prior_radius: PositiveFloat = 1.0
    order: Order = 2.0

    @model_validator(mode="after")
    def _whole(self) -> Also:
        if (self.outputs is None) != (self.dimension is None):
            raise ValueError("outputs and dimension belong together: which of the model's outputs, and its columns")
        if (self.radius is None) != (self.jacobian is None):
            raise ValueError("radius and jacobian belong together: the clip of these outputs")
        return self


class ObjectiveSettings(Section):
    """Task loss + penalty: (1 - alpha) * task + alpha * sliced W_p^p between groups, or to a target.

    p is the `order`, 2 or more: a larger one weighs the tails of the distributions more, and the noise with it.

    An autoencoder matches its latent codes to a prior (uniform in the ball of `prior_radius`), a generator matches
    its samples to the private records, and adaptation matches the private records' features to public ones'.
    The guarantee is for the target's records. `protected` "both" gives a generator the noise of RLL's bound for two
    private sides, which is more; its own inputs are not secret, and the noise promises nothing about them. A `task`
    "module:name" is one of the user's own: a class derived from `fedsw.Task`, made with `arguments`; a
    `penalty` is "statistical-parity", "equality-of-odds", "prior-matching", "distribution-matching", "none" (the task
    loss only, of all records in one stratum; `alpha` is then 0) or "module:name", a class derived from `fedsw.Penalty`
    or an object of one.
    """

    task: Annotated[str, among(lambda: TASKS, "a task")] = "classification"
    arguments: Arguments = {}
    penalty: Annotated[str, among(lambda: PENALTIES, "a penalty")] = "statistical-parity"
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    prior_radius: PositiveFloat = 1.0
    order: Order = 2.0
    protected: Literal["target", "both"] = "target"
    also: Annotated[tuple[Also, ...], Field(max_length=64)] = ()

    @model_validator(mode="before")
    @classmethod
    def _nothing_has_no_weight(cls, raw: Any) -> Any:
        alone = isinstance(raw, Mapping) and raw.get("penalty") == NO_PENALTY
        return {"alpha": 0.0, **raw} if alone else raw

    @model_validator(mode="after")
    def _weights(self) -> ObjectiveSettings:
        if self.penalty == NO_PENALTY and (self.alpha or self.also):
            raise ValueError(
                f"penalty {NO_PENALTY!r} is the task loss alone, and alpha is {self.alpha:g} with {len(self.also)} in "
                "`also`: leave these out, or name a penalty"
            )
        total = self.alpha + sum(more.weight for more in self.also)
        if total > 1 + 1e-12:
            raise ValueError(f"alpha and the weights of `also` add up to {total:g}; the task loss has the rest of 1")
        return self

    @model_validator(mode="after")
    def _read_by_its_penalty(self) -> ObjectiveSettings:
        kind = PENALTIES.get(self.penalty)
        if self.changed("prior_radius") and not (kind.custom or "radius" in kind.takes):
            able = " or ".join(repr(name) for name, known in PENALTIES.items() if "radius" in known.takes)
            raise ValueError(f"prior_radius is for penalty {able}, not for {self.penalty!r}: leave it out")
        if self.order != 2 and "order" not in kind.takes:
            able = ", ".join(repr(name) for name, known in PENALTIES.items() if "order" in known.takes)
            raise ValueError(
                f"order {self.order:g} is for one of the penalties {able}, not for {self.penalty!r}: use 2"
            )
        return self

    @model_validator(mode="after")
    def _own_arguments(self) -> ObjectiveSettings:
        if self.arguments and not is_reference(self.task):
            raise ValueError(f"arguments are for a task of your own ('module:name'), not for task {self.task!r}")
        return self


class ClipSettings(Section):
    """Clipping: outputs to radius M about a fixed `centre`, Jacobians to L, loss gradients to C.

    The centre is public and fixed in advance; the W2 gradient is translation invariant, so a radius about the
    middle of the output range bounds the same gradient with half the noise (0.5 for probabilities).

    `mode` is how a Jacobian is clipped: "spectral" by its spectral norm, "row" with every row to L/sqrt(d) (RLL, Remark
    A.2), or "none" for the reference that neither clips nor projects, which only trust "none" can run.
    """

    output: ClipNorm = 1.0
    jacobian: ClipNorm = 1.0
    loss: ClipNorm = 5.0
    centre: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    mode: Literal["spectral", "row", "none"] = "spectral"

    @property
    def open(self) -> bool:
        """True if nothing is clipped."""
        return self.mode == "none"

    @property
    def of_jacobians(self) -> Literal["spectral", "row"]:
        """How Jacobians are clipped; without clipping to a limit that none reaches."""
        return "spectral" if self.mode == "none" else self.mode


class SlicingSettings(Section):
    """Directions of the sliced distance; 1-D outputs use the single direction 1."""

    directions: PositiveInt = 50
    scheme: Literal["orthogonal", "iid"] = "orthogonal"
    ties: Literal["shared", "stable"] = "shared"
    seed: Seed = 0
    memory_limit_mb: PositiveInt = 1024


class Evaluation(Section):
    """Held-out records and directions that metrics are measured with: they should cost little beside the rounds.

    With `mode` "auto" at most about `records` held-out records, a fixed public subsample in which every group and
    class keeps its part (`fedsw.runs.evaluation.evaluator`), and, for distances of samples in more than `directions`
    dimensions, that many directions; in fewer dimensions whole orthogonal blocks. "full" takes all records, and whole
    blocks. A
    summary says what it was. Both numbers are for "auto".
    """

    mode: Literal["auto", "full"] = "auto"
    records: PositiveInt = 2_000
    directions: PositiveInt = 100

    @model_validator(mode="after")
    def _read_by_auto(self) -> Evaluation:
        for name in ("records", "directions"):
            if self.mode == "full" and self.changed(name):
                raise ValueError(f"{name} is for mode 'auto', and mode 'full' takes all there are: leave one out")
        return self


class Calibration(Section):
    """Counts of the trained model's answers by class, out of which its probabilities are corrected.

    `share` is their part of the budget, of mu^2; `training.preset` "auto" chooses it for a classifier where it is not
    written. 0 releases none, and probabilities are those of the rounds, which noise makes too sure. After the last
    round records are counted once, by class and bin of the model's probability, and a scale and constants of its logits
    follow from the noised counts (docs/guarantees/calibration.md). With `thresholds.share` the same counts serve both,
    at the larger of the two shares.
    """

    share: Annotated[float, Field(ge=0, le=0.5)] = 0.0


class ThresholdSettings(Section):
    """Counts of the trained model's answers by group, out of which every group gets a threshold of its own.

    `share` is their part of the budget, of mu^2; 0 releases none. After the last round records are counted once, by
    group, label and bin of the model's probability, and thresholds follow from the noised counts by `rule`: "parity"
    selects all groups alike, "odds" makes the rates of right and of wrong positive answers alike, as far as one
    threshold a group can (docs/guarantees/thresholds.md). `fedsw predict --threshold` uses them and reads the group.
    """

    share: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    rule: Literal["parity", "odds"] = "parity"

    @model_validator(mode="after")
    def _read_by_a_release(self) -> ThresholdSettings:
        if not self.share and (name := self.changed("rule")):
            raise ValueError(f"{name} is {self.rule!r}, and share is 0: no counts are released; set a share, as in 0.2")
        return self


class Federation(Section):
    """Participants, processes, and how long the server waits.

    Attributes:
        sites: processes that hold the clients, each a run of consecutive ones; None for what the engine does: one in
            process, one for each core on Ray, one for each client elsewhere.
        masks: of masked sums in one process: "real", a site for each client, so that all masks are added; "simulated",
            one site and none, as without the setting; the noise of a sum has the same law. Several sites, Ray and real
            processes always have masks.
        threads: that a process computes with, or its machine's cores where these are fewer.
        drop_out: the probability with which a simulated client is lost between the two exchanges of a round.
        refusals: what a client that refuses at the greeting does to the start: "stop" it, once all have answered; or
            it is "lost", as one that does not answer, and the run begins with the others if they are `min_clients`.
        code: whether clients must have the "same" fedsw installed as the server, to the byte, or "any"; None for what
            the trust model asks for: under `distributed`, where each client's guarantee rests on the others' code, the
            same. A client's own `--code` is asked, too.
    """

    clients: PositiveInt = 4
    sites: PositiveInt | None = None
    masks: Literal["simulated", "real"] | None = None
    drop_out: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    min_clients: PositiveInt | None = None
    timeout: PositiveFloat = 120.0
    max_attempts: PositiveInt = 3
    refusals: Literal["stop", "lost"] = "stop"
    code: Literal["same", "any"] | None = None
    threads: Annotated[int, Field(gt=0, le=1024, strict=True)] = 1

    @property
    def cores(self) -> int:
        """How many threads a process computes with here: those that are asked for, or as many as it has cores."""
        return min(self.threads, os.cpu_count() or 1)
