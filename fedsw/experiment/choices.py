"""All settings of an experiment, and code that they name: what a stored one may import, and own metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import Field, SerializeAsAny

from fedsw._tools.later import torch
from fedsw._tools.own_objects import is_held, is_reference, load_object
from fedsw._tools.section import PositiveInt, Seed
from fedsw._tools.settings import ExperimentError
from fedsw.data.settings import Data, Partition, RecordSource
from fedsw.experiment import sections
from fedsw.experiment.penalty_names import penalties_of
from fedsw.experiment.sections import LocalT
from fedsw.experiment.task_kinds import Facts, task_facts


class Settings(sections.Section):
    """Every setting of a run by its section; `fedsw.experiment.load.Experiment` checks that they go together."""

    name: str
    title: str = ""
    data: Data = Data()
    partition: Partition = Partition()
    model: sections.Model = sections.Model()
    objective: sections.ObjectiveSettings = sections.ObjectiveSettings()
    clip: sections.ClipSettings = sections.ClipSettings()
    slicing: sections.SlicingSettings = sections.SlicingSettings()
    training: sections.Training = sections.Training()
    privacy: SerializeAsAny[sections.Privacy] = Field(default_factory=sections.Privacy)
    local: SerializeAsAny[sections.Local] = Field(default=sections.Local(), validate_default=True)
    sketch: sections.Sketch = sections.Sketch()
    calibration: sections.Calibration = sections.Calibration()
    thresholds: sections.ThresholdSettings = sections.ThresholdSettings()
    federation: sections.Federation = sections.Federation()
    evaluation: sections.Evaluation = sections.Evaluation()
    seed: Seed | None = None
    evaluate_every: PositiveInt = 25
    metrics: tuple[str, ...] = ()
    unsafe_metrics: bool = False

    @property
    def record_source(self) -> RecordSource:
        """The settings by which `fedsw.data.sources` reads records."""
        # declared columns say what is predicted of own records, so a task of the user's own is not imported for them
        numbers = not self.data.own and task_facts(self.objective.task).target == "numbers"
        return RecordSource(self.data, self.data.target if numbers else "class", self.federation.clients)

    @property
    def declared(self) -> tuple[int, int] | None:
        """Declared numbers of records that are trained on, and kept out of it, where how many there are is secret."""
        if (records := self.privacy.records) is None:
            return None
        trained = math.ceil((1 - self.data.held_out_fraction) * records)
        return trained, records - trained

    @property
    def left_to_rounds(self) -> float:
        """Part of the budget, of mu^2, that releases before and after the rounds leave to them."""
        return 1 - self.privacy.histograms - float(self.privacy.moments) - self.share_of_scores

    @property
    def share_of_scores(self) -> float:
        """Part of the budget, of mu^2, that counts of scores after the rounds cost: one sum, whatever it serves."""
        return max(self.calibration.share, self.thresholds.share)

    @property
    def releases(self) -> int:
        """How often a run releases something of a record: every round, or once for all its rounds."""
        return self.privacy.model.releases(self)

    @property
    def stages(self) -> int:
        """In how many stages sketches are released, each of all records; 0 if none is."""
        return self.privacy.model.stages(self)

    @property
    def accountant(self) -> str:
        """The accountant of a run's plan, ledgers and sentences, as its trust model says."""
        return self.privacy.model.accountant(self)

    @property
    def mechanism(self) -> str:
        """The noise of a run's releases, as its trust model says."""
        return self.privacy.model.mechanism(self)

    def own(self, kind: type[LocalT]) -> LocalT:
        """Section [local] of a trust model that has that class for it."""
        if not isinstance(self.local, kind):
            raise TypeError(f"under trust {self.privacy.trust!r} [local] is no {kind.__name__}")
        return self.local


def references(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield key and value of each setting that names code to run at nodes: task, penalty, model, source, map."""
    named = {
        "objective.task": settings.objective.task,
        **dict(penalties_of(settings)),
        "model.kind": settings.model.kind,
        "data.source": settings.data.source,
        "sketch.map": settings.sketch.map,
        **{f"sketch.also[{index}].map": part.map for index, part in enumerate(settings.sketch.also)},
    }
    return ((key, value) for key, value in named.items() if is_reference(value))


_SHIPPED = {"objective.task": "fedsw.learning.tasks.kinds", "model.kind": "fedsw.learning.models"}
"""Modules of the shipped tasks and models; a stored experiment may name their classes as `module:name`."""


class CodeRefused(ExperimentError):
    """A stored experiment names modules that are not allowed here."""

    def __init__(self, message: str, modules: tuple[str, ...]) -> None:
        super().__init__(message)
        self.modules = modules


def named_code(experiment: Settings) -> Iterator[tuple[str, str]]:
    """Yield key and value of each setting that names code of a module; objects held by a process are left out."""
    named = [*references(experiment), *((f"metrics[{n}]", metric) for n, metric in enumerate(experiment.metrics))]
    if (held_out := experiment.data.held_out_code) is not None:
        named.append(("data.held_out", held_out))
    return ((key, value) for key, value in named if not is_held(value))


def modules_of(experiment: Settings) -> tuple[str, ...]:
    """The modules that an experiment names, each once."""
    return tuple(dict.fromkeys(value.partition(":")[0] for _, value in named_code(experiment)))


def require_allowed_code(experiment: Settings, allowed: Collection[str], *, stored: Path) -> None:
    """Refuse an experiment that was read from a folder and names code that the caller has not allowed.

    The folder's author chose the names, and the arguments that a model is made with: `subprocess:run` would be called.
    Allowed modules are imported here, and what is named must be their own; shipped tasks and models are always allowed.
    CodeRefused names every setting with its module, and how they are allowed; nothing was imported then.
    ExperimentError if an allowed module cannot be imported, or does not define what is named.
    """
    named = [(key, value) for key, value in named_code(experiment) if not _is_shipped(key, value)]
    refused = [(key, value) for key, value in named if value.partition(":")[0] not in allowed]
    if refused:
        modules = tuple(dict.fromkeys(value.partition(":")[0] for _, value in refused))
        settings = ", ".join(f"{key} = {value!r}" for key, value in refused)
        raise CodeRefused(
            f"the settings stored in {stored} name code to be run: {settings}. Their author chose it; if you "
            f"know and trust {' and '.join(map(repr, modules))}, add "
            f"{' '.join(f'--allow-module {name}' for name in modules)} (in Python allow_modules={list(modules)!r})",
            modules,
        )
    for key, value in named:
        load_object(value, what=key, allowed=allowed)


def _is_shipped(key: str, reference: str) -> bool:
    """True for the class of a shipped task or model; other objects of fedsw must be allowed like any."""
    module = reference.partition(":")[0]
    package = _SHIPPED.get(key)
    if package is None or not (module == package or module.startswith(f"{package}.")):
        return False
    loaded = load_object(reference, what=key, allowed=(module,))
    if not isinstance(loaded, type):
        return False
    if key == "objective.task":
        return isinstance(getattr(loaded, "facts", None), Facts)
    return issubclass(loaded, torch.nn.Module)


_SHIPPED_METRICS = re.compile(
    r"loss|accuracy|auc|calibration_error|disparate_impact(_\d+)?|demographic_parity_difference|"
    r"equalized_odds_difference|w2_squared|ks|(eo|od)_\d+|(root_)?mean_squared_error|"
    r"linear_probe_(label|group)|sw2|sw2_to_prior"
)
_METRIC_NAME = re.compile(r"[^\W\d][\w-]*")


def is_shipped(name: str) -> bool:
    """True if a shipped metric of some task has this name."""
    return _SHIPPED_METRICS.fullmatch(name) is not None


def require_names(names: Iterable[str]) -> None:
    """Raise ExperimentError for names that would be mistaken: of a shipped metric, twice the same, or not one word."""
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not _METRIC_NAME.fullmatch(name):
            raise ExperimentError(f"a metric is named {name!r}; use letters, digits, '_' and '-', a letter first")
        if is_shipped(name):
            raise ExperimentError(f"metric {name!r} has the name of a metric that is measured anyway; give it another")
        if name in seen:
            raise ExperimentError(f"two metrics are named {name!r}; give one of them another name")
        seen.add(name)


def require_references(references: Sequence[str]) -> None:
    """Refuse names that no metric can have. Nothing is imported, so clients may check as well."""
    for reference in references:
        if not is_reference(reference):
            raise ExperimentError(f"metric {reference!r} is not written as module:name, as in 'my_module:my_function'")
    require_names(map(_metric_name, references))


def load_metrics(references: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The functions behind `module:name`, by `name`; their modules' own code runs."""
    require_references(references)
    metrics: dict[str, Callable[..., Any]] = {}
    for position, reference in enumerate(references):
        loaded = load_object(reference, what=f"metrics[{position}]")
        if not callable(loaded):
            raise ExperimentError(
                f"metrics[{position}] {reference!r} is a {type(loaded).__name__} and cannot be called; name a function "
                "of (outputs, records)"
            )
        metrics[_metric_name(reference)] = cast("Callable[..., Any]", loaded)
    return metrics


def _metric_name(reference: str) -> str:
    return reference.rpartition(":")[2].rpartition(".")[2]
