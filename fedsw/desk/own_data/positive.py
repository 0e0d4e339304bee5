"""The favourable class of a draft: as declared, or the one that its name gives away; a comment says why."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedsw._tools.settings import ExperimentError
from fedsw._tools.text import nearest
from fedsw.data.columns.values import FALSE, TRUE, truth_of
from fedsw.desk.own_data.answers import asked_again

_GOOD = frozenset(
    ("accept", "accepted", "admit", "admitted", "approve", "approved", "eligible", "good", "grant", "granted", "hire")
    + ("hired", "invited", "offer", "pass", "passed", "promoted", "qualified", "repaid", "select", "selected")
    + ("shortlisted", "success", "successful", "true", "yes")
)
_BAD = frozenset(
    ("bad", "decline", "declined", "default", "defaulted", "denied", "deny", "dismissed", "fail", "failed", "false")
    + ("ineligible", "no", "refuse", "refused", "reject", "rejected", "unsuccessful")
)
_HARM = re.compile(
    "|".join(
        (
            r"death|\bdead\b|\bdie[ds]?\b|deceas|\bmortality|\bfatal|\bkill|suicid|\bill(ness)?\b|\bsick|diseas|disorder",
            r"cancer|tumou?r|\bstroke|infarct|diabet|infect|sepsis|covid|injur|accident|\bcrash|complicat|relaps|recurr",
            r"readmi|rehosp|default|delinq|arrears|overdue|bankrupt|insolv|foreclos|fraud|\bscam|\bspam|recid|arrest",
            r"convict|\bcrime|churn|attrition|drop ?out|\bfail|\bfault|\bdefect|\brisk|\bloss(es)?\b|abuse|overdose",
            r"\bsmok|hospitali[sz]|\bevent\b|\btote?\b|\btod(es|\b)|gestorben|verstorben|sterb|krank(?!en[hkv])|krebs",
            "infekt|ausfall|verzug|rückfall|rueckfall|wiederaufnahme|komplikation|betrug|kündig|kuendig|storno|unfall",
            r"schaden|verletz|abbruch|überschuld|décès|\bdeces|décéd|deced|\bmort(e|s|es|alité)?\b|malad|défaut|impay",
            r"faillite|rechute|récidiv|reincid|blessé|muert|falleci|defunci|enferm|\bmoros|impago|quiebra|recaída",
            r"recaida|abandono|\blesi|estafa|\bdecess|malatt|malat[oi]|frode|ricaduta|fallimento|incidente|guasto",
            r"óbito|\bobito|faleci|morreu|doen[çt]|inadimpl|acidente|evasão|calote|overled|\bdood|sterfte|\bziekt?e?\b",
            r"wanbetal|ongeval|terugval|achterstand|uitval|zgon|śmier|\bsmierc|\bzmar|\bchor[oya]|niewypłac|oszust",
            "wypadek|nawrót|zaległ|смерт|умер|леталь|болезн|болен|больн(?!иц)|дефолт|просроч|мошен|рецидив|банкрот",
            "отток|травм|死|亡|(?<!医|療)病(?!院)|癌|违约|違約|逾期|欺诈|欺詐|诈骗|流失|复发|再入院|事故|疾患|延滞|不履行|詐欺|解約|再発",
            r"사망|질병|연체|부도|사기|이탈|재발|사고|ölüm|öldü|\bhasta\b|temerrüt|dolandır|iflas|وفاة|مرض|احتيال",
        )
    ),
    re.IGNORECASE,
)
"""What names harm in a target or its values, by stems, in fifteen languages: such a class is not favourable."""
_NOT = re.compile(r"(?:not|no|non)[ _-]*(.+)|un(.+)")


@dataclass(frozen=True)
class Positive:
    """The favourable class, None if none is named; why, for a comment; `sure` if no person has to look at it."""

    value: str | None
    why: str
    sure: bool = True


def positive_of(
    column: str, values: Sequence[str], stated: str | None, ask: Callable[[str], str] | None = None
) -> Positive:
    """Which of the declared classes is the favourable one.

    As ``stated``; else the one of two with a telling name, unless the target or a class names harm; else as a person
    answers; else the one of two that is not harm, or the second, to be looked at. Of more than two it is none: every
    class is then shown, and the worst leads.

    Raises:
        ExperimentError: for a class that is not declared.
    """
    if stated is not None:
        return Positive(_declared(column, values, stated), "positive: as given")
    words = {value.strip().lower() for value in values}
    clear = len(values) == 2 and bool(words & _GOOD - {*TRUE}) and bool(words & _BAD - {*FALSE})
    harmless = _harmless(column, values) if len(values) == 2 and not clear else None
    if len(values) == 2 and harmless is None and (obvious := _obvious(*values)) is not None:
        return Positive(obvious, f"positive: {obvious} is the favourable one by its name; change it if it is not")
    if ask is not None:
        listed = ", ".join(values)
        question = f"column {column}: which of {listed} is the favourable class? Enter leaves it open"
        if answer := asked_again(ask, question, lambda stated: stated and _declared(column, values, stated)):
            return Positive(answer, "positive: given by its operator")
    if harmless is not None:
        named = "its name" if _HARM.search(_spaced(column)) else "a class"
        return Positive(
            harmless,
            f"positive: {named} seems to name harm, and no class is declared positive; {harmless} is taken",
            sure=False,
        )
    if len(values) == 2:
        return Positive(
            values[1], f"positive: no class is declared favourable; {values[1]}, the second, is taken", sure=False
        )
    return Positive(None, "positive = ... names the favourable class; without it the class that is worst off leads")


def _declared(column: str, values: Sequence[str], stated: str) -> str:
    if stated not in values:
        raise ExperimentError(
            f"the positive class of {column!r} is said to be {stated!r}; {nearest(stated, list(values))}its classes "
            f"are {', '.join(values)}"
        )
    return stated


def _spaced(name: str) -> str:
    """A name with its words apart: "isDead" and "is_dead" as "is dead"."""
    return re.sub(r"(?<=[a-zà-ÿ])(?=[A-ZÀ-Þ])|[_.\-]", " ", name)


def _harmless(column: str, values: Sequence[str]) -> str | None:
    """The one of two classes that is not harm, where the column or one of them names any; None if none does."""
    harmful = [_HARM.search(_spaced(value)) is not None for value in values]
    negated = [_NOT.fullmatch(value.strip().lower()) is not None for value in values]
    if any(negated) and any(harmful):  # "not ill" names harm too, and is none
        return values[negated.index(True)]
    if harmful[0] != harmful[1]:
        return values[harmful.index(False)]
    if _HARM.search(_spaced(column)) is None:
        return None
    return next((value for value in values if truth_of(value) is False), values[0])


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
