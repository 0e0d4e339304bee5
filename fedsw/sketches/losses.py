"""Squared distances between a noised sketch and generated, labelled samples: unbiased, for batches of any size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw.sketches.law import BatchSums, sums_of_vectors
from fedsw.sketches.noised import NoisedSketch


@dataclass(frozen=True, eq=False)
class Target:
    """What generated samples are compared with: a noised sketch, in the precision and on the device of training.

    Attributes:
        blocks: (cells, F), the sketch's sums over its records.
        proportions: (cells,), of the generated law.
        weights: (cells,), of every cell's squared distance.
        noise: mean of the squared noise in the weighted blocks, which `distance` takes off.
    """

    blocks: Tensor
    proportions: Tensor
    weights: Tensor
    noise: float

    @classmethod
    def of(cls, sketch: NoisedSketch, *, weights: Tensor | None = None, like: Tensor | None = None) -> Target:
        """The target of a sketch.

        Args:
            sketch: (cells, F + 1) numbers, released.
            weights: (cells,), at least 0; None for 1, the distance between the laws of features and labels together.
            like: a tensor of the wanted precision and device; None for float64 on the CPU.

        Raises:
            ValueError: if the weights have another shape, are negative or all 0.
        """
        chosen = torch.ones(sketch.law.cells, dtype=torch.float64) if weights is None else weights.to(torch.float64)
        if chosen.shape != (sketch.law.cells,) or bool((chosen < 0).any()) or not float(chosen.sum()) > 0:
            raise ValueError(
                f"weights have shape {tuple(chosen.shape)}; give one number of at least 0 for each of the "
                f"{sketch.law.cells} cells, not all 0"
            )
        noise = sketch.deviation**2 * sketch.coordinates * float(chosen.sum())
        found = (sketch.blocks, sketch.proportions, chosen.to(sketch.value.device))
        blocks, proportions, cell_weights = found if like is None else (each.to(like) for each in found)
        return cls(blocks, proportions, cell_weights, noise)

    def at(self, places: Tensor, factors: Tensor) -> Target:
        """The target at some coordinates, places (m,), multiplied by factors (m,): see `Sketcher.some`."""
        kept = self.blocks[:, places.to(self.blocks.device)] * factors.to(self.blocks)
        return Target(kept, self.proportions, self.weights, self.noise)


def distance(target: Target, vectors: Tensor, cells: Tensor) -> Tensor:
    """`distance_of_sums` of vectors phi of generated samples (m, F), differentiable, in cells (m,) int64."""
    return distance_of_sums(target, sums_of_vectors(vectors, cells, len(target.blocks)))


def distance_of_sums(target: Target, batch: BatchSums) -> Tensor:
    """Unbiased estimate of the weighted squared distance between the sketched records and a generated law.

    With b_c the target's blocks, p_c its proportions and mu_c the mean vector that the generator has for cell c, it
    estimates sum_c weight_c |E b_c - p_c mu_c|^2 without bias, given as many samples of each cell as there are: the
    square of a mean is taken over pairs of *different* samples, and the mean of the squared noise is taken off. It may
    be negative. A square with its diagonal would pull small batches together. Cells without two samples are left out,
    so a batch has two or more of every cell of positive proportion.

    Guarantee: post-processing of the sketch. BatchNorm and whatever else mixes samples of a batch is allowed in the
    generator, since no record passes through it; samples of a batch then depend on each other a little, and what is
    estimated is the distance of the law that the batch's own statistics make.

    Args:
        target: of the sketch.
        batch: sums over the vectors of the generated samples, by cell.

    Returns:
        A scalar, differentiable in the vectors.

    Source: Gretton, Borgwardt, Rasch, Schoelkopf, Smola 2012, Lemma 6 (U-statistic).
    """
    sums, squares, counts = batch.sums, batch.squares, batch.counts
    scale = target.proportions / counts.clamp(min=1)
    cross = (target.blocks * sums).sum(dim=1) * scale
    pairs = (sums.square().sum(dim=1) - squares) * scale.square() * counts / (counts - 1).clamp(min=1)
    terms = target.blocks.square().sum(dim=1) - 2 * cross + pairs
    present = (counts >= 2) | (target.proportions == 0)
    return (target.weights * torch.where(present, terms, 0.0)).sum() - target.noise


def drawn_distance(target: Target, vectors: Tensor, cells: Tensor) -> Tensor:
    """`drawn_distance_of_sums` of vectors (m, F), m >= 2, in cells (m,) int64."""
    return drawn_distance_of_sums(target, sums_of_vectors(vectors, cells, len(target.blocks)))


def drawn_distance_of_sums(target: Target, batch: BatchSums) -> Tensor:
    """The same for cells that were drawn at random, independently, with the target's proportions.

    Unbiased for any batch of two or more, whichever cells are in it: where there are more cells than a batch can hold
    twice.

    Args:
        target: of the sketch.
        batch: sums over the vectors of m >= 2 samples, by cell.

    Returns:
        A scalar, differentiable in the vectors.
    """
    sums, squares, m = batch.sums, batch.squares, batch.counts.sum()
    pairs = (sums.square().sum(dim=1) - squares) / (m * (m - 1))
    terms = target.blocks.square().sum(dim=1) - 2 * (target.blocks * sums).sum(dim=1) / m + pairs
    return (target.weights * terms).sum() - target.noise
