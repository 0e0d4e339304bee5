"""Autoencoder of images: latent codes are matched to a prior, cross-entropy of the pixels is the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw._tools.later import imported_later, torch
from fedsw.experiment.choices import Settings
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import Facts
from fedsw.learning.tasks.task import HeldOut, Inputs, Raw, Task, part

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedsw._tools import randomness as randomness
    from fedsw.data.sources import Shape
    from fedsw.learning.tasks import generated_samples as generated_samples

globals().update(imported_later(__spec__))

_MOST_IMAGES = 64


class Autoencoder(Task):
    """The private sliced-Wasserstein autoencoder of RLL, Section 6; its prior is uniform in a ball."""

    facts = Facts(
        role="autoencoder",
        sources=("digits", "mnist", "fashion-mnist", "usps", "files"),
        target="any",
        unit="features",
        other_side="prior",
        figures=("outputs", "samples", "latent"),
        answers="code",
    )

    def dimension(self, shape: Shape, model: Model) -> int:
        """`model.latent`."""
        return model.latent

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """Codes (n, latent), the model's first output."""
        return part(raw, "outputs", 0)

    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Mean binary cross-entropy over the pixels (n,), of logits (n, p), the model's second output."""
        logits, pixels = part(raw, "reconstruction", 1), batch.features
        losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, pixels, reduction="none")
        return losses.mean(dim=-1)

    def metrics(self, model: nn.Module, held_out: HeldOut) -> dict[str, float]:
        """Loss, and the distance of the codes to the prior."""
        codes = held_out.outputs
        distance = generated_samples.sliced_w2_to(codes, _prior(held_out), directions=held_out.slices(codes.shape[1]))
        return {"loss": held_out.loss, "sw2_to_prior": distance}

    def arrays(self, model: nn.Module, held_out: HeldOut) -> dict[str, Tensor]:
        """Codes (n, d) by label, and images (m, p): held out, reconstructed, or of the prior if a model decodes."""
        arrays = super().arrays(model, held_out)
        arrays["images"] = held_out.inputs.features[:_MOST_IMAGES]
        arrays["reconstructions"] = torch.sigmoid(part(held_out.raw, "reconstruction", 1)[:_MOST_IMAGES])
        decoded = held_out.decoded(_prior(held_out)[:_MOST_IMAGES])
        return arrays if decoded is None else {**arrays, "samples": torch.sigmoid(decoded)}

    @classmethod
    def misfit(cls, settings: Settings) -> str | None:
        """Pixels beyond [0, 1], and a centre that the prior does not have."""
        norm, centre = settings.data.row_norm, settings.clip.centre
        if norm is not None and norm > 1:
            return f"data.row_norm is {norm}; an autoencoder predicts numbers in [0, 1]: set it to 1 or less"
        if centre != 0:
            return f"clip.centre is {centre}; latent codes are matched to a prior about 0: leave it at 0"
        return None


def _prior(held_out: HeldOut) -> Tensor:
    """As many points of the prior as there are codes, the same at every call."""
    codes = held_out.outputs
    n, d = codes.shape
    stream = randomness.Stream.seeded(0, "held-out prior")
    return generated_samples.uniform_ball(n, d, held_out.prior_radius, stream).to(codes.device)


TASK = Autoencoder
