"""Several runs beside one another: settings that differ, results, and what they cost together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedsw._tools.text import at_delta, to_float, upward
from fedsw.experiment.load import unprotected
from fedsw.privacy.accounting.lifetime import total_epsilon
from fedsw.runs.group_names import UNNAMED
from fedsw.runs.report import facts
from fedsw.runs.report.document import Listed, PageSection, Strong, sections
from fedsw.runs.report.picture import picture
from fedsw.runs.report.plots import draw_runs
from fedsw.runs.view import RunView


def beside(named: Sequence[tuple[str, RunView]]) -> tuple[PageSection, ...]:
    """Runs side by side, under the names that they have on the page: what came out, and settings that differ."""
    names, views = zip(*named, strict=True)
    settings = [facts.settings(view.experiment) for view in views]
    rows = [
        (key, *(run.get(key, "default") for run in settings))
        for key in sorted({key for run in settings for key in run})
    ]
    differ = Listed.of("Settings that differ", ("setting", *names), (row for row in rows if len(set(row[1:])) > 1))
    called = views[0].names if len({(run.names.classes, run.names.positive) for run in views}) == 1 else UNNAMED
    measures = [facts.measures(replace(view, names=called)) for view in views]
    metrics = {key: name for run in measures for key, (name, _) in run.items()}
    columns = [
        (
            view.summary.get("status", "not finished"),
            upward(view.summary.get("epsilon"), 4),
            upward(view.summary.get("delta")),
            view.experiment.privacy.trust,
            facts.gain(view) or "–",
            *(said.get(key, ("", "–"))[1] for key in metrics),
        )
        for view, said in zip(views, measures, strict=True)
    ]
    heads = ("how it ended", "ε", "δ", "trust model", "beside a constant", *metrics.values())
    results = Listed.of("Results", ("", *names), zip(heads, *columns, strict=True))
    says = "; ".join(f"{name}: {facts.verdict(view)}" for name, view in named)
    figure = draw_runs(named)
    drawn = [] if figure is None else [picture(figure, name="beside", caption="Worth against ε.", says=says)]
    ended = [Strong(f"{name}: {facts.ended(view)}") for name, view in named if facts.ended(view)]
    return sections([("Side by side", [*ended, results, *drawn, differ or "Their settings are the same."])])


def together(views: Sequence[RunView]) -> str:
    """Say in a sentence what runs cost together a record that is in all of them, at the smallest of their deltas."""
    whose = "Together, for a record that is in all of them"
    bare = {reason for view in views if (reason := unprotected(view.experiment)) is not None}
    if bare:
        return f"{whose}: ε = ∞, for {'; '.join(sorted(bare))}."
    deltas = [to_float(view.summary.get("delta")) or to_float(view.plan.get("delta")) for view in views]
    known = [delta for delta in deltas if delta is not None]
    if not known:
        return ""
    costs = [view.spending.cost for view in views if view.spending is not None]
    epsilon = total_epsilon(costs, min(known))
    names = {view.experiment.data.account for view in views} - {None}
    more = "".join(
        f"; `fedsw account show {name}` has all that count in data set {name}" for name in sorted(map(str, names))
    )
    return (
        f"{whose}: {at_delta(epsilon, min(known))}, as if all had been planned ahead. Other runs "
        f"on the same records add to it{more}."
    )
