"""The records of a problem under its sketch: their cells, and their exact sum."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsw.data import Records
from fedsw.data.codes import codes_of, one_hot
from fedsw.subnormal import flushing_to_zero
from fedsw.tasks.problem import Problem
from fedsw.tasks.sketched import drawn, law_of, table_of
from fedsw.transport.sketches import Law, Sketcher


def law_of_problem(problem: Problem) -> Law:
    """What is measured of every record."""
    return law_of(problem.experiment, problem.shape)


def sketcher_of(problem: Problem) -> Sketcher:
    """The law with its public numbers drawn, in the run's precision, on its device."""
    return drawn(law_of_problem(problem), problem.dtype, problem.device)


def sums_of(problem: Problem, records: Records) -> Tensor:
    """The records' exact sum (cells, F + 1), float64, on the host. WITHOUT NOISE: it leaves as a `Bounded` only."""
    return sketcher_of(problem).sums(inputs_of(problem, records), cells_of(problem, records)).cpu()


@flushing_to_zero
def inputs_of(problem: Problem, records: Records) -> Tensor:
    """Features (n, p) as the sketch looks at them, on the run's device: the records' own, or their columns' codes."""
    coded = table_of(problem.experiment)
    if coded is None:
        return problem.inputs(records)
    return one_hot(codes_of(records, coded), coded, problem.dtype).to(problem.device)


def cells_of(problem: Problem, records: Records) -> Tensor:
    """The cell (n,) int64 of every record, on the run's device: the block that it is in."""
    sketch, law = problem.experiment.sketch, law_of_problem(problem)
    none = torch.zeros(len(records), dtype=torch.int64)
    labels = records.target if sketch.labels and law.classes > 1 else none
    groups = records.sensitive if sketch.groups else none
    return law.cell_of(labels.to(torch.int64), groups.to(torch.int64)).to(problem.device)
