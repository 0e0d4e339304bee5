"""Points that are themselves what is learned."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedsw.randomness import Stream


class Particles(nn.Module):
    """A cloud of m points of R^p, drawn from a centred Gaussian and then moved.

    Its points are a bare parameter, which `fedsw.clipping.check` refuses: no private record passes through them, so
    there is no Jacobian of a record to clip. They may only be moved by what was released (slices or quantiles that
    carry their noise already).

    Raises:
        ValueError: if a size is below 1 or the scale is not a positive number.
    """

    def __init__(self, count: int, dimension: int, *, scale: float = 1.0, seed: int = 0) -> None:
        """Draw `count` points of R^`dimension` with independent coordinates of standard deviation `scale`."""
        super().__init__()
        for name, size in (("count", count), ("dimension", dimension)):
            if size < 1:
                raise ValueError(f"{name} = {size}; it must be at least 1")
        if not 0 < scale < math.inf:
            raise ValueError(f"scale = {scale}; it must be finite and above 0")
        normals = Stream.seeded(seed, "particles").normals(count * dimension).reshape(count, dimension)
        self.points = nn.Parameter(torch.from_numpy(scale * normals).to(torch.float32))

    def forward(self) -> Tensor:
        """The points (count, dimension)."""
        return self.points
