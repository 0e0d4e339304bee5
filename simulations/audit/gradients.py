"""What an attacker computes for itself: the gradient without the coins, and what each coin would add to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from clients.node import Node
from clients.substitution import exchanged
from fedsw import heads
from fedsw.data import Records
from fedsw.models import load_flat
from fedsw.objectives import Objective
from fedsw.task import Task
from server.counterpart import counterpart_of
from server.training import Trainer
from simulations.audit.canaries import Canaries

_NUMBERS_AT_ONCE = 2**24  # of per-record Jacobians held in memory


@dataclass(frozen=True)
class Expected:
    """The gradient of the whole training data with half of each canary's two records, and the halves' differences.

    Attributes:
        mean: (r,) float64, what a round releases on average over noise, batches and coins.
        signatures: (m, r) float64: with coin 1 a canary adds its row to that mean, with coin 0 it takes it away.
        slopes: (m, r) float64, gradients of half the difference of the two records' losses, unclipped.
    """

    mean: Tensor
    signatures: Tensor
    slopes: Tensor


class Attacker:
    """One who knows all records, the pairs and the settings; not the coins, the batches or the noise.

    Args:
        task: the experiment's.
        records: all training records, of all clients.
        canaries: what is at stake; its coins are not looked at.
    """

    def __init__(self, task: Task, records: Records, canaries: Canaries) -> None:
        self._task, self._pair = task, (canaries.zero, canaries.one)
        self._model = task.build_model()
        self._counterpart = counterpart_of(task)
        self._nodes: list[tuple[Node, Records, Tensor]] = []
        for side in self._pair:
            whole = exchanged(records, side)
            node = Node(task, whole, task.cells_of(whole), self._model)
            ordered = whole.take(np.concatenate(node.cells))
            place = torch.argsort(ordered.ids)
            at = place[torch.searchsorted(ordered.ids[place], side.ids)]
            self._nodes.append((node, ordered, at))

    def expected(self, theta: Tensor, round_: int, attempt: int = 1, *, clipped: bool = True) -> Expected:
        """Of a round at the model `theta` (r,): by the product's own clipping for the mean.

        Args:
            clipped: whether the signatures are asked for; else they are empty.
        """
        mean = torch.zeros(self._task.parameters, dtype=torch.float64)
        signatures = slopes = torch.zeros((0, self._task.parameters), dtype=torch.float64)
        for sign, (node, ordered, at), side in zip((-0.5, 0.5), self._nodes, self._pair, strict=True):
            weight = self._task.objective.task_weight(len(ordered))
            batch, outputs = node.forward(theta, ordered, round_, attempt)
            q, other = self._matched(node, outputs, theta, round_, attempt)
            mean += 0.5 * (node.contribution(batch, q, weight)[0] + other)
            node.batch = None
            if clipped:
                own, slope = self._contributions(theta, side, q[at], weight)
                signatures = sign * own if not len(signatures) else signatures + sign * own
                slopes = -sign * slope if not len(slopes) else slopes - sign * slope
        return Expected(mean, signatures, slopes)

    def reference(self, rounds: int) -> list[Tensor]:
        """The models of a training without noise on half of each canary; the last is the model it would release."""
        trainer = Trainer(_flat(self._model), self._task.experiment.training)
        models = []
        for round_ in range(1, rounds + 1):
            models.append(trainer.theta.clone())
            trainer.step(self.expected(trainer.theta, round_, clipped=False).mean)
        return [*models, trainer.model.clone()]

    def loss_differences(self, theta: Tensor) -> Tensor:
        """Half of (loss of `zero` - loss of `one`) under a model, (m,) float64: all that a black box is asked for."""
        model = self._task.prepared(self._model, theta)
        zero, one = (self._losses(model, side) for side in self._pair)
        return (zero - one) / 2

    def _losses(self, model: nn.Module, side: Records) -> Tensor:
        with torch.no_grad():
            found = [self._task.losses(model(self._task.inputs(part)), part) for part in self._task.chunks(side)]
        return torch.cat(found).double().cpu()

    def _matched(
        self, node: Node, outputs: Tensor, theta: Tensor, round_: int, attempt: int
    ) -> tuple[Tensor, Tensor]:
        """Cotangents of every record, and the gradient of the other side where there is one; as `server.rounds`."""
        objective, task = self._task.objective, self._task
        directions = task.directions(round_, attempt)
        if isinstance(objective, Objective):
            return torch.cat(objective.cotangents(torch.split(outputs, node.sizes), directions)), _nothing(task)
        assert self._counterpart is not None
        sample = self._counterpart.sample(theta, len(outputs), round_, attempt)
        own, other = objective.cotangents(outputs, sample, directions)
        return own, self._counterpart.contribution(other)

    def _contributions(
        self, theta: Tensor, side: Records, cotangents: Tensor, weight: float
    ) -> tuple[Tensor, Tensor]:
        """Each record's clipped contribution, and its plain loss gradient; both (m, r) float64."""
        load_flat(self._model, theta)
        at_once = max(1, _NUMBERS_AT_ONCE // ((1 + self._task.dimension) * self._task.parameters))
        clipped, plain = [], []
        for start in range(0, len(side), at_once):
            part = side.take(np.arange(start, min(start + at_once, len(side))))
            jacobians = self._jacobians(part)
            loss, outputs = jacobians[:, 0], jacobians[:, 1:]
            norms = torch.linalg.vector_norm(loss, dim=1, keepdim=True).clamp(min=1e-300)
            total = weight * loss * (self._task.clip.loss / norms).clamp(max=1.0)
            if self._task.objective.alpha > 0:
                q = _clipped(outputs, cotangents[start : start + len(part)], self._task.clip.jacobian)
                total = total + torch.einsum("md,mdr->mr", q, outputs)
            clipped.append(total)
            plain.append(loss)
        return torch.cat(clipped), torch.cat(plain)

    def _jacobians(self, part: Records) -> Tensor:
        """Of every record's loss and outputs, (m, 1 + d, r) float64."""
        task, model = self._task, self._model
        kind, classes = task.experiment.objective.task, task.classes
        trained = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}

        def values(parameters: dict[str, Tensor], features: Tensor, target: Tensor) -> Tensor:
            raw = functional_call(model, parameters, (features[None],))
            loss = heads.losses(kind, raw, features=features[None], target=target[None], classes=classes)
            return torch.cat([loss.reshape(1), task.outputs(raw).reshape(-1)])

        target = part.target.to(task.device)
        found = vmap(jacrev(values), in_dims=(None, 0, 0))(trained, task.inputs(part), target)
        rows = [found[name].reshape(len(part), 1 + task.dimension, -1) for name in trained]
        return torch.cat(rows, dim=2).double().cpu()


def _clipped(jacobians: Tensor, cotangents: Tensor, most: float) -> Tensor:
    """Cotangents (m, d) as the spectral clip at `most` changes them; see `fedsw.clipping.clip`."""
    gram = torch.einsum("mdr,mer->mde", jacobians, jacobians)
    values, vectors = torch.linalg.eigh(gram)
    weights = (most / values.clamp(min=1e-300).sqrt()).clamp(max=1.0)
    turned = torch.einsum("mde,md->me", vectors, cotangents.double())
    return torch.einsum("mde,me->md", vectors, weights * turned)


def _nothing(task: Task) -> Tensor:
    return torch.zeros(task.parameters, dtype=torch.float64)


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in model.parameters() if value.requires_grad])
