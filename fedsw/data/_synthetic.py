"""The biased synthetic data of RLL, Appendix C.2: a sensitive attribute that shortcuts the label."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.data.records import Dataset, Part, Records, ungrouped


def synthetic(
    n: int = 30_000,
    *,
    n_test: int = 10_000,
    p: float = 0.7,
    d_core: int = 8,
    d_spurious: int = 8,
    var_core: float = 0.2,
    var_spurious: float = 0.4,
    target: Literal["class", "point", "mean"] = "class",
    seed: int = 0,
) -> Dataset:
    """Draw n private records and n_test fresh held-out ones from the biased law.

    A point (y1, y2) is uniform on the unit square and its class is Y = 1 if y2 > 1 - y1. The group A equals
    Y with probability p and 1 - Y otherwise. The core features are N((y1, y2, y1, y2, ...), var_core I):
    they carry the point. The spurious ones are N((A, ..., A), var_spurious I): they carry the group only,
    and through it a guess of the class that is right with probability p.

    The seed fixes the data and nothing else; train and test are drawn from independent streams. Targets are "class",
    Y (n,); "point", (y1, y2), (n, 2) in [0, 1]; or "mean", (y1 + y2) / 2, (n, 1) in [0, 1], of which RLL's
    one-dimensional target y1 + y2 - 1 is twice minus one. Groups are "A=0" and "A=1".

    Source: RLL, Appendix C.2, with its sizes and variances as defaults.
    """
    _require_sizes(**{"n": n, "n_test": n_test, "d_core": d_core, "d_spurious + 1": d_spurious + 1})
    if not 0 <= p <= 1:
        raise ValueError(f"p = {p}; the probability that group and class agree lies in [0, 1]")
    for name, variance in (("var_core", var_core), ("var_spurious", var_spurious)):
        if not (0 <= variance < float("inf")):
            raise ValueError(f"{name} = {variance}; a variance is finite and 0 or more")
    if target not in ("class", "point", "mean"):
        raise ValueError(f"target {target!r} is unknown: choose 'class', 'point' or 'mean'")

    def draw(size: int, stream: np.random.SeedSequence, first_id: int) -> Records:
        rng = np.random.default_rng(stream)
        point = rng.random((size, 2))
        label = (point[:, 1] > 1 - point[:, 0]).astype(np.int64)
        group = np.where(rng.random(size) < p, label, 1 - label)
        core = point[:, np.arange(d_core) % 2] + np.sqrt(var_core) * rng.standard_normal((size, d_core))
        spurious = group[:, None] + np.sqrt(var_spurious) * rng.standard_normal((size, d_spurious))
        wanted = point.mean(axis=1, keepdims=True) if target == "mean" else point
        return Records(
            features=torch.from_numpy(np.hstack([core, spurious]).astype(np.float32)),
            sensitive=torch.from_numpy(group),
            target=torch.from_numpy(label if target == "class" else wanted.astype(np.float32)),
            ids=torch.arange(first_id, first_id + size),
        )

    train_stream, test_stream = np.random.SeedSequence(seed).spawn(2)
    return Dataset(
        name="synthetic",
        train=draw(n, train_stream, 0),
        test=draw(n_test, test_stream, n),
        feature_names=(*(f"core{j}" for j in range(d_core)), *(f"spurious{j}" for j in range(d_spurious))),
        groups=("A=0", "A=1"),
        classes=("Y=0", "Y=1") if target == "class" else (),
    )


Float64 = NDArray[np.float64]
_Drawn = tuple[Float64, NDArray[np.int64]]
"""Points (n, 2) and the class of each (n,)."""

# Public facts of the two laws, fixed here and never estimated from a record.
RING_RADIUS = 0.75
MODE_CIRCLE = 0.8
MODE_STD = 0.04

FEATURE_NAMES = ("x", "y")
UNLABELLED = ("all",)


def ring(n: int = 100_000, n_test: int = 10_000, *, radius: float = RING_RADIUS, seed: int = 0) -> Dataset:
    """Points that are uniform on the circle of the given radius about the origin, without labels.

    There are two features, one group and the single class "all".
    Source: RLL, Appendix D.2, with its size and radius as defaults.
    """
    _require(n, n_test, radius=radius)

    def draw(size: int, stream: Stream) -> _Drawn:
        return _circle(2 * math.pi * stream.uniforms(size), radius), np.zeros(size, dtype=np.int64)

    return _dataset("ring", draw, (n, n_test), seed, UNLABELLED)


def gaussians(
    n: int = 30_000,
    n_test: int = 10_000,
    *,
    modes: int = 5,
    radius: float = MODE_CIRCLE,
    std: float = MODE_STD,
    seed: int = 0,
) -> Dataset:
    """A mixture of equally likely isotropic Gaussians with centres evenly spaced on a circle.

    With the defaults a record lies outside the unit ball with probability below 6e-7 (five standard deviations
    from its centre to the sphere), and neighbouring centres of five are 0.94 apart, over 23 standard deviations.

    There are two features and one group; the target is the index of the Gaussian.

    Source: the toy example of Sebag et al., DP gradient flow based on the sliced Wasserstein distance, scaled
        into the unit ball.
    """
    _require(n, n_test, modes=modes, radius=radius, std=std)
    centres = mode_centres(modes, radius=radius).numpy()

    def draw(size: int, stream: Stream) -> _Drawn:
        mode = np.floor(modes * stream.uniforms(size)).astype(np.int64)
        return centres[mode] + std * stream.normals(2 * size).reshape(size, 2), mode

    return _dataset("gaussians", draw, (n, n_test), seed, tuple(f"mode {index}" for index in range(modes)))


def mode_centres(modes: int = 5, *, radius: float = MODE_CIRCLE) -> Tensor:
    """Centres (modes, 2), float64, of the Gaussians of `gaussians`: evenly spaced, the first at (0, radius)."""
    return torch.from_numpy(_circle(math.pi / 2 + 2 * math.pi * np.arange(modes) / modes, radius))


def _circle(angle: Float64, radius: float) -> Float64:
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def _require_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} = {size}; it must be at least 1")


def _require(n: int, n_test: int, *, modes: int = 1, **lengths: float) -> None:
    _require_sizes(n=n, n_test=n_test, modes=modes)
    for name, length in lengths.items():
        if not 0 < length < math.inf:
            raise ValueError(f"{name} = {length}; it must be finite and above 0")


def _dataset(
    name: str, draw: Callable[[int, Stream], _Drawn], sizes: tuple[int, int], seed: int, classes: tuple[str, ...]
) -> Dataset:
    def part(which: str, size: int, first_id: int) -> Part:
        points, label = draw(size, Stream.seeded(seed, "data", name, which))
        ids = torch.arange(first_id, first_id + size)
        return torch.from_numpy(points.astype(np.float32)), torch.from_numpy(label), ids

    n, n_test = sizes
    return ungrouped(name, part("train", n, 0), part("test", n_test, n), FEATURE_NAMES, classes)
