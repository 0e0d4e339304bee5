"""`fedsw synthesize`: a synthetic table from clients' own tables, with its card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedsw.cli.options import RUNS, DataDir, EngineName, Epsilon, Json, Quiet, Runs, Seed, Settings, data_dir_setting

if TYPE_CHECKING:
    from fedsw.experiment import Experiment


def synthesize_command(
    source: Annotated[str, typer.Argument(metavar="EXPERIMENT|RUN", help="A TOML file, or a run that learnt a table.")],
    settings: Settings = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The CSV file that is written.")
    ] = Path("synthetic.csv"),
    rows: Annotated[int, typer.Option(min=1, max=10_000_000, help="How many rows.")] = 10_000,
    data_dir: DataDir = None,
    epsilon: Epsilon = None,
    trust: Annotated[
        Literal["sketch", "sketch-local"] | None,
        typer.Option(help="The server is trusted (sketch), or nobody is (sketch-local)."),
    ] = None,
    fair: Annotated[bool, typer.Option("--fair", help="Make labels independent of the group.")] = False,
    draw: Annotated[int, typer.Option(min=0, help="Another number draws other rows of the same run.")] = 0,
    engine: EngineName = "inprocess",
    seed: Seed = None,
    runs: Runs = RUNS,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a synthetic table that may leave, of the declared columns, and a card that says what it keeps.

    Records leave once, as a noised sketch (one release, whose ε is all that is spent). Given the folder of a run that
    learnt a table, further rows are drawn from it at no cost.
    """
    from fedsw.experiment import ExperimentError

    beside = output.with_suffix(".md")
    for path in (output, beside):
        if path.exists() and not force:
            raise ExperimentError(f"{path} is there already; --force writes over it, -o names another file")
    if not output.resolve().parent.is_dir():
        raise ExperimentError(f"there is no folder {output.parent} to write {output.name} in; make it, or name another")
    run = Path(source)
    if not run.is_dir():
        run = _learn(
            _experiment(source, settings, data_dir, epsilon, trust, fair, seed), engine, runs, as_json or quiet
        )
    elif settings or fair or (data_dir, epsilon, trust, seed) != (None, None, None, None):
        raise ExperimentError(f"{source} is a run, whose sketch was released: only --rows, --draw and -o apply to it")
    _write(run, output, beside, rows, draw, as_json=as_json, quiet=quiet)


def _experiment(
    source: str,
    settings: list[str] | None,
    data_dir: Path | None,
    epsilon: float | None,
    trust: Literal["sketch", "sketch-local"] | None,
    fair: bool,
    seed: int | None,
) -> Experiment:
    from fedsw.experiment import load_experiment
    from fedsw.experiment.catalogue import find_experiment
    from fedsw.owndata.folders import require_runnable
    from fedsw.owndata.synthesis import as_synthesis

    changes = list(settings or ())
    changes += [f"seed={seed}"] if seed is not None else []
    changes += [data_dir_setting(data_dir)] if data_dir is not None else []
    own = load_experiment(find_experiment(source), changes)
    found = as_synthesis(own, trust=trust, fair=fair, epsilon=epsilon)
    require_runnable(found, named=source, elsewhere=False)
    return found


def _learn(experiment: Experiment, engine: EngineName, runs: Path, silent: bool) -> Path:
    """Run it; returns its folder."""
    from fedsw.cli.execution import explaining
    from fedsw.engines.driver import run
    from fedsw.report.progress import RunProgress
    from fedsw.runs.resuming import command_for

    with RunProgress(label=experiment.name, quiet=silent) as progress:

        def go_on() -> str | None:
            return None if progress.directory is None else command_for(progress.directory)

        with explaining(go_on):
            return run(experiment, engine=engine, runs=runs, observer=progress).directory


def _write(run: Path, output: Path, beside: Path, rows: int, draw: int, *, as_json: bool, quiet: bool) -> None:
    from rich.console import Console

    from fedsw import files
    from fedsw.data.codes import records_of_table
    from fedsw.experiment.sources import load_held_out
    from fedsw.owndata.card import card
    from fedsw.owndata.fidelity import fidelity
    from fedsw.owndata.synthesis import learnt, table_cells, write_table
    from fedsw.tasks.sketched import table_of
    from fedsw.text import json_text

    found = learnt(run)
    cells = table_cells(found, rows, seed=draw)
    held_out, coded, columns = load_held_out(found.experiment), table_of(found.experiment), found.columns
    assert coded is not None
    compared = None
    if held_out is not None:
        made = records_of_table(cells, columns)
        compared = fidelity(made, held_out, coded, groups=columns.groups, classes=len(columns.classes))
    write_table(output, cells, columns)
    text = card(output.name, rows, found.experiment, found.summary, coded, compared)
    files.replace(beside, text.encode("utf-8"))
    if as_json:
        shown = {"table": str(output), "card": str(beside), "rows": rows, "directory": str(run)}
        shown["epsilon_spent"] = found.summary["epsilon_spent"]
        shown["held_out"] = None if compared is None else compared.plain()
        typer.echo(json_text(shown))
    elif quiet:
        typer.echo(output)
    else:
        statement = found.summary["guarantee"]["statement"] if found.experiment.privacy.noisy else "no guarantee"
        Console(highlight=False).print(
            f"{output}: {rows} rows. {statement}\n{beside}: what the table keeps and what not."
        )
        Console(highlight=False).print(f"More rows, at no cost: fedsw synthesize {run} --rows N --draw 1 -o OTHER.csv")
