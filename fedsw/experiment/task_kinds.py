"""Facts of tasks and of kinds of models that an experiment is checked against; nothing here computes."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from fedsw._tools.settings import ExperimentError
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.experiment.trust import Comparison, comparing

_COMPARED: Mapping[Comparison, str] = {
    "groups": "groups",
    "prior": "sample",
    "generator": "records",
    "domain": "records",
    "sketch": "records",
}
"""The side that a penalty must compare (`PenaltyKind.compares`), by the comparison of its task."""

Answers = Literal["probability", "predicted", "code", "output"]
"""Kinds of answers to a record: a probability of each class, a number in the target's units, a code, any output."""

TASKS = "fedsw.learning.tasks.kinds"
"""The package of the shipped tasks, a file for each; the file's name is the task's."""


@dataclass(frozen=True)
class Judged:
    """Held-out metric that models of a task are compared by, its good direction, and metrics that stand beside it."""

    metric: str
    better: Literal["higher", "lower"]
    beside: tuple[str, ...] = ()

    @property
    def sign(self) -> float:
        """Factor of the metric that makes a score, of which the higher is the better."""
        return 1.0 if self.better == "higher" else -1.0


@dataclass(frozen=True)
class Facts:
    """Models, data and targets of a task. The defaults are those of a task that compares the outputs of groups.

    Strata of sampling follow from these facts and the penalty: the groups, the pairs (class, group) for equality of
    odds, or all records at once for a task with another side. They are public, so a task cannot choose its own.

    The ``models`` and ``sources`` are shipped ones, the first model the one to begin with; one's own go with every
    task. Its ``penalties`` follow from what it compares. The ``unit`` must lie in [0, 1], since outputs between 0 and 1
    are compared with it. Private outputs are matched to the ``other_side``; None where groups are compared with each
    other. The ``figures`` of its held-out arrays are named as in `fedsw.runs.report.plots.PICTURES`. Where it is
    ``sketched`` its records leave once, as a sum by label, before anything is learnt from them.

    A trained model ``answers`` a record with probabilities of classes, predicted numbers, codes or outputs
    (`fedsw.Task.answers`). Runs are compared and searched by how they are ``judged``; None where nobody knows.
    """

    models: tuple[str, ...] = ("logistic", "additive", "mlp")
    sources: tuple[str, ...] = ("synthetic", "files")
    target: Literal["class", "numbers", "any"] = "class"
    unit: Literal["targets", "features"] | None = None
    other_side: Literal["prior", "generator", "domain"] | None = None
    figures: tuple[str, ...] = ("outputs",)
    sketched: bool = False
    answers: Answers = "output"
    judged: Judged | None = None

    def __post_init__(self) -> None:
        known: dict[str, tuple[str | None, ...]] = {
            "target": ("class", "numbers", "any"),
            "unit": (None, "targets", "features"),
            "other_side": (None, "prior", "generator", "domain"),
            "answers": get_args(Answers),
        }
        for name, values in known.items():
            if (value := getattr(self, name)) not in values:
                raise ExperimentError(f"a task's {name} is {value!r}; there are {', '.join(map(repr, values))}")

    @property
    def comparison(self) -> Comparison:
        """The side that private outputs are compared with; a trust model must be able to compare it."""
        return "sketch" if self.sketched else self.other_side or "groups"

    @property
    def penalties(self) -> tuple[str, ...]:
        """The penalties that compare what it compares, by name; within classes only where it may have some."""
        return tuple(
            name
            for name, kind in PENALTIES.items()
            if kind.compares == _COMPARED[self.comparison] and ("label" not in kind.fixed or self.target != "numbers")
        )

    @property
    def trusts(self) -> tuple[str, ...]:
        """The trust models that it goes with, by name."""
        return comparing(self.comparison)

    @property
    def grouped(self) -> bool:
        """True if the outputs of groups of private records are compared with each other."""
        return self.other_side is None

    @property
    def classifies(self) -> bool:
        """True if answers are probabilities of classes, in the order of their names."""
        return self.answers == "probability"

    @property
    def supervised(self) -> bool:
        """True if the outputs that are compared between groups are themselves predictions of the target."""
        return self.grouped and self.answers in ("probability", "predicted")

    @property
    def private_loss(self) -> bool:
        """True if private records have a task loss."""
        return self.other_side not in ("generator", "domain")


@dataclass(frozen=True)
class ModelKind:
    """A kind of model: whether it has layers to choose, takes square images, or makes rows of tables.

    ``points`` are moved by a flow, and no record passes through them, nor through what ``mixes`` a batch's samples.
    Where it is ``fixed``, a private record is compared as it is, and public ones are moved. A ``linear`` one is a layer
    without any other; one of ``columns`` takes what is declared of each column apart (`coded.Hats`).
    """

    layered: bool = True
    square: bool = False
    points: bool = False
    mixes: bool = False
    table: bool = False
    fixed: bool = False
    linear: bool = False
    columns: bool = False


MODELS: Mapping[str, ModelKind] = {
    "logistic": ModelKind(layered=False, linear=True),
    "additive": ModelKind(layered=False, linear=True, columns=True),
    "mlp": ModelKind(),
    "encoder-decoder": ModelKind(),
    "image-autoencoder": ModelKind(layered=False, square=True),
    "generator": ModelKind(),
    "dcgan": ModelKind(square=True, mixes=True),
    "adversarial-dcgan": ModelKind(square=True, mixes=True),
    "particles": ModelKind(points=True),
    "adaptor": ModelKind(layered=False, square=True),
    "image-generator": ModelKind(square=True),
    "residual-generator": ModelKind(square=True),
    "vector-generator": ModelKind(),
    "table-generator": ModelKind(table=True),
    "transported-adaptor": ModelKind(layered=False, square=True, fixed=True),
    "published-adaptor": ModelKind(layered=False, square=True),
    "labelled-images": ModelKind(layered=False),
    "blocked-images": ModelKind(layered=False, fixed=True),
    "decoded-images": ModelKind(layered=False, square=True),
}
"""The shipped kinds; `fedsw.learning.tasks.needs` builds them."""

OWN_MODEL = ModelKind(layered=False)
"""Facts of a model named as `module:name`: its settings are in model.arguments."""


@functools.cache
def task_names() -> tuple[str, ...]:
    """Names of the shipped tasks; nothing of them is imported."""
    package = importlib.util.find_spec(TASKS)
    assert package is not None and package.submodule_search_locations is not None
    files = (file for folder in package.submodule_search_locations for file in Path(folder).glob("_[!_]*.py"))
    return tuple(sorted(file.stem.removeprefix("_") for file in files))


def model_kind(name: str) -> ModelKind:
    """Return the facts of a kind of model."""
    return MODELS.get(name, OWN_MODEL)
