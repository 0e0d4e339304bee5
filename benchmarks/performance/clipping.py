"""The clipped sliced-Wasserstein gradient at the widths of RLL's Table 5: at most 1.8 times as long as plain autodiff."""

from __future__ import annotations

import torch

from benchmarks.clipping import WIDTHS, D, K, N, Problem, clipped, plain
from benchmarks.performance.clipping_networks import interleaved, row, settle
from fedsw.learning.models import mlp
from fedsw.mathematics.transport.sliced import directions

GOAL = 1.8


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
