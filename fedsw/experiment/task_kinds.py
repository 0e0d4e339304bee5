"""Tasks and kinds of models by name, and what an experiment is checked against; nothing here computes.

`TASKS` and `MODELS` are the registries of both. A task says in its `Facts` what it goes with, which settings it reads
and the `Role` of its model; a kind of model says in its `ModelKind` which roles it plays and how it is made of
`ModelSizes`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from fedsw._tools.own_objects import is_reference, load_object
from fedsw._tools.registry import Registry, Unknown
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

_SHIPPED = "fedsw.learning.tasks.kinds"
"""The package of the shipped tasks, a file for each; the file's name is the task's."""
_MODELS = "fedsw.learning.shipped_models"
"""The module of the shipped kinds of models."""

Role = Literal["predictor", "representation", "autoencoder", "generator", "synthesizer", "adaptor"]
"""Parts that a model plays in a task: outputs of a record, codes, codes and the way back, samples of noise, samples of
noise and a cell, or features that a public domain's are compared with."""


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

    Shipped models go with it that play its ``role``, and shipped ``sources``; one's own go with every task. Its
    ``penalties`` follow from what it compares. The ``unit`` must lie in [0, 1], since outputs between 0 and 1 are
    compared with it. Private outputs are matched to the ``other_side``; None if groups are compared with each
    other. The ``figures`` of its held-out arrays are named as in `fedsw.runs.report.plots.PICTURES`. Where it is
    ``sketched`` its records leave once, as a sum by label, before anything is learnt from them.

    A trained model ``answers`` a record with probabilities of classes, predicted numbers, codes or outputs
    (`fedsw.Task.answers`). Runs are compared and searched by how they are ``judged``; None if unknown.
    """

    role: Role = "predictor"
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
            "role": get_args(Role),
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
    def models(self) -> tuple[str, ...]:
        """The shipped models that play its role, by name."""
        return tuple(name for name, kind in MODELS.items() if self.role in kind.roles)

    @property
    def penalties(self) -> tuple[str, ...]:
        """The penalties that compare what it compares, by name; within classes only where it may have some."""
        return tuple(
            name
            for name, kind in PENALTIES.items()
            if kind.compares in (_COMPARED[self.comparison], *(("nothing",) if self.comparison == "groups" else ()))
            and ("label" not in kind.fixed or self.target != "numbers")
        )

    @property
    def trusts(self) -> tuple[str, ...]:
        """The trust models that it goes with, by name."""
        return comparing(self.comparison)

    @functools.cached_property
    def unread(self) -> Mapping[str, tuple[str, ...]]:
        """Settings that the task does not read, by section; its experiments cannot write them."""
        unread: dict[str, tuple[str, ...]] = {}
        for section, names, reads in _READ:
            if not reads(self):
                unread[section] = unread.get(section, ()) + names
        return unread

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


def _in_rounds(task: Facts) -> bool:
    return not task.sketched


_OPTIMIZER = ("optimizer", "optimizer_arguments", "scheduler", "scheduler_arguments", "momentum", "second_moment")
_READ: tuple[tuple[str, tuple[str, ...], Callable[[Facts], bool]], ...] = (
    ("data", ("public", "public_batch"), lambda task: task.other_side == "domain"),
    ("data", ("target",), lambda task: task.target == "numbers"),
    ("objective", ("protected",), lambda task: task.other_side == "generator" and not task.sketched),
    ("objective", ("also",), lambda task: task.other_side in (None, "prior")),
    ("clip", ("output", "jacobian", "loss", "centre", "mode"), _in_rounds),
    ("slicing", ("directions", "scheme", "ties"), _in_rounds),
    ("training", (*_OPTIMIZER, "batch_size", "learning_rate", "averaging", "decay", "released_norm"), _in_rounds),
)
"""Settings that some tasks alone read, by section, with which these are; every task reads the others."""


class TaskKind(Protocol):
    """A task of `fedsw.learning.tasks.task`, or its class, as far as settings are checked against it."""

    @property
    def facts(self) -> Facts:
        """Models, data and penalties that the task goes with."""

    def misfit(self, settings: Any) -> str | None:
        """Return why settings do not go with the task, beyond its facts, or None."""


def _own_task(reference: str) -> TaskKind:
    """Load a task named as `module:name`: its code runs. ExperimentError for what is not a task."""
    kind = load_object(reference, what="objective.task")
    if not isinstance(getattr(kind, "facts", None), Facts):
        raise ExperimentError(
            f"objective.task {reference!r} names {kind!r}; it must be a class derived from fedsw.Task, or an object "
            "of one"
        )
    return kind  # type: ignore[return-value]


def _register_shipped() -> None:
    """Import the files of the shipped tasks, which import what computes where they use it."""
    package = importlib.util.find_spec(_SHIPPED)
    assert package is not None and package.submodule_search_locations is not None
    files = (file for folder in package.submodule_search_locations for file in Path(folder).glob("_[!_]*.py"))
    for name in sorted(file.stem.removeprefix("_") for file in files):
        TASKS.register(name, importlib.import_module(f"{_SHIPPED}._{name}").TASK)


TASKS: Registry[TaskKind] = Registry("objective.task", custom=_own_task, shipped=_register_shipped)
"""The tasks by name; `module:name` runs code of its module."""


def shipped_task(name: str) -> TaskKind | None:
    """Return a shipped task; None for one of a user's, which is loaded when the experiment is made concrete."""
    return TASKS.get(name) if name in TASKS else None


def task_facts(name: str) -> Facts:
    """Return the facts of any task that an experiment names; imports it."""
    return TASKS.get(name).facts


@dataclass(frozen=True)
class ModelSizes:
    """Numbers that a model is made for: inputs of a record, outputs, and classes or a sketch's cells.

    Where a declared table is measured, ``codes`` are the ranges (first, end) of its columns' codes.
    """

    features: int
    outputs: int
    classes: int
    codes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ModelKind:
    """How a kind of model is made of [model] and `ModelSizes`, the ``roles`` that it plays in tasks, and what differs.

    Of [model] it ``reads`` these settings, of which a preset may have ``chosen`` some; ``misfit`` returns why settings
    do not go with it, or None. A ``square`` one takes square images.

    ``points`` are moved by a flow, and no record passes through them, nor through what ``mixes`` a batch's samples.
    Where it is ``fixed``, a private record is compared as it is, and public ones are moved. A ``linear`` one is a layer
    without any other; one of ``columns`` takes what is declared of each column apart (`coded.Hats`).
    ``filtered`` images go through fixed filters first (`fedsw.learning.models.ScatteredImages`). A ``critic`` is
    trained beside one, and ``table`` rows are made by another. What a generator makes stands ``beside`` nothing, or
    beside codes of classes as records do, or "any": either. Outputs are of the ``dimension`` that their task says, or
    that this function gives of [model] and the data's `Shape`.
    """

    make: Callable[[Any, ModelSizes], Any]
    roles: tuple[Role, ...]
    reads: tuple[str, ...]
    square: bool = False
    points: bool = False
    mixes: bool = False
    table: bool = False
    fixed: bool = False
    linear: bool = False
    columns: bool = False
    filtered: bool = False
    critic: bool = False
    beside: Literal["nothing", "codes", "any"] = "nothing"
    chosen: tuple[str, ...] = ()
    misfit: Callable[[Any], str | None] = lambda settings: None
    dimension: Callable[[Any, Any], int] | None = None

    def __post_init__(self) -> None:
        if unknown := set(self.roles) - set(get_args(Role)):
            known = ", ".join(map(repr, get_args(Role)))
            raise ValueError(f"a model's role is {sorted(unknown)[0]!r}; there are {known}")


def _shipped_models() -> Any:
    """The module of the shipped kinds, which imports what computes where a model is made."""
    return importlib.import_module(_MODELS)


def _own_model(reference: str) -> ModelKind:
    """The entry of a model named as `module:name`, of which nothing is imported before one is made."""
    if not is_reference(reference):
        raise Unknown(f"{MODELS.unknown(reference)}; write module:name, as in 'my_package.my_module:build'")
    entry: ModelKind = _shipped_models().OWN
    return entry


MODELS: Registry[ModelKind] = Registry("model.kind", ModelKind, custom=_own_model, shipped=_shipped_models)
"""The kinds of models by name, or as `module:name`; `Unknown` lists the shipped ones."""
