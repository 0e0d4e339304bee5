"""Rows of a measurement, stored one by one as they come: what is there already is not measured again."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from fedsw._tools import files

FOLDER = Path(__file__).parents[1] / "results" / "own_data"
Row = dict[str, Any]
Cell = tuple[Any, ...]
Subject = tuple[Iterable[Cell], Callable[..., Row]]
"""Cells, each the values of the first columns of its row, and what measures one."""


def rows_of(name: str, folder: Path = FOLDER) -> list[Row]:
    """What is stored of a subject, each row with what it was measured on."""
    path = folder / f"{name}.json"
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    return [{**row, "measured_on": found["machines"][row["machine"]]} for row in found["rows"]]


def measure_missing(name: str, subject: Subject, folder: Path = FOLDER) -> None:
    """Measure the cells that have no row yet; each row has its date, and the versions and the machine of its own."""
    rows, (cells, measure) = rows_of(name, folder), subject
    done = {json.dumps(row["cell"]) for row in rows}
    for cell in cells:
        if json.dumps(cell) in done:
            continue
        found = measure(*cell)
        rows.append({"cell": cell, **found, "date": describe()["date"], "measured_on": _machine()})
        _write(folder / f"{name}.json", rows)
        print(name, *cell, _short(found), flush=True)


def _write(path: Path, rows: Iterable[Row]) -> None:
    """The rows, a line each, and the machines that they name by number."""
    machines: list[Row] = []
    lines = []
    for row in rows:
        on = row["measured_on"]
        if on not in machines:
            machines.append(on)
        kept = {key: value for key, value in row.items() if key not in ("measured_on", "machine")}
        lines.append(json.dumps({**kept, "machine": machines.index(on)}))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'{{"machines": {json.dumps(machines)},\n"rows": [\n' + ",\n".join(lines) + "\n]}\n"
    files.replace(path, text.encode())


@functools.cache
def _machine() -> Row:
    return {key: value for key, value in describe().items() if key not in ("date", "load")}


def _short(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in row.items() if isinstance(value, float))
