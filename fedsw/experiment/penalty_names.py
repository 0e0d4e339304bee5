"""`PENALTIES`, the registry of penalties: facts of each, known before anything is computed.

Settings, problem, audit, planning and pages ask `PENALTIES` for a `PenaltyKind`, and the kind for what differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fedsw._tools.own_objects import is_reference
from fedsw._tools.registry import Registry, Unknown, Word

NO_PENALTY = "none"
"""The name of no penalty: the task loss only, of all records in one stratum."""

ENTRY_POINTS = "fedsw.penalties"
"""The group of entry points by which an installed package brings penalties of its own, in every process."""


@dataclass(frozen=True)
class PenaltyKind:
    """Facts of a penalty, known by its name before it is made (`fedsw.learning.tasks.compared`).

    Attributes:
        made: `module:Name` of a class derived from `fedsw.Penalty`, or of an object of one.
        compares: the outputs of ``"groups"`` with each other, those of all records with a public ``"sample"``, or with
            whatever the task has on the other side, ``"records"``; ``"nothing"`` with anything.
        takes: which of `groups`, `classes`, `radius` and `order` it is made with; of one's own those that are fields
            of it.
        fixed: what of a record stays in the neighbours of its guarantee, since strata are drawn by it.
        word: whether its bound is proven or stated; unknown of a custom one until it is loaded (`Objective.word`).
        beside: whether it may be one of several (objective.also).
        canary: whether `fedsw audit --canary` has worst neighbours of it.
        custom: whether it is named as `module:Name`, so that its code is the user's.
    """

    made: str
    compares: Literal["groups", "sample", "records", "nothing"]
    takes: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ("group",)
    word: Word = "proven"
    beside: bool = True
    canary: bool = False
    custom: bool = False


def _own(reference: str) -> PenaltyKind:
    """Facts of a penalty named as `module:Name` before its code runs: strata are the groups, no bound is proven."""
    if not is_reference(reference):
        raise Unknown(f"{PENALTIES.unknown(reference)}; write module:name, as in 'my_package.my_module:Mine'")
    return PenaltyKind(reference, "groups", word="stated", custom=True)


PENALTIES: Registry[PenaltyKind] = Registry("a penalty", PenaltyKind, custom=_own, group=ENTRY_POINTS)
_MADE = "fedsw.learning.objectives.penalties"
PENALTIES.register("statistical-parity", PenaltyKind(f"{_MADE}:Parity", "groups", ("groups", "order"), canary=True))
PENALTIES.register(
    "equality-of-odds",
    PenaltyKind(f"{_MADE}:EqualizedOdds", "groups", ("groups", "classes", "order"), ("group", "label"), canary=True),
)
PENALTIES.register("prior-matching", PenaltyKind(f"{_MADE}:ToSample", "sample", ("radius", "order"), canary=True))
PENALTIES.register(NO_PENALTY, PenaltyKind(f"{_MADE}:NoPenalty", "nothing", beside=False, canary=True))
PENALTIES.register("distribution-matching", PenaltyKind("", "records", beside=False))


def penalties_of(settings: Any) -> Iterator[tuple[str, str]]:
    """Every penalty that an experiment names, after its key."""
    yield "objective.penalty", settings.objective.penalty
    for index, more in enumerate(settings.objective.also):
        yield f"objective.also[{index}].penalty", more.penalty


def kinds_of(settings: Any) -> tuple[PenaltyKind, ...]:
    """Facts of every penalty that an experiment names."""
    return tuple(PENALTIES.get(name) for _, name in penalties_of(settings))


def names_beside() -> tuple[str, ...]:
    """The penalties that may be one of several."""
    return tuple(name for name, kind in PENALTIES.items() if kind.beside)
