"""Noised sketches: what has left, checked when it is made or arrives, added up over clients, and read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw.sketches.law import STEP, Law, count_steps


@dataclass(frozen=True, eq=False)
class NoisedSketch:
    """A released sum of records' vectors. Whatever is computed from it is post-processing.

    Attributes:
        law: what was measured.
        value: (cells, F + 1), float64: sums by cell; the last column counts.
        sigma: standard deviation of the Gaussian noise in every number; 0 without noise.
        records: how many records were added; public.

    Raises:
        ValueError: if the shape does not fit the law, a number is not finite, or sigma is negative.
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
    """The sum of several clients' sketches, each with its own noise; who did not answer is not in it.

    Guarantee: post-processing. One that comes later is added to a pool in the same way.

    Raises:
        ValueError: if there is none, or they are of different laws or lengths.
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
        torch.stack([each.value for each in sketches]).sum(dim=0),
        math.hypot(*(each.sigma for each in sketches)),
        sum(each.records for each in sketches),
    )


def independent_proportions(proportions: Tensor) -> Tensor:
    """The law of independent labels and groups with the marginals of proportions (classes, groups), of sum 1.

    Post-processing of a release. Source: Kamiran, Calders 2012 (reweighing).
    """
    return proportions.sum(dim=1, keepdim=True) * proportions.sum(dim=0, keepdim=True)


def reweighed(proportions: Tensor, wanted: Tensor) -> Tensor:
    """Weights (cells,) of squared distances that fit a law of other proportions with the same law in every cell.

    A cell's block is its proportion p times its mean vector; in the law with proportion q in its place the block is
    q / p times it, so its squared distance is (q / p)^2 times the measured one. Cells without records have weight 0.
    """
    ratio = torch.where(proportions > 0, wanted / proportions.clamp(min=STEP), torch.zeros_like(wanted))
    return ratio.square()
