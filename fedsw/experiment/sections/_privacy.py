"""Sections [privacy] and [local]: the trust model, the guarantee, and the settings of each trust model."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, field_serializer, field_validator, model_validator

from fedsw._tools.section import PositiveFloat, PositiveInt, Section, among
from fedsw._tools.settings import ExperimentError
from fedsw._tools.text import upward
from fedsw.experiment.trust import RunGuarantee, TrustModel, accounting_at_server, trust_model, trust_models
from fedsw.privacy.accountants import ACCOUNTANTS

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


def _accountants() -> list[str]:
    """Names of the accountants but those of a pure epsilon, which the mechanism chooses."""
    return [name for name, accountant in ACCOUNTANTS.items() if not accountant.pure]


class Privacy(Section):
    """The guarantee asked for: trust model, (epsilon, delta), bound, sampling scheme and accountant.

    `delta` is a number, an expression in the number n of private records ("0.1/n", "1/n^2"), or "auto": 1/n^2, but
    1e-9 where that is less, which accounts could not tell from round-off, and 1e-3 where it is more: below 1/n for any
    n up to 10^9. With fewer than 1 000 records "auto" warns.
    Either `epsilon` is given and the noise multiplier is calibrated, or `noise_multiplier` (sigma/Delta, with
    Delta the full replacement sensitivity) is given and epsilon follows. `device` is where the server's epsilon is
    computed, `training.device` where it is not given; clients that account for themselves use the processor.

    `relation` "add-remove" protects the addition or removal of a record, by `sampling` "poisson": every record joins a
    batch with probability `training.batch_fraction`. Its epsilon is a weaker promise than the same one by replacement,
    which is an addition and a removal. `records` is then a declared number, public and not counted: sums are divided by
    its part in a batch, and "n" of `delta` is this number (docs/guarantees/sampling.md).

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
    accountant: Annotated[str, among(_accountants)] = "pld"
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
        if reason := self._unlike_neighbours():
            raise ValueError(reason)
        if self.noise_multiplier is not None and self.epsilon is not None and math.isfinite(self.epsilon):
            raise ValueError("epsilon and noise_multiplier are both given; keep one (the other follows)")
        if self.noise_multiplier is None and self.epsilon is None:
            raise ValueError("neither epsilon nor noise_multiplier is given; set one")
        model = trust_model(self.trust)
        if name := self.changed(*model.unread):
            raise ValueError(
                f"{name} is {getattr(self, name)!r}, which has a meaning under privacy.trust "
                f"{' and '.join(map(repr, accounting_at_server()))}; under {self.trust!r} every client plans its own "
                "noise and batches, and accounts for them: leave it out"
            )
        fixed = model.fixed_epsilon
        if fixed is not None and (self.noise_multiplier is not None or self.epsilon != fixed):
            raise ValueError(
                f"trust {self.trust!r} adds no noise, so epsilon = {self.epsilon} with noise_multiplier = "
                f"{self.noise_multiplier} cannot hold; use trust 'central', or epsilon inf"
            )
        return self

    def _unlike_neighbours(self) -> str:
        """Why relation, trust, sampling and the declared number of records do not go together; empty if they do."""
        added = self.relation == "add-remove"
        able = [name for name, model in trust_models().items() if self.relation in model.relations]
        rows = (
            (
                self.trust not in able,
                f"relation {self.relation!r} is bounded under trust {', '.join(map(repr, able))}, not {self.trust!r}: "
                "use 'replace-one'",
            ),
            (
                added != (self.sampling == "poisson"),
                f"relation is {self.relation!r} and sampling {self.sampling!r}: batches of a fixed size tell how many "
                "records there are, so that 'add-remove' takes sampling 'poisson', and 'replace-one' does not",
            ),
            (
                added and self.records is None,
                "relation 'add-remove' hides the number of records, and sums are divided by a public one: declare "
                "records, a number that was not counted for this (a size that is known anyway, or a round one)",
            ),
            (
                not added and self.records is not None,
                "records is declared for relation 'add-remove'; under 'replace-one' it is counted and public",
            ),
        )
        return next((why for misfit, why in rows if misfit), "")

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
        """Those of these clients whose own ledgers pay for what leaves: all of them, or none."""
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
        """So many bins at most: the number, or the most that "auto" chooses."""
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
            2 for Gaussian, 1 for Laplace. "barycentre" is the mean over clients of the sliced distance to each,
            smoothed on both sides, for Gaussian noise.
        iterations: so many plain iterations of Sinkhorn; None for as many as a small error takes.
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

    @model_validator(mode="after")
    def _read_by_its_loss(self) -> ReleaseSettings:
        unread: tuple[str, ...] = () if self.loss in ("entropic", "sinkhorn") else ("iterations",)
        unread += () if self.adversarial else ("critic",)
        unread += () if self.denoised else ("wavelet", "thresholds")
        if name := self.changed(*unread):
            raise ValueError(f"{name} is nothing that loss {self.loss!r} reads: leave it out")
        if self.loss == "barycentre" and self.mechanism != "gaussian":
            raise ValueError("loss 'barycentre' smooths with Gaussian noise alone: set mechanism to 'gaussian'")
        return self


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
