"""Several runs side by side: what differs in their settings, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsw.report import facts
from fedsw.report.facts import Facts
from fedsw.report.page.content import verdict
from fedsw.report.page.pictures import draw_runs
from fedsw.report.page.svg import Picture, picture
from fedsw.report.progress import metric_name, ordered_metrics
from fedsw.runs.record import RunRecord
from fedsw.text import json_text, measured, upward


@dataclass(frozen=True)
class Beside:
    """Several runs side by side: what differs in their settings, and what came out."""

    settings: Facts
    results: Facts
    figure: Picture | None


def beside(named: Sequence[tuple[str, RunRecord]]) -> Beside:
    """Runs side by side, under the names that they have on the page."""
    names = [name for name, _ in named]
    flat = [dict(_flat(facts.settings(record.experiment))) for _, record in named]
    keys = sorted({key for each in flat for key in each})
    differing = [key for key in keys if len({each.get(key, "default") for each in flat}) > 1]
    metrics = list(
        dict.fromkeys(name for _, record in named for name in ordered_metrics(record.summary.get("held_out") or {}))
    )

    def row(title: str, of: Callable[[RunRecord], object]) -> tuple[object, ...]:
        return (title, *(of(record) for _, record in named))

    def metric(name: str) -> Callable[[RunRecord], object]:
        return lambda record: measured(
            (record.summary.get("held_out") or {}).get(name), (record.summary.get("held_out_intervals") or {}).get(name)
        )

    rows = [
        row("how it ended", lambda record: record.summary.get("status", "not finished")),
        row("ε", lambda record: upward(record.summary.get("epsilon"), 4)),
        row("δ", lambda record: upward(record.summary.get("delta"))),
        row("trust model", lambda record: record.experiment.privacy.trust),
        row("beside a constant", lambda record: facts.gain(record.summary) or "–"),
        *(row(metric_name(name), metric(name)) for name in metrics),
    ]
    figure = draw_runs(named)
    says = "; ".join(f"{name}: {verdict(record)}" for name, record in named)
    return Beside(
        settings=Facts.of(
            ("setting", *names), [(key, *(each.get(key, "default") for each in flat)) for key in differing]
        ),
        results=Facts.of(("", *names), rows),
        figure=None if figure is None else picture(figure, name="beside", caption="Worth against ε.", says=says),
    )


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", json_text(value, indent=None)
