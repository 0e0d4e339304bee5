"""What is guaranteed, and how clients protect themselves where they do."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_serializer, field_validator, model_validator

from fedsw.experiment.sections.section import PositiveFloat, PositiveInt, Section
from fedsw.settings import ExperimentError

_DELTA = re.compile(r"^\s*(?P<factor>[0-9.eE+-]+)\s*/\s*n\s*(?:\^\s*(?P<power>[0-9.]+))?\s*$")


SKETCHES = ("sketch", "sketch-local")
"""Trust models in which one sum over all records leaves, once."""


def is_local(trust: str) -> bool:
    """Whether clients protect their own records under a trust model, from the server too."""
    return trust.startswith("local-") or trust == "sketch-local"


class Privacy(Section):
    """The guarantee asked for: trust model, (epsilon, delta), bound, sampling scheme and accountant.

    `delta` is a number or an expression in the number n of private records: "0.1/n", "1/n^2".
    Either `epsilon` is given and the noise multiplier is calibrated, or `noise_multiplier` (sigma/Delta, with
    Delta the full replacement sensitivity) is given and epsilon follows. `device` is where the server's epsilon is
    computed, `training.device` where it is not given; clients that account for themselves use the processor.
    """

    trust: Literal["central", "none", "local-gradient", "local-slices", "local-release", "sketch", "sketch-local"] = (
        "central"
    )
    epsilon: float | None = 1.0
    noise_multiplier: PositiveFloat | None = None
    delta: float | str = "0.1/n"
    bound: Literal["auto", "paper", "slice", "vector"] = "auto"
    accountant: Literal[
        "pld", "gdp-clt-uniform", "gdp-clt-poisson", "rdp-wor", "bernstein", "bernstein-published", "clt"
    ] = "pld"
    sampling: Literal["global", "stratified"] = "global"
    relation: Literal["replace-one", "add-remove"] = "replace-one"
    device: Literal["cpu", "cuda"] | None = None

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
        return is_local(self.trust)

    @property
    def sketch(self) -> bool:
        """Whether records leave once, as a sum of cosines and sines, for a generator to learn from."""
        return self.trust in SKETCHES


class Local(Section):
    """How clients protect their own records under the local trust models; docs/threat-models.md.

    Attributes:
        bins: `local-gradient`: bins of [-M, M] in the noised table of every direction and group.
        table_share: `local-gradient`: the table's share of mu^2, the rest is the contribution's.
        algorithm: `local-slices`: gradients of a sliced distance to noised slices, or a particle flow, with fresh
            slices every round or with `directions` stored slices that were noised once.
        order: q of `dp-swd`. (The losses of `local-release` take theirs from the noise: 2 for Gaussian, 1 for Laplace.)
        diffusion: lambda of a flow's own noise.
        per_step: stored directions that a step of "flow-one-release" looks at, drawn anew every step.
        loss: `local-release`: what the generator is trained with on the privatised records. "wavelet" is the plain
            distance to denoised ones; "adversarial" and "wavelet-adversarial" train a critic (a model.kind with one).
        iterations: `local-release`: so many plain iterations of Sinkhorn; None for as many as a small error takes.
        critic: rounds in which the critic moves for each in which the generator does.
        wavelet, thresholds: of denoising: an orthogonal wavelet of PyWavelets ("" for the shape's own), and a threshold
            for every level, the coarsest first, in standard deviations of the noise; none for those of BayesShrink.
        norm, mechanism, calibration: the ball that released records are projected onto and their noise.
        diameter: "replacement" (2 rho), or "paper" for RCO's sup ||x||, which is not a guarantee.
        dct: release cosine coefficients of square images.
        keep: release the part of a record's coordinates (coefficients) that are largest; the others count as 0.
    """

    bins: PositiveInt = 32
    table_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    algorithm: Literal["dp-swd", "flow", "flow-one-release"] = "dp-swd"
    order: Literal[1, 2] = 2
    diffusion: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    per_step: PositiveInt = 50
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
