"""Per-example clipping alone (one term, as in DP-SGD), against Opacus' hooks and its ghost clipping; deep networks, plain.

Ours is a sum in float64 whose parts are cut to the bound; theirs is in float32. They agree to 1e-6 where none is clipped
by a margin, and to our margin of 1e-4 where all are.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.performance.clipping_networks import CLASSES, NETWORKS, interleaved, row, settle
from fedsw.mathematics.clipping import Safety, Term, clipped_sum, record

BOUND = 1.0
LARGEST = {"MLP": 4096, "LeNet": 4096, "ResNet-GN": 1024, "transformer": 1024}


def measure(quick: bool) -> list[dict[str, object]]:
    settle()
    rows: list[dict[str, object]] = []
    for name in ("MLP", "transformer") if quick else NETWORKS:
        for batch in (4,) if quick else (64, 512, 4096):
            batch = min(batch, LARGEST[name])
            turns = 1 if quick else 9 if batch < 1000 else 3
            rows += _rows(name, batch, turns, quick)
    return rows


def _rows(name: str, batch: int, turns: int, quick: bool) -> list[dict[str, object]]:
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    model = build()
    x, y = torch.randn(batch, *shape), torch.randint(0, CLASSES, (batch,))
    weights = torch.ones(batch, dtype=torch.float64)

    def ours(safety: Safety | None = None) -> Tensor:
        tape = record(model, x)
        return clipped_sum(tape, [Term(F.cross_entropy(tape.raw, y, reduction="none"), weights, BOUND)], safety=safety)

    def plain() -> None:
        torch.autograd.grad(F.cross_entropy(model(x), y, reduction="sum"), list(model.parameters()))

    ways: dict[str, Callable[[], object]] = {"ours": ours, "plain": plain}
    if name != "transformer":  # Opacus asks for attention of its own
        ways |= {"hooks": _hooks(copy.deepcopy(model), x, y), "ghost": _ghost(copy.deepcopy(model), x, y)}
    times = interleaved(ways, turns)
    what = f"{name}, batch {batch}, loss gradients clipped"
    rows = []
    for other, title in (("hooks", "Opacus, per-sample gradients"), ("ghost", "Opacus, ghost clipping")):
        if other in ways:
            found = ways[other]()
            assert isinstance(found, Tensor)
            exact = ours(Safety.off())
            each = row(what, title, times["ours"], times[other], 1, faster=True)
            apart = f"relative difference {float((found - exact).norm() / exact.norm()):.1e}"
            each["note"] = f"{each['note']}; {apart}" if each["note"] else apart
            rows.append(each)
    if name in ("ResNet-GN", "transformer"):
        rows.append(row(what, "plain autodiff", times["ours"], times["plain"], 3, faster=False))
    return rows


def _hooks(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    from opacus import GradSampleModule

    wrapped = GradSampleModule(model, loss_reduction="sum")

    def step() -> Tensor:
        for parameter in wrapped.parameters():
            parameter.grad_sample = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            F.cross_entropy(wrapped(x), y, reduction="sum").backward()
        samples = [p.grad_sample for p in wrapped.parameters()]
        norms = torch.stack([each.flatten(1).norm(dim=1) for each in samples]).norm(dim=0)
        factors = (BOUND / norms.clamp(min=1e-12)).clamp(max=1.0)
        found = torch.cat([torch.einsum("n,n...->...", factors, each).reshape(-1) for each in samples])
        wrapped.zero_grad()
        return found.double()

    return step


def _ghost(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        model, loss_reduction="sum", max_grad_norm=BOUND, use_ghost_clipping=True
    )

    def step() -> Tensor:
        wrapped.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            losses = F.cross_entropy(wrapped(x), y, reduction="none")
            losses.sum().backward(retain_graph=True)
            factors = wrapped.get_clipping_coef()
            wrapped.zero_grad()
            wrapped.disable_hooks()
            (factors * losses).sum().backward()
            wrapped.enable_hooks()
        return torch.cat([p.grad.reshape(-1) for p in wrapped.parameters() if p.grad is not None]).double()

    return step
