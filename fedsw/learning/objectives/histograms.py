"""Ranks from noised tables: histograms of projections that a client may release, and the cotangents they allow.

A penalty with ranks from tables names what it compares (`WeightedPenalty.pairs`, `reach`); any other raises TypeError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedsw.learning.objectives._weighted_penalty import Clip, WeightedPenalty
from fedsw.privacy.sensitivity import Sensitivity, loss_sensitivity

_NARROW = 1e-12  # of all ranks; a slot that is narrower has the value at its end


def table_sensitivity(k: int) -> Sensitivity:
    """Sensitivity sqrt(2 k) of a cell's histograms in k directions, under the replacement of one record.

    Guarantee: in every direction the replaced record takes its count from one bin to at most one other, so the tables
    (k, bins) of two batches that differ in one record of the cell differ by at most this in l2 norm; it is attained
    when the record changes bins in every direction. The cell's size stays public. Of several penalties k is the number
    of all their directions together: a record is in one cell of each.

    Source: docs/guarantees/local-gradients.md.
    """
    if k < 1:
        raise ValueError(f"k = {k} directions; a table needs at least 1.")
    return Sensitivity(math.sqrt(2 * k), "histogram")


def bin_of(slices: Tensor, radius: float, bins: int) -> Tensor:
    """Index of the bin of [-radius, radius] that holds each value, int64, of the same shape; of the end bins beyond."""
    return ((slices + radius) * (bins / (2 * radius))).floor().clamp(0, bins - 1).to(torch.int64)


def histograms(outputs: Tensor, directions: Tensor, radius: float, bins: int) -> Tensor:
    """Counts (k, bins) of the projections of outputs (n, d) on directions (d, k), in equal bins of [-M, M]; float64.

    Un-noised: they stay with the client until noise of standard deviation sigma is added, at `table_sensitivity`.
    """
    return histograms_by(outputs, torch.zeros(len(outputs), dtype=torch.int64), 1, directions, radius, bins)[0]


def histograms_by(outputs: Tensor, owner: Tensor, owners: int, directions: Tensor, radius: float, bins: int) -> Tensor:
    """`histograms` of many holders' outputs (n, d) at once, by each row's holder (n,): (owners, k, bins), float64."""
    k = directions.shape[1]
    where = bin_of(_slices(outputs, directions), radius, bins)
    where = where.add_(torch.arange(k) * bins).add_((owner * (k * bins))[:, None]).reshape(-1)
    counts = torch.zeros(owners * k * bins, dtype=torch.float64)
    return counts.scatter_add_(0, where, torch.ones_like(where, dtype=torch.float64)).reshape(owners, k, bins)


def monotone(noisy: Tensor, total: float) -> Tensor:
    """Counts (k, bins) that are not negative and add up to the public `total`, from noisy ones: post-processing.

    The missing total is spread evenly over the bins. Then each row's cumulated counts are replaced by the mean of their
    running maximum and their reversed running minimum, inside [0, total]: of all monotone rows these are nearest in the
    largest deviation, and this step never enlarges the largest error of the cumulated counts.

    Source: Barlow, Bartholomew, Bremner and Brunk 1972 (isotonic regression in the maximum norm).
    """
    even = noisy + (total - noisy.sum(dim=-1, keepdim=True)) / noisy.shape[-1]
    cumulated = even.cumsum(dim=-1)
    above = cumulated.cummax(dim=-1).values
    below = cumulated.flip(-1).cummin(dim=-1).values.flip(-1)
    monotone_ = ((above + below) / 2).clamp(0, total)
    monotone_[..., -1] = total
    return torch.nn.functional.pad(monotone_, (1, 0)).diff(dim=-1)


def slot_means(counts: Tensor, other: Tensor, radius: float) -> Tensor:
    """Mean of the other distribution's quantiles over the rank interval of every own bin: (k, bins), in [-M, M].

    The records of bin b have the ranks [F(b-1), F(b)] of their own distribution; the other's quantile function takes
    its values at the centres of bins, which moves it by at most half a bin. A bin without records sees the quantile at
    its rank. With one record to a bin this is the slot mean of rank matching (`sliced.slot_means`).

    Both are counts (k, bins), not negative, with positive row sums (`monotone`); M is half of the range of the bins.
    """
    return _quantile_means(_cumulated(counts), _cumulated(other), _centres(counts, radius)).clamp(-radius, radius)


def matched(counts: Sequence[Tensor], penalty: WeightedPenalty, radius: float) -> list[Tensor]:
    """For every cell, the table (k, bins) of slot means that its records see, averaged over the compared cells."""
    tables = [torch.zeros_like(cell) for cell in counts]
    for cell, other, share in _shares(penalty):
        tables[cell] += share * slot_means(counts[cell], counts[other], radius)
    return tables


def matched_to_sample(counts: Tensor, sample: Tensor, directions: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Ranks between the records of a table and a public sample: post-processing of the table.

    Counts are (k, bins) of the records (`monotone`), the sample (m, d), with exact quantiles, directions (d, k)
    unit columns. With the slot means (k, bins) that the records see comes the derivative (m, d) of SW2^2, float64.
    """
    slices = _slices(sample, directions)
    values, order = slices.T.sort(dim=-1)
    ranks = torch.linspace(0, 1, len(sample) + 1, dtype=torch.float64).expand(len(values), -1)
    seen = _quantile_means(_cumulated(counts), ranks, values)
    theirs = _quantile_means(ranks, _cumulated(counts), _centres(counts, radius))
    gaps = torch.empty_like(values).scatter_(-1, order, values - theirs)
    return seen, 2 / (len(sample) * directions.shape[1]) * (gaps.T @ directions.to(torch.float64).T)


def _centres(counts: Tensor, radius: float) -> Tensor:
    """The middle of every bin of [-radius, radius], (k, bins)."""
    bins = counts.shape[-1]
    return ((torch.arange(bins, dtype=torch.float64) + 0.5) * (2 * radius / bins) - radius).expand(counts.shape)


def _quantile_means(ranks: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Means (k, b) over intervals between ranks (k, b + 1) of functions of values (k, m) between knots (k, m + 1)."""
    integral = torch.nn.functional.pad((knots.diff(dim=-1) * values).cumsum(dim=-1), (1, 0))
    # The piece that a rank falls in; the last rank belongs to the last piece that is not empty.
    at = torch.searchsorted(knots.contiguous(), ranks.clamp(max=1 - _NARROW), right=True)
    at = at.sub_(1).clamp_(0, values.shape[-1] - 1)
    values_at = values.gather(-1, at)
    upto = integral.gather(-1, at) + values_at * (ranks - knots.gather(-1, at))
    width = ranks.diff(dim=-1)
    wide = width > _NARROW
    return torch.where(wide, upto.diff(dim=-1) / torch.where(wide, width, 1.0), values_at[..., 1:])


def cotangents(
    outputs: Tensor,
    directions: Tensor,
    table: Tensor,
    penalty: WeightedPenalty,
    *,
    cell: int,
    size: int | Tensor,
    radius: float,
) -> Tensor:
    """Cotangents (n, d) of one client's outputs of a cell: alpha times the penalty's, with ranks from a table; float64.

    Row i is alpha W (2 / size) (1/k) sum_l (<theta_l, u_i> - T_l(bin of <theta_l, u_i>)) theta_l, W the summed weight
    of the cell's comparisons. The table is clamped to [-A, A] and cleaned of NaN here: a server's word is not a bound.
    A is M between groups, and the radius of a public sample.

    Guarantee: row i depends on record i and on the table only, and its norm is at most `cotangent_bound`.

    Outputs (n, d) are in the ball of radius M, directions (d, k) unit columns, the table (k, bins) slot means by bin;
    ``size`` is that of the cell in the whole federation's batch, or (n, 1), what each row's client takes it for.
    """
    reach = penalty.reach(radius)
    means = table.to(torch.float64).nan_to_num().clamp(-reach, reach)
    slices = _slices(outputs, directions)
    where = bin_of(slices, radius, means.shape[1])
    gaps = slices - means.T.gather(0, where)
    scale = penalty.alpha * penalty.weight_of(cell) * 2 / (size * directions.shape[1])
    return scale * (gaps @ directions.to(torch.float64).T)


def cotangent_bound(penalty: WeightedPenalty, *, cell: int, size: int, radius: float, spread: float) -> float:
    """The largest norm of a cotangent of `cotangents`: alpha W (2 / size) (lambda M + sqrt(lambda) A)."""
    weight = penalty.alpha * penalty.weight_of(cell)
    return weight * 2 / size * (spread * radius + math.sqrt(spread) * penalty.reach(radius))


def pulled_sensitivity(
    penalty: WeightedPenalty, sizes: Sequence[int], clip: Clip, *, cell: int, spread: float
) -> Sensitivity:
    """Sensitivity of a penalty's part of the contribution to one replaced record of a cell, given its noised tables.

    It is 2 L max ||q||: only the replaced record's own term moves, since every other record's cotangent depends on
    itself and on the tables.
    """
    public = penalty.sensitivities(sizes, clip, d=1, alone=True)[cell].public
    norm = cotangent_bound(penalty, cell=cell, size=sizes[cell], radius=clip.output, spread=spread)
    return Sensitivity(2 * clip.jacobian * norm, "own terms", public=public)


def contribution_sensitivity(
    penalty: WeightedPenalty, sizes: Sequence[int], clip: Clip, *, cell: int, spread: float
) -> Sensitivity:
    """Sensitivity of a client's contribution to one replaced record of a cell, given the noised tables.

    It is 2 L max ||q|| + (1 - alpha) 2 C / sum(sizes): see `pulled_sensitivity`.

    Guarantee: protects the client's record against everyone, jointly with the noised table that the same batch was
    asked for (compose the two, then amplify by the sampling); its cell and all sizes stay public.

    ``sizes`` are records of every cell in the whole federation's batch; the spread is 1 in dimension 1.

    Source: docs/guarantees/local-gradients.md.
    """
    pulled = pulled_sensitivity(penalty, sizes, clip, cell=cell, spread=spread)
    return pulled + (1 - penalty.alpha) * loss_sensitivity(clip.loss, sum(sizes))


def _shares(penalty: WeightedPenalty) -> list[tuple[int, int, float]]:
    """(cell, compared cell, share of the cell's comparisons)."""
    both = [(a, b, weight) for i, j, weight in penalty.pairs for a, b in ((i, j), (j, i))]
    return [(cell, other, weight / penalty.weight_of(cell)) for cell, other, weight in both]


def _cumulated(counts: Tensor) -> Tensor:
    """Ranks (k, bins + 1) from 0 to 1 at the edges of the bins."""
    sums = torch.nn.functional.pad(counts.cumsum(dim=-1), (1, 0))
    return sums / sums[..., -1:]


def _slices(outputs: Tensor, directions: Tensor) -> Tensor:
    return outputs.to(torch.float64) @ directions.to(torch.float64)
