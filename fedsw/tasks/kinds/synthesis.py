"""Synthesis: labelled samples of a generator that learns from sums of private records, which leave once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw.experiment.choices import Settings
from fedsw.experiment.kinds import Facts
from fedsw.experiment.registry import is_reference
from fedsw.experiment.sections import Model
from fedsw.tasks.task import HeldOut, Inputs, Raw, Task, part

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedsw.experiment.sources import Shape

_MOST_POINTS = 10_000


class Synthesis(Task):
    """A class-conditional generator: what it makes of noise and a label looks like the records of that label."""

    facts = Facts(
        models=("vector-generator", "image-generator", "residual-generator", "table-generator"),
        penalties=("distribution-matching",),
        sketched=True,
        sources=("synthetic", "adult", "ring", "gaussians", "digits", "mnist", "fashion-mnist", "usps", "files"),
        target="any",
        other_side="generator",
        figures=("samples",),
    )

    def dimension(self, shape: Shape, model: Model) -> int:
        """The number of features of a record."""
        return shape.features

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """The samples (n, p) themselves."""
        return part(raw, "outputs", 0)

    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Zero (n,): a generator has no loss but the distance to the sketch."""
        return 0 * part(raw, "outputs", 0).sum(dim=-1)

    def metrics(self, model: nn.Module, held_out: HeldOut) -> dict[str, float]:
        """Accuracy on held-out records of a classifier that saw generated ones only, and the sliced distance to them.

        The classifier is a perceptron of width 100; there is none without labels.
        """
        from torch import enable_grad

        from fedsw.tasks.generation import classifier_accuracy, sliced_w2_to

        target, classes = held_out.inputs.features, held_out.shape.classes
        features, labels = held_out.labelled()
        report = {}
        if labels is not None and classes > 1:
            with enable_grad():
                report["accuracy"] = classifier_accuracy(features, labels, target, held_out.inputs.target)
        slices = held_out.slices(target.shape[1])
        return {**report, "sw2": sliced_w2_to(features[: _most(held_out)], target, directions=slices)}

    def arrays(self, model: nn.Module, held_out: HeldOut) -> dict[str, Tensor]:
        """Samples (m, p), and held-out records (n, p) to see them beside."""
        features, _ = held_out.labelled()
        return {"outputs": features[: _most(held_out)], "reference": held_out.inputs.features[:_MOST_POINTS]}

    @classmethod
    def misfit(cls, settings: Settings) -> str | None:
        """A table that is not declared or not generated as one, and hidden layers that the model does not have."""
        model, table = settings.model, settings.sketch.kind == "table"
        if table and settings.data.columns is None:
            return (
                f"sketch.kind 'table' writes declared columns as codes, and data.source {settings.data.source!r} has "
                "none: declare [data.columns], or use kind 'gaussian'"
            )
        if table != (model.kind == "table-generator") and not is_reference(model.kind):
            return (
                f"model.kind {model.kind!r} with sketch.kind {settings.sketch.kind!r}: a 'table-generator' makes the "
                "codes that a sketch of kind 'table' measures, and nothing else"
            )
        if table and settings.data.row_norm is not None:
            return "data.row_norm scales features, and sketch.kind 'table' measures codes of columns: leave it out"
        if model.kind in ("image-generator", "residual-generator") and len(model.hidden) not in (0, 2):
            return (
                f"model.hidden is {list(model.hidden)}; model.kind {model.kind!r} has two layers of channels: give two "
                "numbers, or none"
            )
        return None


def _most(held_out: HeldOut) -> int:
    return min(_MOST_POINTS, len(held_out.records))


TASK = Synthesis
