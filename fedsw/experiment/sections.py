"""The sections of an experiment: every setting with its type, its limits and its default.

Sections of learning come first, then [privacy] and [local], which depend on the trust model, and how a delta is read.
What goes together within a section are its `rules`, rows of the table that `fedsw.experiment.compatibility` has between
sections. Section [sketch] is in `sketch_section`; what nothing reads is refused by `compatibility`.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, field_serializer, field_validator, model_validator

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
from fedsw._tools.settings import ExperimentError
from fedsw._tools.text import upward
from fedsw.experiment.penalty_names import NO_PENALTY, PENALTIES, names_beside
from fedsw.experiment.sketch_section import Sketch, SketchPart
from fedsw.experiment.task_kinds import MODELS, TASKS
from fedsw.experiment.trust import RunGuarantee, TrustModel, accounting_at_server, trust_model, trust_models
from fedsw.mathematics.transport.order import require_penalty_order
from fedsw.privacy.accountants import ACCOUNTANTS, GAUSSIAN

__all__ = [
    "AUTO_BINS", "Also", "BinSettings", "Calibration", "ClipSettings", "ColumnBins", "DEFAULT_DELTA", "Evaluation",
    "Federation", "LEAST_DELTA", "Local", "LocalT", "MaskedSettings", "Model", "ObjectiveSettings", "Privacy",
    "ReleaseSettings", "Section", "Sketch", "SketchPart", "SketchPrivacy", "SliceSettings", "SlicingSettings",
    "TableSettings", "ThresholdSettings", "Training", "read_delta", "resolve_delta",
]  # fmt: skip

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
        built_in, arguments = self.optimizer in _OPTIMIZERS, self.optimizer_arguments
        yield SettingRule(
            when=arguments,
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
            when=arguments,
            requires="lr" not in arguments,
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
    """Bins of one column of numbers, by the edges between them: a number on an edge is in the bin above it."""

    column: str
    edges: Annotated[
        tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(min_length=1, max_length=_MOST_BINS)
    ]

    def rules(self) -> Iterator[SettingRule]:
        """See `Section`."""
        yield SettingRule(
            when=True,
            requires=all(low < high for low, high in pairwise(self.edges)),
            says=f"edges of column {self.column!r} must increase: sort them, and leave equal ones out",
        )


class Model(Section):
    """The trained model and its initialisation seed (apart from sampling and noise).

    `latent` is the dimension of a representation, of an autoencoder's latent space or of a generator's input;
    `particles` the number of points of a flow. A `kind` "module:name" is a model of the user's own: a function or class
    that is called with `arguments`, and with those of features, outputs, classes and seed that it takes by name.
    `code` is the length of the class's code beside a generated image, that of `data.code` in the records.

    An "additive" model is a sum of functions of one declared column each: straight lines between `knots` of a number (a
    column's own `knots` say where they are), a value for every category, and one for a missing cell. The
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

    def rules(self) -> Iterator[SettingRule]:
        """See `Section`."""
        yield SettingRule(
            when=True,
            requires=(self.outputs is None) == (self.dimension is None),
            says="outputs and dimension belong together: which of the model's outputs, and its columns",
        )
        yield SettingRule(
            when=True,
            requires=(self.radius is None) == (self.jacobian is None),
            says="radius and jacobian belong together: the clip of these outputs",
        )


class ObjectiveSettings(Section):
    """Task loss + penalty: (1 - alpha) * task + alpha * sliced W_p^p between groups, or to a target.

    p is the `order`, 2 or more: a larger one weighs the tails of the distributions more, and the noise with it.

    An autoencoder matches its latent codes to a prior (uniform in the ball of `prior_radius`), a generator matches
    its samples to the private records, and adaptation matches the private records' features to public ones'.
    The guarantee is for the target's records. `protected` "both" gives a generator the noise of RLL's bound for two
    private sides, which is more; its own inputs are not secret, and the noise promises nothing about them. A `task`
    "module:name" is one of the user's own: a class derived from `fedsw.Task`, made with `arguments`; a
    `penalty` (a regularizer) is "statistical-parity", "equality-of-odds" (equalized odds), "prior-matching",
    "distribution-matching", "none" (the task loss only, of all records in one stratum; `alpha` is then 0) or
    "module:name", a class derived from `fedsw.Penalty` or an object of one.
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

    def rules(self) -> Iterator[SettingRule]:
        """See `Section`."""
        yield SettingRule(
            when=self.penalty == NO_PENALTY,
            requires=not (self.alpha or self.also),
            says=f"penalty {NO_PENALTY!r} is the task loss alone, and alpha is {self.alpha:g} with {len(self.also)} in "
            "`also`: leave these out, or name a penalty",
        )
        total = self.alpha + sum(more.weight for more in self.also)
        yield SettingRule(
            when=True,
            requires=total <= 1 + 1e-12,  # 0.7 + 0.2 + 0.1 is above 1 in floating point
            says=f"alpha and the weights of `also` add up to {total:g}; the task loss has the rest of 1",
        )
        kind = PENALTIES.get(self.penalty)
        radii, orders = (
            [repr(name) for name, known in PENALTIES.items() if taken in known.takes] for taken in ("radius", "order")
        )
        yield SettingRule(
            when=self.changed("prior_radius"),
            requires=kind.custom or "radius" in kind.takes,
            says=f"prior_radius is for penalty {' or '.join(radii)}, not for {self.penalty!r}: leave it out",
        )
        yield SettingRule(
            when=self.order != 2,
            requires="order" in kind.takes,
            says=f"order {self.order:g} is for one of the penalties {', '.join(orders)}, not for {self.penalty!r}: use "
            "2",
        )
        yield SettingRule(
            when=self.arguments,
            requires=is_reference(self.task),
            says=f"arguments are for a task of your own ('module:name'), not for task {self.task!r}",
        )


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

    removed: ClassVar[Mapping[str, Any]] = {"memory_limit_mb": 1024}
    directions: PositiveInt = 50
    scheme: Literal["orthogonal", "iid"] = "orthogonal"
    ties: Literal["shared", "stable"] = "shared"
    seed: Seed = 0


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

    def rules(self) -> Iterator[SettingRule]:
        """See `Section`."""
        name = self.changed("records", "directions")
        yield SettingRule(
            when=name,
            requires=self.mode == "auto",
            says=f"{name} is for mode 'auto', and mode 'full' takes all there are: leave one out",
        )


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

    def rules(self) -> Iterator[SettingRule]:
        """See `Section`."""
        yield SettingRule(
            when=self.changed("rule"),
            requires=self.share,
            says=f"rule is {self.rule!r}, and share is 0: no counts are released; set a share, as in 0.2",
        )


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


T = TypeVar("T")

_DELTA = re.compile(r"^\s*(?P<factor>[0-9.eE+-]+)\s*/\s*n\s*(?:\^\s*(?P<power>[0-9.]+))?\s*$")

LEAST_DELTA = 1e-10
"""The least delta that accounts can tell from floating-point round-off (`fedsw.privacy.accounting.composition`)."""

AUTO_DELTA_FROM, AUTO_DELTA_TO = 1e-9, 1e-3
"""Least and greatest delta "auto"; the least is ten times `LEAST_DELTA`."""

FEW_RECORDS = 1000
"""Fewer records than this are said to be few where delta is "auto"."""

DEFAULT_DELTA = "auto"
"""The default delta of settings, drafts and budgets."""

_READABLE = "a number, 'auto', '0.1/n' or '1/n^2'"


class Privacy(Section):
    """The guarantee asked for: trust model, (epsilon, delta), bound, sampling scheme and accountant.

    `delta` is a number, an expression in the number n of private records ("0.1/n", "1/n^2"), or "auto": 1/n^2, but
    1e-9 where that is less, which accounts could not tell from round-off, and 1e-3 where it is more: below 1/n for any
    n up to 10^9. With fewer than 1 000 records "auto" warns.
    Either `epsilon` is given and the noise multiplier is calibrated, or `noise_multiplier` (sigma/Delta, with
    Delta the full replacement sensitivity) is given and epsilon follows. `device` is where the server's epsilon is
    computed, `training.device` where it is not given; clients that account for themselves use the processor.

    `relation` is the adjacency. "add-remove" protects the addition or removal of a record, by `sampling` "poisson":
    every record joins a batch with probability `training.batch_fraction`. Its epsilon is a weaker promise than the same
    one by replacement, which is an addition and a removal. `records` is then a declared number, public and not counted:
    sums are divided by its part in a batch, and "n" of `delta` is this number (docs/guarantees/sampling.md).

    `moments` is the share of the budget (of mu^2) that buys, before the rounds, counts, means and second moments of
    inputs and target; "auto" lets the number of records decide, and 0 releases none (docs/guarantees/moments.md).
    `histograms` is the share that buys, before these, counts of all columns of numbers, off which an additive model
    gets `model.bins` for columns with point masses or long tails, in place of those that are written.
    """

    trust: Annotated[str, among(trust_models)] = "central"
    epsilon: float | None = 1.0
    noise_multiplier: PositiveFloat | None = None
    delta: float | str = DEFAULT_DELTA
    bound: Literal["auto", "paper", "slice", "vector"] = "auto"
    # an accountant of a pure epsilon is chosen by the mechanism
    accountant: Annotated[str, among(lambda: [n for n, known in ACCOUNTANTS.items() if not known.pure])] = "pld"
    sampling: Literal["global", "stratified", "poisson"] = "global"
    relation: Literal["replace-one", "add-remove"] = "replace-one"
    records: PositiveInt | None = None
    moments: Literal["auto"] | Annotated[float, Field(ge=0, le=0.9)] = 0.0
    histograms: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    device: Literal["cpu", "cuda"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _follow(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping) and "epsilon" not in raw:
            if raw.get("noise_multiplier") is not None:
                return {**raw, "epsilon": None}
            if raw.get("trust") in trust_models() and (fixed := trust_model(raw["trust"]).fixed_epsilon) is not None:
                return {**raw, "epsilon": fixed}
        return raw

    @field_validator("epsilon")
    @classmethod
    def _positive_epsilon(cls, epsilon: float | None) -> float | None:
        if epsilon is not None and not epsilon > 0:  # so NaN is refused, too
            raise ValueError(f"epsilon is {epsilon}; it must be above 0 (or inf for no privacy)")
        return epsilon

    @field_validator("delta", mode="before")
    @classmethod
    def _readable_delta(cls, delta: Any) -> Any:
        # before types are tried: pydantic's own words for what is neither number nor text name no way of writing it
        if not isinstance(delta, int | float | str):
            raise ValueError(f"delta cannot be read; write {_READABLE}")
        if not 0 < read_delta(delta, records=10**6) < 1:
            raise ValueError(f"delta is {delta!r}; it must lie strictly between 0 and 1, and well below 1/n")
        return delta

    def rules(self) -> Iterator[SettingRule]:
        """See `Section`."""
        epsilon, multiplier, model = self.epsilon, self.noise_multiplier, self.model
        added = self.relation == "add-remove"
        able = [name for name, known in trust_models().items() if self.relation in known.relations]
        yield SettingRule(
            when=True,
            requires=self.trust in able,
            says=f"relation {self.relation!r} is bounded under trust {', '.join(map(repr, able))}, not {self.trust!r}: "
            "use 'replace-one'",
        )
        yield SettingRule(
            when=True,
            requires=added == (self.sampling == "poisson"),
            says=f"relation is {self.relation!r} and sampling {self.sampling!r}: batches of a fixed size tell how many "
            "records there are, so that 'add-remove' takes sampling 'poisson', and 'replace-one' does not",
        )
        yield SettingRule(
            when=added,
            requires=self.records is not None,
            says="relation 'add-remove' hides the number of records, and sums are divided by a public one: declare "
            "records, a number that was not counted for this (a size that is known anyway, or a round one)",
        )
        yield SettingRule(
            when=not added,
            requires=self.records is None,
            says="records is declared for relation 'add-remove'; under 'replace-one' it is counted and public",
        )
        yield SettingRule(
            when=multiplier is not None,
            requires=epsilon is None or math.isinf(epsilon),
            says="epsilon and noise_multiplier are both given; keep one (the other follows)",
        )
        yield SettingRule(
            when=multiplier is None,
            requires=epsilon is not None,
            says="neither epsilon nor noise_multiplier is given; set one",
        )
        unread = self.changed(*model.unread)
        written = None if unread is None else getattr(self, unread)
        yield SettingRule(
            when=unread,
            requires=False,
            says=f"{unread} is {written!r}, which has a meaning under privacy.trust "
            f"{' and '.join(map(repr, accounting_at_server()))}; under {self.trust!r} every client plans its own "
            "noise and batches, and accounts for them: leave it out",
        )
        yield SettingRule(
            when=model.fixed_epsilon is not None,
            requires=multiplier is None and epsilon == model.fixed_epsilon,
            says=f"trust {self.trust!r} adds no noise, so epsilon = {epsilon} with noise_multiplier = {multiplier} "
            "cannot hold; use trust 'central', or epsilon inf",
        )

    @field_serializer("epsilon", when_used="json")
    def _infinity_in_words(self, epsilon: float | None) -> float | str | None:
        return "inf" if epsilon == math.inf else epsilon

    @classmethod
    def variants(cls) -> tuple[type[BaseModel], ...]:
        """See `Section`."""
        return _declared("privacy")

    @property
    def guarantee(self) -> RunGuarantee:
        """Guarantee of a run: none without noise, which needs a trust model that adds some, and a budget."""
        return trust_model(self.trust).guarantee(epsilon=self.epsilon, multiplier=self.noise_multiplier)

    def paying(self, clients: Sequence[T]) -> Sequence[T]:
        """The clients that pay from their own ledgers for what leaves: all of these, or none."""
        return self.guarantee.paying(self.model.accounting(clients))

    @property
    def hides_sizes(self) -> bool:
        """True if the guarantee covers how many records there are, of which a declared number is public instead."""
        return self.records is not None

    @property
    def model(self) -> TrustModel:
        """The trust model, as it is for the experiment's task."""
        return trust_model(self.trust)


class SketchPrivacy(Privacy):
    """The guarantee of an experiment on a sketch of records, under a trust model that is for others, too."""

    @property
    def model(self) -> TrustModel:
        """See `Privacy`."""
        return trust_model(self.trust, sketch=True)


class Local(Section):
    """Settings of one trust model beside [privacy]: none, unless it declares a class for them.

    Section [local] is a union tagged by `privacy.trust`: see `TrustModel.sections`, and docs/threat-models.md.
    """

    @classmethod
    def variants(cls) -> tuple[type[BaseModel], ...]:
        """See `Section`."""
        return _declared("local")

    @property
    def guaranteed(self) -> bool:
        """True if the noise covers all that a replaced record moves."""
        return True


LocalT = TypeVar("LocalT", bound=Local)


AUTO_BINS = range(4, 257)
"""Numbers of bins that `local.bins = "auto"` chooses from."""


class BinSettings(Local):
    """Settings of noised tables of outputs, which leave beside contributions.

    Attributes:
        bins: of [-M, M] in the table of every direction and group.
    """

    bins: PositiveInt | Literal["auto"] = 32

    @property
    def most_bins(self) -> int:
        """Largest number of bins: the one that is written, or the most that "auto" chooses."""
        return AUTO_BINS[-1] if self.bins == "auto" else self.bins


class MaskedSettings(BinSettings):
    """`distributed`: sums under masks.

    Attributes:
        bins: "auto" weighs the noise that a finer table costs against the width of its bins, by the public sizes of an
            attempt's batch: from 4 to 256. Directions (slicing.directions) cost the gradient no noise.
        colluding: C, so many clients may be on the server's side, and the others are protected.
        failing: failed attempts that the budget is for, as a part of the rounds; each is charged.
    """

    colluding: Annotated[int, Field(ge=0, strict=True)] = 1
    failing: Annotated[float, Field(ge=0, le=10)] = 0.0


class TableSettings(BinSettings):
    """`local-gradient`: each client's own tables and contributions.

    Attributes:
        table_share: the tables' share of mu^2, the rest is the contribution's.
    """

    bins: PositiveInt = 32
    table_share: Annotated[float, Field(gt=0, lt=1)] = 0.3


class SliceSettings(Local):
    """`local-slices`: noised projections of features, and what is done with them.

    Attributes:
        algorithm: gradients of a sliced distance to noised slices, or a particle flow, with fresh slices every round or
            with `directions` stored slices that were noised once.
        order: q of `dp-swd`.
        diffusion: lambda of a flow's own noise.
        towards: several clients' "mixture", or their sliced "barycentre", in which every client counts alike.
        per_step: stored directions that a step of "flow-one-release" looks at, drawn anew every step.
    """

    algorithm: Literal["dp-swd", "flow", "flow-one-release"] = "dp-swd"
    order: Literal[1, 2] = 2
    diffusion: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    towards: Literal["mixture", "barycentre"] = "mixture"
    per_step: PositiveInt = 50

    @property
    def once(self) -> bool:
        """True if slices are noised once, and stored."""
        return self.algorithm == "flow-one-release"

    def rules(self) -> Iterator[SettingRule]:
        """See `Section`."""
        for name, algorithm in (("order", "dp-swd"), ("per_step", "flow-one-release")):
            yield SettingRule(
                when=self.changed(name),
                requires=self.algorithm == algorithm,
                says=f"{name} is for algorithm {algorithm!r}, not {self.algorithm!r}: leave it out",
            )


class ReleaseSettings(Local):
    """`local-release`: records that are noised themselves, once, and what a generator learns from them.

    Attributes:
        loss: what the generator is trained with. "wavelet" is the plain distance to denoised records; "adversarial"
            and "wavelet-adversarial" train a critic (a model.kind with one). Losses take their order from the noise:
            2 for Gaussian, 1 for Laplace. "barycentre" is the mean over clients of the sliced distance to each,
            smoothed on both sides, for Gaussian noise.
        iterations: number of plain iterations of Sinkhorn; None for as many as a small error takes.
        critic: rounds in which the critic moves for each in which the generator does.
        wavelet, thresholds: of denoising: an orthogonal wavelet of PyWavelets ("" for the shape's own), and a threshold
            for every level, the coarsest first, in standard deviations of the noise; none for those of BayesShrink.
        norm, mechanism, calibration: the ball that released records are projected onto and their noise.
        diameter: "replacement" (2 rho), or "paper" for RCO's sup ||x||, which is not a guarantee.
        dct: release cosine coefficients of square images.
        keep: release the part of a record's coordinates (coefficients) that are largest; the others count as 0.
    """

    loss: Literal["entropic", "plain", "sinkhorn", "wavelet", "adversarial", "wavelet-adversarial", "barycentre"] = (
        "entropic"
    )
    iterations: PositiveInt | None = None
    critic: PositiveInt = 5
    wavelet: str = ""
    thresholds: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = ()
    norm: Literal["l1", "l2"] = "l2"
    mechanism: Literal["gaussian", "laplace"] = "gaussian"
    calibration: Literal["analytic", "rco"] = "analytic"
    diameter: Literal["replacement", "paper"] = "replacement"
    dct: bool = False
    keep: Annotated[float, Field(gt=0, le=1)] = 1.0

    @property
    def denoised(self) -> bool:
        """True if released records are denoised before samples are compared with them."""
        return self.loss.startswith("wavelet")

    @property
    def adversarial(self) -> bool:
        """True if a critic is trained beside the generator."""
        return self.loss.endswith("adversarial")

    @property
    def guaranteed(self) -> bool:
        """See `Local`."""
        return self.diameter == "replacement"

    def rules(self) -> Iterator[SettingRule]:
        """See `Section`."""
        for name, reads in (
            ("iterations", self.loss in ("entropic", "sinkhorn")),
            ("critic", self.adversarial),
            ("wavelet", self.denoised),
            ("thresholds", self.denoised),
        ):
            yield SettingRule(
                when=self.changed(name),
                requires=reads,
                says=f"{name} is nothing that loss {self.loss!r} reads: leave it out",
            )
        yield SettingRule(
            when=self.loss == "barycentre",
            requires=self.mechanism == GAUSSIAN,
            says="loss 'barycentre' smooths with Gaussian noise alone: set mechanism to 'gaussian'",
        )


def _declared(section: str) -> tuple[type[BaseModel], ...]:
    return tuple(model.sections[section] for model in trust_models().values() if section in model.sections)


def resolve_delta(delta: float | str, *, records: int) -> float:
    """The number behind a delta such as 1e-5, "0.1/n", "1/n^2" or "auto", with n = `records`.

    Raises:
        ExperimentError: if it cannot be read, is not in (0, 1), or is an expression that n makes smaller than accounts
            can tell from round-off. Warns if it is 1/n or more, and of "auto" for few records.
    """
    value = read_delta(delta, records=records)
    if not 0 < value < 1:
        raise ExperimentError(f"delta is {value}; it must lie strictly between 0 and 1, and well below 1/n")
    if isinstance(delta, str) and value < LEAST_DELTA:
        raise ExperimentError(
            f"privacy.delta {delta!r} is {upward(value, 2)} for {records} records, and accounts cannot tell less than "
            f"{upward(LEAST_DELTA)} from round-off: write 'auto', which is "
            f"{upward(read_delta('auto', records=records), 6)} here"
        )
    if value >= 1 / records:
        warnings.warn(
            f"delta = {upward(value)} is not below 1/n = {1 / records:.3g}: publishing a random record would "
            "satisfy it; use '0.1/n' or less",
            stacklevel=2,
        )
    if delta == "auto" and records < FEW_RECORDS:
        warnings.warn(
            f"delta 'auto' is {upward(value)} for {records} records, fewer than {FEW_RECORDS}: the noise that protects "
            "so few hides most of what they have in common. Write the delta that they accept",
            stacklevel=2,
        )
    return value


def read_delta(delta: float | str, *, records: int) -> float:
    """The number behind a delta, for a number of records that is only supposed: nothing is warned of or refused."""
    try:
        if delta == "auto":
            return min(AUTO_DELTA_TO, max(AUTO_DELTA_FROM, 1.0 / math.pow(records, 2.0)))
        if isinstance(delta, str) and (match := _DELTA.match(delta)):
            return float(match["factor"]) / math.pow(records, float(match["power"] or 1))
        return float(delta)
    except (ValueError, ArithmeticError):
        raise ExperimentError(f"delta {delta!r} cannot be read; write {_READABLE}") from None
