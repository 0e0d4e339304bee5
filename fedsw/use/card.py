"""The model card: one page of Markdown, what a run's model is, for whom it is private, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsw import files
from fedsw.columns.declaration import Columns
from fedsw.columns.kinds import Feature, Number
from fedsw.experiment import Experiment
from fedsw.markdown import render, table
from fedsw.report.progress import metric_name, ordered_metrics
from fedsw.runs.files import CARD, PLAN, found_json
from fedsw.runs.record import RunRecord, read_run
from fedsw.text import gained, harmless, json_text, measured, number, upward

_PAGE = """\
# {{ name }}{% if title %}: {{ title }}{% endif %}

{{ what }}

{% if warnings %}
## Read this first
{% for warning in warnings %}
- **{{ warning }}**
{%- endfor %}
{% endif %}
## Guarantee

{{ guarantee.statement }}

{{ promise }}

## Data

{{ sizes }}

{{ measured_on }}
{% if metrics %}
## What it is worth

{{ metrics }}
{% if constant %}
The constant is the best answer that looks at no input: {{ constant }}. {{ gain }}
{% endif %}
{%- if by_group %}
{{ by_group }}
{% endif %}
{%- endif %}
{%- if columns %}
## Columns

A table to predict from has these columns, public as declared; a cell that does not fit is refused.

{{ columns }}
{% endif %}
## Use

    fedsw predict {{ directory }} table.csv -o predictions.csv
    fedsw export {{ directory }} -o model.pt

In Python `fedsw.load("{{ directory }}").predict(frame)`. The model is a function of what was released: using it spends
nothing more of the guarantee. A prediction is as secret as the record it is of.

## Settings

What differs from the defaults.

```json
{{ settings }}
```

## Versions

{{ versions }}
"""


def write_card(directory: Path, path: Path | None = None) -> Path:
    """Write the card of a run, by default into its folder; returns where.

    Raises:
        ValueError: if it is no run, or has not ended. LedgerReplaced: if its ledger is older than its summary.
    """
    from fedsw.runs.recovery import require_remembered

    record = read_run(directory)
    require_remembered(directory, missing_ok=True)
    if not record.summary:
        raise ValueError(
            f"{directory} has not ended, and there is nothing yet that a card could say; `fedsw show {directory} "
            "progress` shows how far it is"
        )
    place = directory / CARD if path is None else path
    files.replace(place, harmless(card(record)).encode())
    return place


def card(record: RunRecord) -> str:
    """The card of a run that has ended, in Markdown."""
    summary, experiment = record.summary, record.experiment
    columns = experiment.data.columns
    return render(
        _PAGE,
        name=experiment.name,
        title=experiment.title,
        what=_what(record),
        warnings=summary.get("warnings", ()),
        guarantee=summary["guarantee"],
        promise=_promise(summary),
        sizes=_sizes(record),
        measured_on=_measured(summary),
        metrics=_metrics(summary),
        constant=summary.get("constant_answers"),
        gain=_gain(summary),
        by_group=_by_group(summary.get("held_out_by_group") or {}, summary.get("held_out_by_group_intervals") or {}),
        columns=None if columns is None else _columns(columns),
        directory=record.directory,
        settings=json_text(_settings(experiment)),
        versions=", ".join(f"{name} {version}" for name, version in summary["versions"].items()),
    )


def _what(record: RunRecord) -> str:
    experiment, summary = record.experiment, record.summary
    ended = "" if record.completed else f" It did not complete: {summary.get('status')}."
    return (
        f"A {experiment.model.kind} model for {experiment.objective.task}, trained on {experiment.data.label} data of "
        f"{summary.get('clients')} clients in {summary.get('released_rounds')} of {summary.get('rounds')} rounds, with "
        f"weight α = {number(experiment.objective.alpha)} on the penalty {experiment.objective.penalty}. "
        f"{summary.get('date')}.{ended}"
    )


def _promise(summary: Mapping[str, Any]) -> str:
    guarantee = summary["guarantee"]
    rows = [
        ("ε, δ", f"{upward(summary.get('epsilon'), 4)}, {upward(summary.get('delta'))}"),
        ("protects", guarantee.get("protects")),
        ("against", guarantee.get("against")),
        ("neighbouring data sets", guarantee.get("relation")),
        ("public", ", ".join(guarantee.get("public", ())) or "–"),
        ("trust model", guarantee.get("trust")),
        ("noise multiplier σ/Δ", number(guarantee.get("noise_multiplier"), 4)),
        ("accountant", f"{guarantee.get('accountant')}" + _doubt(guarantee)),
        ("reproducible from a seed", "yes: the ε is nominal" if summary.get("nominal") else "no"),
        ("ε for a reader of the run's record", upward(summary.get("epsilon_of_reader"), 4)),
    ]
    return table(("", ""), rows)


def _doubt(guarantee: Mapping[str, Any]) -> str:
    return "" if guarantee.get("accountant_is_guarantee") else ", which gives no guarantee"


def _sizes(record: RunRecord) -> str:
    groups = found_json(record.directory / PLAN).get("groups", {})
    if not groups:
        return f"{record.summary.get('clients')} clients."
    rows = [(record.names.cell(name), f"{count:,}") for name, count in groups.items()]
    return f"Public sizes, of {record.summary.get('clients')} clients together:\n\n" + table(("group", "records"), rows)


def _measured(summary: Mapping[str, Any]) -> str:
    on = summary.get("held_out_measured_on") or {}
    count = f"{on['records']} of {on['of']} held-out records: " if on else ""
    return f"Measured on {count}{summary.get('measured_on')}."


def _metrics(summary: Mapping[str, Any]) -> str:
    held_out, around = summary.get("held_out") or {}, summary.get("held_out_intervals") or {}
    if not held_out:
        return ""
    constant, own = summary.get("constant") or {}, summary.get("constant_intervals") or {}
    names = ordered_metrics(held_out)
    names += [name for name in around if name in held_out and name not in names]
    rows = [
        (
            metric_name(key),
            measured(held_out[key], around.get(key)) + ("" if key in around else " (no interval is known)"),
            measured(constant[key], own.get(key)) if key in constant else "–",
        )
        for key in names
    ]
    return table(("held out, with intervals of 95 %", "the model", "a constant"), rows)


def _gain(summary: Mapping[str, Any]) -> str:
    """What the model is worth beside the constant, in a sentence; empty where there is none."""
    gain = summary.get("gain")
    if not gain:
        return ""
    by = gained(gain["value"], [gain["low"], gain["high"]])
    words = {"better": "The model is better", "worse": "The model is worse"}
    return f"{words.get(gain['claim'], 'The model cannot be told from it')}: {by}."


def _by_group(groups: Mapping[str, Mapping[str, Any]], around: Mapping[str, Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for each in groups.values() for name in each))
    rows = [
        (group, *(measured(each.get(name), around.get(group, {}).get(name)) for name in names))
        for group, each in groups.items()
    ]
    return table(("group", *map(metric_name, names)), rows) if rows else ""


def _columns(columns: Columns) -> str:
    rows = [(feature.name, "input", _declared(feature)) for feature in columns.features]
    if columns.sensitive is not None:
        rows.append((columns.sensitive.name, "group", ", ".join(columns.groups)))
    if columns.target is not None:
        rows.append((columns.target.name, "predicted", ", ".join(columns.target.values)))
    rows += [(target.name, "predicted", _declared(target)) for target in columns.targets]
    return table(("column", "role", "declared"), rows)


def _declared(column: Number) -> str:
    return "; ".join(_words(column))


def _words(column: Number) -> Iterator[str]:
    if isinstance(column, Feature) and column.categories:
        yield ", ".join(column.categories)
    elif column.low is None:
        yield column.kind
    elif column.kind == "date" and column.since is not None:
        yield f"date, {number(column.low, 6)} to {number(column.high, 6)} days after {column.since}"
    else:
        yield f"{column.kind} from {number(column.low, 6)} to {number(column.high, 6)}"
    if isinstance(column, Feature) and column.count is not None:
        yield f"{column.count} columns {column.name}0, {column.name}1, ..."
    if isinstance(column, Feature) and column.missing:
        known = ", ".join(repr(text) if text else "empty" for text in column.missing)
        yield f"may be missing ({known})"


def _settings(experiment: Experiment) -> dict[str, Any]:
    """What differs from the defaults, without columns and without folders of the machine that ran it."""
    found = experiment.model_dump(mode="json", exclude_defaults=True)
    for place in ("columns", "data_dir", "held_out"):
        found.get("data", {}).pop(place, None)
    return found
