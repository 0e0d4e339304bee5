"""The model card: one page of Markdown, what a run's model is, for whom it is private, and what it is worth."""

from __future__ import annotations

from pathlib import Path

from fedsw import files
from fedsw.markdown import render, table
from fedsw.report import facts
from fedsw.runs.files import CARD
from fedsw.runs.record import RunRecord, read_run
from fedsw.text import harmless, json_text

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
    """Write the card of a run that has ended, in Markdown."""
    summary, experiment = record.summary, record.experiment
    columns = experiment.data.columns
    return render(
        _PAGE,
        name=experiment.name,
        title=experiment.title,
        what=facts.description(record),
        warnings=summary.get("warnings", ()),
        guarantee=summary["guarantee"],
        promise=table(*facts.promise(summary)),
        sizes=_sizes(record),
        measured_on=facts.measured_on(summary),
        metrics=_table(facts.worth(summary)),
        constant=summary.get("constant_answers"),
        gain=facts.gain(summary),
        by_group=_table(facts.by_group(summary)),
        columns=None if columns is None else table(*facts.declared(columns)),
        directory=record.directory,
        settings=json_text(facts.settings(experiment)),
        versions=", ".join(f"{name} {version}" for name, version in summary["versions"].items()),
    )


def _sizes(record: RunRecord) -> str:
    clients, sizes = record.summary.get("clients"), facts.sizes(record)
    if not sizes.rows:
        return f"{clients} clients."
    return f"Public sizes, of {clients} clients together:\n\n{table(*sizes)}"


def _table(found: facts.Facts) -> str:
    return table(*found) if found.rows else ""
