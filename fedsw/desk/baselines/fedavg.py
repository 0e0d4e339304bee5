"""DP-FedAvg, with a penalty, and PUFFLE's tuned one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsw.data import Records
from fedsw.data.sources import owners
from fedsw.desk.baselines.penalised import Returned, Scored, absolute, contrasts, squared
from fedsw.desk.baselines.pooled import Average, BaselineTask, Rows, Trained, by_opacus, made_private
from fedsw.learning import models

Losses = Callable[[Scored, Returned, Tensor], Tensor]
"""Maps a client's model, what it returned for a batch, and the classes to a loss per record (b,)."""


class Client:
    """One client with its records, its own copy of the model, and Opacus' accountant.

    Guarantee: (epsilon, delta) of all that it sends in all rounds, for adding or removing one of its records, against
    everyone who sees it. The number of its records is public, and the shares of the groups where there is a penalty.
    """

    def __init__(self, task: BaselineTask, records: Records, contrast: Tensor, losses: Losses) -> None:
        self.size, self._losses = len(records), losses
        self.scored = Scored(task.problem)
        rows = Rows(task.problem.inputs(records), contrast, records.target)
        self._private = made_private(task, self.scored, rows, _accountant(task), epochs=True)
        self._delta = task.delta

    def round(self, theta: Tensor) -> Tensor:
        """One epoch from the server's parameters (r,), and the parameters (r,) that come of it."""
        models.load_flat(self.scored, theta)
        self._private.optimizer.original_optimizer.state.clear()
        for features, sides, target in self._private.batches(len(self._private.loader)):
            self._private.step(self._losses(self.scored, self._private.module(features, sides), target))
        return models.flatten(self.scored)

    @property
    def multiplier(self) -> float:
        """Standard deviation of its noise over the clip."""
        return self._private.multiplier

    @property
    def epsilon(self) -> float:
        """Epsilon of its steps so far, by its accountant."""
        return self._private.epsilon(self._delta)


def train(task: BaselineTask) -> Trained:
    """Rounds of one local epoch; alpha > 0 adds the squared gap of the groups' mean scores.

    Guarantee: of every `Client`; nothing that the server adds up is trusted to be hidden.
    """
    return averaged(task, lambda: squared)


def averaged(task: BaselineTask, losses: Callable[[], Losses]) -> Trained:
    """DP-FedAvg with a loss of its own for each client; the mean weighs clients by their records.

    Guarantee: of every `Client`.
    """
    problem, records = task.problem, task.records
    experiment = problem.experiment
    contrast = contrasts(problem, records)
    owner = owners(records, experiment.partition, experiment.federation.clients)
    rows_of_clients = [np.flatnonzero(owner == client) for client in range(experiment.federation.clients)]
    clients = [Client(task, records.take(rows), contrast[rows], losses()) for rows in rows_of_clients]
    weights = torch.tensor([client.size / len(records) for client in clients], dtype=torch.float64)
    whole = Scored(problem)
    theta, average = models.flatten(whole), Average(task.averaged_after)
    for _ in range(experiment.training.rounds):
        sent = torch.stack([client.round(theta) for client in clients])
        theta = (weights @ sent.to(torch.float64)).to(problem.dtype)
        models.load_flat(whole, theta)
        average.add(whole.model)
    traffic = experiment.training.rounds * len(clients) * len(theta) * theta.element_size()
    epsilons = {number: client.epsilon for number, client in enumerate(clients)}
    return Trained(
        average.mean,
        by_opacus(
            whole,
            _accountant(task),
            protects="each record of every client, by its own client's noise and accountant",
            against="everyone, including the server and the other clients",
            public="each client's number of records",
            multiplier=max(client.multiplier for client in clients),
            local=True,
        ),
        epsilon=max(epsilons.values()),
        clients=len(clients),
        bytes_up=traffic,
        bytes_down=traffic,
        epsilon_by_client=epsilons,
        notes=whole.notes,
    )


def _accountant(task: BaselineTask) -> str:
    return str(task.arguments.get("accountant") or "rdp")


@dataclass
class Weighted:
    """A client's loss: (1 - weight) times the task's plus weight in [0, 1] times the disparity.

    The weight works towards a target of the disparity, by steps of that rate and momentum; None fixes it.
    """

    weight: float
    target: float | None
    rate: float
    momentum: float
    _velocity: float = 0.0

    def __call__(self, scored: Scored, returned: Returned, target: Tensor) -> Tensor:
        """Loss per record (b,) at the weight that follows from the noised disparity so far."""
        if self.target is not None:
            self._velocity = self.momentum * self._velocity + self.target - abs(scored.followed)
            self.weight = min(1.0, max(0.0, self.weight - self.rate * self._velocity))
        return absolute(scored, returned, target, self.weight)


def train_puffle(task: BaselineTask) -> Trained:
    """DP-FedAvg with PUFFLE's loss; objective.alpha is the weight, or where it starts.

    The arguments `target`, `rate` and `momentum` move it; without a target it stays.

    Guarantee: of every `fedsw.desk.baselines.fedavg.Client`.
    """
    known = {name: task.arguments.get(name) for name in ("target", "rate", "momentum")}
    numbers = {name: float(value) for name, value in known.items() if value is not None}
    weight = task.problem.experiment.objective.alpha

    def weighted() -> Weighted:
        return Weighted(weight, numbers.get("target"), numbers.get("rate", 0.1), numbers.get("momentum", 0.0))

    return averaged(task, weighted)
