"""Figures inside a page, as SVG whose text stays text, with a sentence for who cannot see it; what is drawn there.

What the releases of a run mean for one person: an attacker's advantage, rates, and beliefs before and after.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from fedsw._tools.text import harmless, to_float, upward
from fedsw.privacy.accounting.meaning import Meaning
from fedsw.runs.accounts import spent_by
from fedsw.runs.record import RunRecord
from fedsw.runs.report.facts import Facts
from fedsw.runs.report.figures import LINES, colour, compact, house_style, marker, new_panels
from fedsw.runs.report.progress import metric_name, ordered_metrics, scores
from fedsw.runs.run_files import PLAN, found_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MOST_BYTES = 250_000
"""Most bytes of one figure as SVG; a larger one, of thousands of points, becomes a PNG."""
_POINTS = 96  # of CSS, in an inch
_IDS = re.compile(r'(\bid="|url\(#|href="#)')


class Picture(NamedTuple):
    """A figure in a page: its caption, the element, and how wide it must be to be read, in CSS pixels."""

    caption: str
    element: Markup
    width: int


def picture(figure: Figure, *, name: str, caption: str, says: str) -> Picture:
    """A figure as an element of a page, of a name of its own; `says` is for who cannot see it."""
    import matplotlib

    written = StringIO()
    with house_style(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(written, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    drawn = written.getvalue()
    width = round(_POINTS * figure.get_figwidth())
    if len(drawn) > _MOST_BYTES:
        return Picture(caption, _as_png(figure, says, width), width)
    label = Markup('role="img" aria-label="{}"').format(harmless(says))
    body = _IDS.sub(rf"\g<1>{name}-", drawn[drawn.index("<svg") :])
    body = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>',
        rf'<svg {label} \1 xmlns:xlink="http://www.w3.org/1999/xlink" width="{width}">',
        body,
        count=1,
    )
    return Picture(caption, Markup(re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)), width)


def _as_png(figure: Figure, says: str, width: int) -> Markup:
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    data = base64.b64encode(compact(drawn.getvalue())).decode("ascii")
    return Markup('<img alt="{}" width="{}" src="data:image/png;base64,{}">').format(harmless(says), width, data)


_HEADLINES = ("accuracy", "root_mean_squared_error", "mean_squared_error", "sw2")
"""Metrics that a page begins with, the first that a run has."""


def headline(summary: Mapping[str, Any]) -> str | None:
    """The metric that a run is looked at by; None where nothing was measured."""
    known = ordered_metrics(summary.get("held_out") or {})
    return next((name for name in _HEADLINES if name in known), known[0] if known else None)


@house_style()
def draw_worth(record: RunRecord) -> Figure | None:
    """The model's first metric and each group's with intervals, beside a constant; None where nothing was measured."""
    summary, name = record.summary, headline(record.summary)
    if name is None:
        return None
    groups, around = summary.get("held_out_by_group") or {}, summary.get("held_out_by_group_intervals") or {}
    rows = [("the model", *scores(summary)[name])]
    rows += [(group, metrics.get(name), around.get(group, {}).get(name)) for group, metrics in groups.items()]
    rows += [("a constant", *scores(summary, "constant").get(name, (None, None)))]
    shown = [(label, value, interval) for label, known, interval in rows if (value := to_float(known)) is not None]
    figure, (axes,) = new_panels(1, 1, size=(4.6, 0.7 + 0.32 * len(shown)))
    for position, (label, value, interval) in enumerate(shown):
        look: dict[str, Any] = {"color": colour(1 if label == "a constant" else 0)}
        if interval is not None:
            axes.plot(
                [float(end) for end in interval],
                [position, position],
                linewidth=3,
                alpha=0.6,
                solid_capstyle="butt",
                **look,
            )
        axes.plot(
            [value], [position], marker=marker(1 if label == "a constant" else 0), markersize=7, linestyle="", **look
        )
    axes.set_yticks(range(len(shown)), [label for label, _, _ in shown])
    axes.set(xlabel=metric_name(name, record.names), ylim=(len(shown) - 0.5, -0.5))
    return figure


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


@house_style()
def draw_runs(named: Sequence[tuple[str, RunRecord]]) -> Figure | None:
    """The first metric of several runs against epsilon, with intervals and constants; None where it is not one."""
    metrics = {headline(record.summary) for _, record in named if record.summary} - {None}
    if len(metrics) != 1:
        return None
    (name,) = metrics
    figure, (axes,) = new_panels(1, 1, size=(5.6, 3.2))
    constants: set[float | None] = set()
    epsilons: set[float] = set()
    for position, (label, record) in enumerate(named):
        summary = record.summary
        known, interval = scores(summary).get(str(name), (None, None))
        value, epsilon = to_float(known), to_float(summary.get("epsilon"))
        if value is None or epsilon is None:
            continue
        constants.add(to_float((summary.get("constant") or {}).get(name)))
        ends = (value, value) if interval is None else tuple(map(float, interval))
        look: dict[str, Any] = {"color": colour(position), "marker": marker(position), "label": label}
        if np.isfinite(epsilon):
            epsilons.add(epsilon)
            above, below = max(0.0, ends[1] - value), max(0.0, value - ends[0])
            axes.errorbar([epsilon], [value], yerr=[[below], [above]], linestyle="", capsize=3, markersize=7, **look)
        else:
            axes.axhline(value, color=colour(position), linestyle=LINES[1], label=f"{label}, ε = ∞")
    for constant in filter(None, constants):
        axes.axhline(constant, color="0.35", linestyle=":", label="a constant")
    axes.set(xscale="log", xlabel="ε", ylabel=metric_name(str(name)))
    axes.set_xticks(sorted(epsilons), [upward(epsilon) for epsilon in sorted(epsilons)])
    axes.set_xticks([], minor=True)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
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
    rates: Facts
    priors: Facts
    says: tuple[str, ...]
    figure: Picture


def person_of(record: RunRecord, key: str) -> Person | None:
    """Meaning of a run's releases for a person of the worst group; None without noise, and before the first release."""
    if not record.experiment.privacy.noisy:
        return None
    try:
        meanings = spent_by(record.directory)
    except FileNotFoundError:
        return None
    group, meaning = max(meanings.items(), key=lambda item: item[1].advantage)
    delta = to_float(record.summary.get("delta")) or float(found_json(record.directory / PLAN).get("delta", 1e-6))
    unit = record.experiment.data.unit
    rows = [_belief(meaning, prior, delta) for prior in PRIORS]
    return Person(
        whose="records is a person's" if unit is None else f"sets of records is one {unit!r}'s at a client",
        group=group if len(meanings) > 1 else "",
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
