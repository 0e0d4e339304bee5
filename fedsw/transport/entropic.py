"""Transport losses between generated points and privatised ones; the entropic one undoes the noise of the release.

Plans are computed on detached costs (`fedsw.transport.sinkhorn`, POT) and then held fixed: by the envelope theorem the
gradient of the optimal value is that of <plan, cost(generated, released)>, so nothing is differentiated through
Sinkhorn's iterations. All of it is post-processing of released points and costs no privacy.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw.transport.l1 import l1_distances
from fedsw.transport.sinkhorn import entropic_plan, plain_plan

Order = Literal[1, 2]

TOLERANCE = 1e-4
"""Default l1 distance of a plan's marginals from uniform ones at which Sinkhorn's iterations stop."""
ITERATIONS = 5000
"""Default most iterations of Sinkhorn."""

_PIVOTS = 10_000_000  # of the network simplex; POT's default is too small for a few thousand points


@dataclass(frozen=True)
class Matching:
    """A loss and how well its plans were solved.

    Attributes:
        loss: the value, a scalar, float64; its gradient with respect to the generated points is that of the value.
        marginal_error: largest l1 distance of a plan's row or column sums from uniform, measured on the plan used.
        tolerance: what `marginal_error` was to be; above it the solver ran out of iterations.
    """

    loss: Tensor
    marginal_error: float
    tolerance: float

    @property
    def converged(self) -> bool:
        """Whether every plan met the tolerance."""
        return self.marginal_error <= self.tolerance


def entropic_loss(
    generated: Tensor,
    released: Tensor,
    *,
    order: Order,
    scale: float,
    tolerance: float = TOLERANCE,
    iterations: int = ITERATIONS,
    fixed: int | None = None,
) -> Matching:
    """W_{p, p s^p}: least <plan, ||x - y||_p^p> + p s^p KL(plan | product of its marginals), p the order, s the scale.

    With s the scale of the release's noise (p = 2: sigma of Gaussian, regulariser 2 sigma^2; p = 1: b of Laplace,
    regulariser b), the law of the clean points minimises this among all laws of generated points, in the limit of many
    points: the kernel of the regulariser is then the density of the noise.

    Args:
        generated: points (n, d), differentiated.
        released: points (m, d), fixed, in the released space.
        order: p, 1 or 2.
        scale: s, positive.
        tolerance: l1 error of the marginals at which iterations stop.
        iterations: most iterations.
        fixed: so many plain iterations instead, whatever the error: L of RCO's Algorithm 1. Too few leave a plan that
            no gradient of the value belongs to; `Matching.converged` says so.

    Raises:
        ValueError: if shapes do not fit, an argument is out of range, or a cost is not finite.

    Source: RCO, Theorem 1; docs/guarantees.md, "One-shot local release".
    """
    _check_scale(scale, tolerance, iterations if fixed is None else fixed)
    costs = _costs(generated, released, order)
    value, error = _entropic_value(costs, order * scale**order, tolerance, iterations, fixed)
    return Matching(value, error, tolerance)


def plain_loss(generated: Tensor, released: Tensor, *, order: Order) -> Matching:
    """W_p^p with cost ||x - y||_p^p, by the network simplex: fits the released law, noise included.

    Arguments, shapes and errors as in `entropic_loss`; a plan that the simplex could not finish has a marginal error of
    infinity.
    """
    import ot  # only here and below: it takes a second to import, and few runs need it

    with torch.no_grad():
        costs = _costs(generated, released, order)
    n, m = costs.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the log's own warning is read below
        plan, log = ot.emd(_uniform(n), _uniform(m), costs.numpy(), numItermax=_PIVOTS, log=True)
    error = math.inf if log["warning"] is not None else _marginal_error(plan)
    rows, columns = plan.nonzero()  # n + m - 1 at most: the loss and its gradient need no other pair
    moves = (generated.to(torch.float64)[rows] - released.to(torch.float64)[columns]).abs() ** order
    return Matching((torch.from_numpy(plan[rows, columns]) * moves.sum(dim=1)).sum(), error, 1e-9)


def sinkhorn_divergence(
    generated: Tensor,
    released: Tensor,
    *,
    order: Order,
    scale: float,
    tolerance: float = TOLERANCE,
    iterations: int = ITERATIONS,
    fixed: int | None = None,
) -> Matching:
    """The debiased entropic loss W(x, y) - W(x, x)/2 - W(y, y)/2, W as in `entropic_loss`; zero where x = y.

    Like W_p it fits the released law, noise included. Arguments, shapes and errors as in `entropic_loss`.

    Source: Feydy et al. 2019.
    """
    _check_scale(scale, tolerance, iterations if fixed is None else fixed)
    regulariser = order * scale**order
    values, errors = [], []
    for x, y in ((generated, released), (generated, generated), (released, released)):
        value, error = _entropic_value(_costs(x, y, order), regulariser, tolerance, iterations, fixed)
        values.append(value)
        errors.append(error)
    return Matching(values[0] - (values[1] + values[2]) / 2, max(errors), tolerance)


def _costs(generated: Tensor, released: Tensor, order: Order) -> Tensor:
    """||x - y||_p^p of all pairs, (n, m) float64, differentiable in the generated points."""
    if generated.dim() != 2 or released.dim() != 2 or generated.shape[1] != released.shape[1]:
        raise ValueError(
            f"generated points have shape {tuple(generated.shape)} and released ones {tuple(released.shape)}; both "
            "are matrices with as many columns."
        )
    if order not in (1, 2):
        raise ValueError(f"order is {order!r}; choose 1 (Laplace noise) or 2 (Gaussian noise).")
    if 0 in (*generated.shape, *released.shape):
        raise ValueError(
            f"there are {len(generated)} generated and {len(released)} released points: a plan needs some of each."
        )
    x, y = generated.to(torch.float64), released.to(torch.float64)
    if order == 1:
        costs = l1_distances(x, y)
    else:
        centre = y.detach().mean(dim=0)  # distances do not depend on it; nearer to zero they lose fewer digits
        x, y = x - centre, y - centre
        costs = (x * x).sum(dim=1).unsqueeze(1) + (y * y).sum(dim=1) - 2 * (x @ y.T)
    if not bool(torch.isfinite(costs).all()):
        raise ValueError("a cost between generated and released points is not finite: lower the learning rate.")
    return costs


def _entropic_value(
    costs: Tensor, regulariser: float, tolerance: float, iterations: int, fixed: int | None
) -> tuple[Tensor, float]:
    """<plan, costs> + regulariser KL(plan | marginals), with the plan held fixed; and the plan's marginal error."""
    plan = _sinkhorn(costs.detach().numpy(), regulariser, tolerance, iterations, fixed)
    n, m = plan.shape
    ratio = plan * (n * m)
    entropy = float(np.sum(plan * np.log(ratio, where=ratio > 0, out=np.zeros_like(ratio))))
    return (torch.from_numpy(plan) * costs).sum() + regulariser * entropy, _marginal_error(plan)


def _sinkhorn(
    costs: NDArray[np.float64], regulariser: float, tolerance: float, iterations: int, fixed: int | None
) -> NDArray[np.float64]:
    """Entropic plan between uniform marginals: over-relaxed scalings, or POT's log domain if those break down.

    POT's warnings are silenced here, and only here: the plan's own marginals are measured and reported.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if fixed is None:
            plan = entropic_plan(costs, regulariser, tolerance, iterations)
        else:
            plan = plain_plan(costs, regulariser, fixed)
        if not math.isfinite(_marginal_error(plan)):
            import ot

            costs = costs - costs.min(axis=1, keepdims=True)
            n, m = costs.shape
            threshold = tolerance / math.sqrt(max(n, m))  # POT's is an l2 norm
            most = iterations if fixed is None else fixed
            options: dict[str, Any] = {"numItermax": most, "stopThr": threshold, "warn": False}
            plan = ot.bregman.sinkhorn_log(_uniform(n), _uniform(m), costs, regulariser, **options)
    return np.asarray(plan, dtype=np.float64)


def _marginal_error(plan: NDArray[np.float64]) -> float:
    n, m = plan.shape
    return max(float(np.abs(plan.sum(axis=1) - 1 / n).sum()), float(np.abs(plan.sum(axis=0) - 1 / m).sum()))


def _uniform(count: int) -> NDArray[np.float64]:
    return np.full(count, 1.0 / count)


def _check_scale(scale: float, tolerance: float, iterations: int) -> None:
    if not 0.0 < scale < math.inf:
        raise ValueError(f"scale is {scale}; it is that of the release's noise, positive and finite.")
    if not 0.0 < tolerance < 1.0:
        raise ValueError(f"tolerance is {tolerance}; the l1 error of a plan's marginals lies in (0, 1).")
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}; Sinkhorn needs at least 1.")
