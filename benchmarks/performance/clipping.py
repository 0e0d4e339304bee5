"""The clipped sliced-Wasserstein gradient at the widths of RLL's Table 5: at most 1.8 times as long as plain autodiff."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.performance.clipping_networks import interleaved, row, settle
from fedsw.learning.models import mlp
from fedsw.mathematics.clipping import Term, clipped_sum, record
from fedsw.mathematics.transport.sliced import cotangents, directions, project

GOAL = 1.8
N, K, D = 4096, 30, 2
RADIUS, BOUND = 1.0, 1.0
WIDTHS = (8, 32, 128, 512, 2048, 8192)


@dataclass(frozen=True)
class Problem:
    """A model, its batch, the directions, and the public points (None: two groups of the batch)."""

    model: nn.Module
    x: Tensor
    theta: Tensor
    target: Tensor | None

    def sides(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The two samples that are compared."""
        if self.target is None:
            return outputs[: N // 2], outputs[N // 2 :]
        return outputs, self.target

    def cotangents(self, raw: Tensor) -> Tensor:
        """Gradient of the sliced distance with respect to the projected outputs, (n, d)."""
        own, other = cotangents(*self.sides(project(raw, RADIUS)), self.theta)
        return torch.cat([own, other]) if self.target is None else own


def plain(problem: Problem) -> Tensor:
    """Autodiff of the sliced distance, through the sorts."""
    own, other = problem.sides(problem.model(problem.x))
    theta = problem.theta.to(own.dtype)
    loss = ((own @ theta).sort(dim=0)[0] - (other @ theta).sort(dim=0)[0]).square().mean()
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(problem.model.parameters()))])


def clipped(problem: Problem) -> Tensor:
    """Ours: rank matching, Gram matrices, exact spectral clip, one backward pass."""
    tape = record(problem.model, problem.x)
    return clipped_sum(tape, [Term(tape.raw, problem.cotangents(tape.raw), BOUND)])


def measure(quick: bool) -> list[dict[str, object]]:
    settle()
    shapes = [("target", features, (width,)) for features in (2, 16) for width in WIDTHS]
    shapes += [("target", 16, (256, 256)), ("groups", 16, (8,)), ("groups", 16, (512,)), ("groups", 16, (8192,))]
    rows = []
    for objective, features, hidden in shapes[:: 4 if quick else 1]:
        generator = torch.Generator().manual_seed(0)
        normals = torch.randn((D, K), dtype=torch.float64, generator=generator)
        problem = Problem(
            mlp(features, hidden, D),
            torch.randn((N, features), generator=generator),
            directions(D, K, normals=normals),
            torch.randn((N, D), generator=generator) if objective == "target" else None,
        )
        ways = {"plain": lambda p=problem: plain(p), "ours": lambda p=problem: clipped(p)}
        times = interleaved(ways, 1 if quick else 15)
        what = f"clipped SW gradient, {objective}, {features} inputs, hidden {'x'.join(map(str, hidden))}"
        rows.append(row(what, "plain autodiff", times["ours"], times["plain"], GOAL, faster=False))
    return rows
