"""The flat vector that the parts of all records are added to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedsw.clipping.limits import Part, cuts


class Total:
    """A sum over records, float64, by the places of the trainable parameters.

    Attributes:
        names: of the parameters, by identity.
        size: r, the numbers of all parameters.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Lay the parameters out in their order."""
        self.names: dict[int, str] = {}
        self._offsets: dict[int, int] = {}
        self.size = 0
        for name, parameter in parameters.items():
            self.names[id(parameter)] = name
            self._offsets[id(parameter)] = self.size
            self.size += parameter.numel()

    def zeros(self, device: torch.device) -> Tensor:
        """An empty sum (r,)."""
        return torch.zeros(self.size, dtype=torch.float64, device=device)

    def add(self, total: Tensor, parts: Sequence[Part], limits: Tensor, keep: Tensor) -> None:
        """Add the parts of some records, each cut to its limit (n,), of those that are kept (n,)."""
        if not parts:
            return
        cut = cuts(parts, limits).mul_(keep)
        for part in parts:
            factors = cut if part.scale is None else (cut * part.scale).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            for name, value in part.summed(factors).items():
                parameter, start = part.call.place(name)
                offset = self._offsets[id(parameter)] + start
                total[offset : offset + value.numel()].add_(value.reshape(-1))
