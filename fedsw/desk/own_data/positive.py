"""The favourable class of a draft: as somebody says, or the one that its name gives away; a comment says why."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedsw._tools.settings import ExperimentError
from fedsw._tools.text import nearest
from fedsw.data.columns.values import FALSE, TRUE

_GOOD = frozenset(
    ("accept", "accepted", "admit", "admitted", "approve", "approved", "eligible", "good", "grant", "granted", "hire")
    + ("hired", "invited", "offer", "pass", "passed", "promoted", "qualified", "repaid", "select", "selected")
    + ("shortlisted", "success", "successful", "true", "yes")
)
_BAD = frozenset(
    ("bad", "decline", "declined", "default", "defaulted", "denied", "deny", "dismissed", "fail", "failed", "false")
    + ("ineligible", "no", "refuse", "refused", "reject", "rejected", "unsuccessful")
)
_NOT = re.compile(r"(?:not|no|non)[ _-]*(.+)|un(.+)")


@dataclass(frozen=True)
class Positive:
    """The favourable class, None where none is named; why, for a comment; `sure` where nobody has to look at it."""

    value: str | None
    why: str
    sure: bool = True


def positive_of(
    column: str, values: Sequence[str], said: str | None, ask: Callable[[str], str] | None = None
) -> Positive:
    """Which of the declared classes is the favourable one.

    As somebody ``said``; else the one of two whose name gives it away; else as a person answers; else the second of
    two, which is said; and none of more than two, where every class is shown and the worst leads.

    Raises:
        ExperimentError: for a class that is not declared.
    """
    if said is not None:
        return Positive(_declared(column, values, said), "positive: as given")
    if len(values) == 2 and (obvious := _obvious(*values)) is not None:
        return Positive(obvious, f"positive: {obvious} is the favourable one by its name; change it if it is not")
    if ask is not None:
        listed = ", ".join(values)
        answer = ask(f"column {column}: which of {listed} is the favourable class? Enter leaves it open").strip()
        if answer:
            return Positive(_declared(column, values, answer), "positive: given by its operator")
    if len(values) == 2:
        return Positive(
            values[1], f"positive: nobody said which class is favourable; {values[1]}, the second, is taken", sure=False
        )
    return Positive(None, "positive = ... names the favourable class; without it the class that is worst off leads")


def _declared(column: str, values: Sequence[str], said: str) -> str:
    if said not in values:
        raise ExperimentError(
            f"the positive class of {column!r} is said to be {said!r}; {nearest(said, list(values))}its classes are "
            f"{', '.join(values)}"
        )
    return said


def _obvious(one: str, other: str) -> str | None:
    for value, beside in ((one, other), (other, one)):
        word, against = value.strip().lower(), beside.strip().lower()
        if word in TRUE and against in FALSE:
            return value
        if (word in _GOOD and against not in _GOOD) or (against in _BAD and word not in _BAD):
            return value
        if (negated := _NOT.fullmatch(against)) is not None and word in negated.groups():
            return value
        if word.startswith(">") and against.startswith("<"):
            return value
    return None
