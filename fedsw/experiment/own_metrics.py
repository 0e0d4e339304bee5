"""Metrics of a user's own in an experiment: how they are named, and which names are taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from fedsw.experiment.registry import is_reference, load_object
from fedsw.settings import ExperimentError

_SHIPPED = re.compile(
    r"loss|accuracy|disparate_impact|demographic_parity_difference|equalized_odds_difference|w2_squared|ks|(eo|od)_\d+|"
    r"mean_squared_error|linear_probe_(label|group)|sw2|sw2_to_prior"
)
_NAME = re.compile(r"[^\W\d][\w-]*")


def is_shipped(name: str) -> bool:
    """Whether a metric of some task has this name."""
    return _SHIPPED.fullmatch(name) is not None


def require_names(names: Iterable[str]) -> None:
    """Refuse names that would be mistaken: of a shipped metric, twice the same, or not one word.

    Raises:
        ExperimentError: naming the metric and the remedy.
    """
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ExperimentError(f"a metric is named {name!r}; use letters, digits, '_' and '-', a letter first")
        if is_shipped(name):
            raise ExperimentError(f"metric {name!r} has the name of a metric that is measured anyway; give it another")
        if name in seen:
            raise ExperimentError(f"two metrics are named {name!r}; give one of them another name")
        seen.add(name)


def require_references(references: Sequence[str]) -> None:
    """Refuse what cannot be metrics, by how it is written; nothing is imported, so clients may look as well.

    Raises:
        ExperimentError: naming the reference and the remedy.
    """
    for reference in references:
        if not is_reference(reference):
            raise ExperimentError(f"metric {reference!r} is not written as module:name, as in 'my_module:my_function'")
    require_names(map(_name, references))


def load_metrics(references: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The functions behind `module:name`, by `name`; their modules' own code runs.

    Raises:
        ExperimentError: naming what is missing, or no function, and the remedy.
    """
    require_references(references)
    found: dict[str, Callable[..., Any]] = {}
    for position, reference in enumerate(references):
        loaded = load_object(reference, what=f"metrics[{position}]")
        if not callable(loaded):
            raise ExperimentError(
                f"metrics[{position}] {reference!r} is a {type(loaded).__name__} and cannot be called; name a function "
                "of (outputs, records)"
            )
        found[_name(reference)] = cast("Callable[..., Any]", loaded)
    return found


def _name(reference: str) -> str:
    return reference.rpartition(":")[2].rpartition(".")[2]
