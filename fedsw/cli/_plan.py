"""Verbs that look ahead: `fedsw plan`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedsw.cli import options
from fedsw.cli._modules import moments_plan, plan_words, run_plan, verbs
from fedsw.cli.options import changes_of, found, require_format, require_writable, say
from fedsw.runs.report.console import Screen


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
    changes = changes_of(settings, overrides, epsilon=epsilon, clients=clients, data_dir=data_dir)
    released = None
    if after_moments is not None:
        if changes or records or public_table or other_people or expect:
            raise typer.BadParameter("--after-moments plans the run as it is: leave settings and other sources out")
        released = moments_plan.after_moments(found(after_moments, runs), tuple(allow_module or ()))
    console = Screen(stderr=True, quiet=quiet or as_json or not Screen(stderr=True).is_terminal)
    count = itertools.count(1)
    with console.status("training on public twins ...") as status:

        def seen() -> None:
            status.update(f"training on public twins: {next(count)}")

        if released is not None:
            about: dict[str, Any] = {"table": released.twins, "untold": released.untold}
            answered = verbs.told(run_plan.planned(released.experiment, released.by_group, **about, seen=seen))
        else:
            looked: dict[str, Any] = {
                "public_table": public_table,
                "other_people": other_people,
                "expect": expect,
                "seen": seen,
            }
            answered = verbs.forecast(str(experiment), *changes, records=records, **looked)
    if picture is not None:
        plan_words.draw_plan(answered.about, picture)
    say(answered, as_json=as_json)
