"""Verbs that look ahead: `fedsw plan`, `tune`, `budget`."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedsw._tools.exits import Exit
from fedsw._tools.text import at_delta, number, upward
from fedsw.cli import options
from fedsw.cli._modules import (
    budgets,
    execution,
    experiment_files,
    experiments,
    private_search,
    progress_bars,
    public_rows,
    rehearsal,
    run_plan,
    searching,
    selections,
    verbs,
)
from fedsw.cli.options import (
    Json,
    RunInterrupted,
    RunStopped,
    Set,
    answer,
    changes_of,
    echo,
    found,
    in_parts,
    of_system,
    require_format,
    require_writable,
    say,
)
from fedsw.runs.report.console import Screen
from fedsw.runs.report.document import Conclusion, Document, named

if TYPE_CHECKING:
    from fedsw.desk.planning.private_search import Selected, SelectionCost
    from fedsw.desk.planning.search import Candidate, Tried


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
        released = public_rows.after_moments(found(after_moments, runs), tuple(allow_module or ()))
    console = Screen(stderr=True, quiet=quiet or as_json or not Screen(stderr=True).is_terminal)
    count = itertools.count(1)
    with console.status("training on public twins ...") as status:

        def seen() -> None:
            status.update(f"training on public twins: {next(count)}")

        if released is not None:
            about: dict[str, Any] = {"table": released.twins, "untold": released.untold}
            answered = verbs.as_answer(run_plan.planned(released.experiment, released.by_group, **about, seen=seen))
        else:
            looked: dict[str, Any] = {
                "public_table": public_table,
                "other_people": other_people,
                "expect": expect,
                "seen": seen,
            }
            answered = verbs.forecast(str(experiment), *changes, records=records, **looked)
    if picture is not None:
        run_plan.draw_plan(answered.about, picture)
    say(answered, as_json=as_json)


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
    """Search hyperparameters of an experiment on your tables.

    On public twins (the default) it is free: records of the same form and sizes, drawn from a public law, are trained
    on with the planned noise. With --on-records runs on the private records are compared by a private selection: only
    the best run is kept, of a random number of them, and its cost is shown before it is spent. Watching the search
    reveals their secret number: run it where only you can see it.
    """
    changes = changes_of(settings, overrides, epsilon=epsilon, data_dir=data_dir)
    tried = searching.candidates(experiment_files.find_experiment(experiment), tries or (), changes)
    name, sign = searching.metric_of(tried[0].experiment, metric)
    if on_records:
        _on_records(tried, expected_runs, name, sign, runs, as_json=as_json)
    else:
        with counting(min(most, len(tried)), show=not as_json) as said:
            answered = verbs.tune(experiment, *changes, tries=tries or (), most=most, metric=metric, said=said)
        say(answered, as_json=as_json, highlight=True)


def _on_records(
    tried: list[Candidate], expected: float, metric: str, sign: float, runs: Path, *, as_json: bool
) -> None:
    for candidate in tried:
        rehearsal.rehearse(candidate.experiment, execution.rehearsed)
    law = selections.with_mean(expected)
    cost, charged = private_search.cost_of(tried, law), threading.Event()
    if not as_json:
        Screen().print(cost_view(cost))
    epsilon = upward(cost.selection.epsilon, 4)
    spent = f"\nThe search costs ε = {epsilon}, which was charged before its first run: it is spent"
    try:
        with Screen(stderr=True, quiet=as_json).status("comparing private runs; how many is secret"):
            chosen = private_search.select(tried, law, metric, sign, runs=runs, charged=charged.set)
    except KeyboardInterrupt:
        echo(f"fedsw: interrupted{spent if charged.is_set() else '; nothing had begun'}", err=True)
        raise RunInterrupted from None
    except Exception as fault:
        if not charged.is_set():
            raise
        raise RunStopped(f"stopped: {of_system(fault)}{spent}", Exit.BROKE_OFF) from fault
    with execution.showing(chosen.directory):
        record = selected_record(chosen, metric, sign)
        answer(record, lambda: selected_view(record), as_json=as_json, highlight=True)


@contextmanager
def counting(total: int, *, show: bool) -> Iterator[Callable[[Tried], None]]:
    """A bar that counts the tries of a search that is free."""
    with progress_bars.Progress(console=Screen(stderr=True), disable=not show, transient=True) as progress:
        task = progress.add_task("trying settings on public twins", total=total)
        yield lambda tried: progress.advance(task)


def cost_view(cost: SelectionCost) -> str:
    """The cost of a selection on the records, beside that of one run and of runs that are all shown."""
    selection, runs = cost.selection, cost.selection.law.mean
    fewer = ": so few runs are cheaper made one by one" if cost.all_shown < selection.epsilon else ""
    return (
        f"the best of a random number of runs ({number(runs)} on average, {len(cost.experiments)} settings) costs "
        f"{at_delta(selection.epsilon, selection.delta)}; one run costs {upward(cost.single, 4)}, and {round(runs)} "
        f"runs that are all shown {upward(cost.all_shown, 4)}{fewer}"
    )


def selected_record(chosen: Selected, metric: str, sign: float) -> dict[str, Any]:
    """The releasable outcome of a selection on the records."""
    return {
        "on": "the records",
        "metric": metric,
        "best": list(chosen.candidate.settings),
        metric: sign * chosen.score,
        "directory": str(chosen.directory),
        "epsilon": chosen.cost.selection.epsilon,
        "delta": chosen.cost.selection.delta,
    }


def selected_view(record: Mapping[str, Any]) -> Document:
    """Show the outcome of a selection on the records."""
    best, metric = "  ".join(record["best"]) or "as written", record["metric"]
    return Document(
        "",
        begins=(
            Conclusion(f"best: {best}"),
            f"{metric.replace('_', ' ')} {number(record[metric], 4)}, {record['directory']}",
            f"it cost {at_delta(record['epsilon'], record['delta'])}, which the run has for good: the other runs are "
            "not kept: neither they, nor their number, nor how long this took may be published",
        ),
    )


def budget_command(
    experiment: Annotated[
        str | None, typer.Argument(metavar="EXPERIMENT", help="Of a sketch: what each of its stages gets and costs.")
    ] = None,
    overrides: Set = None,
    delta: Annotated[
        float | None, typer.Option(help="δ of the guarantee, well below 1 / records; 'auto' of --records.")
    ] = None,
    sampling_rate: Annotated[
        float | None, typer.Option("--sampling-rate", "-p", help="Share of a group's records in a batch, in (0, 1].")
    ] = None,
    records: Annotated[int | None, typer.Option(help="Records of the group, instead of -p.")] = None,
    batch: Annotated[int | None, typer.Option(help="Records of the group in a batch; all of --records.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of noisy releases; 50 with --records.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="σ/Δ, with Δ the full sensitivity under replacement.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of the guarantee.")] = None,
    sampling: Annotated[
        Literal["without-replacement", "poisson"], typer.Option(help="How batches are drawn.")
    ] = "without-replacement",
    slices: Annotated[
        int | None, typer.Option(help="Number k of random directions through which features are released.")
    ] = None,
    dimension: Annotated[int | None, typer.Option(help="Dimension d of the features that are sliced.")] = None,
    directions_scheme: Annotated[
        Literal["iid", "orthogonal"] | None, typer.Option(help="Independent directions (the default), or orthonormal.")
    ] = None,
    diameter: Annotated[
        float | None, typer.Option(help="Most that a replacement moves the features; 2 for rows of norm 1.")
    ] = None,
    noise: Annotated[float | None, typer.Option(help="σ of the noise in each slice, with --diameter.")] = None,
    as_json: Json = False,
    compare: Annotated[bool, typer.Option(help="Show what other accountants say.")] = True,
) -> None:
    """Work out ε, noise multiplier or number of steps from the others.

    Prints the guarantee, the bracket it lies in, and what other accountants say, each marked as a guarantee or not.
    With --records what is left out is assumed, and printed: `fedsw budget --records 500 --epsilon 2` is a question.
    With --slices and --dimension the releases are features through random directions.
    With an EXPERIMENT on a sketch of records: each stage's share of the budget, its μ and its noise.
    """
    elsewhere = {
        "--sampling-rate": sampling_rate, "--batch": batch, "--steps": steps, "--slices": slices,
        "--dimension": dimension, "--directions-scheme": directions_scheme, "--diameter": diameter, "--noise": noise,
    }  # fmt: skip
    if experiment is not None:
        if extra := next((name for name, value in elsewhere.items() if value is not None), None):
            raise typer.BadParameter(f"{extra} is for releases without an EXPERIMENT, which has its own: leave it out")
        changes = changes_of(None, overrides, epsilon=epsilon)
        changes += [f"privacy.delta={delta!r}"] * (delta is not None)
        changes += [f"privacy.noise_multiplier={noise_multiplier!r}"] * (noise_multiplier is not None)
        _say_stages(experiment, changes, records, as_json=as_json)
        return
    if overrides:
        raise typer.BadParameter("--set changes settings of an EXPERIMENT: name one")
    in_parts("dp_accounting")  # only its Rényi accountant: the other one loads scipy.signal and scipy.stats
    say(
        budgets.budget(
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            steps=steps,
            delta=delta,
            sampling_rate=sampling_rate,
            records=records,
            batch=batch,
            sampling=sampling,
            slices=slices,
            dimension=dimension,
            directions_scheme=directions_scheme,
            diameter=diameter,
            noise=noise,
            compare=compare,
        ),
        as_json=as_json,
    )


def _say_stages(name: str, changes: list[str], records: int | None, *, as_json: bool) -> None:
    """Print what the stages of an experiment's sketch cost, from public numbers only."""
    experiment = experiments.load_experiment(name, changes)
    if not experiment.stages:
        raise experiments.ExperimentError(
            f"privacy.trust is {experiment.privacy.trust!r}, and stages are a sketch's: `fedsw plan {name}` says what "
            "rounds cost"
        )
    by_group, assumed = public_rows.sizes_by_group(experiment, None if records is None else str(records))
    plan = run_plan.planned(experiment, by_group, assumed=assumed)
    plain = run_plan.as_plain(plan)
    content = {key: plain[key] for key in ("experiment", "epsilon", "delta", "noise_multiplier", "stages")}
    shown = [(head, words) for head, words in run_plan.rows(plan) if head == "noise" or head.startswith("stage")]
    answer(content, lambda: Document("", begins=(named(shown),)), as_json=as_json)
