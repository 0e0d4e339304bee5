"""The content of a run's page: every part as texts, tables and figures, releasable by the run's own guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedsw._tools.text import json_text, measured, number, upward
from fedsw.runs.accounts import read_ledger
from fedsw.runs.page.pictures import Picture, draw_worth, headline, person_of, picture
from fedsw.runs.record import RunRecord, command_for
from fedsw.runs.report import facts
from fedsw.runs.report.facts import Facts
from fedsw.runs.report.plots import PICTURES, draw_metrics, draw_privacy, pictures_of
from fedsw.runs.report.progress import metric_name, ordered_metrics, scores
from fedsw.runs.report.screens import rounds_of, target_epsilon
from fedsw.runs.report.shapes import draw_shapes, shapes_in_words
from fedsw.runs.run_files import PLAN, found_json, round_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_OPERATOR = ("seconds", "begun", "hardware", "account", "bytes_up", "bytes_down", "engine")
"""Parts of a summary that are for the operator alone."""
_MEASURED = ("held_out", "constant", "gain", "best_threshold", "warnings")
"""Beginnings of the names of those parts of a summary that are measured on held-out records."""


def shareable(record: RunRecord) -> RunRecord:
    """The same without what its guarantee does not cover, and without times, traffic and machine, for its operator."""
    private = record.experiment.data.shows_private_rows
    history = [{name: value for name, value in row.items() if name != "training_loss"} for row in record.history]
    summary = {name: value for name, value in record.summary.items() if name not in _OPERATOR}
    if private:
        history = [{name: value for name, value in row.items() if name != "held_out"} for row in history]
        summary = {name: value for name, value in summary.items() if not name.startswith(_MEASURED)}
    return replace(record, history=history, summary=summary, outputs=None if private else record.outputs)


def article(whole: RunRecord, *, name: str, key: str, operator: bool) -> dict[str, Any]:
    """Everything that a page says of a run, by the names in its template; some of it for its operator alone."""
    record = whole if operator else shareable(whole)
    summary = record.summary

    def drawn(figure: Figure | None, what: str, caption: str, says: str) -> tuple[Picture, ...]:
        return () if figure is None else (picture(figure, name=f"{key}-{what}", caption=caption, says=says),)

    person = person_of(record, key)
    outputs = tuple(
        drawing
        for what in pictures_of(record, ())
        for drawing in drawn(
            PICTURES.get(what).draw(record),
            what,
            PICTURES.get(what).caption,
            f"{PICTURES.get(what).caption} Metrics are in the tables.",
        )
    )
    if (shapes := draw_shapes(record)) is not None:
        outputs += drawn(shapes, "shapes", "What each column adds to an answer.", shapes_in_words(record))
    worth = drawn(draw_worth(record), "worth", "Worth, with intervals of 95 %.", _worth_in_words(record))
    gone = f"After round {record.last.get('round', 0)}, ε = {upward(record.last.get('epsilon'), 4)} was spent."
    compared = summary.get("constant") or summary.get("held_out_by_group")
    first = (worth or outputs) if compared else (outputs or worth)
    return {
        "name": name,
        "experiment": record.experiment,
        "summary": summary,
        "ended": _ended(record),
        "verdict": verdict(record),
        "what": facts.description(record) if summary else "",
        "target": target_epsilon(record.experiment),
        "first": next(iter(first), None),
        "promise": facts.promise(summary) if summary.get("guarantee") else None,
        "person": person,
        "plan": found_json(record.directory / PLAN),
        "spent": record.spent,
        "rounds": rounds_of(record),
        "over_rounds": (
            *drawn(draw_privacy(record), "privacy", "Budget over the rounds.", gone),
            *drawn(draw_metrics(record), "metrics", "Held-out metrics over the rounds.", _last_in_words(record)),
        ),
        "outputs": outputs,
        "worth": facts.worth(summary, record.names),
        "measured_on": facts.measured_on(summary) if summary.get("held_out") else "",
        "by_group": facts.by_group(summary, record.names),
        "sizes": facts.sizes(record),
        "columns": None if record.experiment.data.columns is None else facts.declared(record.experiment.data.columns),
        "settings": json_text(facts.settings(record.experiment)),
        "ledger": _last_rows(record),
        "operator": _operator(record) if operator else None,
    }


_CLAIMS = {"better": "The model is better than a constant", "worse": "The model is worse than a constant"}


def verdict(record: RunRecord) -> str:
    """Say in words what the run's model is worth, beside a constant."""
    summary, names = record.summary, record.names
    name = headline(summary)
    if name is not None:
        score, constant = measured(*scores(summary)[name]), scores(summary, "constant")
        claim = (summary.get("gain") or {}).get("claim")
        if claim is None or name not in constant:
            return f"On held-out records: {metric_name(name, names)} {score}."
        answers = summary.get("constant_answers")
        scored = f"{metric_name(name, names)} {score}, where {answers} scores {measured(*constant[name])}"
        return f"{_CLAIMS.get(claim, 'The model cannot be told from a constant')}: {scored}."
    last = next((row for row in reversed(record.history) if headline(row)), None)
    if last is None:
        return "What the model is worth was not measured, or may not be shown."
    name = headline(last)
    called = metric_name(str(name), names)
    return f"After {last['round']} rounds, on held-out records: {called} {number(last['held_out'][name])}."


def _ended(record: RunRecord) -> str:
    """How the run ended where it did not complete, before everything else; empty where it did."""
    if record.completed:
        return ""
    status = str(record.summary.get("status") or "it has not ended, or its process ended without a word")
    state = "failed" if status.startswith("failed") else "stopped"
    return (
        f"This run {state} after {rounds_of(record)}: {status.removeprefix('failed: ')}. "
        f"ε = {upward(record.spent, 4)} was spent, and what was released keeps its guarantee."
    )


def _worth_in_words(record: RunRecord) -> str:
    table = facts.worth(record.summary, record.names)
    rows = [f"{name}: the model {model}, a constant {constant}" for name, model, constant in table.rows[:2]]
    return "; ".join(rows) + ". All numbers are in the tables." if rows else ""


def _last_in_words(record: RunRecord) -> str:
    last: Mapping[str, Any] = next((row["held_out"] for row in reversed(record.history) if row.get("held_out")), {})
    return "At the last measurement: " + ", ".join(
        f"{metric_name(name, record.names)} {number(last[name])}" for name in ordered_metrics(last)
    )


def _last_rows(record: RunRecord) -> Facts:
    """Its last row, whose digest commits to all rows before it."""
    try:
        account = read_ledger(record.directory)
    except FileNotFoundError:
        return Facts.of(("", ""), ())
    heads = {"ledger": account["head"]} if "sequence" in account["head"] else account["head"]
    return Facts.of(
        ("ledger", "releases", "digest of the last row"),
        [(name, head["sequence"], head["digest"]) for name, head in heads.items()],
    )


def _operator(record: RunRecord) -> Facts:
    """Times, traffic and machine, which are not for publication."""
    times, summary = sorted(round_seconds(record.directory)), record.summary
    rows: list[tuple[str, object]] = [("folder", record.directory), ("goes on with", command_for(record.directory))]
    if times:
        pace = f"{number(times[len(times) // 2])} (median), {number(times[0])} to {number(times[-1])}"
        rows += [("seconds a round", pace), ("clients in the last round", record.last.get("clients", "–"))]
    rows += [(name.replace("_", " "), _plain(summary[name])) for name in _OPERATOR if summary.get(name) is not None]
    return Facts.of(("", ""), rows)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    return number(value, 4) if isinstance(value, float) else str(value)
