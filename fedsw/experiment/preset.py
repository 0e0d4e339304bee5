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

_TRUSTS = ("central", "none", "local-gradient")

_ROUNDS = 50
_MOMENTUM = 0.9
_AVERAGING = 0.5


@dataclass(frozen=True)
class _Rule:
    """How a task is trained: its clip of loss gradients, and how far parameters may go.

    Attributes:
        enough: strength of the signal from which on the way grows like its square root only.
        power: with which it grows before: a squared error feels every step of noise, an answer only its side.
        pace: of the way; a squared error's gradients are shorter, and shrink as it learns.
    """

    loss: float
    enough: float
    power: int
    pace: float


_RULES: Mapping[str, _Rule] = {
    "classification": _Rule(loss=0.25, enough=24.0, power=1, pace=1.0),
    "regression": _Rule(loss=0.125, enough=60.0, power=2, pace=0.16),
}
_UNCLIPPED = 4.0
"""How much longer gradients are where nothing clips them."""
_BESIDE = 2.0
"""Most noise that the penalties may take, in that of the loss alone."""
_STEP = 2.0
"""Most of learning rate * clip, at the momentum that the rules choose: few rounds do not make up for it."""
_TAUGHT = 1 / 3
"""Strength, for each record, beyond which a longer way learns the records by heart."""


@dataclass(frozen=True)
class Numbers:
    """The public numbers that the rules read.

    Attributes:
        records: n, of all clients together.
        parameters: r, the length of a released vector.
        multiplier: noise multiplier sigma / Delta of one release of all records; 0 without noise.
        loss: weight of the task loss in the objective.
        penalty: how far one replaced record moves the penalties' gradient where Jacobians are clipped to 1 and outputs
            to 1/2, weights included; it is large where a group is small.
        parts: how many clients add noise, each of their own; 1 where the server does.
    """

    records: int
    parameters: int
    multiplier: float
    loss: float = 1.0
    penalty: float = 0.0
    parts: int = 1

    def strength(self, jacobian: float, loss: float) -> float:
        """How far signal can stand out of noise over a whole run, n * share / (multiplier * sqrt(r * parts)).

        It is the length of a mean of n gradients of the loss that all are as long as their clip and point one way, over
        that of the noise which one release of it takes. The share is the part of that noise which the loss alone would
        take. Rounds share the strength: more of them do not change it.

        Args:
            jacobian, loss: the clips L and C.
        """
        if not self.multiplier:
            return math.inf
        own, penalties = self.loss * 2 * loss / self.records, self.penalty * jacobian
        share = own / (own + penalties) if own else 1.0
        return self.records * share / (self.multiplier * math.sqrt(self.parameters * self.parts))

    def jacobian(self, loss: float) -> float:
        """The clip of Jacobians: half that of the loss, or less, so that penalties take twice the loss's noise at most.

        It is less where a group is small, and the penalty then draws the groups' outputs together less.
        """
        own = self.loss * 2 * loss / self.records
        if not (own and self.penalty and self.multiplier):
            return loss / 2
        return min(loss / 2, _BESIDE * own / self.penalty)


def chosen(numbers: Numbers, settings: Settings) -> dict[str, dict[str, Any]]:
    """Every setting of `CHOSEN`, by section: the user's own where there is one.

    All records make every batch: rounds then share one signal, and sampling adds no noise of its own. Gradients are
    clipped far below their length, so that every record counts alike. The way that the parameters may go, the learning
    rate times the clip times the rounds, grows with the strength of the signal; like its square root from where the
    signal is well above the noise on.
    """
    rule: dict[str, dict[str, Any]] = {
        "training": {"rounds": _ROUNDS, "batch_fraction": 1.0, "momentum": _MOMENTUM, "averaging": _AVERAGING},
        "clip": {"output": 0.5, "centre": 0.5, "loss": _RULES[settings.objective.task].loss},
    }
    for section, names in CHOSEN.items():
        own = getattr(settings, section)
        rule[section] |= {name: getattr(own, name) for name in names if name in own.model_fields_set}
    training, clip = rule["training"], rule["clip"]
    clip.setdefault("jacobian", float(f"{numbers.jacobian(clip['loss']):.3g}"))
    if "learning_rate" not in training:
        rate = min(_way(numbers, settings, clip) / training["rounds"], _STEP) / clip["loss"]
        momentum = (1 - training["momentum"]) / (1 - _MOMENTUM)
        training["learning_rate"] = float(f"{rate * momentum / (_UNCLIPPED if settings.clip.open else 1.0):.3g}")
    return {"training": training} if settings.clip.open else rule


def _way(numbers: Numbers, settings: Settings, clip: Mapping[str, float]) -> float:
    """How far the parameters may go: learning rate * clip * rounds, at the momentum that the rules choose."""
    rule = _RULES[settings.objective.task]
    strength = min(numbers.strength(clip["jacobian"], clip["loss"]), max(rule.enough, numbers.records * _TAUGHT))
    power = rule.power if strength < rule.enough else 0.5
    return float(rule.pace * rule.enough * (strength / rule.enough) ** power)


def left_open(settings: Settings) -> dict[str, tuple[str, ...]]:
    """The settings that `preset` "auto" has still to choose, by section; empty where nothing is left to it."""
    if settings.training.preset == "none":
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
    """What `preset` "auto" cannot choose for, with the remedy; None if it can, or is not asked to."""
    training = settings.training
    if training.preset == "none":
        return None
    if reason := refusal(settings):
        return f"training.preset 'auto' chooses {reason}: leave it out, and write training and clip"
    if training.optimizer != "sgd" and "learning_rate" not in training.model_fields_set:
        return (
            f"training.preset 'auto' chooses a learning rate for 'sgd', and training.optimizer is "
            f"{training.optimizer!r}: leave optimizer out, or write learning_rate, too"
        )
    return None


def refusal(settings: Settings) -> str | None:
    """What the rules cannot choose for, as the end of a sentence that says for what they do; None if they can."""
    task, trust = settings.objective.task, settings.privacy.trust
    if task not in _RULES:
        return f"for {' and '.join(map(repr, _RULES))}, not for objective.task {task!r}"
    if trust not in _TRUSTS:
        return f"for privacy.trust {', '.join(map(repr, _TRUSTS))}, not for {trust!r}"
    return None
