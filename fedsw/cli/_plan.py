"""Verbs that look ahead: `fedsw plan`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedsw.cli import options
from fedsw.cli._modules import experiments, moments_plan, own_tasks, plan_words, public_rows, run_plan, task_needs
from fedsw.cli.options import answer, changes_of, found, require_format, require_writable
from fedsw.runs.report.console import Screen

if TYPE_CHECKING:
    pass


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
        Path | None,
        typer.Option(
            metavar="FILE", help="A public table of the same columns, to draw simulated records (twins) from."
        ),
    ] = None,
    other_people: options.OtherPeople = False,
    expect: Annotated[
        Literal["little", "some", "much"] | None,
        typer.Option(help="How well the columns predict the target, if that is publicly known; else all three."),
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
    """Forecast from public numbers only whether a run can work.

    Prints the noise, the settings, a forecast, and what other numbers would leave. The forecast comes from training on
    public twins: records of the same columns and sizes, drawn from a public law. Of private records their number by
    group is read, which is public (under a sketch their number only), or given with --records. With --after-moments
    the twins are of the law that a run's released moments tell, in place of a public one: whether it is worth going on
    with costs nothing more.
    """
    if picture is not None:
        read = [public_table] if public_table is not None else []
        require_writable(picture, force=force, read=read)
        require_format(picture, "the picture")
    if (experiment is None) == (after_moments is None):
        raise typer.BadParameter("give an EXPERIMENT, or the run of --after-moments, which has its own")
    if after_moments is not None:
        if settings or overrides or epsilon or records or clients or data_dir or public_table or other_people or expect:
            raise typer.BadParameter("--after-moments plans the run as it is: leave settings and other sources out")
        released = moments_plan.after_moments(found(after_moments, runs), tuple(allow_module or ()))
        chosen, by_group, table, untold = released.experiment, released.by_group, released.twins, released.untold
        assumed = ""
    else:
        changes = changes_of(settings, overrides, epsilon=epsilon, clients=clients, data_dir=data_dir)
        chosen = experiments.load_experiment(str(experiment), changes)
        task_needs.require_possible(chosen, own_tasks.task_of(chosen))
        by_group, assumed = public_rows.sizes_by_group(chosen, records)
        table, untold = None, ""
    console = Screen(stderr=True, quiet=quiet or as_json or not Screen(stderr=True).is_terminal)
    count = itertools.count(1)
    with console.status("training on public twins ...") as status:

        def seen() -> None:
            status.update(f"training on public twins: {next(count)}")

        if table is None:
            table, doubt = public_rows.twins_table(chosen, public_table, expect, others=other_people)
            assumed = "; ".join(filter(None, (assumed, doubt)))
        plan = run_plan.planned(chosen, by_group, assumed=assumed, table=table, untold=untold, expect=expect, seen=seen)
    if picture is not None:
        plan_words.draw_plan(plan, picture)
    answer(plan_words.as_plain(plan), lambda: plan_words.planned_view(plan), as_json=as_json)
