"""`fedsw tune`: settings searched on public twins or on the records, with its screens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsw._tools.exits import Exit
from fedsw._tools.text import at_delta, number, upward
from fedsw.cli import options
from fedsw.cli._modules import execution, experiment_files, private_search, rehearsal, searching, selections, verbs
from fedsw.cli.options import RunInterrupted, RunStopped, answer, changes_of, echo, of_system, say
from fedsw.runs.report.console import Screen
from fedsw.runs.report.document import Conclusion, Document

if TYPE_CHECKING:
    from fedsw.desk.planning.private_search import Selected, SelectionCost
    from fedsw.desk.planning.search import Candidate, Tried


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
    the best run is kept, of a random number of them, and what that costs is shown before it is spent. Who watches the
    search sees how many they are: run it where only you do.
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
    from rich.progress import Progress

    with Progress(console=Screen(stderr=True), disable=not show, transient=True) as progress:
        task = progress.add_task("trying settings on public twins", total=total)
        yield lambda tried: progress.advance(task)


def cost_view(cost: SelectionCost) -> str:
    """Say what a selection on the records will cost, beside what else could be done."""
    selection, runs = cost.selection, cost.selection.law.mean
    fewer = ": so few runs are cheaper made one by one" if cost.all_shown < selection.epsilon else ""
    return (
        f"the best of a random number of runs ({number(runs)} on average, {len(cost.experiments)} settings) costs "
        f"{at_delta(selection.epsilon, selection.delta)}; one run costs {upward(cost.single, 4)}, and {round(runs)} "
        f"runs that are all shown {upward(cost.all_shown, 4)}{fewer}"
    )


def selected_record(chosen: Selected, metric: str, sign: float) -> dict[str, Any]:
    """The outcome of a selection on the records: all of it that may be released."""
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
