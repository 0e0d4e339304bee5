"""PUFFLE's penalty in DP-FedAvg: demographic disparity, with a weight that clients move towards a target by momentum.

From its public description. What is other here, and why: there the disparity is that of a batch, whose counts of each
group and whose sign make the gradient of every record depend on all others, so that clipping it record by record does
not bound what one record changes. Here the counts are the public shares of the groups, and sign and size of the
disparity come from a number that follows it under the same clip and noise (`fedsw.baselines.penalised`); the weight
follows that number, so it costs nothing further. Groups that a client lacks need no message of their own.

Source: Corbucci, Heikkilä, Solans Noguero, Monreale, Kourtellis 2024, PUFFLE: Balancing privacy, utility, and fairness
    in federated learning.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsw.baselines import fedavg
from fedsw.baselines.asked import Asked, Trained
from fedsw.baselines.penalised import Scored, absolute
from fedsw.tasks.problem import Problem


@dataclass
class Weighted:
    """A client's loss: (1 - weight) times the task's plus weight times the disparity; the weight may move.

    Attributes:
        weight: in [0, 1].
        target: the disparity that the weight works towards; None for a fixed weight.
        rate, momentum: of the weight's steps.
    """

    problem: Problem
    weight: float
    target: float | None
    rate: float
    momentum: float
    _velocity: float = 0.0

    def __call__(self, scored: Scored, found: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
        """Loss per record (b,) at the weight that follows from the noised disparity so far."""
        if self.target is not None:
            self._velocity = self.momentum * self._velocity + self.target - abs(scored.followed)
            self.weight = min(1.0, max(0.0, self.weight - self.rate * self._velocity))
        return absolute(scored, self.problem, found, target, self.weight)


def train(asked: Asked) -> Trained:
    """DP-FedAvg with PUFFLE's loss; objective.alpha is the weight, or where it starts.

    The arguments `target`, `rate` and `momentum` move it; without a target it stays.

    Guarantee: of every `fedsw.baselines.fedavg.Client`.
    """
    target, rate, momentum = (asked.arguments.get(name) for name in ("target", "rate", "momentum"))
    weight = asked.problem.experiment.objective.alpha
    return fedavg.averaged(
        asked,
        lambda _: Weighted(
            asked.problem,
            weight,
            None if target is None else float(target),
            0.1 if rate is None else float(rate),
            0.0 if momentum is None else float(momentum),
        ),
    )
