"""Sums of clipped per-sample gradients, all terms over one forward and one final backward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw.mathematics.clipping.clip import (
    Mode,
    Safety,
    clip_cotangents,
    clip_numbers,
    finite,
    full_precision,
    require_clip,
    require_cotangents,
)
from fedsw.mathematics.clipping.tape import Tape


@dataclass(frozen=True)
class Term:
    """One clipped part of an objective.

    The head is unprojected outputs (n, d), or losses (n,); cotangents q have its shape, for losses the weight of every
    record; the bound is the clip L of the Jacobian, or C of the loss gradient.
    """

    head: Tensor
    cotangents: Tensor
    bound: float
    mode: Mode = "spectral"

    def __post_init__(self) -> None:
        require_clip(self.bound, self.mode)
        require_cotangents(self.head, self.cotangents)


def clipped_sum(
    tape: Tape, terms: Sequence[Term], *, safety: Safety | None = None, runs: Sequence[int] | None = None
) -> Tensor:
    """Sum over terms and records of (J_i clipped to the term's bound)^T q_i, as one flat float64 vector.

    Guarantee: record i moves the result by at most sum over terms of bound * ||q_i||, whatever its values, and
    whatever the passes through the network did: its part is measured again as it is added, and cut to that.
    The sensitivities of `fedsw.privacy.sensitivity` are stated for this sum. A record with an output, loss or
    Gram matrix that is not finite contributes 0 in every term, one with a cotangent that is not, in that term.

    The result is (r,), float64, in the order of `module.parameters()`; (S, r) for S ``runs``, the lengths of parts
    of the batch one after the other, for which all passes through the network are taken once.
    """
    if runs is not None and (sum(runs) != tape.records or min(runs, default=0) < 0):
        raise ValueError(f"runs hold {sum(runs)} records, and the tape {tape.records}; every record is in one run.")
    sums = _sums(tape, terms, safety, [tape.records] if runs is None else runs)
    return sums[0] if runs is None else sums


def _sums(tape: Tape, terms: Sequence[Term], safety: Safety | None, runs: Sequence[int]) -> Tensor:
    with full_precision(tape.device):
        if not terms:
            return torch.zeros((len(runs), tape.size), dtype=torch.float64, device=tape.device)
        if tape.column and all(term.head.shape[1:].numel() == 1 for term in terms):
            return _joint_sum(tape, terms, safety, runs)
        norms = [torch.linalg.vector_norm(_rows(term.cotangents), dim=1, dtype=torch.float64) for term in terms]
        limits = _limits(torch.stack(norms), _bounds(tape, terms), safety)

        def clip(rows: slice, grams: Sequence[Tensor]) -> list[Tensor]:
            return [
                clip_cotangents(gram, _rows(term.cotangents)[rows], term.bound, mode=term.mode, safety=safety)
                for term, gram in zip(terms, grams, strict=True)
            ]

        return tape.clipped([term.head for term in terms], clip, limits, runs)


def _joint_sum(tape: Tape, terms: Sequence[Term], safety: Safety | None, runs: Sequence[int]) -> Tensor:
    """The sum where every Jacobian is one row s_i u_i^T: clipped to a bound as (s_i / bound) u_i^T to 1, at once."""
    slopes = tape.slopes([term.head for term in terms])
    bounds = _bounds(tape, terms)
    q = torch.stack([term.cotangents.reshape(-1) for term in terms]).to(torch.float64)
    heads = torch.stack([term.head.detach().reshape(-1).to(torch.float64) for term in terms])
    squares = slopes.square()

    def clip(rows: slice, squared: Tensor) -> tuple[Tensor, Tensor]:
        gram = squares[:, rows] * squared
        clipped = clip_numbers(gram / bounds.square(), q[:, rows], 1.0, safety)
        return clipped.mul_(slopes[:, rows]).sum(0), finite([gram.sum(0), heads[:, rows].sum(0)])

    return tape.clipped_column(clip, _limits(q.abs(), bounds, safety), runs)


def _limits(norms: Tensor, bounds: Tensor, safety: Safety | None) -> Tensor:
    """Largest norm that each record may add in all terms (n,): bound * ||q_i|| summed, with half the clips' margin."""
    # A clip divides its bound by the margin, and this limit by its root: rounding alone is not cut a second time.
    room = math.sqrt((Safety() if safety is None else safety).shrink)
    most = norms.nan_to_num(nan=0.0, posinf=0.0).mul_(bounds / room)
    return most.nan_to_num_(nan=0.0, posinf=math.inf).sum(0)  # no cotangent weighs nothing, even without a bound


def _bounds(tape: Tape, terms: Sequence[Term]) -> Tensor:
    return torch.tensor([[term.bound] for term in terms], dtype=torch.float64, device=tape.device)


def _rows(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], values.shape[1:].numel())
