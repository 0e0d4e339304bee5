"""Sums of a tally over the records of one place, without noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsw.data import Records
from fedsw.subnormal import flushing_to_zero
from fedsw.tasks.measures import Measuring
from fedsw.tasks.problem import Problem
from fedsw.tasks.tally import Tally
from fedsw.transport.sketches import STEP


@flushing_to_zero
def sums_of(problem: Problem, tally: Tally, records: Records, model: nn.Module) -> Tensor:
    """Sums over records by group, WITHOUT NOISE, in whole steps of 2^-26: (groups, t) int64.

    Each record's vector is rounded to whole steps by itself, so sums are exact, in any order and however records are
    spread over clients: at most sqrt(t) steps more than `moved` for one replaced record, which the slack of
    sensitivities covers.
    """
    total = torch.zeros((tally.groups, tally.width), dtype=torch.int64)
    if not len(records):
        return total
    with torch.no_grad():
        outputs = Measuring(problem, records, model).outputs.cpu()
    steps = (tally.vectors(outputs, records.target) / STEP).round().to(torch.int64)
    return total.index_add_(0, records.sensitive.long(), steps)
