"""Representation: latent codes are compared between groups, squared reconstruction error is the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw._tools.later import imported_later, torch
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import Facts
from fedsw.learning.tasks.task import HeldOut, Inputs, Raw, Task, part

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedsw.data.sources import Shape
    from fedsw.learning.tasks import metrics as metrics

globals().update(imported_later(__spec__))

_RIDGE = 1e-3  # so that the probe has a solution where codes are dependent


class Representation(Task):
    """Codes from which labels can be read off, and groups hardly."""

    facts = Facts(
        role="representation",
        sources=("synthetic", "adult", "files"),
        target="any",
        answers="code",
    )

    def dimension(self, shape: Shape, model: Model) -> int:
        """`model.latent`."""
        return model.latent

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """Codes (n, latent), the model's first output."""
        return part(raw, "outputs", 0)

    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Squared reconstruction error (n,), of the model's second output (n, p)."""
        return (part(raw, "reconstruction", 1) - batch.features).square().sum(dim=-1)

    def metrics(self, model: nn.Module, held_out: HeldOut) -> dict[str, float]:
        """Loss, gap between groups, and how well a linear probe reads off label and group."""
        records, report = held_out.records, {"loss": held_out.loss, "w2_squared": held_out.gap()}
        for name, labels in (("label", records.target), ("group", records.sensitive)):
            report[f"linear_probe_{name}"] = _probe(held_out.outputs, labels, int(labels.max()) + 1)
        return report


def _probe(latent: Tensor, labels: Tensor, classes: int) -> float:
    """Accuracy of a ridge classifier on the latent: fitted on half of the records, measured on the other."""
    codes = latent.double()
    design = torch.cat([codes, codes.new_ones((len(codes), 1))], dim=1)
    fit, tested = design[::2], design[1::2]
    targets = torch.nn.functional.one_hot(labels[::2], classes).double()
    penalty = _RIDGE * torch.eye(design.shape[1], dtype=torch.float64, device=design.device)
    weights = torch.linalg.solve(fit.T @ fit / len(fit) + penalty, fit.T @ targets / len(fit))
    return metrics.accuracy(metrics.most_probable(tested @ weights), labels[1::2])


TASK = Representation
