"""Meaning of a run's releases for one person: an attacker's advantage, rates, and beliefs before and after."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsw._tools.text import to_float
from fedsw.privacy.accounting.meaning import Meaning
from fedsw.runs.report.facts import FactTable
from fedsw.runs.report.figures import colour, house_style, new_panels
from fedsw.runs.report.picture import Picture, picture
from fedsw.runs.view import RunView

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@house_style()
def draw_rates(meaning: Meaning) -> Figure:
    """The most that a test for one record's value reaches, against how often it errs; guessing beside it."""
    figure, (axes,) = new_panels(1, 1, size=(3.8, 3.4))
    rates = np.linspace(0.0, 1.0, 101)
    axes.plot(
        rates, [meaning.true_positive_rate(float(rate)) for rate in rates], color=colour(0), label="the best attacker"
    )
    axes.plot([0, 1], [0, 1], color="0.3", linestyle="--", linewidth=1, label="guessing")
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend(loc="lower right")
    return figure


PRIORS = (0.01, 0.05, *(tenth / 10 for tenth in range(1, 10)), 0.95, 0.99)
_RATES = (0.001, 0.01, 0.05, 0.1)
_OFTEN = 0.01
"""How seldom a belief may rise further than is said."""
_LITTLE = 1e-5
"""A tenth of a percent: the most that a profile on points may be too large by."""


@dataclass(frozen=True)
class Person:
    """Meaning of the releases for one person, of the group with the largest bounds.

    The ``guess`` is how often the best attacker is right, half of the time without them; ``priors`` have one row for
    each belief before, with a sentence in `says`.
    """

    whose: str
    group: str
    advantage: str
    guess: str
    rates: FactTable
    priors: FactTable
    says: tuple[str, ...]
    figure: Picture


def person_of(view: RunView, key: str) -> Person | None:
    """Meaning of a run's releases for a person of the worst group; None without noise, and before the first release."""
    if view.spending is None or view.experiment.privacy.guarantee.unprotected or not view.spending.steps:
        return None
    meanings = view.spending.meanings()
    group, meaning = max(meanings.items(), key=lambda item: item[1].advantage)
    delta = to_float(view.summary.get("delta")) or float(view.plan.get("delta", 1e-6))
    unit = view.experiment.data.unit
    rows = [_belief(meaning, prior, delta) for prior in PRIORS]
    return Person(
        whose="records is a person's" if unit is None else f"sets of records is one {unit!r}'s at a client",
        group=group if len(meanings) > 1 else "",
        advantage=percent(meaning.advantage),
        guess=percent(meaning.success(0.5)).removesuffix(" %"),
        rates=FactTable.of(
            ("wrongly accuses", "finds at most"),
            [(f"{100 * rate:g} %", percent(meaning.true_positive_rate(rate))) for rate in _RATES],
        ),
        priors=FactTable.of(
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
