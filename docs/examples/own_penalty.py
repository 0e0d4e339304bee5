"""Penalties of one's own: one of parts, whose bound is proven, and one with a bound that you state, and challenge.

    python docs/examples/own_penalty.py

The derivative is of the outputs alone, each in a ball of radius M; fedsw clips the Jacobians to L and adds the noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import fedsw


@dataclass(frozen=True)
class Fair(fedsw.Penalty):
    """Parity and equalized odds, half and half: a sum of penalties has the sum of their bounds."""

    def parts(self) -> Sequence[fedsw.Penalty]:
        """Shares of this penalty's weight."""
        return [fedsw.Parity(0.5), fedsw.EqualizedOdds(0.5)]


@dataclass(frozen=True)
class Means(fedsw.Penalty):
    """The squared difference of two groups' mean outputs."""

    def pull(self, outputs: Sequence[Tensor], directions: Tensor) -> Sequence[Tensor]:
        """2 (m_0 - m_1) / n_0 for every record of the first group, and its negative / n_1 for the second."""
        one, other = outputs
        gap = one.mean(0) - other.mean(0)
        return [2 * gap.expand_as(one) / len(one), -2 * gap.expand_as(other) / len(other)]

    def bound(self, sizes: Sequence[int], clip: fedsw.Clip) -> float:
        """16 M L / n: its own derivative is at most 4 M / n, twice; the gap, and so all others', moves by 2 M / n."""
        return 16 * clip.output * clip.jacobian / min(sizes)


def main() -> float:
    """How much of the stated bound a search attains."""
    clip = fedsw.Clip(output=0.5, jacobian=0.5, loss=0.5)
    attained = fedsw.require_bound(Means(1.0), (8, 8), clip, tries=400)
    print(f"no counterexample; the worst neighbours attain {attained:.0%} of the stated bound")
    torch.manual_seed(0)
    group, x = torch.arange(400) % 2, torch.randn(400, 4)
    records = fedsw.as_records(x, group=group, groups=[0, 1], target=(x[:, 0] > 0).long(), classes=[0, 1])
    for penalty in (Fair(0.5), Means(0.5)):
        objective = fedsw.Objective("classification", [penalty])
        cells = objective.composite.cell_of(records.sensitive, records.target)
        sizes = torch.bincount(cells).tolist()  # public, as the strata are
        plan = fedsw.plan(objective, clip, sizes=sizes, batch_fraction=0.5, rounds=5, epsilon=4, delta=1e-4)
        model = nn.Linear(records.features.shape[1], 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with tempfile.TemporaryDirectory() as folder:
            fedsw.PrivateTrainer(model, optimizer, objective, clip, plan, directory=Path(folder)).fit(records)
        print(f"{type(penalty).__name__}: {len(sizes)} strata; its bound is by {plan.sensitivity.bound}")
    return attained


if __name__ == "__main__":
    main()
