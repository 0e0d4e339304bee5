"""What an attacker computes for itself: the gradient without the coins, and what each coin would add to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from fedsw.audit.canaries import Canaries
from fedsw.data import Records
from fedsw.federation.node.node import Node
from fedsw.federation.node.substitution import exchanged
from fedsw.models import load_flat
from fedsw.objectives import Objective
from fedsw.objectives.matching import Matching
from fedsw.runs.trainer import Trainer
from fedsw.tasks.problem import Problem
from fedsw.tasks.public_side import public_side_of
from fedsw.tasks.task import Inputs

_NUMBERS_AT_ONCE = 2**24  # of per-record Jacobians held in memory


class Attacker:
    """One who knows all records, the pairs and the settings; not the coins, the batches or the noise.

    Args:
        task: the experiment's.
        records: all training records, of all clients.
        canaries: what is at stake; its coins are not looked at.
    """

    def __init__(self, task: Problem, records: Records, canaries: Canaries) -> None:
        self._task, self._pair = task, (canaries.zero, canaries.one)
        self._model = task.build_model()
        self._public_side = public_side_of(task)
        self._nodes: list[tuple[Node, Records, Tensor]] = []
        for side in self._pair:
            whole = exchanged(records, side)
            node = Node(task, whole, task.cells_of(whole), self._model)
            ordered = whole.take(np.concatenate(node.cells))
            place = torch.argsort(ordered.ids)
            at = place[torch.searchsorted(ordered.ids[place], side.ids)]
            self._nodes.append((node, ordered, at))

    @property
    def canaries(self) -> int:
        """How many coins there are."""
        return len(self._pair[0])

    @property
    def sizes(self) -> list[int]:
        """Numbers of training records by stratum; public."""
        return self._nodes[0][0].sizes

    def expected(self, theta: Tensor, round_: int, attempt: int = 1) -> Tensor:
        """What a round at the model `theta` releases on average over noise, batches and coins: (r,) float64."""
        return self._both(theta, round_, attempt)[0]

    def signatures(self, theta: Tensor, round_: int, attempt: int = 1) -> tuple[Tensor, Tensor]:
        """That, and what coins do to it: a canary adds its row (m, r) to the mean with coin 1, takes it with coin 0."""
        mean, cotangents = self._both(theta, round_, attempt)
        weight = self._task.objective.task_weight(len(self._nodes[0][1]))
        zero, one = (
            torch.cat([found for found, _ in self._contributions(theta, side, q, weight)])
            for side, q in zip(self._pair, cotangents, strict=True)
        )
        return mean, (one - zero) / 2

    def _both(self, theta: Tensor, round_: int, attempt: int) -> tuple[Tensor, list[Tensor]]:
        """The mean over both sides of the canaries, and the canaries' cotangents on either side."""
        mean, cotangents = torch.zeros(self._task.parameters, dtype=torch.float64), []
        for node, ordered, at in self._nodes:
            batch, outputs = node.forward(theta, ordered, round_, attempt)
            q, other = self._matched(node, outputs, theta, round_, attempt)
            own, _ = node.contribution(batch, q, self._task.objective.task_weight(len(ordered)))
            mean += (own + other) / 2
            cotangents.append(q[at])
            node.batch = None
        return mean, cotangents

    def reference(self, rounds: int) -> list[Tensor]:
        """The models (r,) of a training without noise on half of each canary; the last is what it would release."""
        trainer = Trainer(_flat(self._model), self._task.experiment.training)
        models = []
        for round_ in range(1, rounds + 1):
            models.append(trainer.theta.clone())
            trainer.step(self.expected(trainer.theta, round_))
        return [*models, trainer.model.clone()]

    def strengths(self, canaries: Canaries, models: Sequence[Tensor]) -> Tensor:
        """How far apart the clipped loss gradients of each pair are, in root mean square over models; (m,)."""
        squares = [self._pairs(theta, canaries)[0].square() for theta in models]
        return torch.stack(squares).mean(dim=0).sqrt()

    def clip_ratios(self, theta: Tensor) -> Tensor:
        """Clipped over unclipped length of the difference of each pair's loss gradients, (m,); 1 where both are 0."""
        clipped, plain = self._pairs(theta, Canaries("label", *self._pair, np.zeros(len(self._pair[0]), dtype=bool)))
        return torch.where(plain > 0, clipped / plain, torch.ones_like(plain))

    def _pairs(self, theta: Tensor, canaries: Canaries) -> tuple[Tensor, Tensor]:
        """Lengths (m,) of the differences of loss gradients, clipped and not."""
        sides = (self._contributions(theta, side, None, 1.0) for side in (canaries.zero, canaries.one))
        lengths = [
            [torch.linalg.vector_norm(b - a, dim=1) for a, b in zip(zero, one, strict=True)]
            for zero, one in zip(*sides, strict=True)
        ]
        clipped, plain = (torch.cat(column) for column in zip(*lengths, strict=True))
        return clipped, plain

    def loss_differences(self, theta: Tensor) -> Tensor:
        """Half of (loss of `zero` - loss of `one`) under a model, (m,) float64: all that a black box is asked for."""
        model = self._task.prepared(self._model, theta)
        zero, one = (self._losses(model, side) for side in self._pair)
        return (zero - one) / 2

    def _losses(self, model: nn.Module, side: Records) -> Tensor:
        with torch.no_grad():
            pieces = map(self._task.given, self._task.chunks(side))
            found = [self._task.losses(model(piece.features), piece) for piece in pieces]
        return torch.cat(found).double().cpu()

    def _matched(self, node: Node, outputs: Tensor, theta: Tensor, round_: int, attempt: int) -> tuple[Tensor, Tensor]:
        """Cotangents of every record, and the gradient of the other side where there is one; as in a round."""
        objective, task = self._task.objective, self._task
        directions = task.directions(round_, attempt)
        if isinstance(objective, Objective):
            return torch.cat(objective.cotangents(torch.split(outputs, node.sizes), directions)), _nothing(task)
        assert self._public_side is not None and isinstance(objective, Matching)
        sample = self._public_side.sample(theta, len(outputs), round_, attempt).cpu()
        own, other = objective.cotangents(outputs, sample, directions)
        return own, self._public_side.contribution(other.to(task.device)).cpu()

    def _contributions(
        self, theta: Tensor, side: Records, cotangents: Tensor | None, weight: float
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Each record's clipped contribution, and its plain loss gradient; both (some, r) float64, piece by piece."""
        load_flat(self._model, theta)
        if self._task.objective.alpha == 0:
            cotangents = None
        rows = 1 if cotangents is None else 1 + self._task.dimension
        at_once = max(1, _NUMBERS_AT_ONCE // (rows * self._task.parameters))
        for start in range(0, len(side), at_once):
            part = side.take(np.arange(start, min(start + at_once, len(side))))
            jacobians = self._jacobians(part, rows)
            loss, outputs = jacobians[:, 0], jacobians[:, 1:]
            norms = torch.linalg.vector_norm(loss, dim=1, keepdim=True).clamp(min=1e-300)
            total = weight * loss * (self._task.clip.loss / norms).clamp(max=1.0)
            if cotangents is not None:
                q = _clipped(outputs, cotangents[start : start + len(part)], self._task.clip.jacobian)
                total = total + torch.einsum("md,mdr->mr", q, outputs)
            yield total, loss

    def _jacobians(self, part: Records, rows: int) -> Tensor:
        """Of every record's loss and, after it, its outputs, as many `rows` as asked for: (m, rows, r) float64."""
        task, model = self._task, self._model
        trained = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}

        def values(parameters: dict[str, Tensor], features: Tensor, target: Tensor) -> Tensor:
            raw = functional_call(model, parameters, (features[None],))
            one = Inputs(features[None], target[None], task.shape)
            loss = task.losses(raw, one).reshape(1)
            return loss if rows == 1 else torch.cat([loss, task.outputs(raw, one).reshape(-1)])

        given = task.given(part)
        found = vmap(jacrev(values), in_dims=(None, 0, 0))(trained, given.features, given.target)
        flat = [found[name].reshape(len(part), rows, -1) for name in trained]
        return torch.cat(flat, dim=2).double().cpu()


def _clipped(jacobians: Tensor, cotangents: Tensor, most: float) -> Tensor:
    """Cotangents (m, d) as the spectral clip at `most` changes them; see `fedsw.clipping.clip`."""
    gram = torch.einsum("mdr,mer->mde", jacobians, jacobians)
    values, vectors = torch.linalg.eigh(gram)
    weights = (most / values.clamp(min=1e-300).sqrt()).clamp(max=1.0)
    turned = torch.einsum("mde,md->me", vectors, cotangents.double())
    return torch.einsum("mde,me->md", vectors, weights * turned)


def _nothing(task: Problem) -> Tensor:
    return torch.zeros(task.parameters, dtype=torch.float64)


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in model.parameters() if value.requires_grad])
