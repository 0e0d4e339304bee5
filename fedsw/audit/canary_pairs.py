"""Canaries of a one-run audit: made-up records, the gradients that they show in, and their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from fedsw._tools.randomness import Stream
from fedsw.audit.bounds import Scores
from fedsw.data import Records
from fedsw.federation.node.node import Node
from fedsw.federation.node.simulated import exchanged
from fedsw.learning.models import flatten, load_flat
from fedsw.learning.tasks.objective import in_pieces
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.public_side import public_side_of
from fedsw.learning.tasks.task import Inputs
from fedsw.mathematics.clipping.clip import Safety, clip_cotangents
from fedsw.runs.optimizer import Trainer

Kind = Literal["label", "features"]


@dataclass(frozen=True)
class Canaries:
    """m places in the training data, two records for each, and the coins that choose between them.

    Both records of a place have the id, the group and the stratum of the record that they take the place of: what is
    public stays as it was.

    ``zero`` and ``one`` have m records each, row by row the two of a place; ``coins`` (m,) say whether `one` is in the
    data, and are from the operating system, known to no attacker.
    """

    kind: Kind
    zero: Records
    one: Records
    coins: NDArray[np.bool_]

    def __len__(self) -> int:
        """Number of places."""
        return len(self.coins)

    @property
    def placed(self) -> Records:
        """The records that the coins chose."""
        chosen = torch.from_numpy(self.coins)
        features = torch.where(chosen[:, None], self.one.features, self.zero.features)
        wide = chosen.reshape(-1, *[1] * (self.one.target.ndim - 1))
        target = torch.where(wide, self.one.target, self.zero.target)
        return Records(features, self.one.sensitive, target, self.one.ids)


def draw(task: Problem, records: Records, count: int) -> Canaries:
    """Canaries at places drawn from all records, and their coins, afresh each time."""
    if count > len(records):
        raise ValueError(f"--one-run {count} asks for more canaries than there are records ({len(records)})")
    stream = Stream.secure()
    places = np.sort(np.argsort(stream.words(len(records)))[:count])
    coins = _coins(stream, count)
    return _pairs(task, records, records.take(places), coins)


def redrawn(task: Problem, records: Records, canaries: Canaries) -> Canaries:
    """Other pairs of records, at the same places, for the same coins."""
    return _pairs(task, records, records.take(torch.isin(records.ids, canaries.zero.ids)), canaries.coins)


def strongest(options: Sequence[Canaries], strengths: Tensor) -> Canaries:
    """At every place, the option's pair that is strongest there by `strengths` (options, m): of public things only."""
    best = strengths.argmax(dim=0)
    chosen = options[0]
    for index, option in enumerate(options[1:], start=1):
        rows = (best == index).nonzero().squeeze(1)
        zero, one = (
            exchanged(old, new.take(rows)) if len(rows) else old
            for old, new in ((chosen.zero, option.zero), (chosen.one, option.one))
        )
        chosen = Canaries(chosen.kind, zero, one, chosen.coins)
    return chosen


def _pairs(task: Problem, records: Records, genuine: Records, coins: NDArray[np.bool_]) -> Canaries:
    """Random features at the ends of their range; two of a place differ in the label, or, where public, in all."""
    stream, count = Stream.secure(), len(genuine)
    low, high = float(records.features.min()), float(records.features.max())
    up = _coins(stream, genuine.features.numel()).reshape(genuine.features.shape)
    features = torch.from_numpy(np.where(up, high, low).astype(np.float32))
    compared = task.objective.lone
    free = compared is not None and compared.other_side is None and "label" not in compared.drawn_by
    if free and task.task.facts.target == "class":  # a loss looks at labels, and no public stratum changes with them
        first = _below(stream, count, task.classes)
        second = (first + 1 + _below(stream, count, max(1, task.classes - 1))) % task.classes
        ordered = torch.minimum(first, second), torch.maximum(first, second)
        zero, one = (Records(features, genuine.sensitive, labels, genuine.ids) for labels in ordered)
        return Canaries("label", zero, one, coins)
    other = (low + high) - features
    zero, one = (Records(side, genuine.sensitive, genuine.target, genuine.ids) for side in (features, other))
    return Canaries("features", zero, one, coins)


def _below(stream: Stream, count: int, limit: int) -> Tensor:
    return torch.from_numpy((stream.words(count) % np.uint64(limit)).astype(np.int64))


def _coins(stream: Stream, count: int) -> NDArray[np.bool_]:
    return (stream.words(count) >> np.uint64(63)).astype(np.bool_)


_NUMBERS_AT_ONCE = 2**24  # of per-record Jacobians held in memory


class Attacker:
    """One who knows all records of all clients, the pairs and the settings; not the coins, the batches or the noise."""

    def __init__(self, task: Problem, records: Records, canaries: Canaries) -> None:
        self._task, self._pair = task, (canaries.zero, canaries.one)
        self._model = task.build_model()
        self._public_side = public_side_of(task)
        self._nodes: list[tuple[Node, Records, Tensor]] = []
        for side in self._pair:
            whole = exchanged(records, side)
            node = Node(task, whole, task.cells_of(whole), self._model)
            ordered = node.taken.take(np.concatenate(node.cells))
            order = torch.argsort(ordered.ids)
            at = order[torch.searchsorted(ordered.ids[order], side.ids)]
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
        """Mean release of a round at the model `theta`, over noise, batches and coins: (r,) float64."""
        return self._both(theta, round_, attempt)[0]

    def signatures(self, theta: Tensor, round_: int, attempt: int = 1) -> tuple[Tensor, Tensor]:
        """That, and what coins do to it: a canary adds its row (m, r) to the mean with coin 1, takes it with coin 0."""
        mean, cotangents = self._both(theta, round_, attempt)
        weight = self._task.objective.task_weight(len(self._nodes[0][1]))
        zero, one = (
            torch.cat([contributions for contributions, _ in self._contributions(theta, side, q, weight)])
            for side, q in zip(self._pair, cotangents, strict=True)
        )
        return mean, (one - zero) / 2

    def _both(self, theta: Tensor, round_: int, attempt: int) -> tuple[Tensor, list[Tensor]]:
        """The mean over both sides of the canaries, and the canaries' cotangents on either side."""
        mean, cotangents = torch.zeros(self._task.parameters, dtype=torch.float64), []
        for node, ordered, at in self._nodes:
            batch, outputs = node.forward(theta, ordered, round_, attempt)
            q, other = self._matched(node, outputs, theta, round_, attempt)
            weight = self._task.objective.task_weight(len(ordered))
            contribution, _ = self._task.clipped.contribution(batch, q, weight)
            mean += (contribution + other) / 2
            cotangents.append(q[at])
            node.batch = None
        return mean, cotangents

    def reference(self, rounds: int) -> list[Tensor]:
        """The models (r,) of a training without noise on half of each canary; the last is what it would release."""
        trainer = Trainer(flatten(self._model), self._task.experiment.training)
        models = []
        for round_ in range(1, rounds + 1):
            models.append(trainer.theta.clone())
            trainer.step(self.expected(trainer.theta, round_))
        return [*models, trainer.model.clone()]

    def strengths(self, canaries: Canaries, models: Sequence[Tensor]) -> Tensor:
        """How far apart the clipped loss gradients of each pair are, in root mean square over models; (m,)."""
        squares = [self._differences(theta, canaries.zero, canaries.one)[0].square() for theta in models]
        return torch.stack(squares).mean(dim=0).sqrt()

    def clip_ratios(self, theta: Tensor) -> Tensor:
        """Clipped over unclipped length of the difference of each pair's loss gradients, (m,); 1 where both are 0."""
        clipped, plain = self._differences(theta, *self._pair)
        return torch.where(plain > 0, clipped / plain, torch.ones_like(plain))

    def _differences(self, theta: Tensor, zero: Records, one: Records) -> tuple[Tensor, Tensor]:
        """Lengths (m,) of the differences of loss gradients of pairs of records, clipped and not."""
        sides = (self._contributions(theta, side, None, 1.0) for side in (zero, one))
        lengths = [
            [torch.linalg.vector_norm(b - a, dim=1) for a, b in zip(first, second, strict=True)]
            for first, second in zip(*sides, strict=True)
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
            pieces = map(self._task.given, in_pieces(side, self._task.clipped.micro_batch))
            losses = [self._task.clipped.losses(model(piece.features), piece) for piece in pieces]
        return torch.cat(losses).double().cpu()

    def _matched(self, node: Node, outputs: Tensor, theta: Tensor, round_: int, attempt: int) -> tuple[Tensor, Tensor]:
        """Cotangents of every record, and the gradient of the other side where there is one; as in a round."""
        task, side = self._task, self._public_side
        if (penalty := task.objective.lone) is None:
            raise TypeError("the attack knows one shipped penalty; the objective has others, or several")

        def sample(count: int) -> Tensor:
            assert side is not None
            return side.sample(theta, count, round_, attempt).cpu()

        cells = [outputs] if side is not None else list(torch.split(outputs, node.sizes))
        cotangents, other = penalty.pulled(cells, task.clipped.directions(round_, attempt)[0], sample)
        if side is None or other is None:
            return torch.cat(cotangents), torch.zeros(task.parameters, dtype=torch.float64)
        return torch.cat(cotangents), side.contribution(other.to(task.device)).cpu()

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
                gram, most = torch.einsum("mdr,mer->mde", outputs, outputs), self._task.clip.jacobian
                q = clip_cotangents(gram, cotangents[start : start + len(part)], most, safety=Safety.off())
                total = total + torch.einsum("md,mdr->mr", q, outputs)
            yield total, loss

    def _jacobians(self, part: Records, rows: int) -> Tensor:
        """Jacobians of every record's loss and then of its outputs, as many `rows` as wanted: (m, rows, r) float64."""
        task, model = self._task, self._model
        trained = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}

        def values(parameters: dict[str, Tensor], features: Tensor, target: Tensor) -> Tensor:
            raw = functional_call(model, parameters, (features[None],))
            one = Inputs(features[None], target[None], task.shape)
            loss = task.clipped.losses(raw, one).reshape(1)
            return loss if rows == 1 else torch.cat([loss, task.outputs(raw, one).reshape(-1)])

        inputs = task.given(part)
        jacobians = vmap(jacrev(values), in_dims=(None, 0, 0))(trained, inputs.features, inputs.target)
        flat = [jacobians[name].reshape(len(part), rows, -1) for name in trained]
        return torch.cat(flat, dim=2).double().cpu()


@dataclass(frozen=True)
class ReleasedRound:
    """One round as the world may see it: the model (r,) that it began with and the noised vector (r,) that came out."""

    round: int
    attempt: int
    theta: Tensor
    vector: Tensor


def from_all_models(attacker: Attacker, history: Sequence[ReleasedRound], sigma: float) -> tuple[Scores, list[float]]:
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
    return apart(gram, match), lengths


def from_final_model(attacker: Attacker, final: Tensor, reference: Tensor, rounds: int, sigma: float) -> Scores:
    """Scores (m,) of one who may ask the released model for the losses of records, and for nothing else.

    The difference of the losses of a pair, less that under a training of the attacker's own without coins and noise.
    To first order it is -v_i (theta - reference) over the clip's share, and the model has moved along sum_i s_i v_i +
    noise, of `rounds` rounds: the scores are the best linear estimates again, were all directions equally well kept.
    """
    moved = attacker.loss_differences(final) - attacker.loss_differences(reference)
    _, signatures = attacker.signatures(reference, rounds)
    gram = rounds * signatures @ signatures.T / sigma**2
    return apart(gram, attacker.clip_ratios(reference) * moved)


def apart(gram: Tensor, match: Tensor) -> Scores:
    """The best linear estimates (m,) of all coins together, of what canaries share (m, m) and show (m,)."""
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
