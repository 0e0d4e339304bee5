"""Generation: samples of a generator, or particles, are matched to private records; there is no other loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw.experiment.choices import Settings
from fedsw.experiment.kinds import Facts
from fedsw.experiment.sections import Model
from fedsw.tasks.task import HeldOut, Inputs, Raw, Task, part

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedsw.experiment.sources import Shape

_MOST_POINTS = 10_000


class Generation(Task):
    """A generator of records, or points that move until they look like records."""

    facts = Facts(
        models=("generator", "labelled-images", "decoded-images", "particles"),
        penalties=("distribution-matching",),
        trusts=("none", "central", "local-slices", "local-release"),
        sources=("ring", "gaussians", "digits", "mnist", "fashion-mnist", "usps", "files"),
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
        """Zero (n,): a generator has no loss but the distance."""
        return 0 * part(raw, "outputs", 0).sum(dim=-1)

    def metrics(self, model: nn.Module, held_out: HeldOut) -> dict[str, float]:
        """The sliced distance to held-out records."""
        from fedsw.tasks.generation import sliced_w2_to

        target = held_out.inputs.features
        slices = held_out.slices(target.shape[1])
        return {"sw2": sliced_w2_to(_generated(held_out), target, directions=slices)}

    def arrays(self, model: nn.Module, held_out: HeldOut) -> dict[str, Tensor]:
        """Samples (m, p), and held-out records (n, p) to see them beside."""
        return {"outputs": _generated(held_out), "reference": held_out.inputs.features[:_MOST_POINTS]}

    @classmethod
    def misfit(cls, settings: Settings) -> str | None:
        """A weight that leaves room for another loss."""
        alpha, data, model = settings.objective.alpha, settings.data, settings.model
        if (model.kind == "labelled-images") != (data.code is not None) or (data.code or model.code) != model.code:
            return (
                f"model.kind {model.kind!r} with model.code {model.code:g} and data.code {data.code}: 'labelled-images' "
                "makes images with their classes beside them, for records that have theirs: give both the same length"
            )
        if alpha != 1:
            return f"objective.alpha is {alpha}; a generator has no loss but the distance: set it to 1"
        return None


def _generated(held_out: HeldOut) -> Tensor:
    return held_out.samples(min(_MOST_POINTS, len(held_out.records)))


TASK = Generation
