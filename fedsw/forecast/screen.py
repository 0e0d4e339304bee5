"""A plan on the screen: rows of words, and a table of what-ifs."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedsw.forecast.forecast import ABOUT_ALL
from fedsw.forecast.planning import Forecast, Planned
from fedsw.forecast.words import rows, short
from fedsw.text import number


def planned_view(found: Planned) -> RenderableType:
    """Everything that a plan says, on one screen."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, words in rows(found):
        grid.add_row(Text(name), Text(words, style=_style(found) if name == "verdict" else ""))
    if found.forecast is None or not found.multiplier:
        return grid
    return Group(grid, _what_ifs(found.forecast))


def _style(found: Planned) -> str:
    if found.forecast is None or not found.multiplier:
        return "bold"
    kept = found.forecast.kept
    return "bold green" if kept >= ABOUT_ALL else "bold yellow" if found.forecast.feasible else "bold red"


def _what_ifs(forecast: Forecast) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="what if: expected to be left of what can be learnt", title_justify="left")
    table.add_column("records", justify="right")
    epsilons = sorted({each.epsilon for each in forecast.what_ifs})
    for epsilon in epsilons:
        table.add_column(f"ε = {number(epsilon)}", justify="right")
    for records in sorted({each.records for each in forecast.what_ifs}):
        kept = {each.epsilon: each.kept for each in forecast.what_ifs if each.records == records}
        table.add_row(f"{records:,}", *(short(kept[epsilon]) for epsilon in epsilons))
    return table
