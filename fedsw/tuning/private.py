"""The best of a random number of private runs: what it costs, charged before the first; nothing of the others is kept.

Source: docs/guarantees.md, "Private selection".
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from fedsw.accounting import Ledger
from fedsw.accounting.lifetime import About, Counts, DatasetAccount, accounts_folder, composed_epsilon, counts_of_ledger
from fedsw.accounting.lifetime.cover import counted, uncovered
from fedsw.accounting.profiles import stated_step
from fedsw.accounting.renyi import renyi_of
from fedsw.accounting.selection import Repetitions, selected, worst_curve
from fedsw.accounting.stated import Renyi
from fedsw.engines.driver import fresh_directory, run
from fedsw.errors import FederationError
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.protection import unprotected
from fedsw.federation.exchange.cohort import Site
from fedsw.federation.node.node import Node
from fedsw.federation.node.partition import held_records
from fedsw.federation.server.lifetime import planned_steps
from fedsw.federation.trust.plan import Plan, make_plan
from fedsw.federation.trust.sketch import server as sketch
from fedsw.randomness import Stream
from fedsw.runs.evaluation import Evaluator
from fedsw.runs.files import LEDGER, SUMMARY, read_json, write_json
from fedsw.tasks.problem import Problem
from fedsw.tuning.candidates import Candidate, score_of

_TRUSTED = ("central", "sketch")
TUNING = "tuning.json"
"""In the folder of the run that was selected: among what, by which law, and what it cost."""


@dataclass(frozen=True)
class Cost:
    """What a selection costs.

    Attributes:
        curve: Renyi divergences of what is released of it.
        epsilon, delta: the same as one guarantee.
        single: epsilon of one run at that delta, which it is not.
        all_shown: epsilon of as many runs as are expected, if all of them were shown.
        steps: what each candidate's run is charged at most.
    """

    curve: Renyi
    epsilon: float
    delta: float
    single: float
    all_shown: float
    steps: tuple[Counts, ...]


@dataclass(frozen=True)
class Selected:
    """The run that was selected."""

    candidate: Candidate
    score: float
    directory: Path
    cost: Cost


def cost_of(found: Sequence[Candidate], law: Repetitions) -> Cost:
    """What the best of K runs costs, each with a candidate drawn at random; from public numbers alone.

    Raises:
        ExperimentError: for a candidate whose runs nobody may select among, naming why.
    """
    plans = [_plan(candidate.experiment) for candidate in found]
    steps = tuple(planned_steps(plan) for plan in plans)
    one = worst_curve(renyi_of(each.items()) for each in steps)
    curve, delta = selected(one, law), min(plan.delta for plan in plans)
    single, dearest = max((composed_epsilon([each], delta), place) for place, each in enumerate(steps))
    runs = round(law.mean)
    shown = composed_epsilon([{step: runs * times for step, times in steps[dearest].items()}], delta)
    return Cost(curve, curve.epsilon(delta), delta, single, shown, steps)


def select(
    found: Sequence[Candidate],
    law: Repetitions,
    metric: str,
    sign: float,
    *,
    runs: Path,
    train: Callable[[Experiment, Path], tuple[dict[str, Any], Path]] | None = None,
) -> Selected:
    """Train K runs with candidates drawn at random, and keep the one with the best score.

    Guarantee: (epsilon, delta) of `cost_of` for everything that is released: the folder of the selected run. K, the
    other runs and how long it took are not released; under a trusted server its operator sees them. The cost is charged
    to the account of the data set before the first run; a search that breaks off stays charged.

    Args:
        metric, sign: the score, a number of the run's summary.
        train: runs an experiment in a folder; returns its summary and its own folder.

    Raises:
        ExperimentError: as `cost_of`. LimitReached: if the account has no room; nothing was then run.
        FederationError: if a run spent more than its plan, so that the cost would not be the stated one.
    """
    cost = cost_of(found, law)
    _charge(found[0].experiment, cost, len(found))
    stream, best = Stream.secure(), None
    with tempfile.TemporaryDirectory(prefix="fedsw-tune-") as folder:
        for _ in range(law.draw(float(stream.uniforms(1)[0]))):
            place = min(int(stream.uniforms(1)[0] * len(found)), len(found) - 1)
            summary, directory = (train or _train)(_outside(found[place].experiment), Path(folder))
            _require_planned(directory, cost.steps[place])
            score = score_of(summary, metric, sign)
            if best is None or score > best[1]:
                if best is not None:
                    shutil.rmtree(best[2])
                best = (found[place], score, directory)
            else:
                shutil.rmtree(directory)
        assert best is not None
        candidate, score, directory = best
        kept = fresh_directory(runs / candidate.experiment.name)
        shutil.copytree(directory, kept, dirs_exist_ok=True)
    result = Selected(candidate, score, kept, cost)
    _sign(result, found, law, metric)
    return result


def _charge(experiment: Experiment, cost: Cost, among: int) -> None:
    data = experiment.data.account
    if data is not None:
        about = About(experiment.name, f"selection among {among} settings", "")
        account, name = DatasetAccount(accounts_folder(), data), f"tune-{uuid4().hex}"
        steps = {stated_step(cost.curve): 1}
        account.reserve(name, steps, about)
        account.settle(name, steps, None)


def _plan(experiment: Experiment) -> Plan:
    _require_selectable(experiment)
    task = Problem.from_experiment(experiment)
    Evaluator(task)  # whatever it refuses is refused before anything is charged
    node = Node.of(task, held_records(task, {"partition-id": 0, "num-partitions": 1}), "")
    site = Site(0, node.clients, node.held, None, None)
    return sketch.make_plan(task, [site]) if experiment.privacy.sketch else make_plan(task, [site])


def _require_selectable(experiment: Experiment) -> None:
    """Refuse what the theorem does not cover.

    Raises:
        ExperimentError: naming the setting.
    """
    if experiment.privacy.trust not in _TRUSTED:
        raise ExperimentError(
            f"privacy.trust is {experiment.privacy.trust!r}: who is not trusted would see every run, not the selected "
            "one alone, and all of them would add up; search on public twins (without --on-records)"
        )
    if reason := unprotected(experiment):
        raise ExperimentError(f"{reason}: such a run has no guarantee, and selecting among them has none")
    if experiment.federation.drop_out:
        raise ExperimentError("federation.drop_out would make runs cost other than planned; leave it out of a search")
    if experiment.data.own and experiment.data.held_out is None:
        raise ExperimentError(
            "a selection needs a score that may be released, and data.held_out names no table outside the guarantee; "
            "name one, or search on public twins (without --on-records)"
        )


def _outside(experiment: Experiment) -> Experiment:
    """The experiment outside its data set's account, to which the selection is charged as a whole."""
    return experiment.model_copy(update={"data": experiment.data.model_copy(update={"account": None})})


def _train(experiment: Experiment, folder: Path) -> tuple[dict[str, Any], Path]:
    found = run(experiment, runs=folder)
    return found.summary, found.directory


def _require_planned(directory: Path, planned: Counts) -> None:
    with Ledger.open(directory / LEDGER, read_only=True) as ledger:
        spent = counts_of_ledger(ledger)
    if uncovered(spent, counted(planned.items())):
        raise FederationError(
            "a run of the search spent other than planned (attempts were made again), so that the selection would cost "
            "more than was charged; nothing of it is kept. Search again when all clients are there"
        )


def _sign(result: Selected, found: Sequence[Candidate], law: Repetitions, metric: str) -> None:
    """Say in the folder of the selected run what the selection cost: its own ledger knows of one run only."""
    cost = result.cost
    kept = {
        "settings": list(result.candidate.settings),
        "among": [list(candidate.settings) for candidate in found],
        "metric": metric,
        "score": result.score if math.isfinite(result.score) else str(result.score),
        "eta": law.eta,
        "gamma": law.gamma,
        "expected_runs": law.mean,
        "epsilon": cost.epsilon,
        "delta": cost.delta,
        "epsilon_of_one_run": cost.single,
        "epsilon_of_all_shown": cost.all_shown,
    }
    write_json(result.directory / TUNING, kept)
    summary = read_json(result.directory / SUMMARY) or {}
    warning = (
        f"this run was selected among others on the same records: its epsilon is {cost.epsilon:.4g} at delta "
        f"{cost.delta:.3g}, not the {cost.single:.4g} of one run"
    )
    summary["warnings"] = [warning, *summary.get("warnings", ())]
    write_json(result.directory / SUMMARY, {**summary, "selection": kept})
