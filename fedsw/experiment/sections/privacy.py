"""Who is trusted, how much privacy, and what each trust model is set by."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, field_serializer, field_validator, model_validator
from pydantic.fields import FieldInfo

from fedsw.accountants import ACCOUNTANTS
from fedsw.experiment.registry import is_reference
from fedsw.experiment.sections.section import Arguments, PositiveFloat, PositiveInt, Section, Seed, at_most, one_of
from fedsw.experiment.trust import TrustModel, names_of, trust_model, trust_models
from fedsw.settings import ExperimentError
from fedsw.text import upward

_READ: dict[str, tuple[str, ...]] = {
    "gaussian": ("bandwidths", "fractions", "pairs", "scheme", "map"),
    "cramer": ("directions", "harmonics", "period", "scheme", "map"),
    "features": ("map", "radius"),
    "moments": ("map", "radius", "projected"),
    "code": (),
    "table": ("bins", "singles", "balance"),
}
READ_BY_MAP: dict[str, tuple[str, ...]] = {
    "raw": (),
    "cosine": ("decay",),
    "convolutions": ("filters", "kernel", "stride", "shifts"),
    "scattering": ("scales", "orientations", "order"),
    "learnt": ("layer",),
}
"""The shipped feature maps, each a class of `fedsw.sketches.maps` or `learnt`, and the settings it is made with."""


class SketchPart(Section):
    """One block of a record's vector; `fedsw.sketches.parts` has the mathematics.

    Attributes:
        kind: "gaussian", cosines and sines at frequencies of a Gaussian kernel of several bandwidths; "cramer", those
            of the sliced Cramer distance; "features", what the map makes of a record, without negative numbers;
            "moments", means and second moments of that; "code", columns that are a one-hot code, as they are; or
            "table", single columns and pairs of columns of a declared table, each written as codes
            (`fedsw.columns.declaration`).
        bandwidths, fractions, pairs: "gaussian": of the kernels, in the units of the features; their parts, equal where
            none are given; and how many frequencies, divided over them.
        directions, harmonics, period: "cramer": directions, odd multiples along each, and a length that holds all
            projections.
        radius: "features", "moments": norm that longer vectors are shortened to.
        projected: "moments": of so many random projections; 0 for all numbers.
        bins, singles: "table": equal parts that the range of numbers is cut into; and the part of the squared norm that
            single columns have, pairs have the rest; "auto" for one balance over both.
        balance: "table": weights of tables of c numbers, "equal" or, by "size", proportional to c^(1/3).
        scheme: orthogonal blocks of frequencies, or independent ones.
        map: the public feature map that they look at: "raw" features; "cosine", the cosine transform of square images,
            weighted by frequency with `decay`; "convolutions", `filters` fixed random ones of side `kernel`, averaged
            over moves of the image by up to `shifts` pixels; "scattering", local means of moduli of wavelets at
            `scales` sizes and `orientations`, up to `order`; "learnt", in a later stage, a `layer` of the classifier
            that was trained on what the stages before gave, its last pooled or first hidden one ("early") or its last
            hidden one ("late"); or "module:name", a map of a user's own, made with `map_arguments`.
        columns: which features; none for all.
        weight: part of the squared norm, before weights are divided by their sum.
    """

    kind: Literal["gaussian", "cramer", "features", "moments", "code", "table"] = "gaussian"
    bandwidths: Annotated[tuple[PositiveFloat, ...], at_most(64, "bandwidths")] = (0.7, 1.2, 2.0, 3.5)
    fractions: tuple[PositiveFloat, ...] = ()
    pairs: PositiveInt = 600
    directions: PositiveInt = 50
    harmonics: PositiveInt = 8
    period: PositiveFloat = 2.0
    radius: PositiveFloat = 1.0
    projected: Annotated[int, Field(ge=0, le=4096, strict=True)] = 0
    bins: Annotated[int, Field(ge=2, le=200, strict=True)] = 16
    singles: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = 0.2
    balance: Literal["equal", "size"] = "equal"
    scheme: Literal["orthogonal", "iid"] = "orthogonal"
    map: str = "raw"
    map_arguments: Arguments = {}
    decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    filters: PositiveInt = 16
    kernel: PositiveInt = 5
    stride: PositiveInt = 1
    shifts: Annotated[int, Field(ge=0, le=8, strict=True)] = 0
    scales: Annotated[int, Field(gt=0, le=32, strict=True)] = 2
    orientations: Annotated[int, Field(gt=0, le=180, strict=True)] = 4
    order: Literal[1, 2] = 1
    layer: Literal["early", "late"] = "late"
    columns: tuple[Annotated[int, Field(ge=0, strict=True)], ...] = ()
    weight: PositiveFloat = 1.0

    @field_validator("map")
    @classmethod
    def _known_map(cls, chosen: str) -> str:
        return one_of(chosen, READ_BY_MAP, "a map")

    @model_validator(mode="after")
    def _read_by_its_kind(self) -> SketchPart:
        """Refuse a setting that another kind, or another map, would read."""
        for by, chosen, table in (("kind", self.kind, _READ), ("map", self.map, READ_BY_MAP)):
            for owner, names in table.items():
                for name in names:
                    foreign = owner != chosen and name not in table.get(chosen, ())
                    if foreign and self.changed(name):
                        raise ValueError(f"{name} is for {by} {owner!r}, not for {chosen!r}: leave it out")
        if self.map_arguments and not is_reference(self.map):
            raise ValueError(f"map_arguments are for a map of your own, 'module:name', not for {self.map!r}")
        if self.kind == "gaussian" and self.fractions and len(self.fractions) != len(self.bandwidths):
            raise ValueError(
                f"fractions has {len(self.fractions)} numbers for {len(self.bandwidths)} bandwidths: give one for each"
            )
        if self.kind == "gaussian" and not len(self.bandwidths) <= self.pairs:
            raise ValueError(f"pairs is {self.pairs} for {len(self.bandwidths)} bandwidths: each needs at least one")
        if self.kind == "code" and not self.columns:
            raise ValueError("kind 'code' reads the columns of a one-hot code: name them in columns")
        if self.map == "learnt" and self.columns:
            raise ValueError("map 'learnt' looks at every feature: leave columns out")
        if self.kind == "table" and self.columns:
            raise ValueError("kind 'table' measures every declared column: leave columns out")
        return self


class SketchStage(Section):
    """A later release of a sketch: what it measures may have been learnt from the releases before.

    Attributes:
        share: part of the budget (of mu^2) that it gets; the first stage has what no later one takes. None for as much
            as the first; "auto", for all stages, by how many numbers each measures
            (`fedsw.sketches.noised.least_noise_shares`).
        parts: what is measured, of what is no table.
        tables: of a table: how many pairs of columns are measured, those of the tree that was read off the stages
            before and others that tell most of each other, each as "balance" says.
        counts: see `Sketch`; how often each label is generated is read off the first stage.
    """

    share: Annotated[float, Field(gt=0, lt=1)] | Literal["auto"] | None = None
    parts: Annotated[tuple[SketchPart, ...], Field(min_length=1), at_most(64, "parts")] = (
        SketchPart(kind="features", map="learnt", layer="early"),
        SketchPart(kind="features", map="learnt"),
    )
    tables: Annotated[int, Field(ge=1, le=1000, strict=True)] = 15
    counts: Annotated[float, Field(gt=0, le=4)] = 0.01


class Sketch(SketchPart):
    """Trust models `sketch` and `sketch-local`: one sum over all records, once, and a generator that learns from it.

    The settings of `SketchPart` are those of the first part; `also` has more. What is measured is public and fixed
    before any record is read; `batch`, `learning_rate`, `fraction`, `averaging` and `generated` are post-processing,
    which costs nothing whatever they are. The generator takes `training.rounds` steps.

    Attributes:
        also: more parts of a record's vector.
        stages: later releases, one after the other; between two of them a classifier is trained on what the generator
            makes (of a table, pairs of columns are chosen), and the generator goes on with all releases,
            `training.rounds` steps after each.
        hidden: width of the hidden layers of that classifier.
        labels, groups: whether a record's place is the block of its label, and of its group. Both are then protected.
        counts: square of what a record adds to its block's count; up to 1 counts cost nothing beside cosines and sines.
        seed: of frequencies and maps, and of the generator's training.
        batch: samples of a step.
        learning_rate: of Adam at the first step; it falls to 0.
        fraction: of the frequencies that a step looks at.
        averaging: of a stage's steps, that the exponential average of the generator's weights looks back on, which is
            what is released; 0 for the weights of the last step.
        restarts: initial weights that are tried: each takes the first quarter of the first stage's steps, and the
            generator goes on whose samples are then nearest to the released sketch.
        generated: labelled samples that a classifier is trained on to measure a generator by.
        generator: "table": what rows are drawn from: the trained "network"; a "tree" of pairs of columns, fitted to the
            released counts; or, "auto", the one of them whose rows are nearer to the sketch.
        independent: whether generated labels do not depend on the group: how often each label and group is generated is
            then the product of both, and the generator is trained for that law. It needs labels and groups.
    """

    also: Annotated[tuple[SketchPart, ...], at_most(64, "parts")] = ()
    stages: Annotated[tuple[SketchStage, ...], at_most(8, "stages")] = ()
    hidden: Annotated[int, Field(ge=1, le=4096, strict=True)] = 64
    labels: bool = True
    groups: bool = False
    counts: Annotated[float, Field(gt=0, le=4)] = 1.0
    seed: Seed = 0
    batch: Annotated[int, Field(ge=2, le=2**24, strict=True)] = 200
    learning_rate: PositiveFloat = 0.01
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    averaging: Annotated[float, Field(ge=0, lt=1)] = 0.0
    restarts: Annotated[int, Field(ge=1, le=32, strict=True)] = 1
    generated: PositiveInt = 10_000
    generator: Literal["auto", "network", "tree"] = "auto"
    independent: bool = False

    @model_validator(mode="after")
    def _fit_together(self) -> Sketch:
        if any(part.kind == "table" for part in self.also) or (self.kind == "table" and self.also):
            raise ValueError("kind 'table' measures a table by itself: leave also out, and keep it the only part")
        if any(part.map == "learnt" for part in (self, *self.also)):
            raise ValueError("map 'learnt' looks through what an earlier stage taught: put the part into stages")
        table = self.kind == "table"
        if self.stages and not (table or self.labels):
            raise ValueError("stages learn to tell labels apart: set labels")
        for name, foreign in (("parts", table), ("tables", not table)):
            if foreign and any(stage.changed(name) for stage in self.stages):
                raise ValueError(f"{name} of a stage are not for kind {self.kind!r}: leave them out")
        if any(part.kind in ("table", "code") for stage in self.stages for part in stage.parts):
            raise ValueError("a later stage measures waves, features or moments: leave kinds 'table' and 'code' out")
        if (table or not self.stages) and self.hidden != type(self).model_fields["hidden"].default:
            raise ValueError("hidden is of the classifier that later stages look through: leave it out, or add stages")
        if self.open and any(stage.share != "auto" for stage in self.stages):
            raise ValueError("share 'auto' chooses those of all stages together: write it for every stage, or for none")
        if not self.shares[0] > 0:
            raise ValueError("the shares of stages add up to 1 or more: leave a part of the budget to the first stage")
        if self.generator != "auto" and self.kind != "table":
            raise ValueError("generator chooses what rows of kind 'table' are drawn from: leave it out")
        if self.restarts > 1 and self.generator == "tree":
            raise ValueError("restarts are of the network, and generator 'tree' fits none: leave restarts out")
        if self.independent and not (self.labels and self.groups):
            raise ValueError("independent asks for labels that do not depend on the group: set labels and groups too")
        return self

    @property
    def shares(self) -> tuple[float, ...]:
        """Of the budget (of mu^2), stage by stage, with sum 1: those that say none have equal parts of what is left.

        So have those that are still to be chosen.
        """
        said = [stage.share if isinstance(stage.share, float) else None for stage in self.stages]
        equal = (1 - sum(share or 0.0 for share in said)) / (1 + said.count(None))
        return (equal, *(share or equal for share in said))

    @property
    def open(self) -> bool:
        """Whether shares are still to be chosen."""
        return any(stage.share == "auto" for stage in self.stages)


_DELTA = re.compile(r"^\s*(?P<factor>[0-9.eE+-]+)\s*/\s*n\s*(?:\^\s*(?P<power>[0-9.]+))?\s*$")


LEAST_DELTA = 1e-10
"""The least delta that accounts can tell from floating-point round-off (`fedsw.accounting.composition`)."""

AUTO_DELTA_FROM = 1e-9
"""What delta "auto" does not go below: ten times `LEAST_DELTA`."""

_READABLE = "a number, 'auto', '0.1/n' or '1/n^2'"


def is_local(trust: str) -> bool:
    """Whether clients protect their own records under a trust model, from the server too."""
    return trust_model(trust).local


class Privacy(Section):
    """The guarantee asked for: trust model, (epsilon, delta), bound, sampling scheme and accountant.

    `delta` is a number, an expression in the number n of private records ("0.1/n", "1/n^2"), or "auto": 1/n^2, and
    1e-9 where that is less, which accounts could not tell from round-off; it is below 1/n for any n up to 10^9.
    Either `epsilon` is given and the noise multiplier is calibrated, or `noise_multiplier` (sigma/Delta, with
    Delta the full replacement sensitivity) is given and epsilon follows. `device` is where the server's epsilon is
    computed, `training.device` where it is not given; clients that account for themselves use the processor.

    `moments` is the share of the budget (of mu^2) that buys, before the rounds, counts, means and second moments of
    inputs and target; "auto" lets the number of records decide, and 0 releases none (docs/guarantees/moments.md).
    """

    trust: str = "central"
    epsilon: float | None = 1.0
    noise_multiplier: PositiveFloat | None = None
    delta: float | str = "0.1/n"
    bound: Literal["auto", "paper", "slice", "vector"] = "auto"
    accountant: str = "pld"
    sampling: Literal["global", "stratified"] = "global"
    relation: Literal["replace-one", "add-remove"] = "replace-one"
    moments: Literal["auto"] | Annotated[float, Field(ge=0, le=0.9)] = 0.0
    device: Literal["cpu", "cuda"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _follow(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping) and "epsilon" not in raw:
            if raw.get("noise_multiplier") is not None:
                return {**raw, "epsilon": None}
            if raw.get("trust") in trust_models() and not trust_model(raw["trust"]).noised:
                return {**raw, "epsilon": math.inf}
        return raw

    @field_validator("trust")
    @classmethod
    def _known_trust(cls, trust: str) -> str:
        return one_of(trust, trust_models())

    @field_validator("accountant")
    @classmethod
    def _known_accountant(cls, accountant: str) -> str:
        # Those of Laplace noise are chosen by the mechanism.
        return one_of(accountant, (name for name, each in ACCOUNTANTS.items() if each.covers != "laplace"))

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
            raise ValueError(f"delta cannot be read; write {_READABLE}")
        return delta

    @field_validator("delta")
    @classmethod
    def _readable_delta(cls, delta: float | str) -> float | str:
        if not 0 < read_delta(delta, records=10**6) < 1:
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
        if self.local and (name := self.changed("bound", "sampling", "device")):
            raise ValueError(
                f"{name} is {getattr(self, name)!r}, which has a meaning under privacy.trust "
                f"{' and '.join(map(repr, names_of(local=False)))}; under {self.trust!r} every client plans its own "
                "noise and batches, and accounts for them: leave it out"
            )
        if not trust_model(self.trust).noised and (self.noise_multiplier is not None or self.epsilon != math.inf):
            raise ValueError(
                f"trust {self.trust!r} adds no noise, so epsilon = {self.epsilon} with noise_multiplier = "
                f"{self.noise_multiplier} cannot hold; use trust 'central', or epsilon inf"
            )
        return self

    @field_serializer("epsilon", when_used="json")
    def _infinity_in_words(self, epsilon: float | None) -> float | str | None:
        return "inf" if epsilon == math.inf else epsilon

    @classmethod
    def variants(cls) -> tuple[type[BaseModel], ...]:
        """See `Section`."""
        return _declared("privacy")

    @property
    def noisy(self) -> bool:
        """Whether a run adds noise: any trust that adds it, with a finite epsilon or a noise multiplier."""
        finite = self.epsilon is not None and math.isfinite(self.epsilon)
        return trust_model(self.trust).noised and (finite or self.noise_multiplier is not None)

    @property
    def local(self) -> bool:
        """Whether every client protects its own records, from the server too."""
        return is_local(self.trust)

    @property
    def sketch(self) -> bool:
        """Whether records leave once, as a sum of cosines and sines, for a generator to learn from."""
        return trust_model(self.trust).sketched

    @property
    def model(self) -> TrustModel:
        """The trust model, as it is for the experiment's task."""
        return trust_model(self.trust, sketch=self.sketch)


class SketchPrivacy(Privacy):
    """The guarantee of an experiment whose records leave as a sketch, under a trust model that is for others, too."""

    @property
    def sketch(self) -> bool:
        """See `Privacy`."""
        return True


class Local(Section):
    """What a trust model is set by beside [privacy]: nothing, unless it has a class of its own for it.

    Section [local] is a union tagged by `privacy.trust`: see `TrustModel.sections`, and docs/threat-models.md.
    """

    @classmethod
    def variants(cls) -> tuple[type[BaseModel], ...]:
        """See `Section`."""
        return _declared("local")

    @property
    def guaranteed(self) -> bool:
        """Whether the noise is for all that a replaced record moves."""
        return True


LocalT = TypeVar("LocalT", bound=Local)


AUTO_BINS = range(4, 257)
"""What `local.bins = "auto"` chooses from."""


class BinSettings(Local):
    """Settings of noised tables of outputs, which leave beside contributions."""

    bins: PositiveInt | Literal["auto"] = 32

    @property
    def most_bins(self) -> int:
        """So many bins at most: the number, or the most that "auto" chooses."""
        return AUTO_BINS[-1] if self.bins == "auto" else self.bins


class MaskedSettings(BinSettings):
    """`distributed`: sums under masks.

    Attributes:
        bins: of [-M, M] in the table of every direction and group. "auto" weighs the noise that a finer table costs
            against the width of its bins, by the public sizes of an attempt's batch: from 4 to 256. Directions
            (slicing.directions) cost the gradient no noise.
        colluding: C, so many clients may be on the server's side, and the others are protected.
        failing: failed attempts that the budget is for, as a part of the rounds; each is charged.
    """

    colluding: Annotated[int, Field(ge=0, strict=True)] = 1
    failing: Annotated[float, Field(ge=0, le=10)] = 0.0


class TableSettings(BinSettings):
    """`local-gradient`: each client's own tables and contributions.

    Attributes:
        bins: of [-M, M] in the table of every direction and group.
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
        per_step: stored directions that a step of "flow-one-release" looks at, drawn anew every step.
    """

    algorithm: Literal["dp-swd", "flow", "flow-one-release"] = "dp-swd"
    order: Literal[1, 2] = 2
    diffusion: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    per_step: PositiveInt = 50

    @property
    def once(self) -> bool:
        """Whether slices are noised once, and stored."""
        return self.algorithm == "flow-one-release"

    @model_validator(mode="after")
    def _read_by_its_algorithm(self) -> SliceSettings:
        for name, algorithm in (("order", "dp-swd"), ("per_step", "flow-one-release")):
            if self.algorithm != algorithm and self.changed(name):
                raise ValueError(f"{name} is for algorithm {algorithm!r}, not {self.algorithm!r}: leave it out")
        return self


class ReleaseSettings(Local):
    """`local-release`: records that are noised themselves, once, and what a generator learns from them.

    Attributes:
        loss: what the generator is trained with. "wavelet" is the plain distance to denoised records; "adversarial"
            and "wavelet-adversarial" train a critic (a model.kind with one). Losses take their order from the noise:
            2 for Gaussian, 1 for Laplace.
        iterations: so many plain iterations of Sinkhorn; None for as many as a small error takes.
        critic: rounds in which the critic moves for each in which the generator does.
        wavelet, thresholds: of denoising: an orthogonal wavelet of PyWavelets ("" for the shape's own), and a threshold
            for every level, the coarsest first, in standard deviations of the noise; none for those of BayesShrink.
        norm, mechanism, calibration: the ball that released records are projected onto and their noise.
        diameter: "replacement" (2 rho), or "paper" for RCO's sup ||x||, which is not a guarantee.
        dct: release cosine coefficients of square images.
        keep: release the part of a record's coordinates (coefficients) that are largest; the others count as 0.
    """

    loss: Literal["entropic", "plain", "sinkhorn", "wavelet", "adversarial", "wavelet-adversarial"] = "entropic"
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
        """Whether what was released is denoised before it is compared with."""
        return self.loss.startswith("wavelet")

    @property
    def adversarial(self) -> bool:
        """Whether a critic is trained beside the generator."""
        return self.loss.endswith("adversarial")

    @property
    def guaranteed(self) -> bool:
        """See `Local`."""
        return self.diameter == "replacement"

    @model_validator(mode="after")
    def _read_by_its_loss(self) -> ReleaseSettings:
        unread: tuple[str, ...] = () if self.loss in ("entropic", "sinkhorn") else ("iterations",)
        unread += () if self.adversarial else ("critic",)
        unread += () if self.denoised else ("wavelet", "thresholds")
        if name := self.changed(*unread):
            raise ValueError(f"{name} is nothing that loss {self.loss!r} reads: leave it out")
        return self


TAGGED: Mapping[str, tuple[type[Section], type[Section]]] = {
    "privacy": (Privacy, Privacy),
    "local": (Local, Local),
    "sketch": (Sketch, Section),
}
"""Sections of an experiment that depend on the trust model: what each is without a class of the trust model's own, and
whose settings then have a meaning."""


def tagged(section: str, raw: Any, trust: str, *, sketch: bool = False) -> Any:
    """A section as a trust model reads it, of the class that it declares (`TrustModel.sections`).

    What means something under other trust models alone may be there with its default: files that were written whole,
    before sections depended on the trust model, have it.

    Args:
        sketch: whether the task's records leave as a sketch.

    Raises:
        ValueError: for a setting that has no meaning under this trust model, with those under which it has one.
    """
    kind = trust_model(trust, sketch=sketch).sections.get(section, TAGGED[section][0])
    if type(raw) is kind:
        return raw
    given = raw.model_dump(exclude_unset=True) if isinstance(raw, Section) else raw
    if not isinstance(given, Mapping):
        return raw
    foreign = meaningless(section, given, trust)
    for name, fields in foreign.items():
        value = given[name]
        if (tuple(value) if isinstance(value, list) else value) not in [each.default for each in fields.values()]:
            raise ValueError(
                f"{name} is {value!r}, which has no meaning under privacy.trust {trust!r}, and has one under "
                f"{' and '.join(map(repr, fields))}: leave it out, or choose that trust model"
            )
    return kind.model_validate({name: value for name, value in given.items() if name not in foreign})


def _declared(section: str) -> tuple[type[BaseModel], ...]:
    """The classes that trust models declare for a section."""
    return tuple(model.sections[section] for model in trust_models().values() if section in model.sections)


def meaningless(section: str, given: Iterable[str], trust: str) -> dict[str, dict[str, FieldInfo]]:
    """Which settings of a section mean something under other trust models alone: their fields under each of those."""
    own = trust_model(trust).sections.get(section, TAGGED[section][1]).model_fields
    declared = {model.name: model.sections.get(section, Section) for model in trust_models().values()}
    known = {name: kind.model_fields for name, kind in declared.items()}
    foreign = {
        name: {trust: fields[name] for trust, fields in known.items() if name in fields}
        for name in given
        if name not in own
    }
    return {name: fields for name, fields in foreign.items() if fields}


def resolve_delta(delta: float | str, *, records: int) -> float:
    """The number behind a delta such as 1e-5, "0.1/n", "1/n^2" or "auto", with n = `records`.

    Raises:
        ExperimentError: if it cannot be read, is not in (0, 1), or is an expression that n makes smaller than accounts
            can tell from round-off. Warns if it is 1/n or more.
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
    return value


def read_delta(delta: float | str, *, records: int) -> float:
    """The number behind a delta, for a number of records that is only supposed: nothing is warned of or refused.

    Raises:
        ExperimentError: if it cannot be read.
    """
    try:
        if delta == "auto":
            return max(AUTO_DELTA_FROM, 1.0 / math.pow(records, 2.0))
        if isinstance(delta, str) and (match := _DELTA.match(delta)):
            return float(match["factor"]) / math.pow(records, float(match["power"] or 1))
        return float(delta)
    except (ValueError, ArithmeticError):
        raise ExperimentError(f"delta {delta!r} cannot be read; write {_READABLE}") from None
