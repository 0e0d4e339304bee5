"""Private quantile regression whose predictions differ little between groups: a task of one's own, in one file.

Run it (few rounds; more of them, and a larger epsilon, learn more):

    python docs/examples/quantile_regression.py
    python docs/examples/quantile_regression.py --rounds 500 --epsilon 4 --quantiles 0.05 0.5 0.95

Or name it in an experiment's TOML file, with this folder on PYTHONPATH:

    [objective]
    task = "quantile_regression:Quantiles"
    arguments = { quantiles = [0.1, 0.5, 0.9] }

What is learnt: for every target y in [0, 1] and every level q, a prediction that y stays below with probability q. The
loss of a record is the pinball loss; the penalty compares the predictions of the groups, all levels at once.

What has to be proven for it: nothing. Gradients of the loss are clipped to clip.loss, Jacobians of the predictions to
clip.jacobian, and predictions are projected to clip.output before they are compared, as for every task; so the noise
is that of any task with as many records and rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedsw.data.sources import Shape
from fedsw.experiment import parse_experiment
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import Facts
from fedsw.federation.engines.driver import run
from fedsw.learning.tasks.task import HeldOut, Inputs, Raw, Task

SETTINGS = {
    "name": "quantile-regression",
    "title": "Quantiles of two targets, alike for both groups",
    "data": {"source": "synthetic", "records": 6_000, "test_records": 2_000},
    "model": {"kind": "mlp", "hidden": [16]},
    "clip": {"output": 1.25, "centre": 0.5, "jacobian": 1.0, "loss": 1.0},
    "training": {"rounds": 30, "batch_fraction": 0.2, "learning_rate": 1.0, "averaging": 0.5},
    "evaluate_every": 10,
}


class Quantiles(Task):
    """Quantiles of numbers in [0, 1] at chosen levels.

    Args:
        quantiles: levels strictly between 0 and 1, rising.

    Raises:
        ValueError: if they are not.
    """

    # It predicts numbers that are declared to lie in [0, 1]; all else is what any comparison of groups takes.
    facts = Facts(target="numbers", unit="targets")

    def __init__(self, quantiles: Sequence[float] = (0.1, 0.5, 0.9)) -> None:
        levels = [0.0, *quantiles, 1.0]
        if len(levels) < 3 or any(not below < above for below, above in zip(levels, levels[1:], strict=False)):
            raise ValueError(f"quantiles = {list(quantiles)}; levels rise strictly between 0 and 1, and there is one")
        self.quantiles = torch.tensor(list(quantiles), dtype=torch.float64)

    def dimension(self, shape: Shape, model: Model) -> int:
        """One prediction for every target and level."""
        return shape.targets * len(self.quantiles)

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """Predictions (n, targets * levels) in the unit cube; the levels of a target stand side by side."""
        return torch.sigmoid(raw)

    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Pinball loss (n,): summed over the targets, a mean over the levels."""
        return self.pinball(self.outputs(raw, batch), batch.target).mean(dim=2).sum(dim=1)

    def pinball(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Pinball losses (n, targets, levels): q (y - p) where p is below y, else (1 - q) (p - y)."""
        predicted = self._by_target(outputs)
        short = target.to(predicted.dtype).unsqueeze(2) - predicted
        levels = self.quantiles.to(predicted)
        return torch.maximum(levels * short, (levels - 1) * short)

    def metrics(self, model: nn.Module, held_out: HeldOut) -> dict[str, float]:
        """Pinball loss, gap between groups, and by group: pinball loss, and how often y stays below each quantile."""
        records, outputs = held_out.records, held_out.outputs.double()
        losses = self.pinball(outputs, records.target).mean(dim=2).sum(dim=1)
        below = (records.target.double().unsqueeze(2) <= self._by_target(outputs)).double().mean(dim=1)
        report = {"loss": held_out.loss, "w2_squared": held_out.gap()}
        for place, level in enumerate(self.quantiles.tolist()):
            report[f"coverage_{level:g}"] = float(below[:, place].mean())
        for group, name in enumerate(held_out.shape.groups):
            chosen = records.sensitive == group
            report[f"pinball_{name}"] = float(losses[chosen].mean())
            for place, level in enumerate(self.quantiles.tolist()):
                report[f"coverage_{level:g}_{name}"] = float(below[chosen, place].mean())
        return report

    def _by_target(self, outputs: Tensor) -> Tensor:
        return outputs.unflatten(1, (-1, len(self.quantiles)))


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, print the held-out metrics, and return them."""
    parser = argparse.ArgumentParser(description="Private quantile regression that treats groups alike.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--alpha", type=float, default=0.5, help="weight of the comparison of groups, 0 to 1")
    parser.add_argument("--quantiles", type=float, nargs="+", default=[0.1, 0.5, 0.9])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the run's folder goes")
    asked = parser.parse_args(arguments)
    overrides = [
        f"training.rounds={asked.rounds}",
        f"privacy.epsilon={asked.epsilon}",
        f"objective.alpha={asked.alpha}",
    ]
    # The task is named at last: until then the settings are those of a regression of the same targets.
    experiment = parse_experiment({**SETTINGS, "objective": {"task": "regression"}}, overrides)
    result = run(experiment, runs=asked.runs, task=Quantiles(asked.quantiles))
    print(f"epsilon {result.summary['epsilon']:.4g} at delta {result.summary['delta']:.2g}; {result.directory}")
    held_out: dict[str, float] = result.summary["held_out"]
    for name, value in held_out.items():
        print(f"{name:24} {value:.4f}")
    return held_out


if __name__ == "__main__":
    main()
