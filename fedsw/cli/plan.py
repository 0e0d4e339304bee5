"""`fedsw plan`: what a run can be expected to come to, before a record is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedsw.cli.options import (
    RUNS,
    AllowModule,
    Clients,
    DataDir,
    Epsilon,
    Json,
    Quiet,
    Runs,
    Set,
    Settings,
    changes_of,
    echo,
)
from fedsw.report.console import Screen

if TYPE_CHECKING:
    from fedsw.experiment import Experiment
    from fedsw.planning.law import PublicRows


def plan_command(
    experiment: Annotated[str | None, typer.Argument(metavar="EXPERIMENT")] = None,
    settings: Settings = None,
    epsilon: Epsilon = None,
    overrides: Set = None,
    records: Annotated[
        str | None,
        typer.Option(metavar="N or A=N,B=M", help="Number of records, or by group, where no data are at hand."),
    ] = None,
    clients: Clients = None,
    data_dir: DataDir = None,
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
    allow_module: AllowModule = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the what-ifs into this PNG file.")] = None,
    runs: Runs = RUNS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say from public numbers alone whether a run can work.

    Prints the noise, the settings, a forecast, and what would help. The forecast comes from training on public twins:
    records of the same columns and sizes, drawn from a public law. Of private records their number by group is read,
    which is public (under a sketch their number alone), or given with --records. With --after-moments the twins are
    of the law that a run's released moments tell, in place of a public one: whether it is worth going on with costs
    nothing more.
    """

    from fedsw.experiment import load_experiment
    from fedsw.experiment.catalogue import find_experiment
    from fedsw.planning.after_moments import after_moments as from_run
    from fedsw.planning.plan import planned
    from fedsw.planning.words import as_plain, draw_plan, planned_view
    from fedsw.runs.files import find_run
    from fedsw.tasks.needs import require_possible
    from fedsw.tasks.own import task_of
    from fedsw.text import json_text

    if (experiment is None) == (after_moments is None):
        raise typer.BadParameter("give an EXPERIMENT, or the run of --after-moments, which has its own")
    if after_moments is not None:
        given = settings or overrides or epsilon or records or clients or data_dir or public_table or expect
        if given:
            raise typer.BadParameter("--after-moments plans the run as it is: leave settings and other sources out")
    if after_moments is not None:
        released = from_run(find_run(after_moments, runs), tuple(allow_module or ()))
        chosen, by_group, table, untold = released.experiment, released.by_group, released.twins, released.untold
        assumed = ""
    else:
        changes = changes_of(settings, overrides, epsilon=epsilon, clients=clients, data_dir=data_dir)
        chosen = load_experiment(find_experiment(str(experiment)), changes)
        require_possible(chosen, task_of(chosen))
        by_group, assumed = _sizes(chosen, records)
        table, untold = None, ""
    console = Screen(stderr=True, quiet=quiet or as_json or not Screen(stderr=True).is_terminal)
    with console.status("training on public twins ...") as status:
        done = 0

        def seen() -> None:
            nonlocal done
            done += 1
            status.update(f"training on public twins: {done}")

        table = table or _table(chosen, public_table, expect)
        found = planned(chosen, by_group, assumed=assumed, table=table, untold=untold, expect=expect, seen=seen)
    if picture is not None:
        draw_plan(found, picture)
    if as_json:
        echo(json_text(as_plain(found)))
    else:
        Screen(highlight=False).print(planned_view(found))


def _sizes(experiment: Experiment, given: str | None) -> tuple[dict[str, int], str]:
    """Private records of every group, and what of that was assumed.

    Raises:
        ExperimentError: if they are not given and not at hand, or cannot be read.
    """
    from fedsw.experiment import ExperimentError
    from fedsw.experiment.sources import load_shape
    from fedsw.federation.server.preset import sizes_at_hand
    from fedsw.own_data.examine import require_runnable
    from fedsw.planning.law import known_sizes, spread_evenly

    if given is None:
        if experiment.data.data_dir is not None:
            require_runnable(experiment, named=experiment.name, elsewhere=False)
        assumed = "a sketch hides groups: groups of one size are assumed" if experiment.privacy.sketch else ""
        return known_sizes(experiment, sizes_at_hand(experiment)), assumed
    groups = load_shape(experiment).groups
    if given.isdecimal():
        said = f"groups of one size are assumed; --records {groups[0]}=N,... says others" if len(groups) > 1 else ""
        return spread_evenly(groups, int(given)), said
    pairs = [part.rpartition("=") for part in given.split(",")]
    found = {name.strip(): int(size) for name, _, size in pairs if size.strip().isdecimal()}
    if set(found) != set(groups) or len(pairs) != len(groups) or min(found.values()) < 2:
        raise ExperimentError(
            f"--records {given!r} cannot be read; write a number, or at least 2 for every group: "
            f"{','.join(f'{name}=N' for name in groups)}"
        )
    return {name: found[name] for name in groups}, ""


def _table(experiment: Experiment, path: Path | None, expect: str | None) -> PublicRows | None:
    """A public table under the experiment's declaration.

    Raises:
        ExperimentError: if a law is asked for, too. FileNotFoundError, BadRecords: as `read_table`.
    """
    from fedsw.data import read_table
    from fedsw.experiment import ExperimentError
    from fedsw.experiment.sources import declared_columns
    from fedsw.planning.law import PublicRows

    if path is None:
        return None
    if expect is not None:
        raise ExperimentError("--expect chooses a law, and --public-table takes the place of the laws: keep one")
    columns = declared_columns(experiment)
    read = read_table(path.expanduser(), columns)
    return PublicRows(read.features, read.sensitive, read.target, read.ids, columns, "public table")
