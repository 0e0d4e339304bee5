"""Neighbouring relations by name, and for which others a bound for one of them holds.

Source: docs/guarantees/sampling.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fedsw._tools.registry import Registry

Sampling = Literal["without-replacement", "poisson"]

REPLACE_ONE = "replace-one"
"""One record is replaced at its position within its group; all sizes are fixed."""

REPLACE_ANY = "replace-one, label and group included"
"""One record is replaced at its position by any other, of whatever label and group; their number is fixed."""

ADD_OR_REMOVE = "add-or-remove-one"
"""One record is added or removed."""


@dataclass(frozen=True)
class Relation:
    """Definition of the pairs of data sets that are neighbours.

    Attributes:
        sampling: of the steps that account for it.
        narrower: relations under which neighbours are all neighbours under this one: a bound for it holds for them.
    """

    name: str
    sampling: Sampling
    narrower: frozenset[str] = frozenset()


RELATIONS: Registry[Relation] = Registry("relation", Relation)
RELATIONS.register(REPLACE_ONE, Relation(REPLACE_ONE, "without-replacement"))
RELATIONS.register(REPLACE_ANY, Relation(REPLACE_ANY, "without-replacement", frozenset((REPLACE_ONE,))))
RELATIONS.register(ADD_OR_REMOVE, Relation(ADD_OR_REMOVE, "poisson"))


def holds_for(bound: str, wanted: str) -> bool:
    """True if a bound for one relation holds for another: the same, or a narrower one. `Unknown` for other names."""
    return RELATIONS.get(bound) is RELATIONS.get(wanted) or wanted in RELATIONS.get(bound).narrower


def require_relation(what: str, bound: str, wanted: str) -> None:
    """Refuse a bound for other neighbours than a guarantee is for: ValueError names both."""
    if not holds_for(bound, wanted):
        raise ValueError(
            f"{what} is bounded for {bound!r} neighbours, and would leave under a guarantee for {wanted!r} ones, which "
            f"bounds something else; nothing was charged. {_remedy(bound, wanted)}"
        )


def require_sampling(relation: str, samplings: Iterable[str]) -> None:
    """Refuse charges with other sampling than steps have for a relation (adjacency): ValueError."""
    expected = RELATIONS.get(relation).sampling
    for sampling in samplings:
        if sampling != expected:
            raise ValueError(
                f"a charge is for {sampling} sampling, and steps for {relation!r} neighbours are {expected}: it would "
                "be accounted for as something else; nothing was charged"
            )


def _remedy(bound: str, wanted: str) -> str:
    if (bound, wanted) == (ADD_OR_REMOVE, REPLACE_ONE) or (bound, wanted) == (ADD_OR_REMOVE, REPLACE_ANY):
        return "A replacement is a removal and an addition: take Sensitivity.of_replacement(), which is twice as large."
    return "Bound it for those, or keep a ledger for these."
