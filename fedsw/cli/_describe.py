"""`fedsw describe`: histograms of clients' own tables, from one noised release."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsw._tools import files
from fedsw.cli import options
from fedsw.cli._modules import (
    description_page,
    descriptions,
    execution,
    experiment_code,
    experiments,
    rehearsal,
    run_files,
    sources,
)
from fedsw.cli.options import changes_of, echo, echo_json, require_format, require_writable
from fedsw.runs.report.console import Screen
from fedsw.runs.report.document import Conclusion, Document, Listed

if TYPE_CHECKING:
    from fedsw.desk.own_data.description import DescribedColumn, Description
    from fedsw.experiment import Experiment


def describe_command(
    source: Annotated[str, typer.Argument(metavar="EXPERIMENT|RUN", help="A TOML file, or a run that described it.")],
    settings: options.Settings = None,
    overrides: options.Set = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page (HTML) that is written.")
    ] = None,
    data_dir: options.DataDir = None,
    epsilon: options.Epsilon = None,
    trust: options.Trust = None,
    engine: options.EngineName = "inprocess",
    seed: options.Seed = None,
    allow_module: options.AllowModule = None,
    runs: options.Runs = options.RUNS,
    force: options.Force = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show a noised histogram of every declared column.

    All columns are one release: its ε is all that is spent, and an account counts it like any other. Bins,
    categories and bounds are those declared; no minimum, no maximum and no number without noise is shown. Given a run
    that described a table, it is shown again at no cost.
    """
    outputs = [] if output is None else [output]
    require_writable(*outputs, force=force, read=[Path(source)])
    if output is not None:
        require_format(output, "the page")
    directory: Path | None = Path(source)
    if not Path(source).is_dir():
        directory = runs / source if run_files.is_run(runs / source) else None
    with contextlib.ExitStack() as shown:
        if directory is None:
            named = experiments.load_experiment(source, changes_of(settings, overrides, seed=seed, data_dir=data_dir))
            experiment = descriptions.as_description(named, trust=trust, epsilon=epsilon)
            sources.require_runnable(experiment.data, experiment.federation.clients, named=source, elsewhere=False)
            require_writable(
                *outputs, force=force, read=sources.visible_tables(experiment.data, experiment.federation.clients)
            )
            rehearsal.rehearse(experiment, lambda made: _rehearsed(made, experiment))
            directory = execution.run_whole(experiment, engine, runs, quiet=as_json or quiet)
            shown.enter_context(execution.showing(directory, f"fedsw describe {directory}"))
            description = descriptions.described(directory, experiment_code.modules_of(experiment))
            descriptions.keep_description(directory, description)
        elif settings or overrides or (epsilon, trust, seed, data_dir) != (None, None, None, None):
            raise experiments.ExperimentError(
                f"{source} is a run, whose histograms were released: only -o and --json apply to it"
            )
        else:
            description = descriptions.described(directory, allow_module or ())
        if output is not None:
            files.replace(
                output, description_page.page_of(description, description.experiment.name).page().encode("utf-8")
            )
        if as_json:
            page = None if output is None else str(output)
            echo_json({"directory": str(directory), "page": page, **description.plain()})
        elif quiet:
            echo(directory)
        else:
            Screen().print(_screen(description, directory, output))


def _rehearsed(directory: Path, experiment: Experiment) -> None:
    """Read and write what was released of made-up records."""
    description_page.page_of(
        descriptions.described(directory, experiment_code.modules_of(experiment)), experiment.name
    ).page()


_BLOCKS = " ▁▂▃▄▅▆▇█"
_WIDEST = 48


def _screen(description: Description, directory: Path, output: Path | None) -> Document:
    rows = [
        (column.name, _spark(column), *_in_short(column), f"{column.half_width:.3f}") for column in description.columns
    ]
    headings = ("column", "histogram, from the lower to the upper bound", "half of them between", "most often", "±")
    where = "-o FILE.html writes the page" if output is None else f"{output}: the page"
    return Document(
        "",
        begins=(
            f"{description.records} records. {description.summary['guarantee']['statement']}",
            Listed.of("Columns", headings, rows, left=headings[:4]),
            *map(Conclusion, description.findings),
            f"{where}. Shown again at no cost: fedsw describe {directory}",
        ),
    )


def _in_short(column: DescribedColumn) -> tuple[str, str]:
    """Return the interval that holds half of the numbers, and the bin that most records are in."""
    low, high = column.quantile(0.25), column.quantile(0.75)
    most = column.labels[int(column.shares.argmax())]
    half = "" if low is None or high is None else f"{column.words(low, 4)} and {column.words(high, 4)}"
    return half, f"{most} ({column.plausible.max():.2f})"


def _spark(column: DescribedColumn) -> str:
    """One letter a bin, at most `_WIDEST` of them, as high as its share."""
    shares = column.plausible[:_WIDEST]
    top = max(float(shares.max()), 1e-12)
    return "".join(_BLOCKS[round(float(share) / top * (len(_BLOCKS) - 1))] for share in shares)
