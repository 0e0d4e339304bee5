"""The content of a run's page: every part as texts, tables and figures, releasable by the run's own guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedsw._tools.text import json_text, measured, number, upward
from fedsw.runs.report import facts
from fedsw.runs.report.facts import FactTable, rounds_of, target_epsilon
from fedsw.runs.report.metric_names import headline, metric_name, ordered_metrics, scores
from fedsw.runs.report.person import person_of
from fedsw.runs.report.picture import Picture, picture
from fedsw.runs.report.plots import PICTURES, draw_metrics, draw_privacy, draw_worth, pictures_of
from fedsw.runs.report.shapes import draw_shapes, shapes_in_words
from fedsw.runs.view import OPERATORS, RunView

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def article(whole: RunView, *, name: str, key: str, operator: bool) -> dict[str, Any]:
    """Everything that a page says of a run, by the names in its template; some of it for its operator alone."""
    view = whole if operator else whole.shareable()
    summary = view.summary

    def drawn(figure: Figure | None, what: str, caption: str, says: str) -> tuple[Picture, ...]:
        return () if figure is None else (picture(figure, name=f"{key}-{what}", caption=caption, says=says),)

    person = person_of(view, key)
    outputs = tuple(
        drawing
        for what in pictures_of(view, ())
        for drawing in drawn(
            PICTURES.get(what).draw(view),
            what,
            PICTURES.get(what).caption,
            f"{PICTURES.get(what).caption} Metrics are in the tables.",
        )
    )
    if (shapes := draw_shapes(view.shapes, view.experiment.name)) is not None:
        outputs += drawn(shapes, "shapes", "What each column adds to an answer.", shapes_in_words(view.shapes))
    worth = drawn(draw_worth(view), "worth", "Worth, with intervals of 95 %.", _worth_in_words(view))
    gone = f"After round {view.last.get('round', 0)}, ε = {upward(view.last.get('epsilon'), 4)} was spent."
    compared = summary.get("constant") or summary.get("held_out_by_group")
    first = (worth or outputs) if compared else (outputs or worth)
    return {
        "name": name,
        "experiment": view.experiment,
        "summary": summary,
        "ended": _ended(view),
        "verdict": verdict(view),
        "what": facts.description(view) if summary else "",
        "target": target_epsilon(view.experiment),
        "first": next(iter(first), None),
        "promise": facts.promise(summary) if summary.get("guarantee") else None,
        "person": person,
        "plan": view.plan,
        "spent": view.spent,
        "rounds": rounds_of(view),
        "over_rounds": (
            *drawn(draw_privacy(view), "privacy", "Budget over the rounds.", gone),
            *drawn(draw_metrics(view), "metrics", "Held-out metrics over the rounds.", _last_in_words(view)),
        ),
        "outputs": outputs,
        "worth": facts.worth(summary, view.names),
        "measured_on": facts.measured_on(summary) if summary.get("held_out") else "",
        "by_group": facts.by_group(summary, view.names),
        "coefficients": facts.coefficients(summary),
        "of_coefficients": facts.coefficient_sentences(summary),
        "probabilities": facts.probabilities(summary),
        "thresholds": facts.thresholds(summary, view.names),
        "of_thresholds": facts.threshold_sentences(summary, view.names),
        "sizes": facts.sizes(view),
        "columns": None if view.experiment.data.columns is None else facts.declared(view.experiment.data.columns),
        "settings": json_text(facts.settings(view.experiment)),
        "ledger": _last_rows(view),
        "operator": _operator(view) if operator else None,
    }


_CLAIMS = {"better": "The model is better than a constant", "worse": "The model is worse than a constant"}


def verdict(view: RunView) -> str:
    """Say in words what the run's model is worth, beside a constant."""
    summary, names = view.summary, view.names
    name = headline(summary)
    if name is not None:
        score, constant = measured(*scores(summary)[name]), scores(summary, "constant")
        claim = (summary.get("gain") or {}).get("claim")
        if claim is None or name not in constant:
            return f"On held-out records: {metric_name(name, names)} {score}."
        answers = summary.get("constant_answers")
        scored = f"{metric_name(name, names)} {score}, where {answers} scores {measured(*constant[name])}"
        return f"{_CLAIMS.get(claim, 'The model cannot be told from a constant')}: {scored}."
    last = next((row for row in reversed(view.history) if headline(row)), None)
    if last is None:
        return "What the model is worth was not measured, or may not be shown."
    name = headline(last)
    called = metric_name(str(name), names)
    return f"After {last['round']} rounds, on held-out records: {called} {number(last['held_out'][name])}."


def _ended(view: RunView) -> str:
    """How the run ended where it did not complete, before everything else; empty where it did."""
    if view.completed:
        return ""
    status = str(view.summary.get("status") or "it has not ended, or its process ended without a word")
    state = "failed" if status.startswith("failed") else "stopped"
    return (
        f"This run {state} after {rounds_of(view)}: {status.removeprefix('failed: ')}. "
        f"ε = {upward(view.spent, 4)} was spent, and what was released keeps its guarantee."
    )


def _worth_in_words(view: RunView) -> str:
    table = facts.worth(view.summary, view.names)
    rows = [f"{name}: the model {model}, a constant {constant}" for name, model, constant in table.rows[:2]]
    return "; ".join(rows) + ". All numbers are in the tables." if rows else ""


def _last_in_words(view: RunView) -> str:
    last: Mapping[str, Any] = next((row["held_out"] for row in reversed(view.history) if row.get("held_out")), {})
    return "At the last measurement: " + ", ".join(
        f"{metric_name(name, view.names)} {number(last[name])}" for name in ordered_metrics(last, view.names)
    )


def _last_rows(view: RunView) -> FactTable:
    """Its last row, whose digest commits to all rows before it."""
    if view.spending is None:
        return FactTable.of(("", ""), ())
    account = view.spending.account
    heads = {"ledger": account["head"]} if "sequence" in account["head"] else account["head"]
    return FactTable.of(
        ("ledger", "releases", "digest of the last row"),
        [(name, head["sequence"], head["digest"]) for name, head in heads.items()],
    )


def _operator(view: RunView) -> FactTable:
    """Times, traffic and machine, which are not for publication."""
    times, summary = sorted(view.seconds), view.summary
    rows: list[tuple[str, object]] = [("folder", view.directory), ("goes on with", view.go_on)]
    if times:
        pace = f"{number(times[len(times) // 2])} (median), {number(times[0])} to {number(times[-1])}"
        rows += [("seconds a round", pace), ("clients in the last round", view.last.get("clients", "–"))]
    rows += [(name.replace("_", " "), _plain(summary[name])) for name in OPERATORS if summary.get(name) is not None]
    return FactTable.of(("", ""), rows)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    return number(value, 4) if isinstance(value, float) else str(value)
