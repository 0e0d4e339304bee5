"""Metrics on clients' held-out records, for the screen of whoever holds them."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedsw.owndata.evaluate import Evaluated
from fedsw.report.names import metric_name, ordered_metrics
from fedsw.text import number

_MOST = 4
_CAPTION = "without noise, of private records: for the screen of whoever holds them; nothing was written or sent"


def evaluated_view(found: Sequence[Evaluated]) -> RenderableType:
    """Warnings, a line for every client and one for a constant, and the last of them by group.

    Of the metrics those that a constant has; plain values have all of them (`--json`).
    """
    last = found[-1]
    names = [name for name in ordered_metrics(last.metrics) if name in last.constant]
    names = names or ordered_metrics(last.metrics)[:_MOST]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("kept out by", no_wrap=True)
    for column in ("count", *(metric_name(name) for name in names)):
        table.add_column(column, justify="right")
    for each in found:
        table.add_row(each.name, f"{each.count:,}", *(_cell(each, name) for name in names))
    if last.constant:
        constant = [number(last.constant[name]) if name in last.constant else "" for name in names]
        table.add_row(last.answer, f"{last.count:,}", *constant, style="dim")
    parts: list[RenderableType] = [Text(f"! {warning}", style="bold red") for warning in last.warnings]
    parts += [table, *_groups(last)]
    return Group(*parts, Text(_CAPTION, style="dim"))


def _cell(each: Evaluated, name: str) -> str:
    error = each.standard_errors.get(name)
    value = number(each.metrics[name]) if name in each.metrics else ""
    return value if error is None else f"{value} ± {number(error, 2)}"


def _groups(each: Evaluated) -> list[Table]:
    if not each.by_group:
        return []
    columns = list(dict.fromkeys(name for numbers in each.by_group.values() for name in numbers))
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(each.name, no_wrap=True)
    for column in columns:
        table.add_column(metric_name(column), justify="right")
    for group, numbers in each.by_group.items():
        table.add_row(group, *(number(numbers.get(column)) for column in columns))
    return [table]
