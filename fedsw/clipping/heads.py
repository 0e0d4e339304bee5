"""Heads: functions of what a module returned, whose Jacobians are measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from fedsw.clipping.coverage import leaves, refuse_strays


def require_head(head: Tensor, records: int, live: Collection[Tensor], names: Mapping[int, str]) -> None:
    """Refuse what is no head of a tape.

    Args:
        head: (n,) or (n, d).
        records: n.
        live: what the module returned that carries gradient.
        names: of the trainable parameters, by identity.

    Raises:
        UnsupportedModule: if it uses a parameter directly.
        ValueError: if it has another shape or type, or does not depend on what the module returned.
    """
    if head.dim() not in (1, 2) or head.shape[0] != records or not head.shape[1:].numel():
        raise ValueError(f"a head has shape {tuple(head.shape)}; it must be (n,) or (n, d), n = {records}.")
    if head.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"a head is {head.dtype}, too coarse for a norm; use float32 or float64.")
    reached = list(leaves([head], {})) if head.requires_grad else []
    if not any(each is leaf for each in reached for leaf in live):
        raise ValueError("a head does not depend on tape.raw: build it from tape.raw, without detaching.")
    refuse_strays(reached, names)


def units(head: Tensor) -> list[Tensor]:
    """The cotangents that select each column of a head (n, ...), for every record; each of the head's shape."""
    if head.shape[1:].numel() == 1:
        return [torch.ones_like(head)]
    found = []
    for r in range(head.shape[1]):
        unit = torch.zeros_like(head)
        unit[:, r].fill_(1.0)
        found.append(unit)
    return found


def chained(slope: Tensor, squares: Tensor) -> Tensor:
    """Gram matrices (n, d, d) of a head from its slopes (n, d) and the squared gradient (n,) of the one column."""
    squares = squares.reshape(-1, 1, 1)
    if slope.shape[1] == 1:
        return slope.square().unsqueeze(2).mul_(squares)
    return slope.unsqueeze(2) * slope.unsqueeze(1) * squares
