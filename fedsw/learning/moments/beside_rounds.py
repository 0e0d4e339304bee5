"""Releases of an experiment beside its rounds, and if they can be: moments, scores, a tally of kept records."""

from __future__ import annotations

from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.preset_rules import left_open
from fedsw.experiment.trust import releasing_gradients
from fedsw.learning.models.outer_layers import rescalable
from fedsw.learning.moments.column_counts import ColumnCounts, Histograms, bins_of, counts_of_columns
from fedsw.learning.moments.moments_sum import MOST_FEATURES, Layout, layout_of
from fedsw.learning.moments.preparation import foldable
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import BOTH, COARSE, EDGES, ScoreCounts, usual
from fedsw.learning.tasks.tally import Tally


def require_moments(problem: Problem, *, alone: bool = False) -> None:
    """Check that the moments that an experiment asks for can be released and used; `alone` if it is to stop then."""
    experiment = problem.experiment
    if not experiment.privacy.moments:
        if alone:
            raise ExperimentError(
                "moments alone are asked for, and privacy.moments is 0 here: noise would hide them, or nothing asks "
                "for them; set a share of the budget, as in privacy.moments=0.1"
            )
        return
    if experiment.privacy.moments == "auto":  # what chooses a share leaves moments out where there can be none
        return
    trust = experiment.privacy.trust
    reason = ""
    if trust not in (able := releasing_gradients()):
        reason = f"are released under privacy.trust {', '.join(map(repr, able))}, not {trust!r}"
    elif layout_of(problem) is None:
        reason = (
            f"are of at most {MOST_FEATURES} inputs with a class or numbers to predict, and penalties between groups "
            f"alone; here are {problem.features} inputs and objective.task {experiment.objective.task!r}"
        )
    elif not foldable(problem.build_model(), problem.features):
        reason = f"go into a first linear layer that takes the inputs; model.kind {experiment.model.kind!r} has none"
    if reason:
        raise ExperimentError(
            f"privacy.moments is {experiment.privacy.moments:g}, and moments {reason}: set privacy.moments to 0"
        )


def moments_layout(problem: Problem) -> Layout | None:
    """Return the layout of the sums before the rounds; None in an experiment that releases no moments."""
    return layout_of(problem) if problem.experiment.privacy.moments else None


def histograms_of(problem: Problem) -> ColumnCounts | None:
    """Return what is counted of columns before the moments; None in an experiment that releases no histograms."""
    columns, privacy = problem.experiment.data.columns, problem.experiment.privacy
    return counts_of_columns(columns, problem.experiment.model) if privacy.histograms and columns is not None else None


def require_histograms(problem: Problem) -> None:
    """Check that histograms, where an experiment asks for them, can be released and used: ExperimentError."""
    experiment, privacy = problem.experiment, problem.experiment.privacy
    if "kind" in left_open(experiment).get("model", ()):  # what chooses a model is asked again
        return
    if privacy.histograms and histograms_of(problem) is None:
        raise ExperimentError(
            f"privacy.histograms is {privacy.histograms:g}, and no column of numbers has more values than knots and "
            "none declared: set it to 0"
        )


def binned(task: Problem, histograms: Histograms) -> Experiment:
    """The experiment with the bins of columns that released histograms give: post-processing.

    Without them, if they would make the moments too many numbers to release.
    """
    experiment = task.experiment
    refined = experiment.with_sections(model={"bins": bins_of(histograms, experiment.model.knots)})
    fits = moments_layout(Problem.from_experiment(refined)) is not None
    return refined if fits else experiment.with_sections(model={"bins": ()})


def scores_of(problem: Problem) -> ScoreCounts | None:
    """Return the counts that calibration and thresholds are read off; None in an experiment that releases none.

    They are by group, and in as many bins as thresholds take, where these are asked for.
    """
    experiment = problem.experiment
    if not experiment.share_of_scores:
        return None
    positive = 1 if problem.positive is None else problem.positive
    if experiment.thresholds.share:
        return ScoreCounts(len(problem.groups), positive, BOTH if experiment.calibration.share else EDGES)
    return ScoreCounts(1, positive if problem.classes == 2 else None, COARSE, problem.classes)


def require_scorable(problem: Problem) -> None:
    """Check that counts of scores, where an experiment asks for them, can be released and used: ExperimentError."""
    experiment, facts, groups = problem.experiment, problem.task.facts, len(problem.groups)
    binary = facts.classifies and facts.supervised and problem.classes == 2 and problem.dimension == 1
    if experiment.thresholds.share and (not binary or groups < 2):
        task, reason = experiment.objective.task, f"are by group, and the data have {groups}"
        if not binary:
            reason = (
                f"are of a classifier of two classes; here objective.task is {task!r}, of {problem.classes} classes"
            )
        raise ExperimentError(
            f"thresholds.share is {experiment.thresholds.share:g}, and thresholds {reason}: leave [thresholds] out"
        )
    if experiment.calibration.share and (reason := uncalibrated(problem)):
        raise ExperimentError(
            f"calibration.share is {experiment.calibration.share:g}, and calibration {reason}: set it to 0"
        )


def uncalibrated(problem: Problem) -> str:
    """Reason why a model's probabilities cannot be corrected, as the end of a sentence; empty if they can.

    Outputs must be the usual probabilities of what the model returns, and that an affine map away from its last layer.
    """
    facts, task = problem.task.facts, problem.experiment.objective.task
    width = 1 if problem.classes == 2 else problem.classes
    if not (facts.classifies and facts.supervised) or problem.classes < 2 or problem.dimension != width:
        return f"is of a classifier; here objective.task is {task!r}"
    if not usual(problem.task.outputs, problem.shape):
        return f"scales logits, and objective.task {task!r} makes other outputs of what a model returns"
    model = problem.build_model()
    if not rescalable(model.cpu(), problem.features):
        return f"goes into a last linear layer, and model.kind {problem.experiment.model.kind!r} has none"
    return ""


def tally_of(task: Problem) -> Tally | None:
    """Return the tally released of kept records; None in an experiment that releases none."""
    return task.task.tally(task.shape) if task.experiment.data.held_out_released else None
