"""`fedsw tune`: settings searched on public twins, free of charge, or on the records, accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsw.cli.options import RUNS, DataDir, Epsilon, Json, Name, Runs, Set, Settings, changes_of, echo
from fedsw.report.console import Screen
from fedsw.text import json_text

if TYPE_CHECKING:
    from fedsw.planning.search import Candidate, Tried

Try = Annotated[
    list[str] | None,
    typer.Option("--try", metavar="KEY=VALUE,VALUE", help="Values of a setting to try; may be repeated."),
]


def tune_command(
    experiment: Name,
    settings: Settings = None,
    epsilon: Epsilon = None,
    overrides: Set = None,
    tries: Try = None,
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
    data_dir: DataDir = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Search the settings of an experiment on tables of your own.

    On public twins (the default) it is free: records of the same form and sizes, drawn from a public law, are trained
    on with the planned noise. With --on-records runs on the private records are compared by a private selection: only
    the best run is kept, of a random number of them, and what that costs is shown before it is spent. Who watches the
    search sees how many they are: run it where only you do.
    """
    from fedsw.experiment.catalogue import find_experiment
    from fedsw.planning.search import candidates, metric_of

    changes = changes_of(settings, overrides, epsilon=epsilon, data_dir=data_dir)
    found = candidates(find_experiment(experiment), tries or (), changes)
    name, sign = metric_of(found[0].experiment, metric)
    record = (
        _on_records(found, expected_runs, name, sign, runs, show=not as_json)
        if on_records
        else _on_twins(found, most, name, sign, show=not as_json)
    )
    if as_json:
        echo(json_text(record))


def _on_twins(found: list[Candidate], most: int, metric: str, sign: float, *, show: bool) -> dict[str, Any]:
    from fedsw.experiment import ExperimentError
    from fedsw.experiment.sources import require_one_client_each
    from fedsw.own_data.examine import examine
    from fedsw.planning.law import known_sizes
    from fedsw.planning.search import score_on_twins, search
    from fedsw.report.tuning import counting, tried_record, tried_view

    own = found[0].experiment.data
    if own.source != "files" or own.data_dir is None:
        raise ExperimentError("twins have the sizes of clients' own files, and nothing says where they are: --data-dir")
    require_one_client_each(found[0].experiment)
    read = examine(found[0].experiment, Path(own.data_dir).expanduser()).files
    strictest = max((each.experiment for each in found), key=lambda each: each.privacy.sketch)
    sizes = [known_sizes(strictest, file.groups) for file in read]
    with counting(min(most, len(found)), show=show) as said:
        tried: list[Tried] = search(found, score_on_twins(sizes, metric, sign), most=most, said=said)
    record = tried_record(tried, metric, sign)
    if show:
        Screen().print(tried_view(record))
    return record


def _on_records(
    found: list[Candidate], expected: float, metric: str, sign: float, runs: Path, *, show: bool
) -> dict[str, Any]:
    from fedsw.accounting.selection import with_mean
    from fedsw.planning.selection import cost_of, select
    from fedsw.report.tuning import cost_view, selected_record, selected_view, waiting

    law = with_mean(expected)
    if show:
        cost = cost_of(found, law)
        Screen().print(
            cost_view(
                cost.epsilon,
                cost.delta,
                single=cost.single,
                all_shown=cost.all_shown,
                among=len(found),
                runs=law.mean,
            )
        )
    with waiting(show=show):
        chosen = select(found, law, metric, sign, runs=runs)
    record = selected_record(
        chosen.directory, chosen.candidate.settings, sign * chosen.score, metric, chosen.cost.epsilon, chosen.cost.delta
    )
    if show:
        Screen().print(selected_view(record))
    return record
