"""Verbs that look ahead: `fedsw plan`, `tune`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedsw.cli import _options as options
from fedsw.cli._options import answer, changes_of, require_writable
from fedsw.runs.report.console import Screen

if TYPE_CHECKING:
    from fedsw.desk.planning.public_rows import PublicRows
    from fedsw.desk.planning.search import Candidate
    from fedsw.experiment import Experiment


def plan_command(
    experiment: Annotated[str | None, typer.Argument(metavar="EXPERIMENT")] = None,
    settings: options.Settings = None,
    epsilon: options.Epsilon = None,
    overrides: options.Set = None,
    records: Annotated[
        str | None,
        typer.Option(metavar="N or A=N,B=M", help="Number of records, or by group, where no data are at hand."),
    ] = None,
    clients: options.Clients = None,
    data_dir: options.DataDir = None,
    public_table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A public table of the same columns, to draw twins from.")
    ] = None,
    expect: Annotated[
        Literal["little", "some", "much"] | None,
        typer.Option(help="How much the columns tell of the target, where that is publicly known; else all three."),
    ] = None,
    after_moments: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="A run that has released its moments: plan its rounds anew from them, free."),
    ] = None,
    allow_module: options.AllowModule = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the what-ifs into this PNG file.")] = None,
    force: options.Force = False,
    runs: options.Runs = options.RUNS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Say from public numbers alone whether a run can work.

    Prints the noise, the settings, a forecast, and what would help. The forecast comes from training on public twins:
    records of the same columns and sizes, drawn from a public law. Of private records their number by group is read,
    which is public (under a sketch their number alone), or given with --records. With --after-moments the twins are
    of the law that a run's released moments tell, in place of a public one: whether it is worth going on with costs
    nothing more.
    """
    from fedsw.desk.planning.after_moments import after_moments as from_run
    from fedsw.desk.planning.run_plan import planned
    from fedsw.desk.planning.words import as_plain, draw_plan, planned_view
    from fedsw.experiment import load_experiment
    from fedsw.learning.tasks.needs import require_possible
    from fedsw.learning.tasks.own_task import task_of
    from fedsw.runs.run_files import find_run

    if picture is not None:
        read = [public_table] if public_table is not None else []
        require_writable(picture, force=force, read=read)
    if (experiment is None) == (after_moments is None):
        raise typer.BadParameter("give an EXPERIMENT, or the run of --after-moments, which has its own")
    if after_moments is not None:
        if settings or overrides or epsilon or records or clients or data_dir or public_table or expect:
            raise typer.BadParameter("--after-moments plans the run as it is: leave settings and other sources out")
        released = from_run(find_run(after_moments, runs), tuple(allow_module or ()))
        chosen, by_group, table, untold = released.experiment, released.by_group, released.twins, released.untold
        assumed = ""
    else:
        changes = changes_of(settings, overrides, epsilon=epsilon, clients=clients, data_dir=data_dir)
        chosen = load_experiment(str(experiment), changes)
        require_possible(chosen, task_of(chosen))
        by_group, assumed = sizes_of(chosen, records)
        table, untold = None, ""
    console = Screen(stderr=True, quiet=quiet or as_json or not Screen(stderr=True).is_terminal)
    count = itertools.count(1)
    with console.status("training on public twins ...") as status:

        def seen() -> None:
            status.update(f"training on public twins: {next(count)}")

        if table is None:
            table, doubt = _table(chosen, public_table, expect)
            assumed = "; ".join(filter(None, (assumed, doubt)))
        plan = planned(chosen, by_group, assumed=assumed, table=table, untold=untold, expect=expect, seen=seen)
    if picture is not None:
        draw_plan(plan, picture)
    answer(as_plain(plan), lambda: planned_view(plan), as_json=as_json)


def sizes_of(experiment: Experiment, records: str | None) -> tuple[dict[str, int], str]:
    """Private records of every group, and what of that was assumed; ExperimentError if neither option nor file says."""
    from fedsw.desk.own_data.examine import require_runnable
    from fedsw.desk.planning.public_rows import known_sizes, spread_evenly
    from fedsw.experiment import ExperimentError
    from fedsw.experiment.sources import load_shape
    from fedsw.federation.server.settling import sizes_at_hand

    if records is None:
        if experiment.data.data_dir is not None:
            require_runnable(experiment, named=experiment.name, elsewhere=False)
        assumed = "a sketch hides groups: groups of one size are assumed" if experiment.privacy.sketch else ""
        return known_sizes(experiment, sizes_at_hand(experiment)), assumed
    groups = load_shape(experiment).groups
    if records.isdecimal():
        said = f"groups of one size are assumed; --records {groups[0]}=N,... says others" if len(groups) > 1 else ""
        return spread_evenly(groups, int(records)), said
    pairs = [part.rpartition("=") for part in records.split(",")]
    sizes = {name.strip(): int(size) for name, _, size in pairs if size.strip().isdecimal()}
    if set(sizes) != set(groups) or len(pairs) != len(groups) or min(sizes.values()) < 2:
        raise ExperimentError(
            f"--records {records!r} cannot be read; write a number, or at least 2 for every group: "
            f"{','.join(f'{name}=N' for name in groups)}"
        )
    return {name: sizes[name] for name in groups}, ""


def _table(experiment: Experiment, path: Path | None, expect: str | None) -> tuple[PublicRows | None, str]:
    """The rows of a public table, and what there is to doubt about it."""
    from fedsw.desk.own_data.apart import other_table
    from fedsw.desk.planning.public_rows import PublicRows
    from fedsw.experiment import ExperimentError
    from fedsw.experiment.sources import declared_columns

    if path is None:
        return None, ""
    if expect is not None:
        raise ExperimentError("--expect chooses a law, and --public-table takes the place of the laws: keep one")
    columns = declared_columns(experiment)
    private = None if experiment.data.data_dir is None else Path(experiment.data.data_dir)
    other = other_table(path, columns, private, option="--public-table")
    read = other.records
    return PublicRows(read.features, read.sensitive, read.target, read.ids, columns, "public table"), other.doubt


def tune_command(
    experiment: options.Name,
    settings: options.Settings = None,
    epsilon: options.Epsilon = None,
    overrides: options.Set = None,
    tries: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="KEY=VALUE,VALUE", help="Values of a setting to try; may be repeated."),
    ] = None,
    on_records: Annotated[
        bool, typer.Option("--on-records", help="Search on the private records; what it costs is charged.")
    ] = False,
    expected_runs: Annotated[
        float, typer.Option(help="With --on-records: how many runs are made on average; their number is secret.")
    ] = 10.0,
    most: Annotated[int, typer.Option(min=1, help="On twins: try at most so many combinations.")] = 50,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="The held-out metric to search by; -NAME: lower is better.")
    ] = None,
    data_dir: options.DataDir = None,
    runs: options.Runs = options.RUNS,
    as_json: options.Json = False,
) -> None:
    """Search the settings of an experiment on tables of your own.

    On public twins (the default) it is free: records of the same form and sizes, drawn from a public law, are trained
    on with the planned noise. With --on-records runs on the private records are compared by a private selection: only
    the best run is kept, of a random number of them, and what that costs is shown before it is spent. Who watches the
    search sees how many they are: run it where only you do.
    """
    from fedsw.desk.planning.search import candidates, metric_of
    from fedsw.experiment.load import find_experiment

    changes = changes_of(settings, overrides, epsilon=epsilon, data_dir=data_dir)
    tried = candidates(find_experiment(experiment), tries or (), changes)
    name, sign = metric_of(tried[0].experiment, metric)
    if on_records:
        _on_records(tried, expected_runs, name, sign, runs, as_json=as_json)
    else:
        _on_twins(tried, most, name, sign, as_json=as_json)


def _on_twins(tried: list[Candidate], most: int, metric: str, sign: float, *, as_json: bool) -> None:
    from fedsw.desk.own_data.examine import examine
    from fedsw.desk.planning.public_rows import known_sizes
    from fedsw.desk.planning.search import counting, score_on_twins, search, tried_record, tried_view
    from fedsw.experiment import ExperimentError
    from fedsw.experiment.sources import require_one_client_each

    data = tried[0].experiment.data
    if data.source != "files" or data.data_dir is None:
        raise ExperimentError("twins have the sizes of clients' own files, and nothing says where they are: --data-dir")
    require_one_client_each(tried[0].experiment)
    read = examine(tried[0].experiment, Path(data.data_dir).expanduser()).files
    strictest = max((candidate.experiment for candidate in tried), key=lambda candidate: candidate.privacy.sketch)
    sizes = [known_sizes(strictest, file.groups) for file in read]
    with counting(min(most, len(tried)), show=not as_json) as said:
        record = tried_record(search(tried, score_on_twins(sizes, metric, sign), most=most, said=said), metric, sign)
    answer(record, lambda: tried_view(record), as_json=as_json, highlight=True)


def _on_records(
    tried: list[Candidate], expected: float, metric: str, sign: float, runs: Path, *, as_json: bool
) -> None:
    from fedsw.cli._execution import rehearsed
    from fedsw.desk.own_data.rehearsal import rehearse
    from fedsw.desk.planning.private_search import cost_of, cost_view, select, selected_record, selected_view
    from fedsw.privacy.accounting.selection import with_mean

    for candidate in tried:
        rehearse(candidate.experiment, rehearsed)
    law = with_mean(expected)
    if not as_json:
        Screen().print(cost_view(cost_of(tried, law)))
    with Screen(stderr=True, quiet=as_json).status("comparing private runs; how many is secret"):
        record = selected_record(select(tried, law, metric, sign, runs=runs), metric, sign)
    answer(record, lambda: selected_view(record), as_json=as_json, highlight=True)
