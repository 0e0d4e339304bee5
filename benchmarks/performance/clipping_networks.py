"""The networks whose clipped steps are timed, their losses, and what all rows share."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.performance.timing import in_turns, timed
from fedsw.learning.models import mlp

CLASSES = 10


class Residual(nn.Module):
    """Two convolutions with group norms, and the input added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(4, channels)
        self.last = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.last_norm = nn.GroupNorm(4, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) to the same."""
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(x + self.last_norm(self.last(y)))


class Transformer(nn.Module):
    """A linear embedding of 32 patches, one encoder layer, the mean over patches and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(24, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 32, 24) to logits."""
        logits: Tensor = self.head(self.layer(self.embed(x)).mean(1))
        return logits


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
    )


def resnet() -> nn.Module:
    """Three stages of 16, 32 and 64 channels on images of 32x32."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(4, 16), nn.ReLU(), Residual(16)),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.GroupNorm(4, 32), nn.ReLU(), Residual(32)),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.GroupNorm(4, 64), nn.ReLU(), Residual(64)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda: mlp(784, (256, 128), CLASSES), (784,)),
    "LeNet": (lenet, (1, 28, 28)),
    "ResNet-GN": (resnet, (3, 32, 32)),
    "transformer": (Transformer, (32, 24)),
}


def settle() -> None:
    """Two threads, and a heap that has seen a large block: glibc gives small heaps back after every step."""
    torch.set_num_threads(2)
    torch.ones(31 * 2**18)


def interleaved(ways: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    """Seconds of every way, which take turns after one turn to warm up."""
    taken = in_turns({n: timed(way) for n, way in ways.items()}, turns=turns, threads=torch.get_num_threads())
    return {name: list(times.seconds) for name, times in taken.items()}


def row(what: str, against: str, ours: list[float], other: list[float], goal: float, *, faster: bool) -> dict[str, Any]:
    """One row: ours / other where we may take `goal` times as long; other / ours where we must be so much faster."""
    best, theirs = min(ours), min(other)
    ratio = theirs / best if faster else best / theirs
    middle = statistics.median(other) / statistics.median(ours)
    met = ratio >= goal if faster else ratio <= goal
    return {
        "what": what,
        "against": against,
        "ours": best,
        "other": theirs,
        "ratio": ratio,
        "goal": f"{'at least' if faster else 'at most'} {goal:g} times {'faster' if faster else 'as long'}",
        "met": met,
        "spread": f"ratio of medians {middle if faster else 1 / middle:.2f}, turns {len(ours)}",
        "note": "" if met else because(what, against),
    }


def because(what: str, against: str) -> str:
    """What a clipped step spends its time on where it misses a goal, as profiles of these rows showed it."""
    if against.startswith("vmap"):
        return "ours takes some five plain passes and torch's batched Jacobian some fifty: less than the goal supposed"
    if "ResNet" in what:
        return "small convolutions: the number of operations a layer takes, not their size"
    if against.endswith("ghost clipping"):
        return "the sum's products are in float64, and take as long as both of theirs in float32"
    return "backprops are converted to float64 for their norms, weighed, and converted again for what is added"


def peak(step: Callable[[], Any]) -> int:
    """Bytes of tensors that exist at once during a step, beyond those from before, by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    held = most = 0
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most
