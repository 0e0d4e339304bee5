"""Verbs about the tables that clients have: `fedsw init`, `check`, `describe`, `distance`."""

from __future__ import annotations

import contextlib
import math
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedsw._tools import files
from fedsw._tools.exits import Exit
from fedsw.cli import options
from fedsw.cli._modules import (
    answer_files,
    code_books,
    data_places,
    description_page,
    descriptions,
    drafts,
    drifting,
    examining,
    execution,
    experiment_code,
    experiments,
    rehearsal,
    run_files,
    sources,
    understanding,
    verbs,
)
from fedsw.cli.options import answer, changes_of, echo, echo_json, found, require_format, require_writable, say
from fedsw.runs.report.console import Screen
from fedsw.runs.report.document import Conclusion, Document, Listed, Strong

if TYPE_CHECKING:
    from fedsw.desk.own_data.description import Description
    from fedsw.desk.own_data.drifts import Drifts
    from fedsw.experiment import Experiment


_Columns = list[str] | None
_DISTANCE_HEADINGS = ("distance", "of these records", "of their populations", "differ")


def init_command(
    folder: Annotated[Path, typer.Argument(metavar="DATA", help="A folder 0, 1, ... with a table for each client.")],
    group: Annotated[
        _Columns,
        typer.Option(metavar="COLUMN", help="The column of the groups, if outputs are compared; several are combined."),
    ] = None,
    least_group: Annotated[
        int, typer.Option(min=1, metavar="N", help="Combined groups of fewer public rows are one group, other.")
    ] = 100,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column that is predicted.")] = None,
    positive: Annotated[
        str | None, typer.Option(metavar="CLASS", help="The favourable class of the target, as hired.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file that is written.")] = Path(
        "own.toml"
    ),
    code_book: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What is declared of every column: CSV or JSON, in place of flags."),
    ] = None,
    code_book_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a code book to fill in, with the tables' columns, and end."),
    ] = None,
    bounds: Annotated[
        _Columns, typer.Option("--bounds", metavar="COLUMN=LOW:HIGH", help="Public bounds; may be repeated.")
    ] = None,
    categories: Annotated[
        _Columns, typer.Option("--categories", metavar="COLUMN=A,B", help="Public values; may be repeated.")
    ] = None,
    dates: Annotated[
        _Columns, typer.Option("--dates", metavar="COLUMN=FORMAT", help="How dates are written, as %d.%m.%Y.")
    ] = None,
    boolean: Annotated[_Columns, typer.Option("--boolean", metavar="COLUMN", help="A column of truth values.")] = None,
    integer: Annotated[_Columns, typer.Option("--integer", metavar="COLUMN", help="A column of whole numbers.")] = None,
    edges: Annotated[
        _Columns, typer.Option("--edges", metavar="COLUMN=30,50", help="Cut the group's numbers here.")
    ] = None,
    decimal: Annotated[str | None, typer.Option(metavar=". or ,", help="What parts decimals in all tables.")] = None,
    thousands: Annotated[
        str | None, typer.Option(metavar="MARK", help="What parts thousands in all tables: , . ' or a blank.")
    ] = None,
    skip_rows: Annotated[
        int, typer.Option(min=0, metavar="N", help="Rows below the header that are no records, as of questions.")
    ] = 0,
    drop: Annotated[_Columns, typer.Option("--drop", metavar="COLUMN", help="A column to leave out.")] = None,
    from_public: Annotated[
        bool, typer.Option("--from-public", help="The clients' tables are public: read bounds and categories off them.")
    ] = False,
    public_table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A public table of the same columns, to read them off.")
    ] = None,
    guess: Annotated[
        bool, typer.Option("--guess", help="Tell numbers, dates and text apart by looking: kinds are then public.")
    ] = False,
    unit: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Privacy-unit IDs (user-level DP): rows of a person are protected together."
        ),
    ] = None,
    held_out: Annotated[Path | None, typer.Option(metavar="FILE", help="The server's own table to measure on.")] = None,
    alpha: Annotated[
        float | None, typer.Option(min=0, max=1, help="Weight of equal outputs of the groups; 0 if not given.")
    ] = None,
    relation: Annotated[
        Literal["replace-one", "add-remove"],
        typer.Option(help="Adjacency: replace-one, or add-remove, a weaker promise."),
    ] = "replace-one",
    records: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="With add-remove: a public number of records, not counted.")
    ] = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Draft a commented experiment for tables of your own.

    Of the tables only the names of their columns are read, unless you say --guess or --from-public. Bounds and
    categories come from a code book, from the options, from a public table, or from questions at a terminal; what is
    left is marked as a blank, which `fedsw check` asks for. --code-book-template writes a code book to fill in.
    """
    book = code_books.read_code_book(code_book)
    if book.foreign:  # a study's own code book: the tables may have a part of its columns
        held = answer_files.read_header(_tables(folder)[0])[0]
        book = replace(book, entries={name: entry for name, entry in book.entries.items() if name in held})
    groups = group or [name for name in (book.with_role("group"),) if name is not None]
    target, unit = target or book.with_role("target"), unit or book.with_role("person")
    if code_book_template is not None:
        roles = {**dict.fromkeys(groups, "group"), **({target: "target"} if target else {})}
        tables = _tables(folder)
        require_writable(code_book_template, force=force, read=tables)
        text, left_out = code_books.template_of(tables[0], {**roles, **({unit: "person"} if unit else {})})
        code_book_template.write_text(text, encoding="utf-8")
        for name in left_out:
            echo(f"{name} looks like an identifier and is left out; if it identifies a row's person, write person")
        echo(
            f"{code_book_template}: fill in bounds or categories. Next: fedsw init {folder} --code-book "
            f"{code_book_template}"
        )
        return
    if target is None:
        raise experiments.ExperimentError(
            "nothing says which column is the target: add --target COLUMN, or a code book's role"
        )
    if (relation == "add-remove") != (records is not None):
        raise experiments.ExperimentError(
            "--relation add-remove and --records N, a public number that sums are divided by, go together: add the "
            "other, or leave both out"
        )
    named = (code_book, public_table, held_out)
    require_writable(output, force=force, read=[*_tables(folder), *(path for path in named if path is not None)])
    cut = {entry.column: entry.edges for entry in book.entries.values() if entry.edges}
    said = answer_files.Words.read(
        bounds=bounds or (),
        categories=categories or (),
        dates=dates or (),
        edges=edges or (),
        booleans=boolean or (),
        integers=integer or (),
        drop=drop or (),
    )
    words = replace(
        said,
        edges={**cut, **said.edges},
        drop=(*book.left_out, *said.drop),
        decimal=_mark("--decimal", decimal, (".", ",")),
        thousands=_mark("--thousands", thousands, (",", ".", " ", "'")),
        book={entry.column: entry.answer for entry in book.entries.values() if entry.column not in cut},
    )
    ask = _ask if sys.stdin.isatty() and sys.stderr.isatty() else None
    request = drafts.DraftRequest(
        folder,
        groups[0] if len(groups) == 1 else None,
        target,
        words,
        from_public=from_public,
        public_table=public_table,
        guess=guess,
        ask=None if from_public or public_table else ask,  # bounds and categories come from the public table
        held_out=None if held_out is None else held_out.expanduser().resolve(),
        unit=unit,
        positive=positive or book.positive,
        doubt=ask,
        alpha=alpha,
        declared=records,
        crossed=tuple(groups) if len(groups) > 1 else (),
        least_group=least_group,
        skip_rows=skip_rows,
    )
    drafted = drafts.draft(request, name=re.sub("[^A-Za-z0-9._-]", "-", output.stem).lstrip("._-") or "own")
    output.write_text(drafted.text, encoding="utf-8")
    if as_json:
        made = {"file": str(output), "blanks": {str(row): line for row, line in drafted.blanks.items()}}
        echo_json({**made, "notes": list(drafted.notes), "understood": understanding.plain(drafted.understood)})
        return
    Screen().print(Document("", begins=(understanding.listed(drafted.understood),)))
    for note in drafted.notes:
        echo(note)
    for row, line in drafted.blanks.items():
        echo(f"{output}, line {row}: {line}")
    rest = "nothing left to fill in"
    if looked_at := drafted.looked_at:
        rest = f"nothing to fill in, and {looked_at} {'lines' if looked_at > 1 else 'line'} above to look at"
    if drafted.blanks:
        rest = f"{len(drafted.blanks)} {'lines' if len(drafted.blanks) > 1 else 'line'} to fill in"
    elif from_public and (faults := _faults(drafted.text, folder)):
        rest = f"nothing to fill in, and {faults} faults in the tables, which check lists"
    echo(f"{output}: {rest}. Next: fedsw check {output} --data-dir {folder}")


def _tables(folder: Path) -> list[Path]:
    return [source.table for source in data_places.places(folder)]


def _mark(option: str, mark: str | None, known: tuple[str, ...]) -> str | None:
    if mark is not None and mark not in known:
        raise experiments.ExperimentError(f"{option} is {mark!r}; it is one of {', '.join(map(repr, known))}")
    return mark


def _faults(text: str, folder: Path) -> int:
    """Count the faults that check finds in public tables under a draft."""
    examination = examining.examine(experiments.parse_experiment(tomllib.loads(text)), folder)
    cells = sum(
        len(file.faults) + file.more + (file.broken is not None) + len(file.absent) + len(file.doubts)
        for file in examination.files
    )
    return cells + len(examination.together)


def _ask(question: str) -> str:
    return str(typer.prompt(question, default="", show_default=False, err=True))


def check_command(
    experiment: options.Name,
    settings: options.Settings = None,
    epsilon: options.Epsilon = None,
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    client: Annotated[int | None, typer.Option(min=0, help="Check only this client's records.")] = None,
    estimate: Annotated[bool, typer.Option(help="Measure time and memory by a short run on made-up records.")] = False,
    as_json: options.Json = False,
) -> None:
    """List every fault of clients' files, sizes, and what is public.

    Faults quote records: they are for the holder of the files only. --estimate tries the settings on made-up
    records of these sizes, and says what a run takes. Exits with 2 if a run could not start.
    """
    answered = verbs.check(
        experiment,
        *changes_of(settings, overrides, epsilon=epsilon, data_dir=data_dir),
        client=client,
        estimate=estimate,
    )
    say(answered, as_json=as_json)
    if not answered["fits"]:
        raise typer.Exit(Exit.REFUSED)


def distance_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of trust model sketch-local, or sketch.")],
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A public table to compare every client with; with --data-dir it is held against the clients' files.",
        ),
    ] = None,
    by_column: Annotated[
        bool, typer.Option("--by-column", help="Compare each declared column, the surest drift first.")
    ] = False,
    data_dir: options.DataDir = None,
    other_people: options.OtherPeople = False,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="Simultaneous confidence level of all intervals.")
    ] = 0.95,
    allow_module: options.AllowModule = None,
    runs: options.Runs = options.RUNS,
    as_json: options.Json = False,
) -> None:
    """Say how far apart the clients' records are.

    Every distance has an interval that accounts for the privacy noise. The command reads what a run released, so it
    costs no further ε. A distance is between mean vectors of the sketch: 0 for tables that are alike in all that is
    measured, √2 for the most different ones. By column it is between the frequencies of a column's values, of each
    client against all others together, or against the public table.
    """
    directory = found(run, runs)
    distances = drifting.drifts(
        directory,
        reference=reference,
        confidence=confidence,
        by_column=by_column,
        allow_modules=allow_module or (),
        data_dir=data_dir,
        others=other_people,
    )
    lines = distances.plain()
    plain = {"directory": str(directory), "confidence": confidence, "columns" if by_column else "distances": lines}
    if distances.doubt:
        plain |= {"epsilon_of_reader": math.inf, "warning": distances.doubt}
    if distances.word:
        plain["word"] = distances.word
    answer(plain, lambda: _view(lines, distances, confidence, by_column=by_column), as_json=as_json)


def _view(lines: list[dict[str, Any]], distances: Drifts, confidence: float, *, by_column: bool) -> Document:
    subject = "each column's values" if by_column else "records"
    sides = ("between", "and", *["column"] * by_column)
    rows = []
    for line in lines:
        named = [line[key] for key in ("one", "other", *["column"] * by_column)]
        intervals = [f"{low:.3f} to {high:.3f}" for low, high in (line["records"], line["populations"])]
        rows.append([*named, f"{line['distance']:.3f}", *intervals, "yes" if line["differ"] else "not shown"])
    return Document(
        "",
        begins=(
            Strong(distances.doubt),
            distances.word,
            f"Distances of {subject}; all intervals hold together with {confidence:.1%}",
            Listed.of("Distances", (*sides, *_DISTANCE_HEADINGS), rows, left=sides),
            "Of these records: the noise alone is uncertain. Of their populations: these records are a sample, too. "
            "The intervals are wide enough for their number: where nothing differs, a yes anywhere is that unlikely.",
        ),
    )


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
                f"{source} is a run with released histograms: only -o and --json apply to it; leave the others out"
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
    """Read a release about made-up records, and make its page."""
    description_page.page_of(
        descriptions.described(directory, experiment_code.modules_of(experiment)), experiment.name
    ).page()


_BLOCKS = " ▁▂▃▄▅▆▇█"
_WIDEST = 48


def _screen(description: Description, directory: Path, output: Path | None) -> Document:
    rows = []
    for column in description.columns:
        # one block a bin, at most `_WIDEST` of them, as high as its share; where half of the numbers are, and most
        shares = column.plausible[:_WIDEST]
        top = max(float(shares.max()), 1e-12)
        blocks = "".join(_BLOCKS[round(float(share) / top * (len(_BLOCKS) - 1))] for share in shares)
        low, high = column.quantile(0.25), column.quantile(0.75)
        half = "" if low is None or high is None else f"{column.words(low, 4)} and {column.words(high, 4)}"
        most = f"{column.labels[int(column.shares.argmax())]} ({column.plausible.max():.2f})"
        rows.append((column.name, blocks, half, most, f"{column.half_width:.3f}"))
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
