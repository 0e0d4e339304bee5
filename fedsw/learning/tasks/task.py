"""A task as an object: the outputs that a penalty compares, a loss per record, and held-out measures.

Reading an experiment imports the shipped tasks, so the files of tasks import what computes where they use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fedsw.experiment.choices import Settings
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import Facts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedsw.data import Records
    from fedsw.data.sources import Shape
    from fedsw.learning.tasks.tally import Tally

Raw = Any
"""A model's return value: a tensor (n, ...), a tuple of them, or a dict of them by name."""


@dataclass(frozen=True)
class Inputs:
    """A model's inputs for n records, and the targets that its outputs are compared with.

    ``features`` (n, p) are as the model took them, a generator's latent inputs (n, latent); ``target`` are (n,) int64
    classes or (n, t) numbers, (n, 0) without records; ``shape`` is what is public of the data.
    """

    features: Tensor = field(repr=False)
    target: Tensor = field(repr=False)
    shape: Shape


class HeldOut(Protocol):
    """Held-out records under a model, which the guarantee of a run does not protect."""

    @property
    def records(self) -> Records:
        """The records, on the run's device."""

    @property
    def shape(self) -> Shape:
        """The public facts of the data."""

    @property
    def inputs(self) -> Inputs:
        """The records as the model takes them."""

    @property
    def raw(self) -> Raw:
        """The model's return value for the records, on the run's device."""

    @property
    def outputs(self) -> Tensor:
        """The penalty's outputs (n, d), not centred and not projected, on the run's device."""

    @property
    def loss(self) -> float:
        """Mean task loss."""

    @property
    def directions(self) -> Tensor | None:
        """Fixed unit columns (d, k) for sliced distances; None if d is 1."""

    def slices(self, dimension: int) -> int:
        """Number of directions for a distance between samples of that dimension, by `evaluation`."""

    @property
    def prior_radius(self) -> float:
        """`objective.prior_radius`."""

    def gap(self) -> float:
        """The largest squared (sliced) Wasserstein distance between the outputs of two groups."""

    def samples(self, count: int) -> Tensor:
        """Return a generator's samples (count, d), the same at every call; or all particles (m, d)."""

    def labelled(self) -> tuple[Tensor, Tensor | None]:
        """Return a class-conditional generator's samples (m, p) and their labels (m,), the same at every call.

        Labels are None if the sketch that it learnt from tells none apart.
        """

    def decoded(self, codes: Tensor) -> Tensor | None:
        """Return codes (n, d) decoded by the model's own `decode`, on the run's device; None for a model without."""


class Task(ABC):
    """A task of learning. Derive a class, and name it `objective.task = "module:name"` or hand an object to a run.

    Guarantee: none of it is for a task to give. Whatever outputs and losses are, their Jacobians and gradients are
    clipped to `clip.jacobian` and `clip.loss`, and outputs are projected to `clip.output` before they are compared; so
    a task needs no bound of its own, and its runs have the guarantee of any task with the same sizes and dimension.
    What it must be is per record: row i of outputs and loss may depend on record i only. That is probed on made-up
    records before anything is spent.
    """

    facts: Facts = Facts()

    @abstractmethod
    def dimension(self, shape: Shape, model: Model) -> int:
        """d, the number of columns of `outputs`."""

    def width(self, shape: Shape, model: Model) -> int:
        """Outputs of a shipped model for a record, and of a custom one as asked for; by default d."""
        return self.dimension(shape, model)

    @abstractmethod
    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """The outputs (n, d) that the penalty compares; differentiable, without parameters of their own."""

    def answers(self, raw: Raw, batch: Inputs) -> Tensor:
        """Answers (n, k) of a trained model to records without targets, as `facts.answers` names them.

        By default the outputs; predicted numbers lie between 0 and 1 as the targets of training do.
        """
        return self.outputs(raw, batch)

    @abstractmethod
    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Task loss of every record (n,); differentiable, without parameters of its own."""

    def metrics(self, model: nn.Module, held_out: HeldOut) -> dict[str, float]:
        """Held-out metrics by name, in the order in which they are shown first; by default the loss.

        The records are copies: what this changes is as it was at the next evaluation.
        """
        return {"loss": held_out.loss}

    def arrays(self, model: nn.Module, held_out: HeldOut) -> dict[str, Tensor]:
        """Return the arrays that figures are drawn from, on any device; `outputs` (n, d) is always among them."""
        records = held_out.records
        return {"outputs": held_out.outputs, "sensitive": records.sensitive, "target": records.target}

    def tally(self, shape: Shape) -> Tally | None:
        """Return the sums over records kept out of training that are released with noise; None if none are.

        It is one of those of `fedsw.learning.tasks.tally`, with proven bounds; a run refuses any other.
        """
        return None

    @classmethod
    def misfit(cls, settings: Settings) -> str | None:
        """Say which setting does not go with this task beyond its facts, with the remedy; None if all do."""
        return None


def part(raw: Raw, name: str, position: int) -> Tensor:
    """One of a model's outputs (n, ...): by name of a dict, by position of a tuple, or the tensor itself as first."""
    if isinstance(raw, Mapping):
        if name in raw:
            return raw[name]  # type: ignore[no-any-return]
        returned = f"outputs named {', '.join(map(repr, raw))}"
    elif isinstance(raw, tuple):
        if position < len(raw):
            return raw[position]  # type: ignore[no-any-return]
        returned = f"{len(raw)} outputs"
    elif position == 0:
        return raw  # type: ignore[no-any-return]
    else:
        returned = "one output"
    raise ValueError(
        f"the model returned {returned}, and the task reads {name!r}: return a dict with that name, or it in place "
        f"{position} of a tuple"
    )
