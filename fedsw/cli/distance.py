"""`fedsw distance`: drift between sites, from the sketches that a run released."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsw.cli.options import Json


def distance_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run of trust model sketch-local, or sketch.")],
    reference: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A public table to compare every client with.")
    ] = None,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of every interval.")] = 0.95,
    as_json: Json = False,
) -> None:
    """Say how far apart the clients' records are, with intervals that account for the privacy noise.

    It reads what a run released, so it costs no further ε. A distance is between mean vectors of the sketch: 0 for
    tables that are alike in all that is measured, √2 for the most different ones.
    """
    from rich.console import Console
    from rich.table import Table

    from fedsw.owndata.drifts import drifts
    from fedsw.text import json_text

    found = drifts(run, reference=reference, confidence=confidence)
    if as_json:
        lines = [
            {
                "one": each.one,
                "other": each.other,
                "distance": each.found.distance,
                "records": list(each.found.records),
                "populations": list(each.found.populations),
                "differ": each.found.differ,
            }
            for each in found
        ]
        typer.echo(json_text({"directory": str(run), "confidence": confidence, "distances": lines}))
        return
    view = Table(title=f"Distances of records, {confidence:.1%} intervals")
    for heading in ("between", "and", "distance", "of these records", "of their populations", "differ"):
        view.add_column(heading)
    for each in found:
        intervals = [f"{low:.3f} to {high:.3f}" for low, high in (each.found.records, each.found.populations)]
        verdict = "yes" if each.found.differ else "not shown"
        view.add_row(each.one, each.other, f"{each.found.distance:.3f}", *intervals, verdict)
    console = Console(highlight=False)
    console.print(view)
    console.print(
        "Of these records: the noise alone is uncertain. Of their populations: these records are a sample, too. Every "
        "interval holds by itself; of many, some miss."
    )
