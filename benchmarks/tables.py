"""The tables of what was measured, and the pages that are nothing else: the site puts them where a page has their mark.

    python -m benchmarks.tables [MARK ...]

A mark is `<!-- accuracy: python -m benchmarks.own_data -->`: the name of the table, and the command that measures what is
in it. Every number comes from the stored results; without a MARK all marks are listed.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import audits, complaints, forecast, forecast_local, masks, report
from benchmarks.own_data import page as own_data
from benchmarks.performance import scale
from benchmarks.performance import table as performance
from benchmarks.rivals import page as rivals
from benchmarks.rivals import probabilities, shapes, tuning
from simulations import masked
from simulations.masked.__main__ import page as masked_table
from tests import slowest

_MASKED = Path(masked.__file__).parent
_MARK = re.compile(r"<!-- ([\w-]+: python -m [\w.]+) -->")


def _masked(settings: Path) -> str:
    asked = tomllib.loads((settings / "settings.toml").read_text(encoding="utf-8"))
    return masked_table(asked, json.loads((settings / "results.json").read_text(encoding="utf-8")))


def _searched() -> str:
    return forecast.search_table(json.loads(forecast.RESULT.read_text(encoding="utf-8"))["search"])


TABLES: Mapping[str, Callable[[], str]] = {
    **{f"{name}: python -m benchmarks.own_data": functools.partial(own_data.table, name) for name in own_data.SUBJECTS},
    "rivals: python -m benchmarks.rivals": rivals.content,
    "tuning: python -m benchmarks.rivals.tuning": tuning.content,
    "choices: python -m benchmarks.rivals.probabilities": probabilities.content,
    "shapes: python -m benchmarks.rivals.shapes": shapes.content,
    "forecast: python -m benchmarks.forecast": lambda: forecast.forecast_table(forecast.judged_plans()),
    "cells: python -m benchmarks.forecast": lambda: forecast.cells_table(forecast.judged_plans()),
    "search: python -m benchmarks.forecast": _searched,
    "local: python -m benchmarks.forecast_local": lambda: forecast_local.table(forecast_local.load()),
    **{
        f"{name}: python -m benchmarks.performance": functools.partial(lambda name: scale.tables()[name], name)
        for name in scale.NAMES
    },
    "complaints: python -m benchmarks.complaints": complaints.content,
    "masks: python -m benchmarks.masks": masks.content,
    "masked: python -m simulations.masked": functools.partial(_masked, _MASKED),
    "sketches: python -m simulations.masked": functools.partial(_masked, _MASKED / "sketches"),
    "tasks: python -m simulations.masked": functools.partial(_masked, _MASKED / "tasks"),
    "table: python -m benchmarks.audits": lambda: audits.table(audits.RESULTS),
    "one-run: python -m benchmarks.audits": lambda: audits.attackers(audits.RESULTS),
    "slowest-tests: python -m tests.slowest": slowest.table,
}
"""Every table by its mark."""

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/measured/models.md": report.models,
    "docs/measured/generators.md": report.generators,
    "docs/measured/running.md": report.running,
    "docs/measured/performance.md": performance.page,
}
"""Pages that are written whole."""


def filled(text: str) -> str:
    """A page with the table of every mark below it.

    Raises:
        KeyError: naming a mark of no table.
    """
    return _MARK.sub(lambda mark: f"{mark[0]}\n\n{TABLES[mark[1]]()}\n", text)


def main(arguments: Sequence[str]) -> None:
    """Print the tables that are named, or every mark."""
    print("\n\n".join(TABLES[mark]() for mark in arguments) if arguments else "\n".join(TABLES))


if __name__ == "__main__":
    main(sys.argv[1:])
