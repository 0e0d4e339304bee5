"""What the releases of a run mean for one person: an attacker's advantage, rates, and beliefs before and after."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsw.report.facts import Facts
from fedsw.report.page.pictures import Picture, draw_rates, picture
from fedsw.runs.accounts import spent_by
from fedsw.runs.files import PLAN, found_json
from fedsw.runs.record import RunRecord
from fedsw.text import to_float

if TYPE_CHECKING:
    from fedsw.accounting.meaning import Meaning

PRIORS = (0.01, 0.05, *(place / 10 for place in range(1, 10)), 0.95, 0.99)
_RATES = (0.001, 0.01, 0.05, 0.1)
_OFTEN = 0.01
"""How seldom a belief may rise further than is said."""
_LITTLE = 1e-5
"""Of a tenth of a percent: what a profile on points may be too large by."""


@dataclass(frozen=True)
class Person:
    """What the releases mean for one person.

    Attributes:
        whose: what may be one of two.
        group: of the person for whom the bounds are largest.
        guess: how often the best attacker is right, who would be right half of the time by guessing.
        rates: true positive rates.
        priors: one row for each belief before, with a sentence in `says`.
    """

    whose: str
    group: str
    advantage: str
    guess: str
    rates: Facts
    priors: Facts
    says: tuple[str, ...]
    figure: Picture


def person_of(record: RunRecord, key: str) -> Person | None:
    """What a run's releases mean for a person of the worst group; None without noise, and before the first release.

    Args:
        key: of the run on its page.

    Raises:
        LedgerDamaged, LedgerReplaced: if its ledger is not what it was.
    """
    if not record.experiment.privacy.noisy:
        return None
    try:
        found = spent_by(record.directory)
    except FileNotFoundError:
        return None
    group, meaning = max(found.items(), key=lambda each: each[1].advantage)
    delta = to_float(record.summary.get("delta")) or float(found_json(record.directory / PLAN).get("delta", 1e-6))
    unit = record.experiment.data.unit
    rows = [_belief(meaning, prior, delta) for prior in PRIORS]
    return Person(
        whose="records is a person's" if unit is None else f"sets of records is one {unit!r}'s at a client",
        group=group if len(found) > 1 else "",
        advantage=percent(meaning.advantage),
        guess=percent(meaning.success(0.5)).removesuffix(" %"),
        rates=Facts.of(
            ("wrongly accuses", "finds at most"),
            [(f"{100 * rate:g} %", percent(meaning.true_positive_rate(rate))) for rate in _RATES],
        ),
        priors=Facts.of(
            (
                "believed before",
                "after, at most",
                "the same, but with probability δ",
                "best guess right before",
                "after",
            ),
            [row for row, _ in rows],
        ),
        says=tuple(sentence for _, sentence in rows),
        figure=picture(
            draw_rates(meaning),
            name=f"{key}-rates",
            caption="What a test for one record reaches at most.",
            says=f"The best test finds at most {percent(meaning.true_positive_rate(0.01))} at 1 % false alarms, and "
            f"{percent(meaning.true_positive_rate(0.1))} at 10 %; guessing finds as many as it falsely accuses.",
        ),
    )


def _belief(meaning: Meaning, prior: float, delta: float) -> tuple[tuple[str, ...], str]:
    often, nearly_always = percent(meaning.posterior(prior, _OFTEN)), percent(meaning.posterior(prior, delta))
    guess, right = percent(max(prior, 1 - prior)), percent(meaning.success(prior))
    before = f"{100 * prior:g} %"
    sentence = (
        f"Who was {before} sure beforehand is at most {often} sure afterwards, in 99 of 100 cases (at most "
        f"{nearly_always}, but with probability δ). Their best guess is right in {guess} of cases before, and in at "
        f"most {right} after."
    )
    return (before, often, nearly_always, guess, right), sentence


def percent(share: float) -> str:
    """A share that is a bound from above, not below it but for `_LITTLE`: 55.1 %."""
    return f"{min(100.0, math.ceil(1000 * share - _LITTLE) / 10):g} %"
