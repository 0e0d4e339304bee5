"""Generation: samples of a generator, or particles, are matched to private records; there is no other loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw._tools.later import imported_later
from fedsw.experiment.choices import Settings
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import MODELS, Facts, Judged
from fedsw.learning.tasks.task import HeldOut, Inputs, Raw, Task, part

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedsw.data.sources import Shape
    from fedsw.learning import models as networks
    from fedsw.learning.tasks import generated_samples as generated_samples

globals().update(imported_later(__spec__))

MOST_POINTS = 10_000
"""Samples, and records beside them, that are measured and drawn."""


class Generation(Task):
    """A generator of records, or points that move until they look like records."""

    facts = Facts(
        role="generator",
        sources=("ring", "gaussians", "digits", "mnist", "fashion-mnist", "usps", "files"),
        target="any",
        other_side="generator",
        figures=("samples",),
        judged=Judged("sw2", "lower"),
    )

    def dimension(self, shape: Shape, model: Model) -> int:
        """The number of features of a record, or of its blocks."""
        blocks = MODELS.get(model.kind).dimension
        return shape.features if blocks is None else blocks(model, shape)

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """The samples (n, p) themselves."""
        return part(raw, "outputs", 0)

    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Zero (n,): a generator has no loss but the distance."""
        return 0 * part(raw, "outputs", 0).sum(dim=-1)

    def metrics(self, model: nn.Module, held_out: HeldOut) -> dict[str, float]:
        """The sliced distance to held-out records."""
        target = held_out.inputs.features
        slices = held_out.slices(target.shape[1])
        return {"sw2": generated_samples.sliced_w2_to(self.generated(model, held_out), target, directions=slices)}

    def arrays(self, model: nn.Module, held_out: HeldOut) -> dict[str, Tensor]:
        """Samples (m, p), and held-out records (n, p) to see them beside."""
        return {"outputs": self.generated(model, held_out), "reference": held_out.inputs.features[:MOST_POINTS]}

    def generated(self, model: nn.Module, held_out: HeldOut) -> Tensor:
        """Samples (m, p) as records are; those that were compared in blocks stand beside their codes again."""
        count = min(MOST_POINTS, len(held_out.records))
        if isinstance(model, networks.BlockedImages):
            return model.beside(held_out.samples(count // held_out.shape.classes))
        return held_out.samples(count)

    @classmethod
    def misfit(cls, settings: Settings) -> str | None:
        """A weight that leaves room for another loss."""
        alpha, data, model = settings.objective.alpha, settings.data, settings.model
        beside = MODELS.get(model.kind).beside
        unlike = (beside == "codes") != (data.code is not None) or (data.code or model.code) != model.code
        if beside != "any" and unlike:
            return (
                f"model.kind {model.kind!r} with model.code {model.code:g}, data.code {data.code}: 'labelled-images' "
                "and 'blocked-images' make images with their classes, for records that have theirs beside them: give "
                "both the same length"
            )
        if alpha != 1:
            return f"objective.alpha is {alpha}; a generator has no loss but the distance: set it to 1"
        return None


TASK = Generation
