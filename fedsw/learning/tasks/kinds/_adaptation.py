"""Domain adaptation: private records' features are matched to labelled public ones', on which the loss is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw._tools.later import imported_later, torch
from fedsw.experiment.choices import Settings
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import MODELS, Facts
from fedsw.learning.tasks.task import HeldOut, Inputs, Raw, Task, part

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedsw.data.sources import Shape
    from fedsw.learning.tasks import metrics as metrics

globals().update(imported_later(__spec__))


class Adaptation(Task):
    """A classifier that learns from a public domain and works on a private one."""

    facts = Facts(
        role="adaptor",
        sources=("mnist", "usps", "files"),
        target="class",
        other_side="domain",
        figures=("outputs", "latent"),
        answers="probability",
    )

    def dimension(self, shape: Shape, model: Model) -> int:
        """`model.latent`, or what a network has that does not read it."""
        dimension = MODELS.get(model.kind).dimension
        return model.latent if dimension is None else dimension(model, shape)

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """Features (n, latent), the model's first output."""
        return part(raw, "outputs", 0)

    def answers(self, raw: Raw, batch: Inputs) -> Tensor:
        """Probabilities (n, classes), by the classifier that learnt from public records."""
        return part(raw, "classes", 1).softmax(dim=1)

    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Cross-entropy (n,) of logits (n, classes), the model's second output."""
        return torch.nn.functional.cross_entropy(part(raw, "classes", 1), batch.target, reduction="none")

    def metrics(self, model: nn.Module, held_out: HeldOut) -> dict[str, float]:
        """Loss and accuracy on the private domain."""
        predicted = metrics.most_probable(part(held_out.raw, "classes", 1))
        return {"loss": held_out.loss, "accuracy": metrics.accuracy(predicted, held_out.records.target)}

    @classmethod
    def misfit(cls, settings: Settings) -> str | None:
        """A public domain that is missing or private, and noise for nothing."""
        data = settings.data
        if data.public in (None, data.source):
            return f"objective.task 'adaptation' learns from another, public data set; data.public is {data.public!r}"
        nothing = (
            "objective.alpha is 0: adaptation then reads public records alone and there is nothing to noise; set it "
            "above 0, or use privacy.trust 'none' for the baseline"
        )
        return None if settings.objective.alpha or settings.privacy.guarantee.unprotected else nothing


TASK = Adaptation
