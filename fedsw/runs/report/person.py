"""Meaning of a run's releases for one person: an attacker's advantage, rates, and beliefs before and after."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedsw._tools.text import to_float
from fedsw.privacy.accounting.meaning import Meaning
from fedsw.runs.report.document import FactTable, Listed, Part
from fedsw.runs.report.figures import colour, house_style, new_panels, picture
from fedsw.runs.view import RunView

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@house_style()
def draw_rates(meaning: Meaning) -> Figure:
    """An upper limit of the ROC curve of tests for one record's value, beside guessing."""
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
"""Probability with which a belief may exceed the shown limit."""
_LITTLE = 1e-5
"""Tenths of a percent by which a privacy profile on points may be too large at most: rounding up ignores them."""


def meaning_of(view: RunView) -> Meaning | None:
    """Meaning of a run's releases for a person, in whichever group; None without noise, and before the first."""
    if view.spending is None or view.experiment.privacy.guarantee.unprotected or not view.spending.account["entries"]:
        return None
    return view.spending.meaning()


def in_a_sentence(view: RunView, meaning: Meaning | None) -> str:
    """How often the best attacker guesses right."""
    if view.experiment.privacy.guarantee.unprotected:
        return "No record is protected: no noise was added. Readers of the model may learn about single records."
    if meaning is None:
        return "No release is on record yet, and nothing was spent."
    return (
        "An adversary with everything that this run released, and with all other records, guesses right which of two "
        f"{_subject(view)} in at most {percent(meaning.success(0.5)).removesuffix(' %')} of 100 cases; by chance it "
        "would be 50."
    )


def for_a_person(view: RunView, key: str, meaning: Meaning) -> list[Part]:
    """An attacker's advantage, beliefs before and after, with a sentence for each, and rates of a test."""
    delta = to_float(view.summary.get("delta")) or float(view.plan.get("delta", 1e-6))
    rows, says = [], []
    for prior in PRIORS:
        often, nearly_always = percent(meaning.posterior(prior, _OFTEN)), percent(meaning.posterior(prior, delta))
        guess, right, before = percent(max(prior, 1 - prior)), percent(meaning.success(prior)), f"{100 * prior:g} %"
        rows.append((before, often, nearly_always, guess, right))
        says.append(
            f"An adversary who was {before} sure beforehand is at most {often} sure afterwards, in 99 of 100 cases (at "
            f"most {nearly_always}, except with probability δ). The best guess is right in {guess} of cases before, "
            f"and in at most {right} after."
        )
    rates = [(f"{100 * rate:g} %", percent(meaning.true_positive_rate(rate))) for rate in _RATES]
    return [
        "An adversary sees everything that was released, knows all other records, and asks which of two "
        f"{_subject(view)}, in whichever group and at whichever client. For every test, the true positive rate is at "
        f"most {percent(meaning.advantage)} above the false positive rate. Bounds are by the privacy loss "
        "of all releases together.",
        Listed(
            "Belief before, and at most after",
            FactTable.of(
                (
                    "believed before",
                    "after, at most",
                    "the same, but with probability δ",
                    "best guess right before",
                    "after",
                ),
                rows,
            ),
            "rows",
            tuple(says),
        ),
        Listed.of("A test for one record", ("wrongly accuses", "finds at most"), rates),
        picture(
            draw_rates(meaning),
            name=f"{key}-rates",
            caption="What a test for one record reaches at most.",
            says=f"The best test finds at most {percent(meaning.true_positive_rate(0.01))} at 1 % false alarms, and "
            f"{percent(meaning.true_positive_rate(0.1))} at 10 %; guessing finds as many as it falsely accuses.",
        ),
    ]


def _subject(view: RunView) -> str:
    unit = view.experiment.data.unit
    return "records is a person's" if unit is None else f"sets of records is one {unit!r}'s at a client"


def percent(share: float) -> str:
    """An upper bound as percent, rounded up, except for `_LITTLE`: 55.1 %."""
    return f"{min(100.0, math.ceil(1000 * share - _LITTLE) / 10):g} %"
