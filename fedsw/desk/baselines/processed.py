"""A model without a penalty, and fair scores afterwards: private histograms by group, and maps to their barycentre.

The model is fedsw's own under trust "central" and takes most of epsilon; one release of histograms of its scores for
the private records takes the rest, and everything after is free. Using the scores takes the group.

Source: Xian, Li, Kamath, Zhao 2024, Differentially private post-processing for fair regression.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from fedsw._tools.randomness import Stream
from fedsw.data import Records
from fedsw.data.sources import load_held_out
from fedsw.desk.baselines.pooled import BaselineGuarantee, BaselineTask, Trained
from fedsw.experiment import ExperimentError
from fedsw.federation.engines import driver
from fedsw.learning import models
from fedsw.learning.tasks.measures import Measurements, Measuring
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.transport.barycentre import FairMaps, bins_of, distributions_of, fair_maps
from fedsw.privacy.accountants import LAPLACE
from fedsw.privacy.accounting import Charge, Ledger
from fedsw.privacy.mechanisms import laplace_scale
from fedsw.privacy.release import Bounded, Part, pay, release_paid
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation.evaluator import HeldOutMetrics, parts_of, subsample, worth_of
from fedsw.runs.run_files import RunFile

SHARE = 0.1
"""Share of epsilon that the histograms take."""
BINS = 40
"""Bins of a histogram over [0, 1], where the scores are."""
RADIUS = 0.05
"""Radius of the Kolmogorov-Smirnov ball about the barycentre: the most that the groups' distributions differ."""
GROUP = "records"
"""The one group of records that a ledger of this release accounts for."""
SENSITIVITY = 2.0
"""l1: a replaced record leaves one bin of its group and enters another of the same group."""


def train(task: BaselineTask) -> Trained:
    """A run at (1 - SHARE) epsilon, and histograms at the rest; the argument `radius` is that of the ball.

    Guarantee: (epsilon, delta) of model and maps together, by adding up, for replacing one record by another of its
    group, against their readers; server and clients are trusted. Noise is fedsw's, charged to a ledger each.
    ExperimentError without a finite epsilon, or if the outputs are not one number.
    """
    problem = task.problem
    if problem.dimension != 1 or not np.isfinite(task.epsilon):
        raise ExperimentError(
            f"the baseline 'barycentre' takes outputs of one number and a finite epsilon; the outputs have "
            f"{problem.dimension} columns, and epsilon is {task.epsilon}"
        )
    spent = SHARE * task.epsilon
    privacy = problem.experiment.privacy.model_copy(update={"epsilon": task.epsilon - spent, "delta": task.delta})
    trained = driver.run(problem.experiment.model_copy(update={"privacy": privacy}), runs=task.folder / "training")
    model = problem.build_model()
    model.load_state_dict(load_file(trained.directory / RunFile.MODEL))
    maps = _maps(task, model.eval(), spent)
    summary, stated = trained.summary, trained.summary["guarantee"]
    shuffled = np.random.default_rng(problem.experiment.model.seed)
    sent = problem.experiment.federation.clients * len(problem.groups) * BINS * 8
    return Trained(
        models.flatten(model),
        BaselineGuarantee(
            protects=stated["protects"],
            against=stated["against"],
            public=(*stated["public"], "the sizes of the groups"),
            accountant=f"{stated['accountant']} + laplace",
            multiplier=float(stated["noise_multiplier"]),
            local=False,
            relation=stated["relation"],
            bound=f"{stated['bound']} + histogram",
            holds=bool(stated["accountant_is_guarantee"]),
            nominal=bool(summary["nominal"]),
            randomness="",
        ),
        epsilon=float(summary["epsilon"]) + spent,
        clients=problem.experiment.federation.clients,
        bytes_up=int(summary["bytes_up"]) + sent,
        bytes_down=int(summary["bytes_down"]),
        notes={"histogram_epsilon": spent, "moved": maps.cost},
        processed=lambda scores, groups: maps(scores, groups, shuffled),
    )


def _maps(task: BaselineTask, model: nn.Module, epsilon: float) -> FairMaps:
    """Fair maps from histograms of the private records' scores, released once."""
    problem, records = task.problem, task.records
    edges = np.linspace(0.0, 1.0, BINS + 1)
    bounded = bounded_histograms(_scores(task, model), records.sensitive.numpy(), edges, count=len(problem.groups))
    account = task.folder / "histograms.sqlite"
    with Ledger.create(account, groups=[GROUP], delta=task.delta, epsilon=epsilon, accountant=LAPLACE) as ledger:
        counts = release_histograms(bounded, epsilon, ledger)
    return fair_maps(*distributions_of(counts), edges, float(task.arguments.get("radius", RADIUS)))


def _scores(task: BaselineTask, model: nn.Module) -> NDArray[np.float64]:
    """The model's scores (n,) of the private records: not to be shown."""
    inputs = task.problem.given(task.records)
    with torch.no_grad():
        scores: NDArray[np.float64] = task.problem.task.outputs(model(inputs.features), inputs)[:, 0].double().numpy()
    return scores


Process = Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]]


class Processed(Measuring):
    """Held-out records under a model, with scores that go through a function of score and group."""

    def __init__(self, problem: Problem, records: Records, model: nn.Module, process: Process) -> None:
        super().__init__(problem, records, model)
        self._process = process

    @functools.cached_property
    def outputs(self) -> Tensor:
        """The scores (n, 1) after it."""
        unprocessed = super().outputs
        scores, groups = unprocessed[:, 0].double().cpu().numpy(), self.records.sensitive.cpu().numpy()
        return torch.from_numpy(self._process(scores, groups)).to(unprocessed).unsqueeze(1)


def write_processed(problem: Problem, model: nn.Module, process: Process, directory: RunDirectory) -> HeldOutMetrics:
    """Metrics as a run has them, but for the loss, which is of the model; outputs go to the folder."""
    records, evaluation = (load_held_out(problem.experiment.record_source), problem.experiment.evaluation)
    if records is None:
        return HeldOutMetrics()
    all_of_them = len(records)
    if evaluation.mode == "auto":
        records = subsample(records, evaluation.records)
    released = Processed(problem, records, model, process)
    parts = parts_of(records)
    with torch.no_grad():
        report = _without_loss(problem.task.metrics(model, released))
        arrays = {name: values.cpu() for name, values in problem.task.arrays(model, released).items()}
        refitted = [Processed(problem, records.take(parts != part), model, process) for part in set(parts.tolist())]
        without = [_without_loss(problem.task.metrics(model, measuring)) for measuring in refitted if len(refitted) > 1]
    directory.write_outputs(arrays)
    return worth_of(problem, records, Measurements(report, arrays, 0, without=tuple(without)), of=all_of_them)


def _without_loss(report: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in report.items() if name != "loss"}


def bounded_histograms(
    scores: NDArray[np.float64], groups: NDArray[np.int64], edges: NDArray[np.float64], *, count: int
) -> Bounded:
    """Counts (groups, b) of private scores (n,) in the bins of public edges (b + 1,), not to be read before a release.

    Guarantee: replacing one record by another of its group moves the counts by at most 2 in l1 norm, whatever the
    model that made the scores, if it was released before or does not depend on these records. Public: the sizes of the
    groups. Proof: docs/guarantees/slices.md.

    Scores are any numbers: those outside the edges, which are chosen without a look at them, count in the first or the
    last bin. Groups (n,) are of 0 .. count - 1.
    """
    if scores.shape != groups.shape or scores.ndim != 1:
        raise ValueError(f"scores {scores.shape} and groups {groups.shape}: one of each for every record, shape (n,)")
    if len(groups) and not 0 <= int(groups.min()) <= int(groups.max()) < count:
        raise ValueError(f"groups are {int(groups.min())} .. {int(groups.max())}; they must be in 0 .. {count - 1}")
    bins = len(edges) - 1
    counts = np.bincount(groups * bins + bins_of(scores, edges), minlength=count * bins).reshape(count, bins)
    moved = Sensitivity(SENSITIVITY, "histogram", public=("the sizes of the groups",), norm="l1")
    return Bounded(torch.from_numpy(counts.astype(np.float64)), moved, charges=(Charge(GROUP, 1.0, SENSITIVITY),))


def release_histograms(
    bounded: Bounded, epsilon: float, ledger: Ledger, *, stream: Stream | None = None
) -> NDArray[np.float64]:
    """Noised counts (groups, b): charged to a ledger, then Laplace noise of scale 2 / epsilon on every count.

    Guarantee: (epsilon, 0)-differential privacy of every record, for its replacement by another of its group, against
    all readers of the counts and of what is computed from them. What else was released of the same records composes:
    a model trained under (epsilon', delta) and this are (epsilon + epsilon', delta) together.

    The ledger has the accountant "laplace" and the group "records", and takes the release once. BudgetExhausted and
    AlreadySpent by the ledger: nothing leaves; ValueError for an epsilon that is not finite.
    """
    scale = laplace_scale(epsilon, bounded.sensitivity.value)
    part = Part.of("histograms", bounded.sensitivity, scale, LAPLACE)
    paid = pay(ledger, bounded.round, bounded.attempt, bounded.charges, scale, [part])
    return release_paid(bounded, paid, part.name, stream or Stream.secure()).value.numpy()
