"""Releases of an experiment beside its rounds, and if they can be: moments, scores, a tally of kept records."""

from __future__ import annotations

from fedsw.experiment import ExperimentError
from fedsw.experiment.trust import releasing_gradients
from fedsw.learning.moments.moments_sum import MOST_FEATURES, Layout, layout_of
from fedsw.learning.moments.preparation import foldable
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import ScoreCounts
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


def scores_of(problem: Problem) -> ScoreCounts | None:
    """Return the counts that thresholds by group are read off; None in an experiment that releases none."""
    if not problem.experiment.thresholds.share:
        return None
    return ScoreCounts(len(problem.groups), 1 if problem.positive is None else problem.positive)


def require_thresholds(problem: Problem) -> None:
    """Check that counts of scores, where an experiment asks for them, can be released and used: ExperimentError."""
    experiment, facts = problem.experiment, problem.task.facts
    if not experiment.thresholds.share:
        return
    reason = ""
    if not (facts.classifies and facts.supervised) or problem.classes != 2 or problem.dimension != 1:
        task = experiment.objective.task
        reason = f"are of a classifier of two classes; here objective.task is {task!r}, of {problem.classes} classes"
    elif len(problem.groups) < 2:
        reason = f"are by group, and the data have {len(problem.groups)}"
    if reason:
        raise ExperimentError(
            f"thresholds.share is {experiment.thresholds.share:g}, and thresholds {reason}: leave [thresholds] out"
        )


def tally_of(task: Problem) -> Tally | None:
    """Return the tally released of kept records; None in an experiment that releases none."""
    return task.task.tally(task.shape) if task.experiment.data.held_out_released else None
