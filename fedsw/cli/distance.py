"""`fedsw distance`: drift between sites, from the sketches that a run released."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsw.cli.options import RUNS, AllowModule, Json, Runs, echo
from fedsw.report.console import Screen

if TYPE_CHECKING:
    from fedsw.sketches.drift import Drift


def distance_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of trust model sketch-local, or sketch.")],
    reference: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A public table to compare every client with.")
    ] = None,
    by_column: Annotated[
        bool, typer.Option("--by-column", help="Compare each declared column, the surest drift first.")
    ] = False,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="That all intervals hold together.")] = 0.95,
    allow_module: AllowModule = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Say how far apart the clients' records are.

    Every distance has an interval that accounts for the privacy noise. The command reads what a run released, so it
    costs no further ε. A distance is between mean vectors of the sketch: 0 for tables that are alike in all that is
    measured, √2 for the most different ones. By column it is between the frequencies of a column's values, of each
    client against all others together, or against the public table.
    """
    from fedsw.runs.files import find_run
    from fedsw.text import json_text

    find = _columns if by_column else _wholes
    directory = find_run(run, runs)
    found = find(directory, reference, confidence, allow_module or ())
    if as_json:
        lines = [{**names, **_numbers(drift)} for names, drift in found]
        key = "columns" if by_column else "distances"
        echo(json_text({"directory": str(directory), "confidence": confidence, key: lines}))
    else:
        _show(found, confidence, by_column=by_column)


def _wholes(
    run: Path, reference: Path | None, confidence: float, allowed: Sequence[str]
) -> list[tuple[dict[str, str], Drift]]:
    from fedsw.own_data.drifts import drifts

    found = drifts(run, reference=reference, confidence=confidence, allow_modules=allowed)
    return [({"one": each.one, "other": each.other}, each.found) for each in found]


def _columns(
    run: Path, reference: Path | None, confidence: float, allowed: Sequence[str]
) -> list[tuple[dict[str, str], Drift]]:
    from fedsw.own_data.drifts import column_drifts

    found = column_drifts(run, reference=reference, confidence=confidence, allow_modules=allowed)
    return [({"one": each.one, "other": each.other, "column": each.column}, each.found) for each in found]


def _numbers(drift: Drift) -> dict[str, Any]:
    return {
        "distance": drift.distance,
        "records": list(drift.records),
        "populations": list(drift.populations),
        "differ": drift.differ,
        "doubt": drift.doubt,
    }


def _show(found: list[tuple[dict[str, str], Drift]], confidence: float, *, by_column: bool) -> None:
    from rich.table import Table

    subject = "each column's values" if by_column else "records"
    view = Table(title=f"Distances of {subject}; all intervals hold together with {confidence:.1%}")
    headings = ("between", "and", *(("column",) if by_column else ()))
    for heading in (*headings, "distance", "of these records", "of their populations", "differ"):
        view.add_column(heading)
    for names, drift in found:
        intervals = [f"{low:.3f} to {high:.3f}" for low, high in (drift.records, drift.populations)]
        verdict = "yes" if drift.differ else "not shown"
        view.add_row(*names.values(), f"{drift.distance:.3f}", *intervals, verdict)
    console = Screen(highlight=False)
    console.print(view)
    console.print(
        "Of these records: the noise alone is uncertain. Of their populations: these records are a sample, too. The "
        "intervals are wide enough for their number: where nothing differs, a yes anywhere is that unlikely."
    )
