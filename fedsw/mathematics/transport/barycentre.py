"""Fair post-processing of one-dimensional scores: group histograms are moved towards a common barycentre by an LP."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from fedsw._tools.settings import real
from fedsw.mathematics.transport.given import array, column

_LEAST_WEIGHT = 1e-6  # of a group that noise leaves without records: it is mapped, too

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FairMaps:
    """Random maps of scores, one a group: a score in a bin goes to the middle of a bin drawn by a transport plan.

    Scores of each group go between bins of the ``edges`` (b + 1,) with probabilities ``maps`` (groups, b, b), so that
    histograms become ``distributions`` (groups, b) in the ball of radius beta / 2 about the ``barycentre`` (b,), at a
    weighted mean squared distance, the ``cost``.
    """

    edges: Array
    maps: Array
    distributions: Array
    barycentre: Array
    cost: float

    def __call__(self, scores: Array, groups: NDArray[np.int64], generator: np.random.Generator) -> Array:
        """Fair scores (n,) of scores (n,) and groups (n,); what is random in them is for fairness, not for privacy.

        A score that is NaN stays NaN.
        """
        middles = (self.edges[:-1] + self.edges[1:]) / 2
        scores = column(scores, "scores")
        bins = bins_of(scores, self.edges)
        rising = self.maps.cumsum(axis=2)[groups, bins]
        draws = generator.random((len(scores), 1)) * rising[:, -1:]
        return np.where(np.isnan(scores), np.nan, middles[(draws >= rising).sum(axis=1)])


def bins_of(scores: Array, edges: Array) -> NDArray[np.int64]:
    """The bin of every score, (n,) to (n,); scores outside the edges (b + 1,) are in the first or the last bin.

    NaN is in the last one: scores may be private, and nothing raises because of a private number.
    """
    edges = array(edges, "edges", 1)
    if len(edges) < 2:
        raise ValueError(f"{len(edges)} edges bound no bin; give at least 2")
    index = np.searchsorted(edges, column(scores, "scores"), side="right") - 1
    return np.asarray(np.clip(index, 0, len(edges) - 2), dtype=np.int64)


def distributions_of(counts: Array) -> tuple[Array, Array]:
    """Distributions (groups, b) and weights (groups,) that noised counts (groups, b) stand for.

    A group's cumulative sums, over its total, are replaced by the nearest non-decreasing sequence in the largest
    deviation and clamped to [0, 1]. Post-processing. Source: Xian, Li, Kamath, Zhao 2024, Algorithm 1.
    """
    counts = array(counts, "counts", 2)
    totals = counts.sum(axis=1)
    weights = np.maximum(totals / max(float(totals.sum()), _LEAST_WEIGHT), _LEAST_WEIGHT)
    rising = counts.cumsum(axis=1) / np.maximum(totals, _LEAST_WEIGHT)[:, None]
    low = np.maximum.accumulate(rising, axis=1)
    high = np.minimum.accumulate(rising[:, ::-1], axis=1)[:, ::-1]
    monotone = np.clip((low + high) / 2, 0.0, 1.0)
    monotone[:, -1] = 1.0
    return np.diff(monotone, axis=1, prepend=0.0), weights / weights.sum()


def fair_maps(distributions: Array, weights: Array, edges: Array, radius: float) -> FairMaps:
    """The cheapest maps onto a Kolmogorov-Smirnov ball of diameter `radius` about one distribution.

    Minimises the weighted mean of the squared distances moved, over couplings of every group's distribution with a new
    one, such that all distribution functions are within radius / 2 of a common one: two groups then differ by at most
    `radius`. With radius 0 the common one is the groups' Wasserstein barycentre on the grid; from 1 on nothing moves.

    Distributions (groups, b) have rows summing to 1; weights (groups,) are of the cost, edges (b + 1,) of the bins.
    RuntimeError if the linear program has no solution, in the solver's words.

    Source: Xian, Li, Kamath, Zhao 2024 (the linear program of Section 3); solved by HiGHS through scipy.
    """
    distributions, weights = array(distributions, "distributions", 2), array(weights, "weights", 1)
    edges, radius = array(edges, "edges", 1), real(radius, "radius")
    groups, b = distributions.shape
    if len(edges) != b + 1 or len(weights) != groups:
        raise ValueError(
            f"{groups} distributions over {b} bins need {b + 1} edges and {groups} weights; there are {len(edges)} and "
            f"{len(weights)}"
        )
    if not 0 <= radius <= 1:
        raise ValueError(f"radius is {radius}; a Kolmogorov-Smirnov distance lies in [0, 1]")
    middles = (edges[:-1] + edges[1:]) / 2
    moved = np.square(middles[:, None] - middles[None, :]).ravel()
    cost = np.concatenate([np.outer(weights, moved).ravel(), np.zeros(b)])
    equal, right = _marginals(distributions)
    within, limits = _ball(groups, b, radius)
    solution = linprog(cost, A_ub=within, b_ub=limits, A_eq=equal, b_eq=right, bounds=(0, None), method="highs")
    if solution.status != 0:
        raise RuntimeError(f"the linear program of the fair maps has no solution: {solution.message}")
    couplings = np.clip(solution.x[: groups * b * b].reshape(groups, b, b), 0.0, None)
    mass = couplings.sum(axis=2, keepdims=True)
    return FairMaps(
        edges,
        # Rows as probabilities; a bin without mass stays where it is.
        np.where(mass > 0, couplings / np.where(mass > 0, mass, 1.0), np.eye(b)[None]),
        couplings.sum(axis=1),
        np.asarray(solution.x[groups * b * b :]),
        float(solution.fun),
    )


def _marginals(distributions: Array) -> tuple[sparse.csr_array, Array]:
    """Constraints: every coupling has its group's distribution as first marginal, and the barycentre sums to 1."""
    groups, b = distributions.shape
    rows = sparse.kron(sparse.identity(groups * b), np.ones((1, b)))
    whole = sparse.block_diag([rows, np.ones((1, b))])
    return sparse.csr_array(whole), np.concatenate([distributions.ravel(), [1.0]])


def _ball(groups: int, b: int, radius: float) -> tuple[sparse.csr_array, Array]:
    """Constraints: |F_a(j) - F(j)| <= radius / 2 for every group a and bin j."""
    lower = sparse.csr_array(np.tril(np.ones((b, b))))
    second = sparse.kron(np.ones((1, b)), lower)  # cumulative sums of a coupling's second marginal
    functions = sparse.block_diag([second] * groups)
    common = sparse.vstack([lower] * groups)
    gaps = sparse.hstack([functions, -common])
    return sparse.csr_array(sparse.vstack([gaps, -gaps])), np.full(2 * groups * b, radius / 2)
