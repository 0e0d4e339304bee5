"""Verbs by their Python names: what the command prints is what these return. Each loads what it needs when called.

So `fedsw.report` loads nothing that trains, and `fedsw.check` no torch (tests/cli/test_app_startup.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fedsw._tools.files import fresh_folder
from fedsw._tools.later import imported_later
from fedsw._tools.settings import ExperimentError, FederationError
from fedsw._tools.text import nearest
from fedsw.experiment.choices import modules_of
from fedsw.experiment.load import experiment_of, find_experiment, in_folder
from fedsw.runs.report.answer import Answer, ByColumn
from fedsw.runs.report.document import Document, Listed
from fedsw.runs.run_files import find_run, is_run

if TYPE_CHECKING:
    from fedsw.data import sources as sources
    from fedsw.desk import run_grid as run_grid
    from fedsw.desk.compare import comparison_grid as comparison_grid
    from fedsw.desk.compare import comparison_page as comparison_page
    from fedsw.desk.compare.comparison_page import Comparison
    from fedsw.desk.own_data import apart as other_tables
    from fedsw.desk.own_data import card as cards
    from fedsw.desk.own_data import description as descriptions
    from fedsw.desk.own_data import description_page as description_page
    from fedsw.desk.own_data import draft as drafts
    from fedsw.desk.own_data import evaluate as evaluating
    from fedsw.desk.own_data import examine as examining
    from fedsw.desk.own_data import rehearsal as rehearsal
    from fedsw.desk.own_data import screen as examination_screen
    from fedsw.desk.own_data import synthetic_table as synthetic_table
    from fedsw.desk.planning import public_rows as public_rows
    from fedsw.desk.planning import run_plan as run_plan
    from fedsw.desk.planning import search as searching
    from fedsw.desk.planning.search import Tried
    from fedsw.desk.use import trained as trained
    from fedsw.desk.use.predictions import Asked, OnFaults
    from fedsw.experiment import Experiment
    from fedsw.federation.engines import driver as driver
    from fedsw.federation.engines import pool as pool
    from fedsw.learning.tasks import needs as needs
    from fedsw.learning.tasks import own_task as own_task
    from fedsw.privacy.accounting import lifetime as lifetime
    from fedsw.runs import accounts as run_accounts
    from fedsw.runs import view as run_view
    from fedsw.runs.observer import Observer
    from fedsw.runs.report import run_documents as run_documents
    from fedsw.runs.report import screens as screens
    from fedsw.runs.report.render import Page

    Source: TypeAlias = Experiment | str | Path | Mapping[str, Any]

globals().update(imported_later(__spec__))

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
    chosen = experiment_of(experiment, settings, data_dir)
    if (own_files := chosen.data.own_files) is not None and own_files.folder is None:
        named = experiment if isinstance(experiment, str | Path) else chosen.name
        raise ExperimentError(
            f"{named} does not say where the clients' files are: add --data-dir DIR, a folder with a folder 0, 1, ... "
            "for each client, or a client's own folder"
        )
    examination = examining.examine(chosen, Path(chosen.data.data_dir or ".").expanduser(), client)
    cost, groups = None, len(sources.declared_columns(chosen.data).groups)
    if estimate and groups > drafts.MOST_GROUPS:
        more = f"{groups} groups: every two are compared, and no time is estimated; edges or fewer values make fewer"
        examination = replace(examination, warnings=(*examination.warnings, more))
    elif estimate and examination.fits and not examination.alone:
        try:
            cost = examination_screen.measured_cost(chosen, [file.groups for file in examination.files])
        except (ExperimentError, FederationError) as fault:  # settings that do not go with so many records
            examination = replace(examination, together=(*examination.together, str(fault)))
    content = examination_screen.as_plain(chosen, examination, cost)
    return Answer(
        content, lambda: examination_screen.examination_view(chosen, examination, cost), content["files"], examination
    )


def describe(
    source: Source, *settings: str, data_dir: Path | str | None = None, epsilon: float | None = None,
    trust: str | None = None, runs: Path | str = RUNS, observer: Observer | None = None,
    allow_modules: Collection[str] = (),
) -> Answer:  # fmt: skip
    """Release noised histograms of every declared column, as `fedsw describe`, or show those of a run again, free.

    Rows of `to_frame()` are columns. Guarantee: that of the release, `["guarantee"]`.
    """
    if isinstance(source, str | Path) and is_run(Path(source)):
        description = descriptions.described(Path(source), allow_modules)
    else:
        made = descriptions.as_description(experiment_of(source, settings, data_dir), trust=trust, epsilon=epsilon)
        sources.require_runnable(made.data, made.federation.clients, named=made.name)
        modules = modules_of(made)

        def tried(folder: Path) -> None:
            description_page.page_of(descriptions.described(folder, modules), made.name).page()

        rehearsal.rehearse(made, tried)
        directory = driver.run(made, runs=runs, observer=observer).directory
        description = descriptions.described(directory, modules)
        descriptions.keep_description(directory, description)
    content = description.plain()
    return Answer(
        content,
        lambda: description_page.page_of(description, description.experiment.name),
        content["columns"],
        description,
    )


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
    chosen = experiment_of(experiment, settings, data_dir)
    needs.require_possible(chosen, own_task.task_of(chosen))
    by_group, assumed = public_rows.sizes_by_group(chosen, None if records is None else str(records))
    table, doubt = public_rows.twins_table(chosen, public_table, expect, others=other_people)
    assumed = "; ".join(filter(None, (assumed, doubt)))
    return as_answer(run_plan.planned(chosen, by_group, assumed=assumed, table=table, expect=expect, seen=seen))


def as_answer(plan: Any) -> Answer:
    """A plan that was made, as an answer."""
    content = run_plan.as_plain(plan)
    return Answer(
        content, lambda: run_plan.planned_view(plan), (content.get("forecast") or {}).get("what_ifs", ()), plan
    )


def compare(
    task: str, *settings: str, methods: Sequence[str] | None = None, baselines: bool = False,
    epsilons: Sequence[float] = (1.0, 3.0, 10.0), seeds: int = 3, rounds: int | None = None, nominal: bool = False,
    jobs: int | None = None, runs: Path | str = RUNS,
) -> Comparison:  # fmt: skip
    """Run methods side by side on one task, as `fedsw compare`: `to_frame()` is its table, `page()` its page."""
    options: dict[str, Any] = {"methods": methods, "baselines": baselines, "epsilons": epsilons, "seeds": seeds}
    grid = comparison_grid.make_grid(task, **options, rounds=rounds, settings=settings, nominal=nominal)
    folder = fresh_folder(Path(runs) / "compare" / grid.task)
    comparison_grid.write_grid(folder, grid)
    with run_grid.GridProgress(label=f"compare {grid.task}", cells=len(grid.cells), done=0, quiet=True) as progress:
        comparison_grid.run_missing(folder, grid, jobs=jobs or pool.cores(), watcher=progress)
    return comparison_page.read_comparison(folder)


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
    changes = [*settings, *in_folder(data_dir)]
    tried = searching.candidates(find_experiment(str(experiment)), list(tries), changes)
    record = searching.on_twins(tried, most, *searching.metric_of(tried[0].experiment, metric), said=said)
    return Answer(record, lambda: searching.tried_view(record), record["tried"])


def synthesize(
    source: Source, *settings: str, rows: int = 10_000, draw: int = 0, data_dir: Path | str | None = None,
    epsilon: float | None = None, trust: str | None = None, fair: bool = False, runs: Path | str = RUNS,
    observer: Observer | None = None, allow_modules: Collection[str] = (),
) -> Answer:  # fmt: skip
    """Draw a synthetic table, as `fedsw synthesize`: of an experiment's one release, or more rows of a run, free.

    `to_frame()` is the table, the page its card. Guarantee: that of the release, which the card says.
    """
    other = None
    if isinstance(source, str | Path) and is_run(Path(source)):
        table = synthetic_table.learnt(Path(source), allow_modules)
    else:
        made = synthetic_table.as_synthesis(
            experiment_of(source, settings, data_dir), trust=trust, fair=fair, epsilon=epsilon
        )
        sources.require_runnable(made.data, made.federation.clients, named=made.name)
        modules, measured = modules_of(made), made.data.held_out is not None
        rehearsal.rehearse(
            made, lambda folder: cards.rehearse_table(synthetic_table.learnt(folder, modules), held_out=measured)
        )
        held_out = sources.load_held_out(made.record_source)  # a file that cannot be read costs nothing
        table = synthetic_table.learnt(driver.run(made, runs=runs, observer=observer).directory, modules)
        other = None if held_out is None else other_tables.OtherTable(held_out)
    drawn = cards.made_table(table, other, None, name="synthetic", rows=rows, draw=draw)
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
    folder = None if data_dir is None else Path(data_dir)
    clients = evaluating.evaluate(find_run(str(run), Path(runs)), folder, client, allow_modules=allow_modules)
    content = [measured.as_dict() for measured in clients]
    return Answer(content, lambda: evaluating.evaluated_view(clients), content, clients)


def report(*run: Path | str, operator: bool = False, runs: Path | str = RUNS) -> Page:
    """Make the page of a run, or of several side by side, as `fedsw report` writes it; a notebook shows it."""
    return run_documents.page(
        [run_view.read_whole_run(find_run(str(name), Path(runs))) for name in run], operator=operator
    )


def account(*data: str, delta: float | None = None, accounts: Path | str | None = None) -> Answer:
    """Show what all runs on a data set spent together, as `fedsw account show`; rows of `to_frame()` are runs.

    Of several names also what a record that is in each has spent, and rows are accounts; of none all on this machine.

    Raises:
        FileNotFoundError: if there is no account of that name, with those that there are.
    """
    folder = lifetime.accounts_folder() if accounts is None else Path(accounts).expanduser()
    if not data:
        records = [run_accounts.account_record(one, delta) for one in lifetime.accounts_in(folder)]
        content: dict[str, Any] = {"folder": str(folder), "accounts": records}
        return Answer(content, lambda: screens.accounts_view(records), records)
    selected = [lifetime.DatasetAccount(folder, name) for name in data]
    for existing in selected:
        if not existing.state().runs and not existing.path.exists():
            known = [other.data for other in lifetime.accounts_in(folder)]
            raise FileNotFoundError(
                f"no account of data set {existing.data!r} in {folder}; {nearest(existing.data, known)}known: "
                f"{', '.join(known) or 'none'}"
            )
    if len(selected) == 1:
        record = run_accounts.account_record(selected[0], delta)
        return Answer(record, lambda: screens.account_view(record), record["runs"])
    together = run_accounts.together_record(selected, delta)
    return Answer(together, lambda: screens.together_view(together), together["accounts"])


def predict(
    run: Path | str, table: object, *, thresholds: Asked = None, keep: Sequence[str] = (),
    faults: OnFaults = "refuse", runs: Path | str = RUNS,
    allow_modules: Collection[str] = (),
) -> Answer:  # fmt: skip
    """Predict every record of a table with a run's model, as `fedsw predict`; rows of `to_frame()` are records.

    Args and exceptions: those of `fedsw.load` and `TrainedModel.predictions`.
    """
    model = trained.load(run, thresholds=thresholds, runs=Path(runs), allow_modules=allow_modules)
    columns = model.predictions(table, keep=keep, faults=faults)

    def view() -> Document:
        lines = zip(*map(list, columns.values()), strict=True)
        return Document("Predictions", begins=(model.guarantee, Listed.of("Predictions", columns, lines)))

    return Answer(columns, view, ByColumn(columns), model)
