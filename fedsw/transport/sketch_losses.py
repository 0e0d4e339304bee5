"""Squared distances between a noised sketch and generated, labelled samples: unbiased, for batches of any size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsw.transport.noised_sketches import NoisedSketch


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
        vectors: phi of the generated samples (m, F), differentiable.
        cells: (m,) int64, theirs.

    Returns:
        A scalar, differentiable in `vectors`.

    Source: Gretton, Borgwardt, Rasch, Schoelkopf, Smola 2012, Lemma 6 (U-statistic).
    """
    sums, squares, counts = _by_cell(vectors, cells, len(target.blocks))
    scale = target.proportions / counts.clamp(min=1)
    cross = (target.blocks * sums).sum(dim=1) * scale
    pairs = (sums.square().sum(dim=1) - squares) * scale.square() * counts / (counts - 1).clamp(min=1)
    terms = target.blocks.square().sum(dim=1) - 2 * cross + pairs
    present = (counts >= 2) | (target.proportions == 0)
    return (target.weights * torch.where(present, terms, 0.0)).sum() - target.noise


def drawn_distance(target: Target, vectors: Tensor, cells: Tensor) -> Tensor:
    """The same for cells that were drawn at random, independently, with the target's proportions.

    Unbiased for any batch of two or more, whichever cells are in it: where there are more cells than a batch can hold
    twice.

    Args:
        target: of the sketch.
        vectors: (m, F), m >= 2.
        cells: (m,) int64.

    Returns:
        A scalar, differentiable in `vectors`.
    """
    sums, squares, _ = _by_cell(vectors, cells, len(target.blocks))
    m = len(vectors)
    pairs = (sums.square().sum(dim=1) - squares) / (m * (m - 1))
    terms = target.blocks.square().sum(dim=1) - 2 * (target.blocks * sums).sum(dim=1) / m + pairs
    return (target.weights * terms).sum() - target.noise


def _by_cell(vectors: Tensor, cells: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of vectors (cells, F), sums of their squared norms (cells,), and how many there are (cells,)."""
    members = (cells.unsqueeze(0) == torch.arange(count, device=cells.device).unsqueeze(1)).to(vectors)
    return members @ vectors, members @ vectors.square().sum(dim=1), members.sum(dim=1)
