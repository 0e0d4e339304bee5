"""Verbs by their Python names: what the command prints is what these return. Each imports what it needs when called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fedsw._tools.files import fresh_folder
from fedsw._tools.later import loading
from fedsw._tools.settings import ExperimentError, FederationError
from fedsw._tools.text import nearest
from fedsw.experiment.choices import modules_of
from fedsw.experiment.load import experiment_of, find_experiment, in_folder
from fedsw.runs.report.answer import Answer, ByColumn
from fedsw.runs.run_files import find_run, is_run

if TYPE_CHECKING:
    from fedsw.desk.compare.comparison_page import Comparison
    from fedsw.desk.planning.search import Tried
    from fedsw.desk.use.predictions import Asked, OnFaults
    from fedsw.experiment import Experiment
    from fedsw.runs.observer import Observer
    from fedsw.runs.report.render import Page

    Source: TypeAlias = Experiment | str | Path | Mapping[str, Any]

RUNS = Path("runs")


def check(
    experiment: Source, *settings: str, data_dir: Path | str | None = None, client: int | None = None,
    estimate: bool = False,
) -> Answer:  # fmt: skip
    """List every fault of clients' files, sizes, and what is public, as `fedsw check`.

    Faults quote records: they are for the holder of the files. Rows of `to_frame()` are files; `["fits"]` is False if a
    run could not start.

    Args:
        data_dir: the clients' folders, or a client's own; `client` looks at one only.
        estimate: measure what a run takes by a short one on made-up records.

    Raises:
        ExperimentError: if nothing says where the files are.
    """
    from fedsw.data.sources import declared_columns
    from fedsw.desk.own_data.draft import MOST_GROUPS
    from fedsw.desk.own_data.examine import examine
    from fedsw.desk.own_data.screen import as_plain, examination_view, measured_cost

    chosen = experiment_of(experiment, settings, data_dir)
    if (own_files := chosen.data.own_files) is not None and own_files.folder is None:
        named = experiment if isinstance(experiment, str | Path) else chosen.name
        raise ExperimentError(
            f"{named} does not say where the clients' files are: add --data-dir DIR, a folder with a folder 0, 1, ... "
            "for each client, or a client's own folder"
        )
    examination = examine(chosen, Path(chosen.data.data_dir or ".").expanduser(), client)
    cost, groups = None, len(declared_columns(chosen.data).groups)
    if estimate and groups > MOST_GROUPS:
        more = f"{groups} groups: every two are compared, and no time is estimated; edges or fewer values make fewer"
        examination = replace(examination, warnings=(*examination.warnings, more))
    elif estimate and examination.fits and not examination.alone:
        try:
            cost = measured_cost(chosen, [file.groups for file in examination.files])
        except (ExperimentError, FederationError) as fault:  # settings that do not go with so many records
            examination = replace(examination, together=(*examination.together, str(fault)))
    content = as_plain(chosen, examination, cost)
    return Answer(content, lambda: examination_view(chosen, examination, cost), content["files"], examination)


def describe(
    source: Source, *settings: str, data_dir: Path | str | None = None, epsilon: float | None = None,
    trust: str | None = None, runs: Path | str = RUNS, observer: Observer | None = None,
    allow_modules: Collection[str] = (),
) -> Answer:  # fmt: skip
    """Release noised histograms of every declared column, as `fedsw describe`, or show those of a run again, free.

    Rows of `to_frame()` are columns. Guarantee: that of the release, `["guarantee"]`.
    """
    from fedsw.data.sources import require_runnable
    from fedsw.desk.own_data.description import as_description, described, keep_description
    from fedsw.desk.own_data.description_page import page_of
    from fedsw.desk.own_data.rehearsal import rehearse
    from fedsw.federation.engines.driver import run

    if isinstance(source, str | Path) and is_run(Path(source)):
        description = described(Path(source), allow_modules)
    else:
        made = as_description(experiment_of(source, settings, data_dir), trust=trust, epsilon=epsilon)
        require_runnable(made.data, made.federation.clients, named=made.name)
        modules = modules_of(made)

        def tried(folder: Path) -> None:
            page_of(described(folder, modules), made.name).page()

        rehearse(made, tried)
        directory = run(made, runs=runs, observer=observer).directory
        description = described(directory, modules)
        keep_description(directory, description)
    content = description.plain()
    return Answer(content, lambda: page_of(description, description.experiment.name), content["columns"], description)


def forecast(
    experiment: Source, *settings: str, records: int | str | None = None, data_dir: Path | str | None = None,
    public_table: Path | None = None, other_people: bool = False,
    expect: Literal["little", "some", "much"] | None = None, seen: Callable[[], None] = lambda: None,
) -> Answer:  # fmt: skip
    """Say from public numbers alone whether a run can work, as `fedsw plan`: noise, settings, what can be expected.

    Rows of `to_frame()` are what-ifs: other epsilons and numbers of records. No private record is read but for counts.

    Args:
        records: how many, or by group ("a=100,b=200"), where no data are at hand.
        public_table, other_people, expect: what twins are drawn from; see `fedsw plan --help`.
        seen: called after each training on twins.
    """
    with loading():
        from fedsw.desk.planning.public_rows import sizes_by_group, twins_table
        from fedsw.desk.planning.run_plan import planned
        from fedsw.learning.tasks.needs import require_possible
        from fedsw.learning.tasks.own_task import task_of

    chosen = experiment_of(experiment, settings, data_dir)
    require_possible(chosen, task_of(chosen))
    by_group, assumed = sizes_by_group(chosen, None if records is None else str(records))
    table, doubt = twins_table(chosen, public_table, expect, others=other_people)
    assumed = "; ".join(filter(None, (assumed, doubt)))
    return as_answer(planned(chosen, by_group, assumed=assumed, table=table, expect=expect, seen=seen))


def as_answer(plan: Any) -> Answer:
    """A plan that was made, as an answer."""
    from fedsw.desk.planning.run_plan import as_plain, planned_view

    content = as_plain(plan)
    return Answer(content, lambda: planned_view(plan), (content.get("forecast") or {}).get("what_ifs", ()), plan)


def compare(
    task: str, *settings: str, methods: Sequence[str] | None = None, baselines: bool = False,
    epsilons: Sequence[float] = (1.0, 3.0, 10.0), seeds: int = 3, rounds: int | None = None, nominal: bool = False,
    jobs: int | None = None, runs: Path | str = RUNS,
) -> Comparison:  # fmt: skip
    """Run methods side by side on one task, as `fedsw compare`: `to_frame()` is its table, `page()` its page."""
    from fedsw.desk.compare.comparison_grid import make_grid, run_missing, write_grid
    from fedsw.desk.compare.comparison_page import read_comparison
    from fedsw.desk.run_grid import GridProgress
    from fedsw.federation.engines.pool import cores

    options: dict[str, Any] = {"methods": methods, "baselines": baselines, "epsilons": epsilons, "seeds": seeds}
    grid = make_grid(task, **options, rounds=rounds, settings=settings, nominal=nominal)
    folder = fresh_folder(Path(runs) / "compare" / grid.task)
    write_grid(folder, grid)
    with GridProgress(label=f"compare {grid.task}", cells=len(grid.cells), done=0, quiet=True) as progress:
        run_missing(folder, grid, jobs=jobs or cores(), watcher=progress)
    return read_comparison(folder)


def tune(
    experiment: str | Path, *settings: str, tries: Iterable[str] = (), most: int = 50, metric: str | None = None,
    data_dir: Path | str | None = None, said: Callable[[Tried], None] = lambda tried: None,
) -> Answer:  # fmt: skip
    """Search settings on public twins, free, as `fedsw tune`; rows of `to_frame()` are tries, the best first.

    Args:
        tries: values of a setting, "training.learning_rate=0.1,0.2", each.
        most: the largest number of combinations.
        metric: the held-out metric to search by; "-NAME": lower is better.
        said: called after each try.
    """
    from fedsw.desk.planning.search import candidates, metric_of, on_twins, tried_view

    changes = [*settings, *in_folder(data_dir)]
    tried = candidates(find_experiment(str(experiment)), list(tries), changes)
    record = on_twins(tried, most, *metric_of(tried[0].experiment, metric), said=said)
    return Answer(record, lambda: tried_view(record), record["tried"])


def synthesize(
    source: Source, *settings: str, rows: int = 10_000, draw: int = 0, data_dir: Path | str | None = None,
    epsilon: float | None = None, trust: str | None = None, fair: bool = False, runs: Path | str = RUNS,
    observer: Observer | None = None, allow_modules: Collection[str] = (),
) -> Answer:  # fmt: skip
    """Draw a synthetic table, as `fedsw synthesize`: of an experiment's one release, or more rows of a run, free.

    `to_frame()` is the table, the page its card. Guarantee: that of the release, which the card says.
    """
    from fedsw.data.sources import load_held_out, require_runnable
    from fedsw.desk.own_data.apart import OtherTable
    from fedsw.desk.own_data.card import made_table, rehearse_table
    from fedsw.desk.own_data.rehearsal import rehearse
    from fedsw.desk.own_data.synthetic_table import as_synthesis, learnt
    from fedsw.federation.engines.driver import run

    other = None
    if isinstance(source, str | Path) and is_run(Path(source)):
        table = learnt(Path(source), allow_modules)
    else:
        made = as_synthesis(experiment_of(source, settings, data_dir), trust=trust, fair=fair, epsilon=epsilon)
        require_runnable(made.data, made.federation.clients, named=made.name)
        modules, measured = modules_of(made), made.data.held_out is not None
        rehearse(made, lambda folder: rehearse_table(learnt(folder, modules), held_out=measured))
        held_out = load_held_out(made.record_source)  # a file that cannot be read costs nothing
        table = learnt(run(made, runs=runs, observer=observer).directory, modules)
        other = None if held_out is None else OtherTable(held_out)
    drawn = made_table(table, other, None, name="synthetic", rows=rows, draw=draw)
    names = list(drawn.cells)
    lines = [dict(zip(names, line, strict=True)) for line in zip(*drawn.cells.values(), strict=True)]
    content = {"rows": rows, "epsilon_spent": table.summary["epsilon_spent"], "findings": drawn.said}
    return Answer(content, lambda: drawn.card, lines, drawn)


def evaluate(
    run: Path | str, *, data_dir: Path | str | None = None, client: int | None = None, runs: Path | str = RUNS,
    allow_modules: Collection[str] = (),
) -> Answer:  # fmt: skip
    """Measure a run's model on records kept out of its training, as `fedsw evaluate`; rows are clients.

    The metrics have no noise: they are for the holder of the records.
    """
    from fedsw.desk.own_data.evaluate import evaluate as evaluated_on
    from fedsw.desk.own_data.evaluate import evaluated_view

    folder = None if data_dir is None else Path(data_dir)
    clients = evaluated_on(find_run(str(run), Path(runs)), folder, client, allow_modules=allow_modules)
    content = [measured.as_dict() for measured in clients]
    return Answer(content, lambda: evaluated_view(clients), content, clients)


def report(*run: Path | str, operator: bool = False, runs: Path | str = RUNS) -> Page:
    """Make the page of a run, or of several side by side, as `fedsw report` writes it; a notebook shows it."""
    from fedsw.runs.report.run_documents import page
    from fedsw.runs.view import read_whole_run

    return page([read_whole_run(find_run(str(name), Path(runs))) for name in run], operator=operator)


def account(*data: str, delta: float | None = None, accounts: Path | str | None = None) -> Answer:
    """Show what all runs on a data set spent together, as `fedsw account show`; rows of `to_frame()` are runs.

    Of several names also what a record that is in each has spent, and rows are accounts; of none all on this machine.

    Raises:
        FileNotFoundError: if there is no account of that name, with those that there are.
    """
    from fedsw.privacy.accounting.lifetime import DatasetAccount, accounts_folder, accounts_in
    from fedsw.runs.accounts import account_record, together_record
    from fedsw.runs.report.screens import account_view, accounts_view, together_view

    folder = accounts_folder() if accounts is None else Path(accounts).expanduser()
    if not data:
        records = [account_record(one, delta) for one in accounts_in(folder)]
        content: dict[str, Any] = {"folder": str(folder), "accounts": records}
        return Answer(content, lambda: accounts_view(records), records)
    selected = [DatasetAccount(folder, name) for name in data]
    for existing in selected:
        if not existing.state().runs and not existing.path.exists():
            known = [other.data for other in accounts_in(folder)]
            raise FileNotFoundError(
                f"no account of data set {existing.data!r} in {folder}; {nearest(existing.data, known)}known: "
                f"{', '.join(known) or 'none'}"
            )
    if len(selected) == 1:
        record = account_record(selected[0], delta)
        return Answer(record, lambda: account_view(record), record["runs"])
    together = together_record(selected, delta)
    return Answer(together, lambda: together_view(together), together["accounts"])


def predict(
    run: Path | str, table: object, *, thresholds: Asked = None, keep: Sequence[str] = (),
    faults: OnFaults = "refuse", runs: Path | str = RUNS,
    allow_modules: Collection[str] = (),
) -> Answer:  # fmt: skip
    """Predict every record of a table with a run's model, as `fedsw predict`; rows of `to_frame()` are records.

    Args and exceptions: those of `fedsw.load` and `TrainedModel.predictions`.
    """
    from fedsw.desk.use.trained import load
    from fedsw.runs.report.document import Document, Listed

    model = load(run, thresholds=thresholds, runs=Path(runs), allow_modules=allow_modules)
    columns = model.predictions(table, keep=keep, faults=faults)

    def view() -> Document:
        lines = zip(*map(list, columns.values()), strict=True)
        return Document("Predictions", begins=(model.guarantee, Listed.of("Predictions", columns, lines)))

    return Answer(columns, view, ByColumn(columns), model)
