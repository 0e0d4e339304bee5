"""Optimal transport by the names of POT: arrays in, arrays of the same kind out.

NumPy arrays, torch tensors and arrays of any library that follows the array API (jax, CuPy) are taken; torch tensors
keep their graph if a function is a loss. Samples have uniform weights. Each function states what agrees with POT;
docs/from-pot.md has a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedsw._tools.settings import whole
from fedsw.mathematics.transport.barycentre import fair_maps
from fedsw.mathematics.transport.entropic import ITERATIONS, TOLERANCE, entropic_loss, entropic_plan
from fedsw.mathematics.transport.entropic import sinkhorn_divergence as divergence
from fedsw.mathematics.transport.given import positive, sample, samples, unit_columns
from fedsw.mathematics.transport.sliced import cotangents, project, sliced_w2, spread
from fedsw.privacy.sensitivity import SLACK, Sensitivity, Side, swd_sensitivity, worst

__all__ = [
    "SlicedGradients",
    "barycenter",
    "entropic_denoising",
    "get_random_projections",
    "sinkhorn",
    "sinkhorn2",
    "sinkhorn_divergence",
    "sliced_wasserstein_distance",
    "sliced_wasserstein_gradients",
]

Metric = Literal["sqeuclidean", "cityblock"]
_ORDERS = {"sqeuclidean": 2, "cityblock": 1}


def _taken(*arrays: Any) -> tuple[list[Tensor], Callable[[Tensor], Any]]:
    """Arrays as tensors, and a function that makes a result an array of the first one's kind."""
    tensors = [array if isinstance(array, Tensor) else torch.as_tensor(np.array(array, order="C")) for array in arrays]
    first = arrays[0]
    if isinstance(first, Tensor):
        return tensors, lambda tensor: tensor
    library = first.__array_namespace__() if hasattr(first, "__array_namespace__") else np
    return tensors, lambda tensor: library.asarray(tensor.detach().numpy())


def get_random_projections(d: int, n_projections: int, seed: int | np.random.RandomState | None = None) -> Any:
    """Directions (d, n_projections), float64: independent standard normals, divided by their lengths.

    Equal to `ot.sliced.get_random_projections` at the same seed. They are independent of the data, as a sensitivity
    bound requires.
    """
    source = seed if isinstance(seed, np.random.RandomState) else np.random.RandomState(seed)
    normals = source.randn(whole(d, "d", least=1), whole(n_projections, "n_projections", least=1))
    return normals / np.linalg.norm(normals, axis=0, keepdims=True)


def sliced_wasserstein_distance(
    X_s: Any,
    X_t: Any,
    *,
    n_projections: int = 50,
    p: float = 2,
    projections: Any = None,
    seed: int | np.random.RandomState | None = None,
) -> Any:
    """The sliced 2-Wasserstein distance of samples (n, d) and (m, d): the root of the mean of W2^2 over projections.

    As `ot.sliced_wasserstein_distance`, of the same projections at the same seed; weights are uniform, and p is 2.
    Sizes may differ, at O((n + m) log(n + m)) a projection.

    Args:
        projections: unit columns (d, k) in place of `n_projections` that are drawn.

    Raises:
        ValueError: for shapes that do not fit, numbers that are not finite, or another p.
    """
    if p != 2:
        raise ValueError(f"p = {p}; this is the distance of order 2. Use ot.sliced_wasserstein_distance for others")
    (source, target), made = _taken(X_s, X_t)
    source, target = samples(X_s=source, X_t=target)
    theta = get_random_projections(source.shape[1], n_projections, seed) if projections is None else projections
    directions = _taken(theta)[0][0]
    squared = sliced_w2(source, target, directions)
    if source.requires_grad or target.requires_grad:  # the value has no graph: attach the known gradient
        slopes = cotangents(source.detach(), target.detach(), directions)
        for points, slope in zip((source, target), slopes, strict=True):
            squared = squared + (slope * (points - points.detach())).sum()
    return made(squared.sqrt())


@dataclass(frozen=True)
class SlicedGradients:
    """Gradients of the squared sliced distance in the points of both samples, (n, d) and (m, d), and their bound.

    ``sensitivity`` is how far the sums of both, each pulled back through Jacobians of spectral norm at most
    ``jacobian``, move in l2 norm when one point is replaced, with room for rounding.
    """

    source: Any
    target: Any
    sensitivity: Sensitivity
    jacobian: float


def sliced_wasserstein_gradients(
    X_s: Any, X_t: Any, projections: Any, *, radius: float, jacobian: float = 1.0
) -> SlicedGradients:
    """Gradients of the squared sliced 2-Wasserstein distance in every point, with the sensitivity of their sum.

    Guarantee: `fedsw.privacy.sensitivity.swd_sensitivity`: for points projected onto the ball of the radius, along
    these projections, which must be independent of the data. The gradients are not private: release them summed,
    noised and charged by `fedsw.release`.

    Args:
        X_s, X_t: samples (n, d) and (m, d); points outside the ball are projected onto it.
        projections: unit columns (d, k).
        radius: M, of the ball.
        jacobian: L, the spectral norm that Jacobians behind the points are clipped to; 1 for the points themselves.

    Source: docs/guarantees/sensitivity.md.
    """
    (source, target), made = _taken(X_s, X_t)
    theta = unit_columns(_taken(projections)[0][0], source.shape[1])
    inside = project(source, radius), project(target, radius)
    of_source, other = cotangents(inside[0], inside[1], theta)
    sides = [Side(len(points), radius, jacobian) for points in inside]
    bound = SLACK * worst([swd_sensitivity(*pair, spread=spread(theta)) for pair in (sides, sides[::-1])])
    return SlicedGradients(made(of_source), made(other), bound, jacobian)


def _settings(metric: str, reg: float, solved: dict[str, Any]) -> dict[str, Any]:
    if metric not in _ORDERS:
        raise ValueError(f"metric is {metric!r}; choose 'sqeuclidean' or 'cityblock'")
    order = _ORDERS[metric]
    return {"order": order, "scale": (positive(reg, "reg") / order) ** (1 / order), **solved}


def sinkhorn(M: Any, reg: float, *, numItermax: int = ITERATIONS, stopThr: float = TOLERANCE) -> Any:
    """The entropic plan (n, m) of costs (n, m) between uniform weights.

    As `ot.sinkhorn(ot.unif(n), ot.unif(m), M, reg)`, over-relaxed; `stopThr` is an l1 error of its row sums, where
    POT's is an l2 norm. Not finite where POT's would underflow: scale the costs, or raise `reg`.
    """
    (costs,), made = _taken(M)
    return made(torch.from_numpy(entropic_plan(costs.detach().double().numpy(), reg, stopThr, numItermax)))


def sinkhorn2(X_s: Any, X_t: Any, reg: float, *, metric: Metric = "sqeuclidean", **solved: Any) -> Any:
    """The entropic loss <plan, costs> + reg KL(plan | product of the weights) of samples (n, d) and (m, d).

    As `ot.solve_sample(X_s, X_t, reg=reg, reg_type="KL").value`; `ot.sinkhorn2` returns <plan, costs> alone. With torch
    tensors it is differentiable in `X_s`. Keywords are those of `fedsw.mathematics.transport.entropic.entropic_loss`.
    """
    (source, target), made = _taken(X_s, X_t)
    return made(entropic_loss(source, target, **_settings(metric, reg, solved)).loss)


def sinkhorn_divergence(X_s: Any, X_t: Any, reg: float, *, metric: Metric = "sqeuclidean", **solved: Any) -> Any:
    """The debiased entropic loss, which is 0 for equal samples.

    Of losses with their entropies, as Feydy et al. (2019) define it and geomloss computes it;
    `ot.bregman.empirical_sinkhorn_divergence` leaves the entropies out, and cuts below 0. See `sinkhorn2`.
    """
    (source, target), made = _taken(X_s, X_t)
    return made(divergence(source, target, **_settings(metric, reg, solved)).loss)


def entropic_denoising(
    released: Any, scale: float, *, points: int | None = None, steps: int = 100, seed: int | None = None
) -> Any:
    """Points (m, d) that, with Gaussian noise of this scale, would look like the released ones (n, d).

    They minimise the entropic loss at 2 scale^2, each step going to the mean of the released points that the plan sends
    there. POT has no such function.

    Guarantee: it reads released points and public numbers only: post-processing, which costs no privacy.

    Args:
        scale: standard deviation of the noise in each coordinate of the released points.
        points: their number m, by default that of the released ones. They start at released points.
        seed: of the choice of these.

    Source: RCO, Theorem 1; docs/guarantees/slices.md.
    """
    (points_given,), made = _taken(released)
    noisy = sample(points_given, "released").detach().double()
    m = len(noisy) if points is None else whole(points, "points", least=1)
    chosen = np.random.default_rng(seed).choice(len(noisy), m, replace=m > len(noisy))
    clean, regulariser = noisy[torch.from_numpy(chosen)], 2 * positive(scale, "scale") ** 2
    for _ in range(whole(steps, "steps", least=1)):
        costs = torch.cdist(clean, noisy).square().numpy()
        plan = torch.from_numpy(entropic_plan(costs, regulariser, TOLERANCE, ITERATIONS))
        clean = plan @ noisy / plan.sum(1, keepdim=True)
    return made(clean)


_ROUNDED = 1e-4  # largest distance from 1 of a sum of many float32 masses


def barycenter(A: Any, edges: Any, weights: Any = None) -> Any:
    """The W2 barycentre (b,) of histograms on one axis, columns of (b, k) as in POT; bins lie between `edges` (b + 1,).

    As `ot.lp.barycenter(A, M, weights)` for the squared distances M of the bins' middles: a linear program, exact. Of
    histograms that were released it is post-processing. ValueError unless each is of masses that sum to 1.
    """
    (columns, at), made = _taken(A, edges)
    k, columns = columns.shape[1], columns.double()
    totals = columns.sum(0)
    if bool((columns < 0).any()) or not bool(((totals - 1).abs() < _ROUNDED).all()):
        raise ValueError(
            f"columns of A sum to {', '.join(f'{total:.6g}' for total in totals.tolist()[:3])}; each is a histogram of "
            "masses, 0 or more, that sum to 1: divide by A.sum(axis=0)"
        )
    shares = np.full(k, 1 / k) if weights is None else np.asarray(_taken(weights)[0][0])
    maps = fair_maps((columns / totals).numpy().T, shares, at.double().numpy(), 0.0)
    return made(torch.from_numpy(maps.barycentre))
