"""Sums of clipped per-sample gradients, all terms over one forward and one final backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedsw.clipping.clip import Mode, Safety, clip_cotangents
from fedsw.clipping.precision import full_precision
from fedsw.clipping.tape import Tape


@dataclass(frozen=True)
class Term:
    """One clipped part of an objective.

    Attributes:
        head: the unprojected outputs (n, d), or losses (n,), as a function of `Tape.raw`.
        cotangents: q in the shape of the head; for losses, the weight of every record.
        bound: the clip L of the Jacobian, or C of the loss gradient.
        mode: "spectral", or "row" for the clip of RLL Remark A.2.
    """

    head: Tensor
    cotangents: Tensor
    bound: float
    mode: Mode = "spectral"


def clipped_sum(tape: Tape, terms: Sequence[Term], *, safety: Safety | None = None) -> Tensor:
    """Sum over terms and records of (J_i clipped to the term's bound)^T q_i, as one flat float64 vector.

    Guarantee: record i moves the result by at most sum over terms of bound * ||q_i||, whatever its values.
    The sensitivities of `fedsw.sensitivity` are stated for this sum. A record with an output, loss, cotangent
    or Gram matrix that is not finite contributes 0 in every term.

    Args:
        tape: the recorded forward pass.
        terms: heads, cotangents and bounds.
        safety: margins of the clip; the default is Safety().

    Returns:
        (r,), float64, the trainable parameters in the order of `module.parameters()`.
    """
    with full_precision(tape.device):
        pulled = [
            (
                term.head,
                clip_cotangents(
                    tape.gram(term.head), term.cotangents, term.bound, mode=term.mode, safety=safety
                ),
            )
            for term in terms
        ]
        return tape.pull_back(pulled)
