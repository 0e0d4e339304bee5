"""`fedsw synthesize`: a synthetic table from clients' own tables, with its card."""

from __future__ import annotations

import contextlib
import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsw._tools import files
from fedsw._tools.text import for_spreadsheets, warning_of_formulas
from fedsw.cli import options
from fedsw.cli._modules import (
    cards,
    execution,
    experiment_code,
    experiments,
    other_tables,
    rehearsal,
    run_files,
    sources,
    synthetic_table,
)
from fedsw.cli.options import changes_of, echo, echo_json, files_of_run, require_format, require_writable
from fedsw.runs.report.console import Screen

if TYPE_CHECKING:
    from fedsw.desk.own_data.apart import OtherTable
    from fedsw.desk.own_data.synthetic_table import LearntTable
    from fedsw.experiment import Experiment


_UNKNOWN = (
    "Nobody knows what the table is worth: name one that holds nobody's private record (data.held_out, or --held-out "
    "for a run), and the card compares with it."
)


def synthesize_command(
    source: Annotated[str, typer.Argument(metavar="EXPERIMENT|RUN", help="A TOML file, or a run that learnt a table.")],
    settings: options.Settings = None,
    overrides: options.Set = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The CSV file that is written.")
    ] = Path("synthetic.csv"),
    rows: Annotated[int, typer.Option(min=1, max=10_000_000, help="How many rows.")] = 10_000,
    data_dir: options.DataDir = None,
    epsilon: options.Epsilon = None,
    trust: options.Trust = None,
    fair: Annotated[bool, typer.Option("--fair", help="Make labels independent of the group.")] = False,
    draw: Annotated[int, typer.Option(min=0, help="Another number draws other rows of the same run.")] = 0,
    engine: options.EngineName = "inprocess",
    seed: options.Seed = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For a RUN: a table of the declared columns to compare with; with --data-dir it is held against the "
            "clients' files, else the card says ε = ∞ for its reader.",
        ),
    ] = None,
    other_people: options.OtherPeople = False,
    allow_module: options.AllowModule = None,
    runs: options.Runs = options.RUNS,
    spreadsheet: options.Spreadsheet = False,
    force: options.Force = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a synthetic table that may leave, and its card.

    The table has the declared columns; the card, in Markdown and as a page (HTML), says what it keeps of the records.
    Records leave once, as a noised sketch (one release; its ε is all that is spent). Given the folder of a run that
    learnt a table, further rows are drawn from it at no cost.
    """
    outputs = (output, output.with_suffix(".md"), output.with_suffix(".html"))
    require_writable(*outputs, force=force, read=[Path(source), *([held_out] if held_out else [])])
    require_format(output, "the table")
    if not output.resolve().parent.is_dir():
        raise experiments.ExperimentError(
            f"there is no folder {output.parent} to write {output.name} in; make it, or name another"
        )
    run: Path | None = Path(source)
    if not Path(source).is_dir():
        run = runs / source if run_files.is_run(runs / source) else None
    if other_people and held_out is None:
        raise experiments.ExperimentError("--other-people is a word about --held-out, and there is none: leave it out")
    with contextlib.ExitStack() as shown:
        if run is None:
            if held_out is not None:
                raise experiments.ExperimentError(
                    "--held-out is for a run; an experiment names its own table in data.held_out"
                )
            named = experiments.load_experiment(source, changes_of(settings, overrides, seed=seed, data_dir=data_dir))
            experiment = synthetic_table.as_synthesis(named, trust=trust, fair=fair, epsilon=epsilon)
            sources.require_runnable(experiment.data, experiment.federation.clients, named=source, elsewhere=False)
            read = [
                *sources.visible_tables(experiment.data, experiment.federation.clients),
                *([Path(experiment.data.held_out)] if experiment.data.held_out else []),
            ]
            require_writable(*outputs, force=force, read=read)
            rehearsal.rehearse(experiment, lambda directory: _rehearsed(directory, experiment))
            records = sources.load_held_out(experiment.record_source)  # a file that cannot be read costs nothing
            run = execution.run_whole(experiment, engine, runs, quiet=as_json or quiet)
            shown.enter_context(execution.showing(run, f"fedsw synthesize {run} -o OTHER.csv"))
            table = synthetic_table.learnt(run, experiment_code.modules_of(experiment))
            other = None if records is None else other_tables.OtherTable(records)
        elif settings or overrides or fair or (epsilon, trust, seed) != (None, None, None):
            raise experiments.ExperimentError(
                f"{source} is a run, whose sketch was released: only --rows, --draw, --held-out, --data-dir and -o "
                "apply to it"
            )
        elif data_dir is not None and held_out is None:
            raise experiments.ExperimentError(
                f"{source} is a run: --data-dir is what --held-out is compared with; name both or none"
            )
        else:
            require_writable(*outputs, force=force, read=files_of_run(run))
            table, other = synthetic_table.learnt(run, allow_module or ()), None
            if held_out is not None:  # and no file that the stored experiment names itself
                other = other_tables.other_table(
                    held_out, table.columns, data_dir, option="--held-out", others=other_people
                )
        _write(run, table, other, held_out, output, rows, draw, spreadsheet=spreadsheet, as_json=as_json, quiet=quiet)


def _rehearsed(directory: Path, experiment: Experiment) -> None:
    """Draw, compare and describe a table that was learnt from made-up records."""
    cards.rehearse_table(
        synthetic_table.learnt(directory, experiment_code.modules_of(experiment)),
        held_out=experiment.data.held_out is not None,
    )


def _write(
    run: Path,
    table: LearntTable,
    other: OtherTable | None,
    named: Path | None,
    output: Path,
    rows: int,
    draw: int,
    *,
    spreadsheet: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    made = cards.made_table(table, other, named, name=output.name, rows=rows, draw=draw)
    doubted = other is not None and other.doubt
    compared, said = made.compared, made.said
    cells = made.cells
    if spreadsheet:
        cells = {for_spreadsheets(name): list(map(for_spreadsheets, values)) for name, values in cells.items()}
    elif why := warning_of_formulas(itertools.chain(cells, *cells.values())):
        echo(f"fedsw: warning: {why}", err=True)
    synthetic_table.write_table(output, cells, table.columns)
    beside, page = output.with_suffix(".md"), output.with_suffix(".html")
    files.replace(beside, made.card.markdown().encode("utf-8"))
    files.replace(page, made.card.page().encode("utf-8"))
    if as_json:
        shown = {"table": str(output), "card": str(beside), "page": str(page), "rows": rows, "directory": str(run)}
        shown["epsilon_spent"] = table.summary["epsilon_spent"]
        shown["epsilon_of_reader"] = math.inf if doubted else table.summary["epsilon_of_reader"]
        shown["findings"] = said
        shown["held_out"] = None if compared is None else compared.plain()
        echo_json(shown)
    elif quiet:
        echo(output)
    else:
        statement = table.summary["guarantee"]["statement"]
        screen = Screen(highlight=False)
        screen.print(f"{output}: {rows} rows. {statement}\n{beside}, {page}: what the table keeps and what not.")
        if other is not None and other.doubt:
            screen.print(other.doubt, style="bold red")
        worth = None if compared is None else compared.usefulness
        if worth is not None:
            screen.print(worth.verdict, style="bold red" if worth.useless else "")
        elif compared is None:
            screen.print(_UNKNOWN)
        for sentence in said:
            screen.print(sentence)
        screen.print(f"More rows, at no cost: fedsw synthesize {run} --rows N --draw 1 -o OTHER.csv")
