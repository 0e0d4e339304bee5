"""What a round does with rows and contributions: outputs by cell, cotangents by site, bounds of sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsw.federation.exchange.cohort import Present, Site, totals
from fedsw.federation.messages import Contribution
from fedsw.federation.trust.plan import Draw, Plan, most_drawn
from fedsw.tasks.problem import Problem


@dataclass(frozen=True, eq=False)
class Part:
    """A site's contribution, its vector (r,) on the device, the most it may weigh, and how many clients are in it."""

    site: Site
    answer: Contribution
    vector: Tensor
    most: float
    clients: int


def within_bounds(parts: Sequence[Part]) -> list[bool]:
    """Which contributions weigh no more than they may: compared on the device, and read all together."""
    if not parts:
        return []
    verdicts = torch.stack([torch.linalg.vector_norm(part.vector) <= part.most for part in parts])
    found: list[bool] = verdicts.cpu().tolist()
    return found


def stacked_outputs(settled: Draw, outputs: Sequence[Tensor], task: Problem) -> list[Tensor]:
    """Outputs (n_j, d) by cell j, in client order, without filler, projected again: a client's word is not a bound.

    All of them go to the device in one piece.
    """
    rows = [counts.sum(axis=0).tolist() for counts in settled.counts]
    pieces = [torch.split(out[: sum(row)], row) for out, row in zip(outputs, rows, strict=True)]
    joined = torch.cat([piece for cell in zip(*pieces, strict=True) for piece in cell]).to(task.device)
    return [task.in_balls(cell) for cell in torch.split(joined, list(settled.batch))]


def most_rows(plan: Plan, settled: Draw, present: Sequence[Present]) -> list[int]:
    """Rows of each site's messages: more than it is ever asked for, so that their size tells no count."""
    drawn = [int(counts.sum()) for counts in settled.counts]
    if plan.task.experiment.privacy.sampling == "stratified":
        return drawn  # fixed in advance, and public
    sizes = totals(present)
    held = [each.sizes.sum(axis=0).tolist() for each in present]
    room = [sum(map(most_drawn, settled.batch, own, sizes)) for own in held]
    return [max(most, own) for most, own in zip(room, drawn, strict=True)]


def cut_by_site(settled: Draw, by_cell: Sequence[Tensor]) -> list[Tensor]:
    """Cotangents (n_s, d) by site, by cell and then by client; on the host, brought there in one piece."""
    joined, sites = torch.cat(list(by_cell)).cpu(), len(settled.counts)
    rows = np.stack([counts.sum(axis=0) for counts in settled.counts], axis=1)  # (cells, sites)
    pieces = torch.split(joined, rows.reshape(-1).tolist())
    return [torch.cat(pieces[site::sites]) for site in range(sites)]


def mean_loss(parts: Sequence[Contribution]) -> float | None:
    """The mean of the batch's losses as clients report them; a client that reports no loss or no count is left out."""
    reported = [(part.training_loss, part.records) for part in parts]
    known = [(loss, count) for loss, count in reported if loss is not None and count is not None]
    total = sum(count for _, count in known)
    return sum(loss * count for loss, count in known) / total if total > 0 else None
