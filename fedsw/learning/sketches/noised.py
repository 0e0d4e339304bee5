"""Sketches that leave: how far one replaced record moves the sum, the sum as a `Bounded`, and what has left, noised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw.learning.sketches.parts import diameter
from fedsw.learning.sketches.sketch_law import MOST_RECORDS, STEP, Law, Sketcher, count_steps
from fedsw.privacy.accounting import Charge
from fedsw.privacy.relations import REPLACE_ANY
from fedsw.privacy.release import Bounded
from fedsw.privacy.sensitivity import SLACK, Sensitivity


@dataclass(frozen=True, eq=False)
class NoisedSketch:
    """A released sum of records' vectors. Whatever is computed from it is post-processing.

    The ``value`` (cells, F + 1), float64, is the sum by cell, with a last column that counts, over ``records``,
    a public number; Gaussian noise in every number has the standard deviation ``sigma``, 0 without noise. ValueError if
    the shape does not fit the law, a number is not finite, or sigma is negative.
    """

    law: Law
    value: Tensor
    sigma: float
    records: int

    def __post_init__(self) -> None:
        if self.value.ndim != 2 or self.value.shape[0] != self.law.cells or self.value.shape[1] < 2:
            raise ValueError(
                f"a sketch has shape {tuple(self.value.shape)}; its law has {self.law.cells} cells: expected "
                f"({self.law.cells}, F + 1)"
            )
        if not (0 <= self.sigma < math.inf and self.records >= 1):
            raise ValueError(f"sigma = {self.sigma}, records = {self.records}; at least 0 and finite, and at least 1")
        if not bool(torch.isfinite(self.value).all()):
            raise ValueError("a sketch holds a number that is not finite; it was damaged on its way")
        object.__setattr__(self, "value", self.value.detach().to(torch.float64))

    @property
    def coordinates(self) -> int:
        """F, the length of a record's vector."""
        return self.value.shape[1] - 1

    @property
    def blocks(self) -> Tensor:
        """Sums of the records' vectors over the number of all records, (cells, F)."""
        return self.value[:, :-1] / self.records

    @property
    def counts(self) -> Tensor:
        """Noised numbers of records by cell, (cells,); they may be negative."""
        return self.value[:, -1] / (count_steps(self.law) * STEP)

    @property
    def proportions(self) -> Tensor:
        """Fractions of the cells, (cells,): the counts without negative ones, with sum 1; equal if none is left."""
        positive = self.counts.clamp(min=0)
        total = positive.sum()
        return torch.where(total > 0, positive / total.clamp(min=STEP), torch.full_like(positive, 1 / len(positive)))

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in every number of `blocks`."""
        return self.sigma / self.records


def pooled(sketches: Sequence[NoisedSketch]) -> NoisedSketch:
    """The sum of several clients' sketches, each with its own noise; non-responders are not in it.

    Guarantee: post-processing. One that comes later is added to a pool in the same way.

    ValueError if there is none, or they are of different laws or lengths.
    """
    if not sketches:
        raise ValueError("no sketch to add up: give at least one")
    first = sketches[0]
    for other in sketches[1:]:
        if other.law != first.law or other.value.shape != first.value.shape:
            raise ValueError(
                "sketches are of different laws or lengths and measure different things: take the same law, seed "
                "included, at every client"
            )
    return NoisedSketch(
        first.law,
        torch.stack([sketch.value for sketch in sketches]).sum(dim=0),
        math.hypot(*(sketch.sigma for sketch in sketches)),
        sum(sketch.records for sketch in sketches),
    )


def independent_cells(sketch: NoisedSketch) -> Tensor:
    """The proportions (cells,) of a sketch's cells if labels and groups were independent, with the same marginals.

    Post-processing of a release. Source: Kamiran, Calders 2012 (reweighing).
    """
    together = sketch.proportions.reshape(sketch.law.classes, sketch.law.groups)
    return (together.sum(dim=1, keepdim=True) * together.sum(dim=0, keepdim=True)).reshape(-1)


def reweighed(proportions: Tensor, wanted: Tensor) -> Tensor:
    """Weights (cells,) of squared distances that fit a law of other proportions with the same law in every cell.

    A cell's block is its proportion p times its mean vector; in the law with proportion q in its place the block is
    q / p times it, so its squared distance is (q / p)^2 times the measured one. Cells without records have weight 0.
    """
    ratio = torch.where(proportions > 0, wanted / proportions.clamp(min=STEP), torch.zeros_like(wanted))
    return ratio.square()


STRATUM = "records"
"""A ledger's name for the records of a sketch: all of them are in one stratum, and all are taken."""

RELATION = REPLACE_ANY
PUBLIC = ("the number of records",)


def sketch_sensitivity(law: Law) -> Sensitivity:
    """Sensitivity of the sum to the replacement of one record by any other, its label and group included.

    Guarantee: for any two sets of n records that differ in one record, features, label and group, at one position, the
    sums of `Sketcher.sums` on the same device, in the same chunks, differ by at most `value` in l2 norm, rounding
    included. Within a cell by sqrt(2 + 2 sum_b weight_b c_b), where -c_b is the least inner product of part b: 2 for
    cosines and sines, as finitely many have a kernel that is negative somewhere, and sqrt(2) for codes and moments.
    Between two cells by sqrt(2 (1 + counts)): blocks of different cells are orthogonal. So counts of up to 1 are free
    beside cosines and sines. Public: n, and the law.

    Source: docs/guarantees/sketches.md; Harder, Adamczewski, Park 2021, for 2 and the blocks of labels.
    """
    pairs = zip(law.weights, law.parts, strict=True)
    within = math.sqrt(sum(weight * diameter(part) ** 2 for weight, part in pairs))
    between = math.sqrt(2 * (1 + law.counts)) if law.cells > 1 else 0.0
    bound = "sketch within a cell" if within >= between else "sketch between cells"
    return Sensitivity(SLACK * max(within, between), bound, RELATION, PUBLIC)


def least_noise_shares(sketchers: Sequence[Sketcher]) -> tuple[float, ...]:
    """Choose the shares of the budget (of mu^2) of several releases of the same records, with sum 1.

    In the mean of part k of a release, a vector of F_k numbers with squared norm at most w_k, the part's weight,
    noise has the squared norm F_k sigma^2 / n^2 in every cell, with sigma = m Delta / sqrt(share). Noise over signal,
    summed over the parts of all releases, is least where shares are proportional to Delta sqrt(sum_k F_k / w_k). n, the
    cells and the whole budget are factors of all of it and drop out: the laws give the same shares everywhere,
    before any record is counted. Numbers that a law leaves at 0 do not count.
    """
    roots = []
    for sketcher in sketchers:
        noise = sum(measured / weight for measured, weight in zip(sketcher.measured, sketcher.law.weights, strict=True))
        roots.append(sketch_sensitivity(sketcher.law).value * math.sqrt(noise))
    return tuple(root / sum(roots) for root in roots)


def bounded_sketch(sketcher: Sketcher, features: Tensor, cells: Tensor, *, attempt: int = 0) -> Bounded:
    """The sketch of a set of records, to be released with noise of its own (a client by itself, one machine).

    Guarantee: `sketch_sensitivity`. It states one charge, of the whole set at sampling rate 1. A second release of the
    same records is charged again, under another attempt.

    The sketcher is the law, drawn, on the device of the features (n, p) and of their precision; cells are (n,) int64
    (see `Law.cell_of`). ValueError as `Sketcher.sums`.
    """
    return _bounded(sketcher.law, sketcher.sums(features, cells), 0, attempt, STRATUM)


def bounded_sum(
    law: Law,
    sums: Sequence[Tensor],
    records: Sequence[int],
    *,
    round: int = 0,
    attempt: int = 0,
    stratum: str = STRATUM,
) -> Bounded:
    """The sum of clients' sketches without noise, to be noised once by a server that they trust.

    Guarantee: `sketch_sensitivity`, for a replaced record of any client. Sums of whole steps are exact, in any order.

    Of every client there is a sum (cells, F + 1), by `Sketcher.sums`, and its number of records, which is public. The
    ``stratum`` is what the ledger calls all records. ValueError if there is no client, a sum is not what its records
    can make (`require_sum`), or all of them have more than MOST_RECORDS records.
    """
    if not sums or len(sums) != len(records):
        raise ValueError(f"{len(sums)} sums and {len(records)} numbers of records; give one of each for every client")
    for total, held in zip(sums, records, strict=True):
        require_sum(law, total, held)
        if total.shape != sums[0].shape:
            raise ValueError(f"sums have shapes {tuple(sums[0].shape)} and {tuple(total.shape)}; one law has one shape")
    if sum(records) > MOST_RECORDS:
        raise ValueError(f"{sum(records)} records are to be summed; sums are exact for up to {MOST_RECORDS}")
    return _bounded(law, torch.stack([total.cpu() for total in sums]).sum(dim=0), round, attempt, stratum)


def require_sum(law: Law, total: Tensor, records: int) -> None:
    """Refuse a sum (cells, F + 1) that no such number of records makes: a fault, or a client that does not follow."""
    if total.ndim != 2 or total.shape[0] != law.cells or total.dtype != torch.float64:
        raise ValueError(
            f"a sum of records' vectors is {total.dtype} of shape {tuple(total.shape)}; expected float64 of "
            f"({law.cells}, F + 1)"
        )
    steps = total / STEP
    if not bool((steps == steps.round()).all()):
        raise ValueError("a sum holds numbers that are no whole multiples of the step: it is none of `Sketcher.sums`")
    counts = steps[:, -1].round().to(torch.int64)
    if bool((counts % count_steps(law) != 0).any()) or bool((counts < 0).any()):
        raise ValueError("a sum counts no whole numbers of records in its cells: it is none of `Sketcher.sums`")
    counted = int(counts.sum()) // count_steps(law)
    length = float(torch.linalg.vector_norm(total[:, :-1], dim=1).sum())
    if counted != records or length > SLACK * records:
        raise ValueError(
            f"a sum counts {counted} records and weighs {length:.6g}; of {records} records it counts as many and "
            f"weighs at most {SLACK * records:.6g}"
        )


def bits_per_number(law: Law, records: int) -> int:
    """Bits of every number of a sum over ``records``, in whole steps with a sign: what secure aggregation adds.

    The sum is a vector of integers as it is; noise on a grid adds what its scale needs.
    """
    largest = math.ceil(max(1.0, math.sqrt(law.counts)) * SLACK * records / STEP)
    return largest.bit_length() + 1


def _bounded(law: Law, total: Tensor, round_: int, attempt: int, stratum: str) -> Bounded:
    sensitivity = sketch_sensitivity(law)
    charge = Charge(stratum, 1.0, sensitivity.value)
    return Bounded(total.cpu(), sensitivity, round=round_, attempt=attempt, charges=[charge])
