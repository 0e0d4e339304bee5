"""`fedsw demo`: nine fair classifiers, a table and two figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsw.cli.options import RUNS, Clients, Json, Quiet, Runs, Seed, echo
from fedsw.report.console import Screen
from fedsw.text import json_text


def demo_command(
    clients: Clients = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each run, instead of the experiment's.")] = None,
    seed: Seed = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with a demo that stopped.")] = None,
    runs: Runs = RUNS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train nine fair classifiers: a table and two figures.

    They are trained at α = 0, ½, ¾ and ε = ∞, 3, 1.
    """
    from fedsw.cli.execution import explaining
    from fedsw.compare.demo import ALPHAS, CAPTION, EPSILONS, draw_demo, missing_cells, read_demo, run_demo, start_demo
    from fedsw.report.progress import RunProgress
    from fedsw.report.screens import demo_table

    if resume is not None and (clients, rounds, seed) != (None, None, None):
        raise typer.BadParameter("--resume takes --clients, --rounds and --seed from the demo it goes on with")
    folder = resume or start_demo(runs, clients=clients or 4, rounds=rounds, seed=seed)
    cells = len(ALPHAS) * len(EPSILONS)
    done = cells - len(missing_cells(read_demo(folder)))
    with (
        RunProgress(label="demo", runs=cells, done=done, quiet=quiet or as_json) as progress,
        explaining(lambda: f"fedsw demo --resume {folder}" if progress.begun else None),
    ):
        table = run_demo(folder, progress)
    plots = [str(path) for path in draw_demo(folder)]
    if as_json:
        echo(json_text({**table, "directory": str(folder), "plots": plots}))
    elif quiet:
        echo(folder)
    else:
        Screen().print(demo_table(table["rows"], caption=CAPTION))
        Screen().print("\n".join([str(folder / "table.json"), *plots]), style="cyan", highlight=False)
