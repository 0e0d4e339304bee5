"""Several runs beside one another: settings that differ, results, and what they cost together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedsw._tools.text import json_text, measured, to_float, upward
from fedsw.experiment.load import unprotected
from fedsw.privacy.accounting.lifetime import total_epsilon
from fedsw.runs.group_names import UNNAMED
from fedsw.runs.report import facts
from fedsw.runs.report.content import verdict
from fedsw.runs.report.facts import FactTable
from fedsw.runs.report.metric_names import metric_name, ordered_metrics, scores
from fedsw.runs.report.picture import picture
from fedsw.runs.report.plots import draw_runs
from fedsw.runs.view import RunView


def beside(named: Sequence[tuple[str, RunView]]) -> dict[str, Any]:
    """Runs side by side, under the names that they have on the page: settings that differ, and what came out."""
    names, views = zip(*named, strict=True)
    flat = [dict(_flat(facts.settings(view.experiment))) for view in views]
    settings = [
        (key, *(run.get(key, "default") for run in flat)) for key in sorted({key for run in flat for key in run})
    ]
    differ = [row for row in settings if len(set(row[1:])) > 1]
    metrics = dict.fromkeys(
        name for run in views for name in ordered_metrics(run.summary.get("held_out") or {}, run.names)
    )
    called = views[0].names if len({(run.names.classes, run.names.positive) for run in views}) == 1 else UNNAMED
    columns = []
    for view in views:
        summary, measures = view.summary, scores(view.summary)
        column: list[tuple[str, object]] = [
            ("how it ended", summary.get("status", "not finished")),
            ("ε", upward(summary.get("epsilon"), 4)),
            ("δ", upward(summary.get("delta"))),
            ("trust model", view.experiment.privacy.trust),
            ("beside a constant", facts.gain(summary) or "–"),
        ]
        column += [(metric_name(run, called), measured(*measures.get(run, (None, None)))) for run in metrics]
        columns.append(column)
    rows = [(cells[0][0], *(cell for _, cell in cells)) for cells in zip(*columns, strict=True)]
    figure = draw_runs(named)
    says = "; ".join(f"{name}: {verdict(view)}" for name, view in named)
    return {
        "settings": FactTable.of(("setting", *names), differ),
        "results": FactTable.of(("", *names), rows),
        "figure": None if figure is None else picture(figure, name="beside", caption="Worth against ε.", says=says),
    }


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
        f"{whose}: ε = {upward(epsilon, 4)} at δ = {upward(min(known))}, as if all had been planned ahead. Other runs "
        f"on the same records add to it{more}."
    )


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", json_text(value, indent=None)
