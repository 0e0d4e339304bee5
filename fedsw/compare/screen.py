"""A comparison on the screen: its table group by group, and what can be compared at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedsw.compare.methods import able, methods, tasks
from fedsw.report.names import metric_name
from fedsw.text import number


def table_view(table: Mapping[str, Any]) -> RenderableType:
    """The table of a comparison, a part for each guarantee, with its caption and what failed."""
    parts: list[RenderableType] = [
        Text(f"{table['task']}: {metric_name(table['metric'])}, {table['better']} is better", style="bold")
    ]
    for group in table["groups"]:
        parts += [Text(group["heading"], style="bold" if group["guarantee"] else "bold yellow"), _rows(table, group)]
    if constant := table.get("constant"):
        scores = ", ".join(f"{metric_name(name)} {number(value)}" for name, value in constant["metrics"].items())
        parts.append(Text(f"a constant ({constant['answers']}): {scores}", style="bold"))
    parts.append(Text(table["caption"], style="dim"))
    for entry in table["failed"]:
        parts.append(Text(f"failed: {entry['cell']}: {entry['error']}", style="yellow"))
    left = table["cells"]["all"] - table["cells"]["completed"] - table["cells"]["failed"]
    if left:
        parts.append(Text(f"{left} of {table['cells']['all']} cells have not run", style="yellow"))
    return Group(*parts)


def tasks_view() -> RenderableType:
    """The tasks with their methods, and what the methods are."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("task", "utility", "compares", "baselines", "can also run"):
        table.add_column(column, no_wrap=column == "task", overflow="fold")
    for name, task in tasks().items():
        others = ", ".join(method for method in able(name) if method not in (*task.methods, *task.baselines))
        table.add_row(
            name,
            f"{metric_name(task.metric)} ({task.better})",
            ", ".join(task.methods),
            ", ".join(task.baselines),
            others,
        )
    about = Table(box=box.SIMPLE_HEAD)
    about.add_column("method", no_wrap=True)
    about.add_column("what")
    for name, method in methods().items():
        about.add_row(name, method.what)
    return Group(table, about)


def spread(value: Mapping[str, Any] | None) -> str:
    """Mean ± standard deviation in few digits."""
    if value is None:
        return "–"
    return number(value["mean"]) + (f" ± {number(value['sd'], 2)}" if value["sd"] is not None else "")


def _rows(table: Mapping[str, Any], group: Mapping[str, Any]) -> Table:
    view = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    view.add_column("method", no_wrap=True)
    measured = [metric_name(name) for name in table["metrics"]]
    for column in ("ε", "δ", *measured, "rounds", "up", "down", "seconds", "seeds"):
        view.add_column(column, justify="right", overflow="fold", no_wrap=column in measured)
    for row in group["rows"]:
        view.add_row(
            row["method"],
            _epsilon(row),
            number(row["delta"], 2),
            *(spread(row["metrics"].get(name)) for name in table["metrics"]),
            str(row["rounds"]),
            _size(row["bytes_up"]),
            _size(row["bytes_down"]),
            number(row["seconds"]),
            str(row["seeds"]) + "".join(f", {row[what]} {what}" for what in ("stopped", "failed") if row[what]),
        )
    return view


def _epsilon(row: Mapping[str, Any]) -> str:
    """What holds; with what was asked for where the two differ."""
    held, asked = number(row["epsilon"]), number(row["epsilon_asked"])
    return held if held == asked else f"{held} ({asked} asked)"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
