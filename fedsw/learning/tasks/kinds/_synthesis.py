"""Synthesis: labelled samples of a generator that learns from sums of private records, which leave once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw._tools.later import imported_later, torch
from fedsw._tools.own_objects import is_reference
from fedsw.experiment.choices import Settings
from fedsw.experiment.task_kinds import MODELS, Facts
from fedsw.learning.tasks.kinds._generation import MOST_POINTS, Generation
from fedsw.learning.tasks.task import HeldOut

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedsw.learning.tasks import generated_samples as generated_samples

globals().update(imported_later(__spec__))


class Synthesis(Generation):
    """A class-conditional generator: what it makes of noise and a label looks like the records of that label."""

    facts = Facts(
        role="synthesizer",
        sketched=True,
        sources=("synthetic", "adult", "ring", "gaussians", "digits", "mnist", "fashion-mnist", "usps", "files"),
        target="any",
        other_side="generator",
        figures=("samples",),
    )

    def metrics(self, model: nn.Module, held_out: HeldOut) -> dict[str, float]:
        """Accuracy on held-out records of a classifier that saw generated ones only, and the sliced distance to them.

        The classifier is a perceptron of width 100; there is none without labels.
        """
        target, classes = held_out.inputs.features, held_out.shape.classes
        features, labels = held_out.labelled()
        report = {}
        if labels is not None and classes > 1:
            with torch.enable_grad():
                report["accuracy"] = generated_samples.classifier_accuracy(
                    features, labels, target, held_out.inputs.target
                )
        slices = held_out.slices(target.shape[1])
        return {
            **report,
            "sw2": generated_samples.sliced_w2_to(self.generated(model, held_out), target, directions=slices),
        }

    def generated(self, model: nn.Module, held_out: HeldOut) -> Tensor:
        """The first of the labelled samples (m, p)."""
        return held_out.labelled()[0][: min(MOST_POINTS, len(held_out.records))]

    @classmethod
    def misfit(cls, settings: Settings) -> str | None:
        """A table that is not declared or not generated as one."""
        model, table, kind = settings.model, settings.sketch.of_table, MODELS.get(settings.model.kind)
        if table and settings.data.columns is None:
            return (
                f"sketch.kind 'table' writes declared columns as codes, and data.source {settings.data.source!r} has "
                "none: declare [data.columns], or use kind 'gaussian'"
            )
        if table != kind.table and not is_reference(model.kind):
            return (
                f"model.kind {model.kind!r} with sketch.kind {settings.sketch.kind!r}: a 'table-generator' makes the "
                "codes that a sketch of kind 'table' measures, and nothing else"
            )
        if table and settings.data.row_norm is not None:
            return "data.row_norm scales features, and sketch.kind 'table' measures codes of columns: leave it out"
        return None


TASK = Synthesis
