"""What a finished run says of itself, as tables and sentences: the model card and the page both write these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fedsw.columns.declaration import Columns
from fedsw.columns.kinds import Feature, Number
from fedsw.experiment import Experiment
from fedsw.report.progress import metric_name, ordered_metrics
from fedsw.report.screens import rounds_of
from fedsw.runs.files import PLAN, found_json
from fedsw.runs.record import RunRecord
from fedsw.text import gained, measured, number, to_float, upward


class Facts(NamedTuple):
    """A table: headings, and rows of as many texts."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, headings: Iterable[str], rows: Iterable[Iterable[object]]) -> Facts:
        """Of anything that can be written."""
        return cls(tuple(headings), tuple(tuple(map(str, row)) for row in rows))


def description(record: RunRecord) -> str:
    """What was trained, on what, in one or two sentences."""
    experiment, summary = record.experiment, record.summary
    ended = "" if record.completed else f" It did not complete: {summary.get('status')}."
    return (
        f"A {experiment.model.kind} model for {experiment.objective.task}, trained on {experiment.data.label} data of "
        f"{summary.get('clients')} clients, {rounds_of(record)}, with "
        f"weight α = {number(experiment.objective.alpha)} on the penalty {experiment.objective.penalty}. "
        f"{summary.get('date')}.{ended}"
    )


def promise(summary: Mapping[str, Any]) -> Facts:
    """The guarantee, part by part."""
    guarantee = summary["guarantee"]
    doubt = "" if guarantee.get("accountant_is_guarantee") else ", which gives no guarantee"
    return Facts.of(
        ("", ""),
        [
            ("ε, δ", f"{upward(summary.get('epsilon'), 4)}, {upward(summary.get('delta'))}"),
            ("protects", guarantee.get("protects")),
            ("against", guarantee.get("against")),
            ("neighbouring data sets", guarantee.get("relation")),
            ("public", ", ".join(guarantee.get("public", ())) or "–"),
            ("trust model", guarantee.get("trust")),
            ("noise multiplier σ/Δ", number(guarantee.get("noise_multiplier"), 4)),
            ("accountant", f"{guarantee.get('accountant')}{doubt}"),
            ("reproducible from a seed", "yes: the ε is nominal" if summary.get("nominal") else "no"),
            ("ε for a reader of the run's record", upward(summary.get("epsilon_of_reader"), 4)),
        ],
    )


def sizes(record: RunRecord) -> Facts:
    """Public numbers of private records by group; no rows where they are not public."""
    groups = found_json(record.directory / PLAN).get("groups", {})
    return Facts.of(("group", "records"), [(record.names.cell(name), f"{count:,}") for name, count in groups.items()])


def measured_on(summary: Mapping[str, Any]) -> str:
    """Which records the metrics are of."""
    on = summary.get("held_out_measured_on") or {}
    count = f"{on['records']} of {on['of']} held-out records: " if on else ""
    return f"Measured on {count}{summary.get('measured_on')}."


def worth(summary: Mapping[str, Any]) -> Facts:
    """Every held-out metric with its interval, the constant's beside it."""
    held_out, around = summary.get("held_out") or {}, summary.get("held_out_intervals") or {}
    constant, own = summary.get("constant") or {}, summary.get("constant_intervals") or {}
    names = ordered_metrics(held_out)
    names += [name for name in around if name in held_out and name not in names]
    return Facts.of(
        ("held out, with intervals of 95 %", "the model", "a constant"),
        [
            (
                metric_name(key),
                measured(held_out[key], around.get(key)) + ("" if key in around else " (no interval is known)"),
                measured(constant[key], own.get(key)) if key in constant else "–",
            )
            for key in names
        ],
    )


def gain(summary: Mapping[str, Any]) -> str:
    """What the model is worth beside the constant, in a sentence; empty where there is none."""
    found = summary.get("gain")
    if not found:
        return ""
    by = gained(found["value"], [found["low"], found["high"]])
    return (
        f"The model is {by}." if found["claim"] in ("better", "worse") else f"The model cannot be told from it: {by}."
    )


def by_group(summary: Mapping[str, Any]) -> Facts:
    """A row for each group: its held-out records, and each metric on them with its interval."""
    groups, around = summary.get("held_out_by_group") or {}, summary.get("held_out_by_group_intervals") or {}
    names = list(dict.fromkeys(name for each in groups.values() for name in each))
    return Facts.of(
        ("group", *map(metric_name, names)),
        [
            (group, *(_of_group(name, each.get(name), around.get(group, {}).get(name)) for name in names))
            for group, each in groups.items()
        ],
    )


def _of_group(name: str, value: Any, interval: Any) -> str:
    whole = name == "count" and to_float(value) is not None
    return f"{int(value):,}" if whole else measured(value, interval)


def declared(columns: Columns) -> Facts:
    """The declared columns: name, role, kind and bounds."""
    rows = [(feature.name, "input", "; ".join(_words(feature))) for feature in columns.features]
    if columns.sensitive is not None:
        rows.append((columns.sensitive.name, "group", ", ".join(columns.groups)))
    if columns.target is not None:
        rows.append((columns.target.name, "predicted", ", ".join(columns.target.values)))
    rows += [(target.name, "predicted", "; ".join(_words(target))) for target in columns.targets]
    return Facts.of(("column", "role", "declared"), rows)


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


def settings(experiment: Experiment) -> dict[str, Any]:
    """What differs from the defaults, without columns and without folders of the machine that ran it."""
    found = experiment.model_dump(mode="json", exclude_defaults=True)
    for place in ("columns", "data_dir", "held_out"):
        found.get("data", {}).pop(place, None)
    return found
