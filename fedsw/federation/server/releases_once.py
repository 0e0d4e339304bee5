"""One-time releases beside the rounds: moments before the first; scores, sums over held-out records after the last."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.settings import FederationError, Unaccounted
from fedsw.data.sources import load_class_names
from fedsw.federation.trust.context import Context, ServerSide
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.federation.trust.sums_once import HistogramSum, MomentSum, ScoreSum, Sum, TallySum
from fedsw.learning.models import flatten
from fedsw.learning.models.outer_layers import rescaled
from fedsw.learning.moments.beside_rounds import histograms_of, moments_layout, scores_of, tally_of
from fedsw.learning.moments.column_counts import Histograms
from fedsw.learning.moments.preparation import Preparation, folded, prepare, started
from fedsw.learning.moments.released_moments import Coefficients, Moments, coefficients_of, columns_used, constant_of
from fedsw.learning.tasks.calibration import calibration_of
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import Cut, RegressionSums
from fedsw.privacy.accounting import BudgetExhausted
from fedsw.runs import recovery
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation import group_thresholds as thresholds
from fedsw.runs.evaluation.evaluator import HeldOutMetrics
from fedsw.runs.evaluation.group_thresholds import Scores
from fedsw.runs.evaluation.held_out_metrics import Tallied, cut_in_words, held_out_of, keep, kept
from fedsw.runs.releases import kept_histograms, kept_moments
from fedsw.runs.run_files import RunFile, write_json
from fedsw.runs.telemetry import event
from fedsw.runs.view import read_outputs


@dataclass(frozen=True, eq=False)
class ReleasedSum:
    """A sum over records as it left, (blocks, width), with its noise, its cost, and the records in it, by block.

    `spent` is the epsilon with it, of the worst client where each has its own guarantee.
    """

    values: Tensor
    sigma: float
    spent: float
    attempt: int
    clients: int
    records: NDArray[np.int64]

    @property
    def said(self) -> dict[str, Any]:
        """Content of a file about it."""
        about = {"sigma": self.sigma, "clients": self.clients, "attempt": self.attempt, "epsilon": self.spent}
        return {"values": self.values.tolist(), **about}


def release_sum(
    context: Context,
    side: ServerSide,
    kind: type[Sum],
    round_: int,
    weights: Tensor,
    directory: RunDirectory,
    log: logging.Logger,
) -> ReleasedSum:
    """Release a sum over records once, by a side of any trust model; for the round and the weights (z,) see `Sum.at`.

    BudgetExhausted, also for one that was charged before and may not be charged anew; FederationError.
    """
    shape = kind.at(context.plan.task, round_, weights).shape
    recovery.require_space(directory.path, 32 * math.prod(shape))
    outcome = context.require_charged(round_, side.round(round_, weights))
    assert outcome.sigma is not None
    about = {"attempt": outcome.attempt, "clients": outcome.clients, "epsilon": outcome.spent}
    log.info("%s released", kind.called, extra=event(f"{kind.called} released", **about))
    values = outcome.vector.reshape(shape)
    return ReleasedSum(values, outcome.sigma, outcome.spent, outcome.attempt, outcome.clients, side.records)


def _beside(
    context: Context, kind: type[Sum], weights: Tensor, directory: RunDirectory, log: logging.Logger
) -> ReleasedSum:
    """Release a sum beside the rounds, by the run's trust model."""
    experiment = context.plan.task.experiment
    (round_,), side = kind.rounds(experiment), experiment.privacy.model.sides.once.side(context, kind)
    return release_sum(context, side, kind, round_, weights, directory, log)


def _beside_or_why(
    context: Context, kind: type[Sum], weights: Tensor, directory: RunDirectory, log: logging.Logger
) -> ReleasedSum | str:
    """Release a sum after the rounds, or say why it cannot be had, in words that may be stored: the model stays."""
    try:
        return _beside(context, kind, weights, directory, log)
    except Unaccounted:  # something was released, without a row in a ledger
        raise
    except (FederationError, BudgetExhausted) as fault:
        log.warning("nothing of %s was released: %s", kind.called, fault, extra=event("nothing released"))
        return fault.recorded if isinstance(fault, FederationError) else str(fault)


_NONE = torch.zeros(0, dtype=torch.float64)
"""Weights of a sum that records go into as they are."""


def release_histograms(context: Context, directory: RunDirectory, log: logging.Logger) -> Histograms:
    """The histograms of columns of a run: those that it has, or those that it asks for now and then has."""
    task = context.plan.task
    if (kept_before := kept_histograms(task, directory)) is not None:
        return kept_before
    counts = histograms_of(task)
    assert counts is not None
    released = _beside(context, HistogramSum, _NONE, directory, log)
    records = int(released.records.sum())
    write_json(directory.path / RunFile.HISTOGRAMS, released.said | {"records": [records]})
    return Histograms(counts, released.values.numpy(), released.sigma, records)


def release_moments(context: Context, directory: RunDirectory, log: logging.Logger) -> Moments:
    """The moments of a run: those that it has, or those that it asks for now and then has."""
    plan = context.plan
    moments = kept_moments(plan.task, directory)
    if moments is not None:
        return moments
    layout = moments_layout(plan.task)
    assert layout is not None
    released = _beside(context, MomentSum, _NONE, directory, log)
    records = released.records.tolist()
    content = released.said | {"records": records, "counted": layout.constant / layout.bound}
    write_json(directory.path / RunFile.MOMENTS, content)
    hides = plan.task.experiment.privacy.hides_sizes
    return Moments(layout, released.values, released.sigma, tuple(records), hides)


def unprepared(task: Problem, theta: Tensor) -> Tensor:
    """The parameters (r,) with which the model answers for features as they are, as with `theta` for prepared ones."""
    if task.preparation is None:
        return theta
    model = task.prepared(task.build_model().double(), theta)
    return flatten(folded(model, Preparation.of_flat(task.preparation.flat(), task.features)))


def calibrated_by(task: Problem, theta: Tensor, correction: Mapping[str, Any]) -> Tensor:
    """The parameters (r,) with the probabilities of those at `theta`, after a correction's scale and shift."""
    model = task.prepared(task.build_model().double(), theta)
    return flatten(rescaled(model, task.features, float(correction["scale"]), correction["shift"]))


def prepared(plan: FederationPlan, moments: Moments) -> tuple[FederationPlan, Tensor]:
    """The plan of the rounds that follow, and the parameters (r,) that they begin with: post-processing."""
    task = plan.task
    preparation = prepare(task, moments)
    ready = plan.under(preparation)
    return ready, started(ready.task, preparation, moments, task.build_model())


def said_of(plan: FederationPlan, moments: Moments) -> dict[str, Any]:
    """The summary's entry on released moments: a constant's score, columns narrower than declared, and coefficients.

    It is post-processing of the release, with intervals for its noise.
    """
    experiment, constant = plan.task.experiment, constant_of(moments)
    names = load_class_names(experiment.record_source) if moments.layout.classes else ()
    columns, coding = experiment.data.columns, plan.task.coding
    line = None if coding is None else coding.line
    shown = columns if coding is None or coding.line is not None else None
    told = Coefficients((), ()) if shown is None else coefficients_of(moments, shown, line)
    score = asdict(constant.score)
    if plan.task.units is not None:  # a squared error, in the units of what is predicted
        score = {name: value * plan.task.units[1] ** 2 for name, value in score.items()}
    return {
        "share": experiment.privacy.moments,
        "sigma": moments.sigma,
        "records": sum(moments.records),
        "inputs": moments.layout.features,
        "constant": score,
        "means": [asdict(entry) for entry in constant.means],
        "classes": list(names),
        "narrow_columns": [] if shown is None else [asdict(entry) for entry in columns_used(moments, shown, line)],
        "coefficients": asdict(told),
    }


def measure_kept(
    context: Context,
    theta: Tensor,
    steps: int,
    directory: RunDirectory,
    log: logging.Logger,
) -> tuple[HeldOutMetrics, dict[str, Any]]:
    """Metrics of the released model on held-out records of the clients, and the summary's entry on that release.

    A run that has the release takes it. One that cannot get it has no metrics and says why: the model stays.

    The released model (r,) is that of so many steps; the exchange has the number of the next planned one.
    """
    task, tallied = context.plan.task, kept(directory)
    tally = tally_of(task)
    assert tally is not None
    if tallied is None:
        # Numbers to predict are cut by the released moments of targets, if there are any with noise. A variance that
        # the noise hides counts as the standard deviation of that noise.
        cut = tally.cut_at if isinstance(tally, RegressionSums) else None
        moments = None if cut is None else kept_moments(task, directory)
        if moments is not None and moments.sigma:
            shifts = moments.target_mean - moments.layout.middle
            noise = np.hypot(moments.noise_of_squares, 2 * shifts * moments.noise_of_targets)
            variances = np.maximum(np.diag(moments.target_covariance), noise)
            cut = Cut.about(moments.target_mean.tolist(), variances.tolist())
        weights = theta if cut is None else torch.cat([theta.double(), cut.flat()])
        released = _beside_or_why(context, TallySum, weights, directory, log)
        if isinstance(released, str):
            why = f"nothing is known of the records that clients kept out of training: {released}"
            return HeldOutMetrics(missing=why), {}
        numbers = (released.values.numpy(), released.sigma, released.records)
        tallied = Tallied(*numbers, released.clients, released.attempt, released.spent, steps, cut)
        keep(directory, tallied)
    if tallied.values.shape[1] != tally.width or (isinstance(tally, RegressionSums) and tallied.cut is None):
        return HeldOutMetrics(
            missing="sums over kept records were released by an older version, which alone reads them"
        ), {}
    about = tallied.said() | ({"counted_as": words} if (words := cut_in_words(task, tallied.cut)) else {})
    return held_out_of(task, tally, tallied), {"held_out_release": about}


def release_scores(
    context: Context, theta: Tensor, directory: RunDirectory, log: logging.Logger
) -> tuple[Tensor, dict[str, Any]]:
    """The model (r,) with calibrated probabilities, and the summary's entries on calibration and thresholds.

    They follow from the counts of scores under the model `theta` (r,) that a run has, or asks for now and then has. A
    run that cannot get them says why: the model stays. Scores that were charged and are not on file are not released
    again: the ledger's row comes first.
    """
    task = context.plan.task
    scores = thresholds.kept(directory.path)
    if scores is None:
        released = _beside_or_why(context, ScoreSum, theta, directory, log)
        if isinstance(released, str):
            return theta, without_scores(task, released)
        values, calibration = released.values.numpy(), None
        if task.experiment.calibration.share:
            counts = scores_of(task)
            assert counts is not None
            public = None if task.experiment.privacy.hides_sizes else float(released.records.sum())
            calibration = calibration_of(counts, values, released.sigma, public)
        numbers = (values, released.sigma, released.records, released.clients, released.attempt, released.spent)
        scores = Scores(*numbers, calibration)
        thresholds.keep(directory.path, scores)
    about = _thresholds_of(task, scores) if task.experiment.thresholds.share else {}
    if scores.calibration is None:
        return theta, about
    calibrated = {"share": task.experiment.share_of_scores, **scores.said(), **scores.calibration.said()}
    return calibrated_by(task, theta, scores.calibration.said()), about | {"calibration": calibrated}


def without_scores(task: Problem, why: str) -> dict[str, Any]:
    """The summary's entries where no scores were released."""
    experiment = task.experiment
    thresholds_missing = {"thresholds": {"missing": f"there are no thresholds by group: {why}"}}
    uncalibrated = {"calibration": {"missing": f"probabilities are those of the rounds, which are too sure: {why}"}}
    return (thresholds_missing if experiment.thresholds.share else {}) | (
        uncalibrated if experiment.calibration.share else {}
    )


def _thresholds_of(task: Problem, scores: Scores) -> dict[str, Any]:
    """Thresholds by the experiment's rule, in words and numbers."""
    settings, positive = task.experiment.thresholds, 1 if task.positive is None else task.positive
    cuts, names = (thresholds.cuts_of(scores, settings.rule, positive), load_class_names(task.experiment.record_source))
    by_group = zip(task.groups, cuts.by_group, cuts.selected, cuts.bands, strict=True)
    said: dict[str, Any] = {
        "share": task.experiment.share_of_scores,
        "rule": settings.rule,
        **scores.said(),
        "positive": names[positive] if names else str(positive),
        "by_group": {
            group: {"threshold": cut, "selected": share, "band": band} for group, cut, share, band in by_group
        },
        "accuracy": cuts.accuracy,
        "few": [task.groups[group] for group in cuts.few],
    }
    return {"thresholds": said}


def at_thresholds(task: Problem, directory: RunDirectory) -> dict[str, Any]:
    """The summary's entry on thresholds by group on held-out outputs; none if a run has either not."""
    scores, outputs = thresholds.kept(directory.path), read_outputs(directory.path / RunFile.OUTPUTS)
    if not task.experiment.thresholds.share or scores is None or outputs is None or not len(outputs.values):
        return {}
    positive = 1 if task.positive is None else task.positive
    cuts = thresholds.cuts_of(scores, task.experiment.thresholds.rule, positive)
    return {"held_out_at_thresholds": thresholds.metrics_at(cuts, outputs, positive=positive)}
