"""What `training.preset = "auto"` chooses: rounds, batch, steps and clips, by rule, from public numbers alone.

The rules were designed on the synthetic law and on the training part of Adult, and checked on others (docs/plan.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedsw.settings import ExperimentError

if TYPE_CHECKING:
    from fedsw.experiment.choices import Settings

CHOSEN: Mapping[str, tuple[str, ...]] = {
    "training": ("rounds", "batch_fraction", "learning_rate", "momentum", "averaging"),
    "clip": ("output", "centre", "jacobian", "loss"),
}
"""The settings that are chosen, by section; what the user writes of them wins."""

_TASKS = ("classification", "regression")
_TRUSTS = ("central", "none", "local-gradient")

_ROUNDS = 50
_MOMENTUM = 0.9
_AVERAGING = 0.5
_LOSS = 0.25
_UNCLIPPED = 1.0
"""What gradients are counted as where nothing clips them."""
_ENOUGH = 24.0
"""Signal from which on a longer way is worth its noise less and less."""
_MOST = 1e4


@dataclass(frozen=True)
class Numbers:
    """The public numbers that the rules read.

    Attributes:
        records: n, of all clients together.
        parameters: r, the length of a released vector.
        multiplier: noise multiplier sigma / Delta of one release of all records; 0 without noise.
        parts: how many clients add noise, each of their own; 1 where the server does.
    """

    records: int
    parameters: int
    multiplier: float
    parts: int = 1

    @property
    def strength(self) -> float:
        """How far signal can stand out of noise over a whole run, n / (multiplier * sqrt(r * parts)).

        It is the length of a mean of n vectors of length 1 that all point one way, over that of the noise which one
        release of it takes. Rounds share it: more of them do not change it.
        """
        if not self.multiplier:
            return math.inf
        return self.records / (self.multiplier * math.sqrt(self.parameters * self.parts))


def chosen(numbers: Numbers, settings: Settings) -> dict[str, dict[str, Any]]:
    """Every setting of `CHOSEN`, by section: the user's own where there is one.

    All records make every batch: rounds then share one signal, and sampling adds no noise of its own. Gradients are
    clipped far below their length, so that every record counts alike. The way that the parameters may go, the learning
    rate times the clip times the rounds, is in proportion to the strength of the signal, and to its square root from
    where the signal is well above the noise on.
    """
    rule: dict[str, dict[str, Any]] = {
        "training": {
            "rounds": _ROUNDS,
            "batch_fraction": 1.0,
            "momentum": _MOMENTUM,
            "averaging": _AVERAGING,
        },
        "clip": {"output": 0.5, "centre": 0.5, "jacobian": _LOSS / 2, "loss": _LOSS},
    }
    for section, names in CHOSEN.items():
        own = getattr(settings, section)
        rule[section] |= {name: getattr(own, name) for name in names if name in own.model_fields_set}
    if "learning_rate" not in rule["training"]:
        signal = min(numbers.strength, _MOST)
        way = signal if signal < _ENOUGH else math.sqrt(signal * _ENOUGH)
        length = _UNCLIPPED if settings.clip.open else rule["clip"]["loss"]
        momentum = (1 - rule["training"]["momentum"]) / (1 - _MOMENTUM)
        rule["training"]["learning_rate"] = float(f"{way * momentum / (length * rule['training']['rounds']):.3g}")
    return {"training": rule["training"]} if settings.clip.open else rule


def left_open(settings: Settings) -> dict[str, tuple[str, ...]]:
    """The settings that `preset` "auto" has still to choose, by section; empty where nothing is left to it."""
    if settings.training.preset is None:
        return {}
    found = {
        section: tuple(name for name in names if name not in getattr(settings, section).model_fields_set)
        for section, names in CHOSEN.items()
        if section != "clip" or not settings.clip.open
    }
    return {section: names for section, names in found.items() if names}


def require_settled(settings: Settings) -> None:
    """Refuse to begin while there are settings to choose.

    Raises:
        ExperimentError: with what to do.
    """
    if left_open(settings):
        raise ExperimentError(
            "training.preset is 'auto', which chooses by the number of records, and nobody here can count them: write "
            "what `fedsw plan EXPERIMENT --records N` shows into the experiment, N being the number of records of all "
            "clients, and leave preset out"
        )


def misfit(settings: Settings) -> str | None:
    """What `preset` "auto" cannot choose for, with the remedy; None if it can."""
    training, task, trust = settings.training, settings.objective.task, settings.privacy.trust
    if training.preset is None:
        return None
    if task not in _TASKS:
        return (
            f"training.preset 'auto' chooses for {' and '.join(map(repr, _TASKS))}, not for objective.task {task!r}: "
            "leave it out, and write training and clip"
        )
    if trust not in _TRUSTS:
        return (
            f"training.preset 'auto' chooses for privacy.trust {', '.join(map(repr, _TRUSTS))}, not for {trust!r}: "
            "leave it out, and write training and clip"
        )
    if training.optimizer != "sgd" and "learning_rate" not in training.model_fields_set:
        return (
            f"training.preset 'auto' chooses a learning rate for 'sgd', and training.optimizer is "
            f"{training.optimizer!r}: leave optimizer out, or write learning_rate, too"
        )
    return None
