"""Code that a stored experiment names: a run's folder may be a stranger's, so none of it is loaded unasked."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedsw.experiment.choices import references
from fedsw.experiment.kinds import Facts
from fedsw.experiment.registry import is_held, is_reference, load_object
from fedsw.settings import ExperimentError

if TYPE_CHECKING:
    from fedsw.experiment.load import Experiment

_SHIPPED = {"objective.task": "fedsw.tasks.kinds", "model.kind": "fedsw.models"}
"""Where the shipped tasks and models are defined, whose classes a stored experiment may name as `module:name`."""


class CodeRefused(ExperimentError):
    """A stored experiment names modules that nobody has allowed here.

    Attributes:
        modules: their names, in the order of the settings.
    """

    def __init__(self, message: str, modules: tuple[str, ...]) -> None:
        super().__init__(message)
        self.modules = modules


def named_code(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Every `module:name` of an experiment whose code runs somewhere, after its key; objects of a process left out."""
    named = [*references(experiment), *((f"metrics[{n}]", each) for n, each in enumerate(experiment.metrics))]
    held_out = experiment.data.held_out
    if held_out is not None and experiment.data.family != "files" and is_reference(held_out):
        named.append(("data.held_out", held_out))
    return ((key, value) for key, value in named if not is_held(value))


def modules_of(experiment: Experiment) -> tuple[str, ...]:
    """The modules that an experiment names, each once."""
    return tuple(dict.fromkeys(value.partition(":")[0] for _, value in named_code(experiment)))


def require_allowed_code(experiment: Experiment, allowed: Collection[str], *, stored: Path) -> None:
    """Refuse an experiment that was read from a folder and names code that the caller has not allowed.

    Who wrote the folder chose the names, and the arguments that a model is made with: `subprocess:run` would be called.
    Allowed modules are imported here, and what is named must be their own; shipped tasks and models are always allowed.

    Args:
        allowed: whole names of modules.
        stored: where the experiment was read, for messages.

    Raises:
        CodeRefused: naming every setting with its module, and how they are allowed; nothing was imported then.
        ExperimentError: if an allowed module cannot be imported, or does not define what is named.
    """
    named = [(key, value) for key, value in named_code(experiment) if not _is_shipped(key, value)]
    refused = [(key, value) for key, value in named if value.partition(":")[0] not in allowed]
    if refused:
        modules = tuple(dict.fromkeys(value.partition(":")[0] for _, value in refused))
        settings = ", ".join(f"{key} = {value!r}" for key, value in refused)
        raise CodeRefused(
            f"the settings stored in {stored} name code to be run: {settings}. Whoever wrote them chose it; if you "
            f"know and trust {' and '.join(map(repr, modules))}, add "
            f"{' '.join(f'--allow-module {name}' for name in modules)} (in Python allow_modules={list(modules)!r})",
            modules,
        )
    for key, value in named:
        load_object(value, what=key, allowed=allowed)


def _is_shipped(key: str, reference: str) -> bool:
    """Whether this is the class of a shipped task or model; no other object of fedsw's own may be named unasked."""
    module = reference.partition(":")[0]
    place = _SHIPPED.get(key)
    if place is None or not (module == place or module.startswith(f"{place}.")):
        return False
    found = load_object(reference, what=key, allowed=(module,))
    if not isinstance(found, type):
        return False
    if key == "objective.task":
        return isinstance(getattr(found, "facts", None), Facts)
    from torch import nn

    return issubclass(found, nn.Module)
