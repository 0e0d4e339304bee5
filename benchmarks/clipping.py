"""What exact clipping costs: the setting of RLL's Table 5, side by side in one run.

    python -m benchmarks.clipping [--repeats 15] [--threads 2]

4096 records, k = 30 directions, outputs in dimension 2, perceptrons with one hidden layer of 8 to 8192 units and
inputs of dimension 2 and 16, and with two hidden layers. Two objectives: the sliced W2^2 to 4096 public points
("target") and between two groups of 2048 records ("groups"). Three ways to its gradient: plain autodiff through the
sorts (no clipping), ours (every per-sample Jacobian clipped in spectral norm), and the same clip of Jacobians
materialised by vmap(jacrev), in chunks that fit in memory. The ways take turns, so that a busy machine slows all of
them; times are the best of the turns, ratios compare them, and medians are stored beside them. Writes
benchmarks/results/clipping.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from benchmarks.machine import describe
from fedsw.learning.models import count_parameters, mlp
from fedsw.mathematics.clipping import Term, clipped_sum, record
from fedsw.mathematics.transport.sliced import cotangents, directions, project

RESULT = Path(__file__).parent / "results" / "clipping.json"
N, K, D = 4096, 30, 2
RADIUS, BOUND = 1.0, 1.0
WIDTHS = (8, 32, 128, 512, 2048, 8192)
CHUNK_FLOATS = 2**26
TURNS = 3  # of one shape in a row; then the next shape, so that a busy minute does not fall on one alone
SLOW_SECONDS = 0.2  # above this, a materialised gradient takes one turn only


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


def materialised(problem: Problem) -> Tensor:
    """The same clip of Jacobians that exist: vmap(jacrev), chunk by chunk."""
    model, x = problem.model, problem.x
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def output(values: dict[str, Tensor], one: Tensor) -> Tensor:
        result: Tensor = functional_call(model, values, (one[None],))[0]
        return result

    with torch.no_grad():
        q = problem.cotangents(model(x)).to(x.dtype)
    rows = max(1, CHUNK_FLOATS // (D * count_parameters(model)))
    total = torch.zeros(count_parameters(model), dtype=torch.float64)
    for start in range(0, N, rows):
        part = slice(start, start + rows)
        jacobians = vmap(jacrev(output), in_dims=(None, 0))(parameters, x[part])
        j = torch.cat([value.flatten(2) for value in jacobians.values()], dim=2)
        values, vectors = torch.linalg.eigh(j @ j.mT)
        weights = (BOUND / values.clamp(min=1e-30).sqrt()).clamp(max=1.0)
        turned = (vectors * weights[:, None, :]) @ vectors.mT @ q[part, :, None]
        total += (j.mT @ turned).sum(0)[:, 0].double()
    return total


WAYS: dict[str, Callable[[Problem], Tensor]] = {
    "plain": plain,
    "clipped": clipped,
    "materialised": materialised,
}


class Stopwatch:
    """One shape: its problem, and the times of the three ways, which take turns."""

    def __init__(self, objective: str, features: int, hidden: tuple[int, ...]) -> None:
        """Make the problem, and run each way once to warm up and to see that they agree."""
        generator = torch.Generator().manual_seed(0)
        normals = torch.randn((D, K), dtype=torch.float64, generator=generator)
        self.shape: dict[str, Any] = {"objective": objective, "features": features, "hidden": list(hidden)}
        self.problem = Problem(
            mlp(features, hidden, D),
            torch.randn((N, features), generator=generator),
            directions(D, K, normals=normals),
            torch.randn((N, D), generator=generator) if objective == "target" else None,
        )
        plain(self.problem)
        ours = clipped(self.problem)
        self.difference = float((ours - materialised(self.problem)).norm() / ours.norm())
        self.times: dict[str, list[float]] = {name: [] for name in WAYS}

    def run(self, turns: int) -> None:
        """Let the ways take turns; materialising is not repeated where it is slow."""
        for _ in range(turns):
            for name, way in WAYS.items():
                seen = self.times[name]
                if name == "materialised" and seen and min(seen) > SLOW_SECONDS:
                    continue
                began = time.perf_counter()
                way(self.problem)
                self.times[name].append(time.perf_counter() - began)

    def row(self) -> dict[str, Any]:
        """What was measured."""
        best = {name: 1e3 * min(values) for name, values in self.times.items()}
        middle = {name: 1e3 * statistics.median(values) for name, values in self.times.items()}
        return {
            **self.shape,
            "parameters": count_parameters(self.problem.model),
            "milliseconds": best,
            "median_milliseconds": middle,
            "clipped_over_plain": best["clipped"] / best["plain"],
            "median_clipped_over_plain": middle["clipped"] / middle["plain"],
            "materialised_over_plain": best["materialised"] / best["plain"],
            "difference_to_materialised": self.difference,
        }


def main() -> None:
    """Measure every shape, print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    _settle_heap()
    machine = {**describe(), "threads": asked.threads}
    shapes: list[tuple[str, int, tuple[int, ...]]]
    shapes = [("target", features, (width,)) for features in (2, 16) for width in WIDTHS]
    shapes += [("target", 16, (256, 256))]
    shapes += [("groups", 16, (width,)) for width in (8, 512, 8192)]
    watches = [Stopwatch(*shape) for shape in shapes]
    for _ in range(0, asked.repeats, TURNS):
        for watch in watches:
            watch.run(TURNS)
    rows = [watch.row() for watch in watches]
    Console(width=120).print(_table(rows))
    worst = max(row["clipped_over_plain"] for row in rows)
    print(f"worst ratio of exact clipping to plain autodiff: {worst:.2f}")
    stored = {
        "machine": machine,
        "n": N,
        "k": K,
        "d": D,
        "repeats": asked.repeats,
        "times": "best of interleaved turns; medians beside them",
        "rows": rows,
        "worst": worst,
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")


def _settle_heap() -> None:
    """Free a large block: until it has seen one, glibc gives small heaps back after every step of each way."""
    torch.ones(31 * 2**18)


def _table(rows: list[dict[str, Any]]) -> Table:
    shown = Table("objective", "inputs", "hidden", "plain ms", "clipped ms", "materialised ms")
    for title in ("clipped / plain", "of medians", "material. / plain"):
        shown.add_column(title, justify="right")
    for row in rows:
        shown.add_row(
            row["objective"],
            str(row["features"]),
            "x".join(map(str, row["hidden"])),
            *(f"{row['milliseconds'][name]:.1f}" for name in WAYS),
            f"{row['clipped_over_plain']:.2f}",
            f"{row['median_clipped_over_plain']:.2f}",
            f"{row['materialised_over_plain']:.1f}",
        )
    return shown


if __name__ == "__main__":
    main()
