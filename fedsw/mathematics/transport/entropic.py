"""Entropic transport: Sinkhorn's plans, losses with the gradient of the envelope theorem, and the plain plan."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.later import Later
from fedsw._tools.settings import real, whole
from fedsw.mathematics.transport.given import array, positive, require_finite, samples

if TYPE_CHECKING:
    import ot
else:  # it takes a second to import, and few runs need it
    ot = Later("ot")


def l1_distances(x: Tensor, y: Tensor) -> Tensor:
    """||x_i - y_j||_1 of all pairs of (n, d) and (m, d): (n, m), differentiable in both; memory O(nm + (n + m) d).

    The same as `torch.cdist(x, y, p=1)`, which takes longer: one pair and one coordinate after the other.
    ValueError for shapes that do not fit, or a number that is not finite.
    """
    x, y = samples(x=x, y=y)
    distances: Tensor = _Distances.apply(x, y)  # type: ignore[no-untyped-call]
    return distances


class _Distances(torch.autograd.Function):
    """l1 distances with their derivative: in x_ik the sum over j of w_ij sign(x_ik - y_jk), 0 if both are equal."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        # |a - b| = 2 max(a, b) - a - b
        sums, larger, ones = x.new_empty(len(x), len(y)), torch.empty_like(y), x.new_ones(x.shape[1])
        for row, point in zip(sums, x, strict=True):
            torch.maximum(y, point, out=larger)
            torch.mv(larger, ones, out=row)
        distances = 2 * sums - x.sum(dim=1).unsqueeze(1) - y.sum(dim=1)
        return distances.clamp_(min=0.0)

    @staticmethod
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        needs_x, needs_y = ctx.needs_input_grad
        return (_signed(x, y, weights) if needs_x else None, _signed(y, x, weights.T) if needs_y else None)


def _signed(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """The sums over j of weights_ij sign(x_i - y_j), (n, d), of points (n, d) and (m, d)."""
    sums, signs = torch.empty_like(x), torch.empty_like(y)
    for row, point, weight in zip(sums, x, weights, strict=True):
        torch.sub(point, y, out=signs).sign_()
        torch.mv(signs.T, weight, out=row)
    return sums


Array = NDArray[np.float64]

_EVERY = 8  # iterations between two looks at how fast the error falls
_LARGEST_OMEGA = 1.97  # over-relaxation diverges from 2 on
_WORSE = 30.0  # times the least error so far: from there on over-relaxation is given up
_FAR = 1e100  # scalings beyond it, or below its inverse, go into the kernel


def entropic_plan(costs: Array, regulariser: float, tolerance: float, iterations: int) -> Array:
    """The plan that minimises <plan, costs> + regulariser KL(plan | product of uniform marginals).

    Scalings u, v of the kernel exp(-costs / regulariser) are updated in turn until the plan's rows add up to uniform
    ones within the tolerance; the columns do after every plain update. An over-relaxed update takes log u a factor
    omega as far as a plain one. Where plain iterations shrink the error by eta each, omega = 2 / (1 + sqrt(1 - eta))
    shrinks it by omega - 1 each: the number of iterations is about the square root of the plain one. omega starts at 1
    and grows with what the errors say of eta. Where the error grows instead, plain iterations follow for good, and
    these always converge.

    Costs are (n, m), finite; iterations stop where the plan's row sums are within the tolerance of uniform, in l1. The
    plan's (n, m) column sums are uniform but for rounding; whether its rows are, the caller measures. It is not finite
    where a row or a column of the kernel vanished.

    Source: Cuturi 2013; Schmitzer 2019 (absorption); Thibault, Chizat, Dossal, Papadakis 2021 and Lehmann, von Renesse,
    Sambale, Uschmajew 2022 (over-relaxation); Young 1954 (omega from rates).
    """
    scaling = _Scaling(array(costs, "costs", 2), positive(regulariser, "regulariser"))
    tolerance, iterations = positive(tolerance, "tolerance"), whole(iterations, "iterations", least=1)
    error, omega = scaling.step(1.0), 1.0
    seen, least, plain = [error], error, False
    for _ in range(iterations - 1):
        if error <= tolerance and (omega == 1.0 or scaling.settled() <= tolerance):
            break
        error = scaling.step(omega)
        if not math.isfinite(error):
            break
        seen.append(error)
        least = min(least, error)
        if omega > 1.0 and error > _WORSE * least:
            omega, plain = 1.0, True
        elif not plain and len(seen) % _EVERY == 0:
            omega = max(omega, _best_omega(seen, omega))
    scaling.settled()
    return scaling.plan()


def plain_plan(costs: Array, regulariser: float, iterations: int) -> Array:
    """The plan (n, m) after these plain ``iterations`` of Sinkhorn (Cuturi 2013), whether converged or not."""
    scaling = _Scaling(array(costs, "costs", 2), positive(regulariser, "regulariser"))
    for _ in range(whole(iterations, "iterations", least=1)):
        scaling.step(1.0)
    return scaling.plan()


def _best_omega(errors: list[float], omega: float) -> float:
    """Estimate the best over-relaxation omega from the last errors; 1 where these do not fall.

    Errors of the best omega fall at the rate omega - 1.
    """
    fell = errors[-1] / errors[-_EVERY // 2 - 1]
    if not 0 < fell < 1:
        return 1.0
    rate = fell ** (2 / _EVERY)
    eta = (rate + omega - 1) ** 2 / (rate * omega**2)
    if rate <= omega - 1 or eta >= 1:
        return 1.0
    return min(2 / (1 + math.sqrt(1 - eta)), _LARGEST_OMEGA)


class _Scaling:
    """The plan diag(u) K diag(v): the kernel K takes factors in before they grow too large or too small."""

    def __init__(self, costs: Array, regulariser: float) -> None:
        n, m = costs.shape
        # Constants of rows and columns do not change the plan; without them every row and column has an entry 1.
        logs = costs - costs.min(axis=1, keepdims=True)
        logs -= logs.min(axis=0)
        logs *= -1.0 / regulariser
        self._logs, self._f, self._g = logs, np.zeros(n), np.zeros(m)
        self._kernel = np.exp(logs)
        self._u, self._v = np.full(n, 1.0 / n), np.full(m, 1.0 / m)

    def step(self, omega: float) -> float:
        """One update of u, and one of v; returns the l1 error of the row sums that the update of u found."""
        n, m = self._kernel.shape
        rows = self._kernel @ self._v
        error = float(np.abs(self._u * rows - 1.0 / n).sum())
        self._u = _towards(self._u, 1.0 / (n * rows), omega)
        self._v = _towards(self._v, 1.0 / (m * (self._u @ self._kernel)), omega)
        if not (min(self._u.min(), self._v.min()) > 1.0 / _FAR and max(self._u.max(), self._v.max()) < _FAR):
            self._f += np.log(self._u)
            self._g += np.log(self._v)
            self._kernel = np.exp(self._logs + self._f[:, None] + self._g)
            self._u, self._v = np.ones_like(self._u), np.ones_like(self._v)
        return error

    def settled(self) -> float:
        """A plain update of v only, so that columns are uniform; returns the l1 error of the rows that is left."""
        n, m = self._kernel.shape
        self._v = 1.0 / (m * (self._u @ self._kernel))
        return float(np.abs(self._u * (self._kernel @ self._v) - 1.0 / n).sum())

    def plan(self) -> Array:
        plan: Array = self._kernel * self._u[:, None]
        plan *= self._v
        return plan


def _towards(old: Array, new: Array, omega: float) -> Array:
    """Return old^(1 - omega) new^omega, the over-relaxed update."""
    if omega == 1.0:
        return new
    moved: Array = new * (new / old) ** (omega - 1.0)
    return moved


Order = Literal[1, 2]

TOLERANCE = 1e-4
"""Default l1 distance of a plan's marginals from uniform ones at which Sinkhorn's iterations stop."""
ITERATIONS = 5000
"""Default most iterations of Sinkhorn."""

_PIVOTS = 10_000_000  # of the network simplex; POT's default is too small for a few thousand points


@dataclass(frozen=True)
class EntropicMatching:
    """A loss, a scalar with the gradient of its value, and how well its plans were solved.

    ``marginal_error`` is the largest l1 distance of a plan's row or column sums from uniform; above the ``tolerance``
    the solver ran out of iterations.
    """

    loss: Tensor
    marginal_error: float
    tolerance: float

    @property
    def converged(self) -> bool:
        """True if every plan met the tolerance."""
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
) -> EntropicMatching:
    """W_{p, p s^p}: least <plan, ||x - y||_p^p> + p s^p KL(plan | product of its marginals), p the order, s the scale.

    With s the scale of the release's noise (p = 2: sigma of Gaussian, regulariser 2 sigma^2; p = 1: b of Laplace,
    regulariser b), the law of the clean points minimises this among all laws of generated points, in the limit of many
    points: the kernel of the regulariser is then the density of the noise.

    Generated points (n, d) are differentiated, released ones (m, d) fixed, in the released space; iterations stop at an
    l1 error of the marginals. So many ``fixed`` plain iterations instead are L of RCO's Algorithm 1: too few leave a
    plan that no gradient of the value belongs to. ValueError for shapes that do not fit, or a cost that is not finite.

    Source: RCO, Theorem 1; docs/guarantees/slices.md.
    """
    scale, tolerance = positive(scale, "scale"), real(tolerance, "tolerance")
    if not 0.0 < tolerance < 1.0:
        raise ValueError(f"tolerance is {tolerance}; the l1 error of a plan's marginals lies in (0, 1).")
    iterations = whole(iterations, "iterations", least=1)
    fixed = None if fixed is None else whole(fixed, "fixed", least=1)
    costs, regulariser = _costs(generated, released, order), order * scale**order
    # <plan, costs> + regulariser KL(plan | marginals), with the plan held fixed.
    plan = _sinkhorn(costs.detach().numpy(), regulariser, tolerance, iterations, fixed)
    ratio = plan * plan.size
    entropy = float(np.sum(plan * np.log(ratio, where=ratio > 0, out=np.zeros_like(ratio))))
    value = (torch.from_numpy(plan) * costs).sum() + regulariser * entropy
    return EntropicMatching(value, _marginal_error(plan), tolerance)


def plain_loss(generated: Tensor, released: Tensor, *, order: Order) -> EntropicMatching:
    """W_p^p with cost ||x - y||_p^p of (n, d) and (m, d), by the network simplex: it fits the noise, too."""
    with torch.no_grad():
        costs = _costs(generated, released, order)
    n, m = costs.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the log's own warning is read below
        plan, log = ot.emd(_uniform(n), _uniform(m), costs.numpy(), numItermax=_PIVOTS, log=True)
    error = math.inf if log["warning"] is not None else _marginal_error(plan)
    rows, columns = plan.nonzero()  # n + m - 1 at most: the loss and its gradient need no other pair
    x, y = samples(generated=generated, released=released)
    moves = (x.to(torch.float64)[rows] - y.to(torch.float64)[columns]).abs() ** order
    return EntropicMatching((torch.from_numpy(plan[rows, columns]) * moves.sum(dim=1)).sum(), error, 1e-9)


def sinkhorn_divergence(generated: Tensor, released: Tensor, **solved: Any) -> EntropicMatching:
    """The debiased entropic loss W(x, y) - W(x, x)/2 - W(y, y)/2, W as in `entropic_loss`; zero where x = y.

    Like W_p it fits the released law, noise included; shapes and arguments are as there. Source: Feydy et al. 2019.
    """
    pairs = ((generated, released), (generated, generated), (released, released))
    both, of_generated, of_released = [entropic_loss(x, y, **solved) for x, y in pairs]
    error = max(both.marginal_error, of_generated.marginal_error, of_released.marginal_error)
    return EntropicMatching(both.loss - (of_generated.loss + of_released.loss) / 2, error, both.tolerance)


def _costs(generated: Tensor, released: Tensor, order: Order) -> Tensor:
    """||x - y||_p^p of all pairs, (n, m) float64, differentiable in the generated points."""
    if order not in (1, 2):
        raise ValueError(f"order is {order!r}; choose 1 (Laplace noise) or 2 (Gaussian noise).")
    x, y = (points.to(torch.float64) for points in samples(generated=generated, released=released))
    if order == 1:
        costs = l1_distances(x, y)
    else:
        centre = y.detach().mean(dim=0)  # distances do not depend on it; nearer to zero they lose fewer digits
        x, y = x - centre, y - centre
        costs = (x * x).sum(dim=1).unsqueeze(1) + (y * y).sum(dim=1) - 2 * (x @ y.T)
    require_finite(costs, "costs")  # squares overflow before their points do
    return costs


def _sinkhorn(
    costs: NDArray[np.float64], regulariser: float, tolerance: float, iterations: int, fixed: int | None
) -> NDArray[np.float64]:
    """Entropic plan between uniform marginals: over-relaxed scalings, or POT's log domain if those break down."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if fixed is None:
            plan = entropic_plan(costs, regulariser, tolerance, iterations)
        else:
            plan = plain_plan(costs, regulariser, fixed)
        if not math.isfinite(_marginal_error(plan)):
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
