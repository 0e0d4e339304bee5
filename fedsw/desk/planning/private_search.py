"""A private selection of hyperparameters tried on the records themselves, and what it costs."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from fedsw._tools import files
from fedsw._tools.randomness import Stream
from fedsw._tools.settings import FederationError
from fedsw._tools.text import upward
from fedsw.desk.planning.search import Candidate, score_of
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.load import unprotected
from fedsw.experiment.preset_rules import left_open
from fedsw.experiment.trust import accounting_at_server
from fedsw.federation.engines.driver import run_among
from fedsw.federation.exchange.participants import Site
from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.node import Node
from fedsw.federation.node.simulated import simulating
from fedsw.federation.server.owed import planned_cost
from fedsw.federation.server.settling import settled
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger, lifetime
from fedsw.privacy.accounting.lifetime import (
    About,
    Cost,
    Counts,
    DatasetAccount,
    accounts_folder,
    composed_epsilon,
)
from fedsw.privacy.accounting.lifetime.composing import counted, uncovered
from fedsw.privacy.accounting.profiles import stated_step
from fedsw.privacy.accounting.selection import Repetitions, Selection, renyi_of_best
from fedsw.privacy.accounting.stated import Renyi
from fedsw.runs import checkpoint
from fedsw.runs.evaluation.evaluator import Evaluator
from fedsw.runs.run_files import RELEASABLE, RunFile, found_json, write_json


def release_folder(directory: Path, target: Path, begun: datetime.datetime) -> None:
    """Copy what may leave of the selected run, so that nothing says when or after how many others it was made.

    Guarantee: what `place` holds is a function of the run's own releases, of public settings and of `begun`: its files,
    every date in them, and the times that the file system keeps and lets be set.
    """
    Ledger.open(directory / RunFile.LEDGER).close()  # puts all of its rows into the one file
    for name in RELEASABLE:
        if (directory / name).is_file():
            files.private(Path(shutil.copyfile(directory / name, target / name)))
    if (state := checkpoint.load(directory)) is not None:
        checkpoint.write(target, state)
    # Where files name a time it is the start of the search, and none names a duration.
    at = begun.isoformat(timespec="seconds")
    write_json(target / RunFile.CONFIG, {**found_json(target / RunFile.CONFIG), "begun": at})
    summary = {name: value for name, value in found_json(target / RunFile.SUMMARY).items() if name != "seconds"}
    write_json(target / RunFile.SUMMARY, {**summary, "begun": at, "date": at})
    for path in (*target.iterdir(), target):
        os.utime(path, (begun.timestamp(),) * 2)


Train = Callable[[Experiment, Path, Selection], tuple[dict[str, Any], Path]]
"""Runs an experiment in a folder, as one of several; returns its summary and its own folder."""


@dataclass(frozen=True)
class SelectionCost:
    """Cost of a selection: divergences of what is released, and the guarantee of the selected run that follows.

    ``single`` is epsilon of one run at that delta, which it is not, ``all_shown`` that of as many runs as are expected;
    ``steps`` are what each candidate's run is charged at most. `experiments` are settled, and outside their data set's
    account, to which the selection is charged as a whole.
    """

    curve: Renyi
    selection: Selection
    single: float
    all_shown: float
    steps: tuple[Counts, ...]
    experiments: tuple[Experiment, ...]


@dataclass(frozen=True)
class Selected:
    """The run that was selected."""

    candidate: Candidate
    score: float
    directory: Path
    cost: SelectionCost


def cost_of(tried: Sequence[Candidate], law: Repetitions, metric: str = "") -> SelectionCost:
    """Return the cost of the best of K runs, each with a candidate drawn at random, from public numbers only."""
    for candidate in tried:
        if candidate.experiment.privacy.hides_sizes:
            raise ExperimentError(
                f"privacy.relation is {candidate.experiment.privacy.relation!r}, and a private selection is accounted "
                "for the replacement of a record: use 'replace-one'"
            )
    plans = [_plan(candidate.experiment) for candidate in tried]
    delta, *others = sorted({plan.delta for plan in plans})
    if others:
        raise ExperimentError(
            f"the candidates have different deltas, {upward(delta, 6)} to {upward(others[-1], 6)}, and a selection has "
            "one guarantee at one delta: write the same number in privacy.delta for all of them"
        )
    steps = tuple(_of_one_kind(planned_cost(plan)) for plan in plans)
    distinct = tuple(dict.fromkeys(pair for counts in steps for pair in counts.items()))
    curve = renyi_of_best(law, distinct)
    single, dearest = max((composed_epsilon([counts], delta), index) for index, counts in enumerate(steps))
    runs = round(law.mean)
    shown = composed_epsilon([{step: runs * times for step, times in steps[dearest].items()}], delta)
    among = tuple(candidate.settings for candidate in tried)
    selection = Selection(law, distinct, curve.epsilon(delta), delta, among=among, metric=metric)
    # Candidates, with the noise of their plans in place of the epsilon of one run, which is not their guarantee:
    candidates = (
        plan.task.experiment.with_sections(
            privacy={"epsilon": None, "noise_multiplier": plan.multiplier}, data={"account": None}
        )
        for plan in plans
    )
    return SelectionCost(curve, selection, single, shown, steps, tuple(candidates))


def select(
    tried: Sequence[Candidate],
    law: Repetitions,
    metric: str,
    sign: float,
    *,
    runs: Path,
    train: Train | None = None,
    charged: Callable[[], None] = lambda: None,
) -> Selected:
    """Train K runs with candidates drawn at random, and keep the one with the best score.

    Guarantee: (epsilon, delta) of `cost_of` for everything that is released: the folder of the selected run, and the
    rows of the accounts. Both are functions of that run's releases, of public settings and of the time at which the
    search began: K, the other runs and how long any of them took are in neither. Who watches the search itself, its
    screen, its process, its temporary files, sees K: under a trusted server that is its operator. The cost is charged
    to the accounts of all candidates before the first run, when `charged` is called; a search that breaks off stays
    charged.

    LimitReached if an account has no room; FederationError if a run spent more than its plan.
    """
    begun = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    cost = cost_of(tried, law, metric)
    _charge(tried, cost)
    charged()
    stream, best = Stream.secure(), None
    with (
        _place(runs / tried[0].experiment.name) as released,
        tempfile.TemporaryDirectory(prefix="fedsw-tune-") as folder,
    ):
        for _ in range(law.draw(float(stream.uniforms(1)[0]))):
            index = min(int(stream.uniforms(1)[0] * len(tried)), len(tried) - 1)
            selection = dataclasses.replace(cost.selection, settings=tried[index].settings)
            summary, directory = (train or _train)(cost.experiments[index], Path(folder), selection)
            _require_planned(summary, directory, cost.steps[index])
            score = score_of(summary, metric, sign)
            if best is None or score > best[1]:
                if best is not None:
                    shutil.rmtree(best[2])
                best = (tried[index], score, directory)
            else:
                shutil.rmtree(directory)
        assert best is not None
        candidate, score, directory = best
        release_folder(directory, released, begun)
    return Selected(candidate, score, released, cost)


@contextlib.contextmanager
def _place(parent: Path) -> Iterator[Path]:
    """The folder of the run that will be selected, named for the time before the first one; gone if none is."""
    folder = files.fresh_folder(parent)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder)
        with contextlib.suppress(OSError):  # others have runs there
            parent.rmdir()
            parent.parent.rmdir()
        raise


def _charge(tried: Sequence[Candidate], cost: SelectionCost) -> None:
    """Charge the accounts of all candidates: whichever of them is drawn, all runs on its records are paid for."""
    labels = {candidate.experiment.data.account: candidate.experiment.name for candidate in reversed(tried)}
    steps, taken = {stated_step(cost.curve): 1}, list[tuple[DatasetAccount, str]]()
    for data, label in labels.items():
        if data is None:
            continue
        account, name = DatasetAccount(accounts_folder(), data), f"tune-{uuid4().hex}"
        try:
            account.reserve(name, steps, About(label, f"selection among {len(tried)} settings", ""))
        except BaseException:
            for other, other_name in taken:
                other.settle(other_name, {}, None)
            raise
        taken.append((account, name))
    for account, name in taken:
        account.settle(name, steps, None)


def _plan(experiment: Experiment) -> FederationPlan:
    _require_selectable(experiment)
    # Moments and calibration that could be chosen are left out: a selection is among runs of rounds alone.
    open_settings = left_open(experiment)
    if "privacy" in open_settings:
        experiment = experiment.with_sections(privacy={"moments": 0.0})
    if "calibration" in open_settings:
        experiment = experiment.with_sections(calibration={"share": 0.0})
    task = Problem.from_experiment(settled(experiment))
    Evaluator(task)  # whatever it refuses is refused before anything is charged
    with simulating():
        node = Node.of(task, held_records(task, {"partition-id": 0, "num-partitions": 1}), "")
    site = Site(0, node.clients, node.held, None, None)
    plan: FederationPlan = experiment.privacy.model.plan(task, [site])
    return plan


def _of_one_kind(cost: lifetime.Cost) -> Counts:
    """The steps of a run with releases that are all alike, as a selection's bound and its ledgers assume."""
    if len(cost.parts) > 1 or len(cost.steps) > 1:
        raise ExperimentError(
            "a run of this experiment releases more than its rounds (privacy.moments, calibration.share, "
            "thresholds.share, counts of kept records) or stages of a sketch with unequal shares, and the bound of a "
            "selection is for runs whose releases are all alike; leave that out, or search on public twins (without "
            "--on-records)"
        )
    return cost.steps


def _require_selectable(experiment: Experiment) -> None:
    seen = (
        f"privacy.trust is {experiment.privacy.trust!r}: who is not trusted would see every run, not the selected "
        "one alone, and all of them would add up; search on public twins (without --on-records)"
    )
    if experiment.privacy.trust not in accounting_at_server():
        raise ExperimentError(seen)
    if reason := unprotected(experiment):
        raise ExperimentError(f"{reason}: such a run has no guarantee, and selecting among them has none")
    if experiment.federation.drop_out:
        raise ExperimentError("federation.drop_out would make runs cost other than planned; leave it out of a search")
    if experiment.data.own and experiment.data.held_out is None:
        raise ExperimentError(
            "a selection needs a score that may be released, and data.held_out names no table outside the guarantee; "
            "name one, or search on public twins (without --on-records)"
        )


def _train(experiment: Experiment, folder: Path, selection: Selection) -> tuple[dict[str, Any], Path]:
    result = run_among(experiment, selection, runs=folder)
    return result.summary, result.directory


def _require_planned(summary: dict[str, Any], directory: Path, planned: Counts) -> None:
    """Refuse a run that spent other than its plan, or could go on: what it would release later is not paid for."""
    with Ledger.open(directory / RunFile.LEDGER, read_only=True) as ledger:
        spent = Cost.of_ledger(ledger).steps
    if uncovered(spent, counted(planned.items())):
        raise FederationError(
            "a run of the search spent other than planned (attempts were made again), so that the selection would cost "
            "more than was charged; nothing of it is kept. Search again when all clients are there"
        )
    if summary["status"] != "completed":
        raise FederationError(
            f"a run of the search did not end as planned ({summary['status']}); nothing of the search is kept. Mend "
            "that, then search again"
        )
