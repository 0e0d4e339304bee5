"""Two attackers' scores for every coin: the larger, the surer that it fell on 1; the smaller, on 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw.audit.gradients import Attacker

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Released:
    """One round as the world may see it: the model (r,) that it began with and the noised vector (r,) that came out."""

    round: int
    attempt: int
    theta: Tensor
    vector: Tensor


def from_all_models(attacker: Attacker, history: Sequence[Released], sigma: float) -> tuple[Scores, list[float]]:
    """Scores (m,) of one who sees every released vector, and each round's mean length of a signature.

    A round's vector, less its mean, is sum_i s_i v_i + noise with s_i = 1 or -1 by the coin and the known signatures
    v_i. The scores are the best linear estimates of all s_i together over all rounds, (A + 1)^-1 b with A = sum V V^T
    / sigma^2 and b = sum V y / sigma^2: to look at one canary alone would take the others for noise.
    """
    count = attacker.canaries
    gram, match = torch.zeros((count, count), dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    lengths = []
    for seen in history:
        mean, signatures = attacker.signatures(seen.theta, seen.round, seen.attempt)
        gram += signatures @ signatures.T / sigma**2
        match += signatures @ (seen.vector - mean) / sigma**2
        lengths.append(float(torch.linalg.vector_norm(signatures, dim=1).mean()))
    return _apart(gram, match), lengths


def from_final_model(attacker: Attacker, final: Tensor, reference: Tensor, rounds: int, sigma: float) -> Scores:
    """Scores (m,) of one who may ask the released model for the losses of records, and for nothing else.

    The difference of the losses of a pair, less that under a training of the attacker's own without coins and noise.
    To first order it is -v_i (theta - reference) over the clip's share, and the model has moved along sum_i s_i v_i +
    noise, of `rounds` rounds: the scores are the best linear estimates again, were all directions equally well kept.
    """
    moved = attacker.loss_differences(final) - attacker.loss_differences(reference)
    _, signatures = attacker.signatures(reference, rounds)
    gram = rounds * signatures @ signatures.T / sigma**2
    return _apart(gram, attacker.clip_ratios(reference) * moved)


def _apart(gram: Tensor, match: Tensor) -> Scores:
    scores: Scores = torch.linalg.solve(gram + torch.eye(len(gram), dtype=torch.float64), match).numpy()
    return scores


@dataclass(frozen=True)
class Guesses:
    """The guesses about the coins that an attacker is surest of."""

    made: int
    correct: int

    @classmethod
    def surest(cls, scores: Scores, coins: NDArray[np.bool_], made: int) -> Guesses:
        """The `made` guesses on coins (m,) of the largest |scores| (m,): 1 for a positive score, 0 for another."""
        chosen = np.argsort(-np.abs(scores), kind="stable")[:made]
        return cls(made, int(((scores > 0) == coins)[chosen].sum()))
