"""Before the first round: the job, what it reserves in an account, who takes part, and attempts that a folder lacks."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from flwr.serverapp import Grid

from fedsw.data import own_records
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature
from fedsw.data.sources import (
    declared_columns,
    load_dataset,
    require_one_client_each,
    shared_tables,
    visible_tables,
)
from fedsw.data.units import Units
from fedsw.experiment import Experiment, ExperimentError, parse_experiment, read_delta
from fedsw.experiment.compatibility import sampling_of
from fedsw.experiment.load import unprotected
from fedsw.experiment.preset_rules import KNOTS, PresetNumbers, Squares, chosen, left_open
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import MODELS
from fedsw.experiment.trust import trust_model
from fedsw.federation.exchange.exchange import Traffic
from fedsw.federation.exchange.participants import Site, public_sizes
from fedsw.federation.exchange.roll import Roll
from fedsw.federation.node.own_ledger import LAST
from fedsw.federation.trust.budget_shares import BEFORE_TRAINING, covering, idle
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.federation.trust.sums_once import beside_training
from fedsw.learning.models.coded import typical_length
from fedsw.learning.moments import beside_rounds
from fedsw.learning.moments.column_counts import counts_of_columns
from fedsw.learning.moments.moments_sum import layout_of
from fedsw.learning.moments.preparation import foldable
from fedsw.learning.objectives import Clip
from fedsw.learning.tasks.measures import chosen_shares
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Charge, Ledger, LedgerReplaced
from fedsw.privacy.accounting.lifetime import (
    NO_NOISE,
    About,
    Cost,
    Counts,
    DatasetAccount,
    accounts_folder,
)
from fedsw.privacy.accounting.selection import Selection
from fedsw.privacy.mechanisms import gaussian_sigma
from fedsw.runs.accounts import Budgeted, counted_by_clients, reserving
from fedsw.runs.commands import command_to_charge
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation.evaluator import Metric
from fedsw.runs.observer import NoObserver, Observer
from fedsw.runs.run_files import RunFile
from fedsw.runs.telemetry import event


@dataclass(frozen=True)
class Job:
    """The experiment to run and its folder; `selection` is the cost of showing only the best of several runs."""

    experiment: Experiment
    directory: Path
    engine: str = "inprocess"
    observer: Observer = field(default_factory=NoObserver)
    resume: bool = False
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    selection: Selection | None = None


def budgeted(plan: FederationPlan, directory: Path, run: str, *, resume: bool) -> AbstractContextManager[Budgeted]:
    """Reserve for a run under a trusted server in the account that data.account names, before anything is spent.

    This run and those beside it in `runs/<name>/` remember the account. Clients with ledgers of their own have
    reserved at the greeting: in a simulation in the same account.

    Raises:
        LimitReached: as `reserving`; or if the account has a limit, and clients count elsewhere.
    """
    experiment, data = plan.task.experiment, plan.task.experiment.data.account
    if data is None:
        return nullcontext(Budgeted(directory, None, run, resumed=resume))
    reserved: AbstractContextManager[Budgeted] = pkgutil.resolve_name(experiment.privacy.model.reserves)(
        plan, directory, DatasetAccount(accounts_folder(), data), run, resume=resume
    )
    return reserved


def reserved_by_server(
    plan: FederationPlan, directory: Path, account: DatasetAccount, run: str, *, resume: bool
) -> AbstractContextManager[Budgeted]:
    """Reserve the largest cost of a run; see `TrustModel.reserves`."""
    experiment = plan.task.experiment
    return reserving(
        directory,
        account,
        run,
        planned_cost(plan),
        About(experiment.name, experiment.privacy.trust, str(directory.resolve()), unprotected(experiment)),
        resumed=resume,
        agreed=resume and (directory / RunFile.AGREED).exists(),
        remembered=sorted(directory.resolve().parent.parent.glob(f"*/*/{RunFile.ACCOUNT}")),
    )


def reserved_by_clients(
    plan: FederationPlan, directory: Path, account: DatasetAccount, run: str, *, resume: bool
) -> AbstractContextManager[Budgeted]:
    """Take up what clients have reserved at the greeting; see `TrustModel.reserves`."""
    return nullcontext(counted_by_clients(directory, account, run, plan.delta, resumed=resume))


def planned_cost(plan: FederationPlan) -> Cost:
    """The largest cost of a run to any record: of all rounds, or of the one release of held-out records."""
    experiment = plan.task.experiment
    privacy = experiment.privacy
    beside = sum(map(bool, (privacy.histograms, privacy.moments, experiment.share_of_scores)))
    training: Counts = {step: plan.rounds + beside for step in NO_NOISE}  # of one step, at an infinite cost
    if plan.multiplier:
        training = privacy.model.reserved(plan)
    return Cost.one(covering(plan.task, training, plan.epsilon, plan.delta))


_NOTHING = 1e-12  # a clip of loss gradients that adds nothing to a penalty's sensitivity
_NOT_AT_HAND = "the records are not at hand here: give their number, --records N, or --data-dir DIR"
_ELSEWHERE = (
    "{} is 'auto', which chooses by the number of records, and they cannot be counted here: write what "
    "`fedsw plan EXPERIMENT --records N` shows into the experiment, N being the number of records of all clients, and "
    "leave preset out"
)


def settled(experiment: Experiment, numbers: PresetNumbers | None = None) -> Experiment:
    """The experiment with every open setting chosen by rule, from the numbers or the records at hand."""
    return _settled(experiment, lambda: numbers or numbers_of(experiment))


def settled_among(
    grid: Grid, experiment: Experiment, run: str, traffic: Traffic, roll: Roll | None = None
) -> Experiment:
    """The experiment to train: `training.preset` is settled by the public sizes that the clients report.

    No client is asked if nothing is left open, or only shares of a sketch's stages: a resumed run keeps the settings
    that it began with. Raises as `gather`.
    """

    def reported() -> PresetNumbers:
        problem = Problem.from_experiment(experiment)
        if experiment.privacy.hides_sizes:  # nobody is asked: what is chosen is shown, and the sizes are secret
            return numbers_of(experiment, problem=problem)
        return numbers_of(experiment, public_sizes(grid, problem, run, traffic, roll), problem)

    return _settled(experiment, reported)


def _settled(experiment: Experiment, numbers: Callable[[], PresetNumbers]) -> Experiment:
    if not left_open(experiment):
        return experiment
    if experiment.sketch.open:
        # A share of the budget for every stage takes no numbers of records.
        _, *later = chosen_shares(Problem.from_experiment(experiment))
        stages = tuple(
            stage.model_copy(update={"share": share})
            for stage, share in zip(experiment.sketch.stages, later, strict=True)
        )
        return experiment.model_copy(update={"sketch": experiment.sketch.model_copy(update={"stages": stages})})
    choices, raw = chosen(numbers(), experiment), experiment.model_dump()
    for section, values in choices.items():
        raw[section] = {**raw.get(section, {}), **values}
    return parse_experiment(raw)


def numbers_of(
    experiment: Experiment, by_group: Mapping[str, int] | None = None, problem: Problem | None = None
) -> PresetNumbers:
    """The public numbers that the preset's rules read, from these sizes by group, or from the records at hand."""
    sizes = sizes_at_hand(experiment) if by_group is None else by_group
    made, count = problem or Problem.from_experiment(experiment), sum(sizes.values())
    alike = {"privacy": experiment.privacy.model_copy(update={"epsilon": None, "noise_multiplier": 1.0})}
    return dataclasses.replace(
        _of_any_budget(experiment.model_copy(update=alike)),
        records=count,
        multiplier=multiplier_of_one(experiment, count),
        penalty=_penalty(made, [*sizes.values()]),
    )


@functools.lru_cache(maxsize=64)
def _of_any_budget(experiment: Experiment) -> PresetNumbers:
    """The public numbers of an experiment with no records; cached: a plan tries many budgets and numbers of records."""
    goal, trust, made = experiment.objective, trust_model(experiment.privacy.trust), Problem.from_experiment(experiment)
    return PresetNumbers(
        0,
        made.parameters,
        1.0,
        loss=max(0.0, 1 - goal.alpha - sum(penalty.weight for penalty in goal.also)),
        parts=round(trust.summed(experiment) ** 2),
        squares=squares_of(made),
        hats=_hats(experiment),
        may_centre=experiment.data.columns is not None and experiment.data.row_norm is None,
        length=1.0 if experiment.data.columns is None else typical_length(experiment.data.columns),
        counted=_counted(experiment),
        scalable=0 if beside_rounds.uncalibrated(made) else made.classes,
    )


def _counted(experiment: Experiment) -> int:
    """Columns of numbers that histograms would be of; 0 if none are declared, or bins are written."""
    columns, model = experiment.data.columns, experiment.model
    if columns is None or model.bins or any(feature.reader.bounds(feature) is None for feature in _numeric(columns)):
        return 0
    counts = counts_of_columns(columns, Model(kind="additive", knots=max(model.knots, *KNOTS)))
    return 0 if counts is None else len(counts.columns)


def _numeric(columns: Columns) -> list[Feature]:
    return [feature for feature in columns.features if not feature.categories]


def _hats(experiment: Experiment) -> dict[int, Squares]:
    """Sizes of the moments of additive models by number of knots, where allowed; from public columns only."""
    spec, data, open_settings = experiment.model, experiment.data, left_open(experiment).get("model", ())
    if data.columns is None or data.row_norm is not None or "knots" not in open_settings:
        return {}
    if any(feature.reader.bounds(feature) is None for feature in _numeric(data.columns)):
        return {}
    hats = {}
    for knots in KNOTS:
        model = Model(kind="additive", knots=knots, seed=spec.seed)
        squares = squares_of(Problem.from_experiment(experiment.model_copy(update={"model": model})))
        if squares is not None:
            hats[knots] = squares
    return hats


def squares_of(problem: Problem) -> Squares | None:
    """Public sizes of a release of moments of inputs; None if these cannot be released or used."""
    layout = layout_of(problem)
    if layout is None or not layout.features or not foldable(problem.build_model(), problem.features):
        return None
    spec, classes = problem.experiment.model, problem.classes if layout.classes else 0
    kind = MODELS.get(spec.kind)
    knots = spec.knots if kind.columns else 0
    sizes = (layout.side, layout.features, layout.bound, layout.radius, layout.cells)
    return Squares(*sizes, classes, knots, kind.filtered)


def _penalty(problem: Problem, sizes: Sequence[int]) -> float:
    """Sensitivity of the penalties' gradient, with Jacobians clipped to 1 and outputs to 1/2.

    Classes within which groups are compared count as equally frequent: their true frequencies are not public.
    """
    if len(problem.objective.cells) < len(sizes):  # one stratum of all groups
        sizes = [sum(sizes)]
    cells = len(problem.objective.cells) // len(sizes)
    unit = dataclasses.replace(problem, clip=Clip(0.5, 1.0, _NOTHING))
    spread = [max(1, size // cells) for size in sizes]
    return max(bound.value for bound in unit.clipped.sensitivities(spread * cells, problem.clipped.planned_spreads()))


def multiplier_of_one(experiment: Experiment, records: int) -> float:
    """The noise multiplier of one release of all records that spends the whole budget; 0 without noise.

    It is sigma over the move by a replaced record, for which the rules were made: half of sigma over the move by one
    that is added or removed. The number of records may be hypothetical, as in a search for how many are enough.
    """
    privacy = experiment.privacy
    if privacy.noise_multiplier is not None:
        whole = privacy.noise_multiplier / math.sqrt(experiment.training.rounds)
    else:
        assert privacy.epsilon is not None
        if math.isinf(privacy.epsilon):
            return 0.0
        whole = gaussian_sigma(privacy.epsilon, read_delta(privacy.delta, records=records), 1.0)
    return whole / 2 if privacy.hides_sizes else whole


def sizes_at_hand(experiment: Experiment) -> dict[str, int]:
    """Public number of training records in each group, over all clients.

    Where a unit is declared, units are counted: how many rows a person has is not public. Under additions and removals
    it is the declared number.

    Raises:
        ExperimentError: if they are not at hand. BadRecords: if a unit has rows at several clients.
    """
    spec = experiment.data
    if experiment.declared is not None:
        return {"all": experiment.declared[0]}
    if not spec.own:
        dataset = load_dataset(experiment.record_source)
        return _by_group(dataset.groups, [dataset.train.sensitive.bincount(minlength=len(dataset.groups)).tolist()])
    require_one_client_each(experiment.data, experiment.federation.clients)
    columns = declared_columns(experiment.data)
    tables = shared_tables(visible_tables(experiment.data, experiment.federation.clients), columns)
    held = own_records.in_this_process(spec.source)
    parts = list(held.parts) if held is not None else tables
    if not parts:
        name = "training.preset" if experiment.training.preset == "auto" else "privacy.moments"
        raise ExperimentError(_ELSEWHERE.format(name) if left_open(experiment) else _NOT_AT_HAND)
    groups, trained = len(columns.groups), 1 - spec.held_out_fraction
    counts = [part.sensitive[Units.of(part).firsts].bincount(minlength=groups).tolist() for part in parts]
    return _by_group(columns.groups, [[math.ceil(trained * count) for count in part_counts] for part_counts in counts])


def _by_group(groups: tuple[str, ...], counts: list[list[int]]) -> dict[str, int]:
    return {name: sum(client_counts[index] for client_counts in counts) for index, name in enumerate(groups)}


_log = logging.getLogger("fedsw.server")

Attempt = tuple[int, int]


@dataclass(frozen=True)
class Remembered:
    """The attempts that a run's nodes say they have answered before.

    An attempt was begun if some exchange of it was answered, and finished if its last one was: only then can it have
    been released. For each attempt, `by` has the first client of every node that says so.
    """

    begun: frozenset[Attempt]
    finished: frozenset[Attempt]
    by: Mapping[Attempt, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, sites: Sequence[Site]) -> Remembered:
        """The union over all nodes."""
        rows = np.concatenate([site.answered for site in sites]).tolist()
        by: dict[Attempt, tuple[int, ...]] = {}
        for site in sites:
            for attempt in {(round_, attempt) for round_, attempt, _ in site.answered.tolist()}:
                by[attempt] = (*by.get(attempt, ()), int(site.clients[0]))
        return cls(
            frozenset((round_, attempt) for round_, attempt, _ in rows),
            frozenset((round_, attempt) for round_, attempt, stage in rows if stage == LAST),
            by,
        )


def lost_attempts(
    remembered: Remembered, charged: Iterable[Attempt], begun: Sequence[Attempt], rounds: int, first: int = 1
) -> list[Attempt]:
    """Attempts that may have been released, and that a run's folder neither charged nor gave up.

    Guarantee: every attempt that released something is among those charged or those returned, if the folder is a
    snapshot of one instant and some node remembers the attempt; but for one in which the snapshot was taken, after
    which clients answered nothing.

    Those `begun` are in the run's log, which has each attempt before it is asked for; `first` is 0 if moments are
    released before the rounds.

    Source: docs/guarantees/attempts.md, Theorem R1.
    """
    charged = set(charged)
    unpaid, numbers = remembered.finished - charged, sorted(remembered.begun.union(begun))
    last = dict(numbers)  # the last attempt of every round: what was released is not attempted again
    newest = max((round_ for round_, _ in numbers if round_ <= rounds), default=0)
    lost = unpaid.difference(begun) | {of for of in last.items() if first <= of[0] < newest} & unpaid
    # Where clients answered later attempts than the log has, the folder may have been copied within the last one of it,
    # which was charged and released afterwards. A later attempt of its round shows that it was given up, but not before
    # the rounds: histograms and moments are of one round.
    logged = dict(sorted(begun))
    if any(attempt > logged.get(round_, -1) for round_, attempt in remembered.begun - charged):
        lost |= {of for of in begun[-1:] if of[0] == BEFORE_TRAINING or last[of[0]] == of[1]} & unpaid
    # A round below the newest was released. Where no attempt of it is known to have been, one more is charged.
    known = {round_ for round_, _ in charged | lost}
    lost |= {(missing, 1 + last.get(missing, -1)) for missing in set(range(first, newest)) - known}
    return sorted(lost)


def take_up(
    directory: RunDirectory,
    plan: FederationPlan,
    ledger: Ledger | None,
    sites: Sequence[Site],
    budget: Budgeted,
    *,
    resume: bool,
) -> None:
    """Number attempts after all that clients answered, and account for those that this folder does not know.

    Under local trust there is no ledger here: clients charged what they answered to their own. LedgerReplaced if the
    folder is older than what clients answered, and its operator did not agree that this is charged
    (`RunDirectory.agree_to_charge`); nothing was charged.
    """
    remembered = Remembered.of(sites)
    begun = directory.begun_attempts()
    directory.know_attempts(remembered.begun)
    if ledger is None or not resume:
        return
    charged = {(entry.round, entry.attempt) for entry in ledger.entries()}
    experiment = plan.task.experiment
    first = BEFORE_TRAINING if experiment.privacy.moments else 1
    lost = lost_attempts(remembered, charged, begun, experiment.training.rounds, first)
    agreed = directory.agreed_to_charge
    if lost and not agreed:
        raise LedgerReplaced(_refusal(directory, lost, remembered, len(sites)))
    for attempt in lost:
        charge_lost_attempt(plan, ledger, sites, attempt)
        directory.keep_attempt(*attempt)  # once it is charged: what the log has and clients answered counts as given up
    if lost:
        directory.accept_gap(max(round_ for round_, _ in lost))  # whose rounds are made again
        _log.warning("%d attempts that this folder did not know are charged", len(lost), extra=event("lost charged"))
    if agreed:
        budget.take_over(ledger)
        directory.forget_agreement()


def _refusal(directory: RunDirectory, lost: Sequence[Attempt], remembered: Remembered, nodes: int) -> str:
    round_, attempt = lost[-1]
    more = f" and {len(lost) - 1} more attempts" if len(lost) > 1 else ""
    return (
        f"the folder {directory.path} is older than what the clients of its run answered: round {round_}, attempt "
        f"{attempt}{more} are not in its ledger{_said_by(lost, remembered, nodes)}. A backup was restored, or a copy "
        "of the run is resumed, and these rounds may have been released. Go on in the folder that was used last; if it "
        f"is lost, `{command_to_charge(directory.path)}` charges them at the plan's full cost, and goes on with what "
        "is left"
    )


def _said_by(lost: Sequence[Attempt], remembered: Remembered, nodes: int) -> str:
    """Name the clients that report lost attempts, unless all do: one that reports alone may be wrong, or lie."""
    by = sorted({client for attempt in lost for client in remembered.by.get(attempt, ())})
    if not by or len(by) == nodes:
        return ""
    who = f"client {by[0]}" if len(by) == 1 else f"clients {', '.join(map(str, by))}"
    return f", as {who} of {nodes} nodes say{'s' if len(by) == 1 else ''} (to go on without, take its key away first)"


def charge_lost_attempt(plan: FederationPlan, ledger: Ledger, sites: Sequence[Site], attempt: Attempt) -> None:
    """Charge an attempt for the most that it may have cost: its batch, and who was in it, are not known."""
    experiment, cells = plan.task.experiment, plan.task.objective.cells
    if sums := beside_training(plan.task, attempt[0]):  # of several the one that costs most: nobody knows which it was
        budget = min((total.budget(plan.delta, plan.shares) for total in sums), key=lambda one: one.multiplier)
        ledger.charge_lost(*attempt, budget.charges(cells, experiment), budget.sigma)
        return
    rates, sensitivity = largest_rates(plan, sites), 1.0
    for entry in ledger.entries():  # rounds before may have had other clients, or other records
        if entry.round > BEFORE_TRAINING and entry.group in rates and entry.sensitivity > 0:
            rates[entry.group] = max(rates[entry.group], entry.sampling_rate)
            if entry.sigma > 0:
                sensitivity = max(sensitivity, plan.multiplier * entry.sensitivity / entry.sigma)
    charges = [Charge(cell, rate, sensitivity, sampling_of(experiment)) for cell, rate in rates.items()]
    ledger.charge_lost(*attempt, [*charges, *idle(experiment)], plan.multiplier)


def largest_rates(plan: FederationPlan, sites: Sequence[Site]) -> dict[str, float]:
    """The largest sampling rate of each cell in an attempt of the plan, with any of its clients away."""
    experiment, cells = plan.task.experiment, plan.task.objective.cells
    if set(plan.rates) == {1.0}:  # every record is in it, whoever was away
        return dict.fromkeys(cells, 1.0)
    if experiment.privacy.hides_sizes:  # a record's own probability, whoever else is there
        return dict(zip(cells, plan.rates, strict=True))
    training, federation = experiment.training, experiment.federation
    sizes = np.concatenate([site.sizes for site in sites])
    least = np.sort(sizes, axis=0)[: federation.min_clients or federation.clients].sum(axis=0)
    largest = {}
    for cell, rate, size in zip(cells, plan.rates, least.tolist(), strict=True):
        if training.batch_size is not None:
            largest[cell] = max(rate, training.batch_size / max(size, training.batch_size))
            continue
        alone = 1 / max(size, 1)  # one record of the cell is drawn where the fraction of it is less
        largest[cell] = max(rate, training.batch_fraction, alone if size * training.batch_fraction < 1 else 0.0)
    return largest
