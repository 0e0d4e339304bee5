"""Public facts that both sides know before a message comes: lengths by symbol, and which fields it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedsw.experiment.sections import TableSettings
from fedsw.experiment.trust import RunGuarantee
from fedsw.learning.moments.beside_rounds import histograms_of, moments_layout, scores_of, tally_of
from fedsw.learning.moments.preparation import Preparation
from fedsw.learning.sketches.from_settings import sent_size
from fedsw.learning.tasks.measures import sketcher_of
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import RegressionSums
from fedsw.privacy.accounting import Slicing

SYMBOLS: Mapping[str, str] = {
    "r": "parameters of the model",
    "d": "dimension of the outputs",
    "k": "directions of the attempt",
    "c": "cells: the strata of sampling",
    "B": "bins of a table",
    "S": "clients of the node: 1, or those of a site",
    "L": "clients of the node that are lost",
    "P": "rows that a node's arrays are filled up to: more than it is ever asked for, so that no size tells a count",
    "n": "records of the client's batch, or all of them where it releases once; public under the local trust models",
    "N": "records of the client",
    "q": "cells of a sketch: a block for each label and group that it tells apart",
    "w": "numbers of a sketch's cell in the stage: cosines and sines or codes, and the count",
    "z": "weights of the classifier that later stages look through, or pairs of columns",
    "g": "groups",
    "t": "numbers of a group's tally: counts and sums over the records that are kept out of training",
    "h": "3 for each target: a centre, and how far from it targets and answers of a tally may be",
    "s": "blocks of scores: the groups where thresholds are asked for, or 1",
    "o": "numbers of a block's scores: counts by class and bin of the probability",
    "b": "blocks of moments: the cells, or 1 where no penalty compares them",
    "u": "numbers of a block's moments: products of 1, inputs and target in pairs",
    "f": "columns of numbers that histograms are of",
    "p": "public parts of the column that has most, with one for a missing cell",
    "v": "numbers of a preparation: a centre, a square matrix and a scale, all of the inputs",
    "A": "exchanges that the node has answered in this run before; 0 in a new one",
    "x": "numbers of all tables of an attempt: of every penalty, cell, direction and bin",
    "y": "numbers of a masked sum: of all tables, the contribution, a sketch, histograms, moments, a tally or scores",
    "e": "3: what an exchange is numbered by",
    "N_j": "records of the node's clients in cell j",
}
"""Lengths that the shapes of the table are written in."""


@dataclass(frozen=True)
class Terms:
    """Facts that one side knows before a message comes: the task, once a client was greeted, and lengths by symbol.

    Any length is taken for the symbols that this side does not know.
    """

    task: Problem | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Problem, **sizes: int) -> Terms:
        """The terms of a task, with lengths that it does not say."""
        known = {"r": task.parameters, "d": task.columns, "c": len(task.objective.cells), "e": 3}
        if isinstance(local := task.experiment.local, TableSettings):
            known["B"] = local.bins
        if task.experiment.stages:
            sketcher = sketcher_of(task)
            known |= {"q": sketcher.law.cells, "w": sketcher.coordinates + 1}
            if task.experiment.sketch.stages:
                known["z"] = sent_size(task.experiment, task.shape)
        if (tally := tally_of(task)) is not None:
            known |= {"g": tally.groups, "t": tally.width}
            if isinstance(tally, RegressionSums):
                known["h"] = 3 * tally.targets
        if (counts := scores_of(task)) is not None:
            known |= {"s": counts.groups, "o": counts.width}
        if (histograms := histograms_of(task)) is not None:
            known |= {"f": len(histograms.columns), "p": histograms.width}
        if (layout := moments_layout(task)) is not None:
            known |= {"b": layout.cells, "u": layout.width, "v": Preparation.length(task.features)}
        return cls(task, {**known, **sizes})

    def knowing(self, **sizes: int) -> Terms:
        """A copy of the terms with more lengths."""
        return Terms(self.task, {**self.sizes, **sizes})

    @property
    def agreed(self) -> Problem:
        """The task; RuntimeError before there is one."""
        if self.task is None:
            raise RuntimeError("this message is checked against a task, and none was agreed yet")
        return self.task

    @property
    def guarantee(self) -> RunGuarantee:
        """Guarantee of the run, which limits what may be stated of its noise."""
        return self.agreed.experiment.privacy.guarantee


@dataclass(frozen=True)
class Condition:
    """Condition for a field to be in its message; it follows from public settings only, so that both sides know it."""

    text: str
    holds: Callable[[Problem], bool]


def _draws_directions(task: Problem) -> bool:
    slicing = task.experiment.slicing
    law = Slicing(task.dimension, slicing.directions, slicing.scheme)
    return OWN_LEDGER.holds(task) and not law.fixed


SEEDED = Condition("in runs with `seed`", lambda task: task.experiment.seed is not None)
HELD_OUT_RELEASED = Condition(
    'with `data.held_out_to = "everybody"`', lambda task: task.experiment.data.held_out_released
)
WITH_MOMENTS = Condition("with `privacy.moments`", lambda task: bool(task.experiment.privacy.moments))
UNSAFE = Condition("with `unsafe_metrics`", lambda task: task.experiment.unsafe_metrics)
OWN_LEDGER = Condition("where clients add noise", lambda task: bool(task.experiment.privacy.paying(range(1))))
WITH_CUT = Condition(
    "where these records have numbers to predict", lambda task: isinstance(tally_of(task), RegressionSums)
)
WITH_STAGES = Condition("with `sketch.stages`", lambda task: bool(task.experiment.sketch.stages))
WITH_TABLES = Condition("with a penalty", lambda task: task.objective.alpha > 0)
THROUGH_MODEL = Condition("where features pass through the model", lambda task: task.private_parameters)
OWN_DIRECTIONS = Condition("where directions are not whole orthogonal blocks", _draws_directions)
